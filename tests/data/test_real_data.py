"""Real images, the real program: is Fashion-MNIST learnt as fast as elsewhere?"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
OWN = os.environ.get('TFDS_DATA_DIR')
PREPARED = pathlib.Path(OWN) if OWN else ROOT.parent / 'shared/data/tfds'
# Test accuracy after rounds 1 to 3 of an independent implementation in PyTorch, with
# its own draws; two seeds of its FedAvg (0.23, 0.44, 0.60) differ by 0.02.
ELSEWHERE = {
  'scaffold': (0.23, 0.50, 0.61),
  'moon': (0.23, 0.41, 0.56),
}
BAND = 0.10


@pytest.mark.slow
@pytest.mark.skipif(
  not (PREPARED / 'fashion_mnist').is_dir(),
  reason='no prepared Fashion-MNIST in $TFDS_DATA_DIR or ../shared/data/tfds',
)
@pytest.mark.parametrize('algorithm', ELSEWHERE)
def test_fashion_mnist_is_learnt_as_fast_as_elsewhere(tmp_path, algorithm):
  flags = [
    '--config=configs/fashion_mnist_moon.py',
    f'--config.algorithm={algorithm}',
    f'--config.data.dir={PREPARED}',
    '--config.num_rounds=3',
    '--config.local_epochs=1',
    f'--workdir={tmp_path / "run"}',
  ]
  if algorithm == 'moon':
    flags.append('--config.moon.mu=1')
  # If the run tried to import TensorFlow, this module would leave a file.
  trap, trace = tmp_path / 'trap', tmp_path / 'imported'
  trap.mkdir()
  code = f'open({str(trace)!r}, "w").close()\nraise ImportError("trap")\n'
  (trap / 'tensorflow.py').write_text(code)
  paths = os.pathsep.join(filter(None, [str(trap), os.environ.get('PYTHONPATH')]))
  command = [sys.executable, 'launch.py', *flags]
  environment = {**os.environ, 'PYTHONPATH': paths}
  subprocess.run(command, cwd=ROOT, check=True, env=environment)
  assert not trace.exists()
  lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  rounds = [json.loads(line) for line in lines]
  # A round sees every example once, with the last partial batch of each client.
  assert [line['num_examples'] for line in rounds] == [60_000] * 3
  losses = [line['supervised_loss'] for line in rounds]
  assert losses[0] > losses[1] > losses[2]
  train_accuracies = [line['train_accuracy'] for line in rounds]
  assert train_accuracies[0] < train_accuracies[1] < train_accuracies[2]
  accuracies = [line['test_accuracy'] for line in rounds]
  np.testing.assert_allclose(accuracies, ELSEWHERE[algorithm], rtol=0, atol=BAND)
