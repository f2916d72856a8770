"""A run that starts from the weights of a file."""

import shutil

import numpy as np
import pytest

import moon_jax
from moon_jax.core import files, weights
from moon_jax.core.errors import UsageError
from tests.run_directories import TINY

# With this rate no weight moves: float32 has no number so close.
STILL = {'optimizer.learning_rate': 1e-30, 'num_rounds': 1}


def config(changes):
  knobs = TINY | {'algorithm': 'fedavg'} | changes
  return moon_jax.load_config('configs/base.py', knobs)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """What a run has learned, and its file."""
  folder = tmp_path_factory.mktemp('trained')
  changes = {'num_rounds': 3, 'seed': 1, 'optimizer.learning_rate': 0.1}
  run = moon_jax.run(config(changes), folder / 'run')
  run.model.save(folder / 'x.npz')
  return run, folder / 'x.npz'


def test_the_first_test_is_the_last_of_the_other_run(trained, tmp_path):
  run, path = trained
  frozen = config(STILL | {'initial_weights': str(path)})
  continued = moon_jax.run(frozen, tmp_path / 'again')
  expected = run.metrics[-1]['test_accuracy']
  assert continued.metrics[0]['test_accuracy'] == expected
  np.testing.assert_allclose(
    continued.metrics[0]['test_loss'], run.metrics[-1]['test_loss'], rtol=1e-6
  )
  drawn = moon_jax.run(config(STILL), tmp_path / 'drawn')
  assert drawn.metrics[0]['test_accuracy'] != expected
  saved = files.read_json(tmp_path / 'again' / 'config.json')
  assert saved['weights_digest'] == files.sha256(path)


@pytest.mark.slow
@pytest.mark.parametrize('tier', ['disk', 'device'])
def test_an_untrained_client_has_the_weights_of_the_file(tier, trained, tmp_path):
  path = str(shutil.copy(trained[1], tmp_path / 'x.npz'))
  changes = {
    'algorithm': 'solo',
    'execution.client_store': tier,
    'num_rounds': 1,
    'initial_weights': path,
  }
  run = moon_jax.run(config(changes), tmp_path / 'run')
  (absent, *_) = sorted(set(range(10)) - set(run.metrics[0]['clients']))
  loaded = weights.flat(moon_jax.load(run.workdir, client=absent).variables)
  expected = weights.read_weights(path)
  for name in expected:
    np.testing.assert_array_equal(loaded[name], expected[name])
  if tier == 'disk':
    arrays, metadata = weights.read(path)
    changed = {name: array + np.float32(1) for name, array in arrays.items()}
    weights.write(tmp_path / 'x.npz', changed, metadata)
    with pytest.raises(UsageError, match='has changed since the run began'):
      moon_jax.load(run.workdir, client=absent)
    (tmp_path / 'x.npz').unlink()
    with pytest.raises(UsageError, match=r'initial_weights: .* must be a file'):
      moon_jax.load(run.workdir, client=absent)


def test_another_file_is_another_experiment(trained, tmp_path):
  path = tmp_path / 'x.npz'
  shutil.copy(trained[1], path)
  changes = STILL | {'initial_weights': str(path)}
  moon_jax.run(config(changes), tmp_path / 'run')
  arrays, metadata = weights.read(path)
  weights.write(path, {k: a + np.float32(1) for k, a in arrays.items()}, metadata)
  with pytest.raises(UsageError, match='began with other weights than this'):
    moon_jax.run(config(changes | {'num_rounds': 2}), tmp_path / 'run')
  with pytest.raises(UsageError, match=r'initial_weights: .* -> '):
    moon_jax.run(config(STILL), tmp_path / 'run')


def test_a_file_of_another_network_is_one_line(trained, tmp_path):
  arrays = weights.read_weights(trained[1])
  arrays['params/encoder/bias'] = np.zeros(7, np.float32)
  weights.write(tmp_path / 'x.npz', arrays, {})
  words = r'params/encoder/bias is float32 \[7\], must be .* \[128\]'
  refused(tmp_path / 'x.npz', f'is of another network: .*{words}', tmp_path)


def test_another_head_is_drawn_and_named(trained, tmp_path, capsys):
  arrays = weights.read_weights(trained[1])
  arrays['params/classifier/kernel'] = np.zeros((64, 7), np.float32)
  arrays['params/classifier/bias'] = np.zeros(7, np.float32)
  weights.write(tmp_path / 'x.npz', arrays, {})
  changes = STILL | {'initial_weights': str(tmp_path / 'x.npz')}
  run = moon_jax.run(config(changes), tmp_path / 'run')
  assert (
    'layers that are not from the file, but drawn: classifier; not used of the file: '
    'classifier.'
  ) in capsys.readouterr().err
  learned = weights.flat(run.model.variables)
  np.testing.assert_allclose(
    learned['params/encoder/kernel'], arrays['params/encoder/kernel'], rtol=1e-6
  )
  assert np.ptp(learned['params/classifier/kernel']) > 0


def refused(path, words, tmp_path):
  with pytest.raises(
    UsageError, match=rf'^--config\.initial_weights.*{words}'
  ) as caught:
    moon_jax.run(config(STILL | {'initial_weights': str(path)}), tmp_path / 'run')
  assert '\n' not in str(caught.value)
  assert not (tmp_path / 'run').exists()


def test_a_run_directory_is_told_how_to_become_a_file(trained, tmp_path):
  words = r'is a folder; .* python -m moon_jax\.export .*run --output=FILE'
  refused(trained[0].workdir, words, tmp_path)
