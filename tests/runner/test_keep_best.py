"""The models of the best round are kept, whatever happens to the run."""

import errno
import shutil
from types import MappingProxyType
from unittest import mock

import jax
import numpy as np
import pytest
from sklearn import datasets

import moon_jax
from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError, RunError, UsageError
from moon_jax.predict import command
from moon_jax.runner import callbacks, checkpoint, checkpoint_folder
from tests.processes import launched
from tests.run_directories import TINY
from tests.selection import few

# The validation accuracy rises and falls: the best round is neither first nor last.
KEEPING = TINY | {
  'algorithm': 'fedavg',
  'num_rounds': 6,
  'seed': 3,
  'data.validation': 0.2,
  'partition.beta': 0.2,
  'optimizer.learning_rate': 0.3,
  'checkpoint_every_rounds': 2,
  'keep_best': 'validation',
  'metrics': 'nll',
}
SOME_CLIENTS = range(0, 10, 4)  # to load the model of each would take seconds
SOLO_ON_DISK = {'algorithm': 'solo', 'execution.client_store': 'disk'}
SOLO_ON_DEVICE = {'algorithm': 'solo', 'execution.client_store': 'device'}


def config(changes=MappingProxyType({})):
  return moon_jax.load_config('configs/digits_moon.py', KEEPING | changes)


def kept_folders(workdir):
  """Names of the folders with a state."""
  return sorted(path.name for path in (workdir / 'checkpoints').iterdir())


def same_models(workdir, other_workdir, clients=(None,)):
  """Whether the best models of two runs are equal, bit by bit."""
  for client in clients:
    first = moon_jax.load(workdir, client=client, round='best')
    second = moon_jax.load(other_workdir, client=client, round='best')
    assert first.round == second.round
    jax.tree.map(np.testing.assert_array_equal, first.variables, second.variables)


class StateKeeper(moon_jax.Callback):
  """Keeps the state of each round."""

  def __init__(self):
    self.states = []

  def wants_state(self, number):
    return True

  def after_round(self, round):
    self.states.append(jax.device_get(round.state))


@pytest.fixture(scope='module')
def watched(tmp_path_factory):
  """An undisturbed run, and the state of each of its rounds."""
  keeper = StateKeeper()
  folder = tmp_path_factory.mktemp('best') / 'run'
  return moon_jax.run(config(), folder, callbacks=[keeper]), keeper.states


@pytest.fixture(scope='module')
def undisturbed(watched):
  """That run."""
  return watched[0]


@pytest.fixture(scope='module')
def personal(tmp_path_factory):
  """An undisturbed run of clients' own models, which are on the disk."""
  return moon_jax.run(config(SOLO_ON_DISK), tmp_path_factory.mktemp('best') / 'run')


def test_the_best_model_is_that_of_the_best_round(watched):
  undisturbed, states = watched
  accuracies = [line['validation_accuracy'] for line in undisturbed.metrics]
  best_round = undisturbed.summary['best_round']
  assert best_round == np.argmax(accuracies) + 1
  assert 1 < best_round < 6
  trained = moon_jax.load(undisturbed.workdir, round='best')
  assert trained.round == best_round
  expected = states[best_round - 1].server.variables
  jax.tree.map(np.testing.assert_array_equal, trained.variables, expected)
  assert trained.about['test_accuracy'] == undisturbed.summary['best_test_accuracy']
  # The same number names it, as it names the newest checkpoints.
  assert moon_jax.load(undisturbed.workdir, round=best_round).round == best_round
  assert moon_jax.load(undisturbed.workdir, round=4).round == 4
  assert moon_jax.load(undisturbed.workdir).round == 6
  assert f'best-{best_round}' in kept_folders(undisturbed.workdir)


def test_a_round_that_is_not_kept_is_one_line(undisturbed, tmp_path):
  best_round = undisturbed.summary['best_round']
  problem = rf'round=1 is not kept in .*: 4, 6, and the best round, {best_round}\.$'
  with pytest.raises(UsageError, match=problem):
    moon_jax.load(undisturbed.workdir, round=1)
  moon_jax.load(undisturbed.workdir, round='best').save(tmp_path / 'best.npz')
  assert moon_jax.load(tmp_path / 'best.npz', round=best_round).round == best_round
  with pytest.raises(UsageError, match=r"round='best' must be left out"):
    moon_jax.load(tmp_path / 'best.npz', round='best')


def test_no_other_round_takes_the_place_of_a_damaged_best_one(undisturbed, tmp_path):
  best_round = undisturbed.summary['best_round']
  best = tmp_path / f'run/checkpoints/best-{best_round}'
  shutil.copytree(undisturbed.workdir, tmp_path / 'run')
  shutil.copytree(best, best.with_name('best-1'))  # as that of an older checkpoint
  shutil.rmtree(best.with_name(str(best_round)), ignore_errors=True)
  shutil.copytree(best, tmp_path / 'intact')
  (best / 'manifest.json').write_text('{')
  with pytest.raises(NoCheckpointError) as caught:
    moon_jax.load(tmp_path / 'run', round='best')
  assert str(caught.value) == (
    f"{best.parent} holds no undamaged checkpoint for round='best': checkpoint "
    f'{best.name} is damaged (manifest.json has changed). round=1 loads the best round '
    'before it.'
  )
  # A checkpoint of the best round is the same state.
  shutil.copytree(tmp_path / 'intact', best.with_name(str(best_round)))
  assert moon_jax.load(tmp_path / 'run', round='best').round == best_round


def test_the_programs_take_the_best_round(undisturbed, tmp_path):
  from moon_jax import export

  words = [str(undisturbed.workdir), '--output=best.npz', '--round=best']
  written = launched(tmp_path, words, program=export.main)
  best_round = undisturbed.summary['best_round']
  assert f'after round {best_round} of' in written.stdout
  images, _ = moon_jax.load(undisturbed.workdir).test_data()
  np.savez(tmp_path / 'images.npz', images=images)
  words = [f'--workdir={undisturbed.workdir}', '--input=images.npz', '--round=best']
  predicted = launched(tmp_path, words, program=command.main)
  assert f'after round {best_round} of' in predicted.stdout
  labels = np.load(tmp_path / 'images_predictions.npz')['labels']
  best = moon_jax.load(tmp_path / 'best.npz')
  assert labels.tolist() == best.predict(images).labels.tolist()
  words[-1] = '--round=last'
  refused = launched(tmp_path, words, program=command.main)
  assert refused.returncode == 2
  assert refused.stderr.startswith("--round='last' must be best, or the number of")


@pytest.mark.parametrize('fails_at', few([5], [2, 3, 4]))
def test_a_run_that_dies_and_goes_on_has_the_same_best_model(
  undisturbed, tmp_path, fails_at
):
  def die(round):
    if round.number == fails_at:
      raise KeyError('the process dies')

  with pytest.raises(KeyError):
    moon_jax.run(config(), tmp_path / 'run', callbacks=[die])
  resumed = moon_jax.run(config(), tmp_path / 'run')
  assert resumed.metrics == undisturbed.metrics
  same_models(tmp_path / 'run', undisturbed.workdir)
  assert kept_folders(tmp_path / 'run') == kept_folders(undisturbed.workdir)


@pytest.mark.slow
def test_a_best_round_of_a_lost_checkpoint_comes_again(
  undisturbed, tmp_path, monkeypatch
):
  """The disk fills up after the best round is written, before the checkpoint is."""
  best_round = undisturbed.summary['best_round']
  following = best_round + best_round % 2
  save = checkpoint_folder.save

  def save_until_full(folder, state, index, entries):
    if folder.name.startswith(f'{following}.'):
      raise OSError(errno.ENOSPC, 'full')
    save(folder, state, index, entries)

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_folder, 'save', save_until_full)
    with pytest.raises(RunError, match='cannot be written'):
      moon_jax.run(config(), tmp_path / 'run')
  assert f'best-{best_round}' in kept_folders(tmp_path / 'run')
  # A run that ends before this round has another best round.
  moon_jax.run(config({'num_rounds': best_round - 1}), tmp_path / 'run')
  assert moon_jax.load(tmp_path / 'run', round='best').round < best_round
  moon_jax.run(config(), tmp_path / 'run')
  same_models(tmp_path / 'run', undisturbed.workdir)
  # The best round up to the last checkpoint, if that is the last which is undamaged.
  damaged = tmp_path / 'run/checkpoints/6/manifest.json'
  damaged.write_text(damaged.read_text()[:-2])
  (tmp_path / 'run/summary.json').unlink()
  moon_jax.run(config(), tmp_path / 'run')
  same_models(tmp_path / 'run', undisturbed.workdir)


@pytest.mark.slow
def test_a_best_round_without_any_checkpoint_comes_again(
  undisturbed, tmp_path, monkeypatch
):
  """The disk fills up after the first best round is written."""
  save, rarely = checkpoint_folder.save, config({'checkpoint_every_rounds': 20})

  def save_until_full(folder, state, index, entries):
    if folder.name.startswith('6.'):
      raise OSError(errno.ENOSPC, 'full')
    save(folder, state, index, entries)

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_folder, 'save', save_until_full)
    with pytest.raises(RunError, match='cannot be written'):
      moon_jax.run(rarely, tmp_path / 'run')
  best = f'best-{undisturbed.summary["best_round"]}'
  assert kept_folders(tmp_path / 'run') == [best]
  moon_jax.run(rarely, tmp_path / 'run')
  assert kept_folders(tmp_path / 'run') == ['6', best]
  same_models(tmp_path / 'run', undisturbed.workdir)


@pytest.mark.slow
def test_own_models_on_the_disk(personal, tmp_path):
  """The places of their memories stay, though later rounds write over others."""

  def die(round):
    if round.number == 5:
      raise KeyError('the process dies')

  best_round = personal.summary['best_round']
  settings = config(SOLO_ON_DISK)
  with pytest.raises(KeyError):
    moon_jax.run(settings, tmp_path / 'run', callbacks=[die])
  moon_jax.run(settings, tmp_path / 'run')
  same_models(tmp_path / 'run', personal.workdir, clients=SOME_CLIENTS)
  keeper = StateKeeper()
  moon_jax.run(config(SOLO_ON_DEVICE), tmp_path / 'device', callbacks=[keeper])
  for client in SOME_CLIENTS:
    best = moon_jax.load(personal.workdir, client=client, round='best')
    expected = jax.tree.map(
      lambda leaf, client=client: leaf[client], keeper.states[best_round - 1].clients
    )
    leaves = {leaf.tobytes() for leaf in map(np.asarray, jax.tree.leaves(expected))}
    assert {leaf.tobytes() for leaf in jax.tree.leaves(best.variables)} <= leaves


def test_a_run_goes_on_from_the_disk_to_the_device(personal, tmp_path):
  """The best round keeps its places in the file of memories."""
  shutil.copytree(personal.workdir, tmp_path / 'run')
  moon_jax.run(config(SOLO_ON_DEVICE | {'num_rounds': 10}), tmp_path / 'run')
  assert moon_jax.load(tmp_path / 'run', client=0, round='best').round >= 1


def test_what_chooses_is_asked_for(tmp_path):
  with pytest.raises(UsageError) as caught:
    moon_jax.run(config({'data.validation': 0.0}), tmp_path / 'refused')
  assert str(caught.value) == (
    "--config.keep_best='validation' needs examples for validation: add "
    '--config.data.validation=0.1, or let the test set choose by '
    "--config.keep_best='test'."
  )
  changes = {'keep_best': 'test', 'best_by': 'nll', 'data.validation': 0.0}
  run = moon_jax.run(config(changes), tmp_path / 'run')
  losses = [line['test_nll'] for line in run.metrics]
  assert moon_jax.load(run.workdir, round='best').round == np.argmin(losses) + 1
  folder = checkpoint.best_folders(run.workdir / 'checkpoints')[0]
  manifest = files.read_json(folder / 'manifest.json')
  assert (manifest['best_by'], manifest['best_number']) == ('test_nll', min(losses))


def test_validation_examples_of_the_data_choose(tmp_path):
  images, labels = datasets.load_digits(return_X_y=True)
  images = images.astype(np.uint8).reshape(-1, 8, 8)
  np.savez(
    tmp_path / 'digits.npz',
    train_x=images[:1200],
    train_y=labels[:1200],
    val_x=images[1200:1500],
    val_y=labels[1200:1500],
    test_x=images[1500:],
    test_y=labels[1500:],
  )
  changes = {
    'data.source': 'npz',
    'data.path': str(tmp_path / 'digits.npz'),
    'data.validation': 0.0,
  }
  run = moon_jax.run(config(changes), tmp_path / 'run')
  accuracies = [line['validation_accuracy'] for line in run.metrics]
  best_round = np.argmax(accuracies) + 1
  assert moon_jax.load(run.workdir, round='best').round == best_round


@pytest.mark.parametrize(
  ('best_by', 'kept', 'is_told'),
  [('accuracy', 0.5, True), ('accuracy', 0.75, False), ('loss', 0.75, True)],
)
def test_a_better_round_that_an_earlier_start_did_not_keep_is_told(
  best_by, kept, is_told, tmp_path
):
  column = f'validation_{best_by}'
  checkpoints = mock.Mock(best_manifest={'best_by': column, 'best_number': kept})
  history = [{column: 0.5}, {column: 0.75}, {column: None}, {}]
  lines = []
  keeper = callbacks.BestKeeper(checkpoints, config({'best_by': best_by}), lines.append)
  keeper.begin(callbacks.Run(None, tmp_path, None, history, range(4, 6)))
  assert [f'the best round by {column} among the 4 so' in line for line in lines] == [
    True
  ] * is_told


@pytest.mark.slow
def test_a_kept_round_of_an_earlier_start_is_told(undisturbed, tmp_path, capsys):
  shutil.copytree(undisturbed.workdir, tmp_path / 'run')
  best_round = moon_jax.load(undisturbed.workdir, round='best').round
  moon_jax.run(config({'keep_best': 'none', 'num_rounds': 7}), tmp_path / 'run')
  assert 'a best round is kept from an earlier start; with' in capsys.readouterr().out
  assert moon_jax.load(tmp_path / 'run', round='best').round == best_round


@pytest.mark.slow
def test_a_run_that_keeps_none_says_how(tmp_path, capsys):
  plain = config({'keep_best': 'none', 'num_rounds': 2})
  run = moon_jax.run(plain, tmp_path / 'run')
  with pytest.raises(UsageError, match=r'has no best round: --config\.keep_best='):
    moon_jax.load(run.workdir, round='best')
  capsys.readouterr()
  moon_jax.run(config({'num_rounds': 4}), tmp_path / 'run')
  printed = capsys.readouterr().out
  assert printed.count('the best round by validation_accuracy among the 2 so far') == 1
  assert moon_jax.load(run.workdir, round='best').round in (3, 4)
