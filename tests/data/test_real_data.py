"""Real images, the real program: does MOON learn Fashion-MNIST?"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PREPARED = ROOT.parent / 'shared/data/tfds'


@pytest.mark.slow
@pytest.mark.skipif(
  not (PREPARED / 'fashion_mnist').is_dir(), reason='no prepared data in ../shared'
)
def test_moon_learns_fashion_mnist_in_three_rounds(tmp_path):
  flags = [
    '--config=configs/fashion_mnist_moon.py',
    f'--config.data.dir={PREPARED}',
    '--config.num_rounds=3',
    '--config.local_epochs=2',
    '--config.moon.mu=1',
    f'--workdir={tmp_path / "run"}',
  ]
  # Importing TensorFlow, were it tried, would leave a trace.
  trap, trace = tmp_path / 'trap', tmp_path / 'imported'
  trap.mkdir()
  code = f'open({str(trace)!r}, "w").close()\nraise ImportError("trap")\n'
  (trap / 'tensorflow.py').write_text(code)
  environment = {**os.environ, 'PYTHONPATH': str(trap)}
  command = [sys.executable, 'launch.py', *flags]
  subprocess.run(command, cwd=ROOT, check=True, env=environment)
  assert not trace.exists()
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  rounds = [json.loads(line) for line in lines]
  # Every example twice a round, the last partial batch of each client included.
  assert [line['num_examples'] for line in rounds] == [2 * 60_000] * 3
  losses = [line['supervised_loss'] for line in rounds]
  assert losses[0] > losses[1] > losses[2]
  assert summary['test_accuracy'] > 0.5  # chance is 0.1; measured 0.65
