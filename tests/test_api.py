"""Experiments from Python give the shell's results; mistakes are exceptions."""

import contextlib
import pathlib

import jax
import numpy as np
import pytest

import moon_jax
from moon_jax.core import errors
from moon_jax.runner import client_store
from moon_jax.runner.rounds import Rounds
from tests import processes
from tests.run_directories import TINY, words_of

pytestmark = pytest.mark.usefixtures('quick_runs')

ROOT = pathlib.Path(__file__).parents[1]
DIGITS = 'configs/digits_moon.py'
SMALL = TINY | {'num_rounds': 3}


def config(**changes):
  return moon_jax.load_config(DIGITS, SMALL | changes)


@pytest.fixture(scope='module')
def result(tmp_path_factory):
  return moon_jax.run(config(), tmp_path_factory.mktemp('api') / 'run')


def test_python_gives_what_the_shell_gives(result, tmp_path):
  words = [*words_of(num_rounds=3), '--workdir=run']
  processes.check_success(processes.launched(tmp_path, words))
  processes.check_same_records(result.workdir, tmp_path / 'run')
  ours = processes.checkpoint(result.workdir, 3)
  assert ours == processes.checkpoint(tmp_path / 'run', 3)


def test_what_a_result_has(result):
  assert result.summary['test_accuracy'] == result.metrics[-1]['test_accuracy']
  assert result.model.round == 3
  table = result.to_pandas()
  assert table['round'].tolist() == [1, 2, 3]
  assert table['train_loss'].tolist() == [r['train_loss'] for r in result.metrics]


def test_rounds_in_memory_are_those_of_a_run(result, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  outcomes = list(moon_jax.rounds(config()))
  assert [outcome.metrics for outcome in outcomes] == result.metrics
  # The state of an earlier round still exists.
  assert [int(outcome.state.round) for outcome in outcomes] == [1, 2, 3]
  first_model, last_model = outcomes[0].global_model, outcomes[-1].global_model
  saved_model = moon_jax.load(result.workdir).variables
  jax.tree.map(np.testing.assert_array_equal, last_model, saved_model)
  changes = jax.tree.map(lambda a, b: float(abs(a - b).max()), first_model, last_model)
  assert all(change > 0 for change in jax.tree.leaves(changes))
  assert list(tmp_path.iterdir()) == []


def test_rounds_end_before_their_store_is_closed(monkeypatch):
  ended = []
  opened, run = client_store.opened, Rounds.run

  @contextlib.contextmanager
  def opened_here(experiment):
    with opened(experiment) as store:
      try:
        yield store
      finally:
        ended.append('store')

  def run_here(rounds, wants_state):
    try:
      yield from run(rounds, wants_state)
    finally:
      ended.append('rounds')

  monkeypatch.setattr(client_store, 'opened', opened_here)
  monkeypatch.setattr(Rounds, 'run', run_here)
  rounds = moon_jax.rounds(config())
  next(rounds)
  rounds.close()
  assert ended == ['rounds', 'store']


@pytest.mark.slow
def test_rounds_can_be_left_and_have_no_global_model_if_there_is_none():
  outcome = next(moon_jax.rounds(config(algorithm='solo')))
  assert outcome.metrics['round'] == 1
  assert outcome.global_model is None


def test_every_mistake_is_told_by_one_exception():
  with pytest.raises(moon_jax.errors.ConfigError) as caught:
    moon_jax.load_config(DIGITS, {'mon.mu': 1, 'num_rounds': 0, 'fedprox.mu': 0.1})
  assert isinstance(caught.value, errors.UsageError)
  lines = str(caught.value).splitlines()
  assert lines == [*caught.value.problems]
  assert lines[0] == "--config.mon.mu is not a knob. Did you mean 'moon.mu'?"
  assert lines[1] == '--config.num_rounds=0 must be at least 1.'
  assert lines[2].startswith('--config.fedprox.mu is not used with')


def test_changes_may_be_nested():
  nested = moon_jax.load_config(DIGITS, {'moon': {'mu': 3}, 'seed': np.int64(4)})
  assert (nested.moon.mu, nested.seed) == (3.0, 4)
  with pytest.raises(errors.UsageError, match=r'--config\.5 is not a knob'):
    moon_jax.load_config(DIGITS, {5: 1})
  with pytest.raises(errors.UsageError, match=r'lanes=.* must be .auto. or a whole'):
    moon_jax.load_config(DIGITS, {'execution.lanes': np.array([1, 2])})


def test_a_configuration_is_checked_again_when_it_is_run(tmp_path):
  changed = config()
  changed.batch_size = -1
  with pytest.raises(errors.UsageError, match='batch_size=-1 must be at least 1'):
    moon_jax.run(changed, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


class NoCallback:
  """It has the methods of a callback, and does not derive from it."""

  def wants_state(self, number):
    return False

  def after_round(self, round):
    pass


@pytest.mark.parametrize(
  ('callbacks', 'problem'),
  [
    ([None], '^None is no callback: it must be a function of a round, or derive'),
    ([NoCallback], 'NoCallback.* is no callback'),
    ([print, NoCallback()], 'NoCallback.* is no callback'),
    (print, r'^callbacks=<built-in function print> must be a list\.$'),
  ],
)
def test_what_is_no_callback_is_told_at_once(callbacks, problem, tmp_path):
  with pytest.raises(errors.UsageError, match=problem):
    moon_jax.run(config(), tmp_path / 'run', callbacks=callbacks)
  assert not (tmp_path / 'run').exists()


def test_every_public_name_is_there_and_documented():
  for name in moon_jax.__all__:
    assert name == '__version__' or getattr(moon_jax, name).__doc__, name
  with pytest.raises(AttributeError, match='nothing'):
    moon_jax.nothing  # noqa: B018
  assert set(dir(moon_jax)) == set(moon_jax.__all__)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
  import nbclient
  import nbformat

  notebook = nbformat.read(ROOT / 'docs/notebook.ipynb', as_version=4)
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  nbclient.NotebookClient(
    notebook, timeout=600, resources={'metadata': {'path': str(tmp_path)}}
  ).execute()
  outputs = [out for cell in notebook.cells for out in cell.get('outputs', ())]
  media_types = [kind for out in outputs for kind in out.get('data', {})]
  assert media_types.count('image/png') == 2
  bars = [
    out.data['text/html'] for out in outputs if 'text/html' in out.get('data', {})
  ]
  assert sum('<progress value=10 max=10>' in bar for bar in bars) == 2
  texts = [out['text'] for out in outputs if out.output_type == 'stream']
  assert not any('round 3/10' in text for text in texts)
