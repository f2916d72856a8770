"""What a user's callbacks see, when they are called, and how they end a run."""

import errno
import fcntl
import json
import pathlib
import shutil
import signal
import sys
import threading
import time

import jax
import numpy as np
import pytest

import moon_jax
from examples import early_stopping
from moon_jax import catalog
from moon_jax.config import cli
from moon_jax.core.errors import (
  DivergedError,
  ExitCode,
  NoCheckpointError,
  RunError,
  UsageError,
)
from moon_jax.runner import callbacks, checkpoint_folder, start
from moon_jax.runner.record_files import Records
from moon_jax.runner.stop_requests import Stop, StoppedError
from tests.processes import check_success, checkpoint, launch, launched, read_lines
from tests.run_directories import TINY, words_of
from tests.test_api import config

ROOT = pathlib.Path(__file__).parents[2]
catalog.forget_callbacks()  # which the example has registered


class Watcher(moon_jax.Callback):
  """Records its calls; wants the state of some rounds."""

  def __init__(self, rounds_with_state=(), stops_at=None, fails_at=None):
    self.calls, self.states, self.history = [], {}, None
    self.workdir, self.files_at = None, {}
    self._wanted, self._stops_at, self._fails_at = rounds_with_state, stops_at, fails_at

  def begin(self, run):
    self.calls.append(('begin', run.rounds))
    self.history, self.workdir = run.history, run.workdir

  def wants_state(self, number):
    return number in self._wanted

  def after_round(self, round):
    self.calls.append(round.number)
    assert self.history[-1] == round.metrics
    assert len(self.history) == round.number
    if round.state is not None:
      time.sleep(0.2)  # a next round that had been dispatched would have begun
      self.states[round.number] = jax.device_get(round.state)
    if round.number == self._fails_at:
      raise KeyError('its own mistake')
    if round.number == self._stops_at:
      round.stop('it is enough')

  def end(self):
    self._note('end')

  def close(self):
    self._note('close')

  def _note(self, call):
    self.calls.append(call)
    self.files_at[call] = {path.name for path in self.workdir.glob('*.*')}


@pytest.fixture(scope='module')
def three_rounds(tmp_path_factory):
  """A run of all three rounds, and the callback that watched it."""
  watcher = Watcher(rounds_with_state=[2])
  folder = tmp_path_factory.mktemp('whole') / 'run'
  settings = config(checkpoint_every_rounds=2)
  return moon_jax.run(settings, folder, callbacks=[watcher]), watcher


def test_each_method_is_called_in_its_turn(three_rounds):
  result, watcher = three_rounds
  assert watcher.calls == [('begin', range(3)), 1, 2, 3, 'end', 'close']
  assert watcher.history == result.metrics
  # Pictures are written after `end` too; `quick_runs` draws none.
  assert watcher.files_at['close'] - watcher.files_at['end'] == {'summary.json'}


def test_the_state_is_that_of_the_round(three_rounds):
  result, watcher = three_rounds
  # The last round has its state, because the run saves it.
  assert watcher.states.keys() == {2, 3}
  for number, state in watcher.states.items():
    assert int(state.round) == number
    saved = checkpoint(result.workdir, number)
    ours = {leaf.tobytes() for leaf in jax.tree.leaves(state.server.variables)}
    assert ours <= {content for _, _, content in saved.values()}


@pytest.mark.slow
def test_a_run_that_is_ended_is_finished_until_more_rounds_are_asked_for(
  three_rounds, tmp_path, capsys
):
  def two(round):
    return round.number == 2 and 'two will do'

  result = moon_jax.run(config(), tmp_path / 'run', callbacks=[two])
  assert result.metrics == three_rounds[0].metrics[:2]
  assert result.summary['stopped'] == 'two will do'
  assert result.model.round == 2
  watcher = Watcher()
  continued = moon_jax.run(config(), tmp_path / 'run', callbacks=[watcher])
  assert continued.metrics == result.metrics
  assert watcher.calls == []
  assert 'was ended after round 2: two will do' in capsys.readouterr().out
  continued = moon_jax.run(config(num_rounds=4), tmp_path / 'run')
  assert continued.metrics[:3] == three_rounds[0].metrics
  assert 'stopped' not in continued.summary


def test_a_class_makes_a_callback_for_each_run():
  first, second = (callbacks.callback_of(Watcher) for _ in range(2))
  assert isinstance(first, Watcher)
  assert first is not second


@pytest.mark.slow
def test_more_rounds_after_a_start_that_failed(tmp_path):
  moon_jax.run(config(), tmp_path / 'run', callbacks=[Watcher(stops_at=2)])
  (tmp_path / 'run/checkpoints').rename(tmp_path / 'away')
  with pytest.raises(NoCheckpointError):
    moon_jax.run(config(num_rounds=4), tmp_path / 'run')
  shutil.copytree(tmp_path / 'away', tmp_path / 'run/checkpoints', dirs_exist_ok=True)
  assert len(moon_jax.run(config(num_rounds=4), tmp_path / 'run').metrics) == 4


def test_a_stop_is_remembered_if_the_run_fails_after_it(tmp_path):
  class Fails(Watcher):
    def end(self):
      raise KeyError('its own mistake')

  with pytest.raises(KeyError):
    moon_jax.run(config(), tmp_path / 'run', callbacks=[Fails([2], 2)])
  assert not (tmp_path / 'run/summary.json').exists()
  watcher = Watcher()
  summary = moon_jax.run(config(), tmp_path / 'run', callbacks=[watcher]).summary
  assert (summary['rounds'], summary['stopped']) == (2, 'it is enough')
  assert [call for call in watcher.calls if isinstance(call, int)] == []


def test_a_number_of_a_callback_is_a_column_also_after_a_stop(tmp_path, three_rounds):
  """The next callback sees it; a resumed run has the bytes of a whole one."""
  seen = []

  def error_rate(round):
    round.metrics['error_rate'] = np.float32(1) - round.metrics['test_accuracy']

  def see(round):
    seen.append(round.metrics['error_rate'])

  def stop(round):
    return round.number == 2

  user_callbacks = [error_rate, see]
  moon_jax.run(config(), tmp_path / 'run', callbacks=[*user_callbacks, stop])
  continued = config(num_rounds=4)
  resumed = moon_jax.run(continued, tmp_path / 'run', callbacks=user_callbacks)
  plain = [dict(line) for line in resumed.metrics]
  assert [line.pop('error_rate') for line in plain] == seen
  assert plain[:3] == three_rounds[0].metrics
  for line in resumed.metrics:
    assert line['error_rate'] == pytest.approx(1 - line['test_accuracy'])
  moon_jax.run(continued, tmp_path / 'whole', callbacks=user_callbacks)
  lines = (tmp_path / 'run/metrics.jsonl').read_bytes()
  assert lines == (tmp_path / 'whole/metrics.jsonl').read_bytes()


@pytest.mark.parametrize(
  ('name', 'number', 'problem'),
  [
    ('f1', float('nan'), "'f1' .* must be a finite number, not 'nan'"),
    ('f1', 1e301, 'must be a finite number'),
    ('f1', True, "must be a finite number, not 'True'"),
    ('f1', [0.5], r"must be a finite number, not '\[0.5\]'"),
    ('train_loss', 0.5, "has changed 'train_loss'"),
    ('test_f1', 0.5, "'test_f1' .* is the name of another column"),
    ('skipped_clients', 0.5, "'skipped_clients' .* is the name of another column"),
    ('drift_std_min', 0.5, ''),
    (1, 0.5, 'or no text'),
  ],
)
def test_what_is_no_column_of_a_callback_is_one_line(name, number, problem):
  round = some_round(2)

  def add(round):
    round.metrics[name] = number

  checked = callbacks.CheckedCallback(callbacks.callback_of(add))
  if not problem:
    checked.after_round(round)
    assert round.metrics[name] == number
    return
  with pytest.raises(UsageError, match=problem) as caught:
    checked.after_round(round)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'change',
  [
    lambda metrics: metrics['clients'].pop(),
    lambda metrics: metrics.update(clients=np.array([0, 1])),
    lambda metrics: metrics.pop('clients'),
  ],
)
def test_a_list_of_the_record_cannot_be_changed_either(change):
  def change_list(round):
    change(round.metrics)

  round = some_round(2)
  round.metrics['clients'] = [0, 1]
  checked = callbacks.CheckedCallback(callbacks.callback_of(change_list))
  with pytest.raises(UsageError, match="has changed 'clients'"):
    checked.after_round(round)


def test_a_record_that_a_callback_replaces_is_not_lost_silently():
  def replace(round):
    round.metrics = round.metrics | {'perplexity': 2.0}

  checked = callbacks.CheckedCallback(callbacks.callback_of(replace))
  with pytest.raises(UsageError, match=r'has replaced round\.metrics: put the number'):
    checked.after_round(some_round(2))


def test_a_callback_that_exits_has_failed():
  checked = callbacks.CheckedCallback(callbacks.callback_of(lambda round: sys.exit(0)))
  with pytest.raises(RunError, match=r'has called sys\.exit\(0\): round\.stop'):
    checked.after_round(some_round(2))


def test_what_is_no_column_of_a_callback_is_not_recorded(tmp_path, three_rounds):
  def add(round):
    if round.number == 2:
      round.metrics['f1'] = float('nan')

  with pytest.raises(UsageError, match='must be a finite number'):
    moon_jax.run(config(), tmp_path / 'run', callbacks=[add])
  assert moon_jax.run(config(), tmp_path / 'run').metrics == three_rounds[0].metrics


class Signals(moon_jax.Callback):
  """Asks the run to stop in one round, as SIGTERM does."""

  def __init__(self, stop, number):
    self._stop, self._number = stop, number

  def wants_state(self, number):
    if number == self._number:
      self._stop.request(signal.SIGTERM)
    return False


@pytest.mark.parametrize(('eval_every_rounds', 'last'), [(1, 1), (3, 3)])
def test_a_stop_and_a_signal_in_one_round(tmp_path, eval_every_rounds, last):
  """The callback stops in round 1, and the run ends in the first tested round."""
  words = words_of(
    num_rounds=5, eval_every_rounds=eval_every_rounds, checkpoint_every_rounds=1
  )
  stop, request = Stop(), cli.parse([*words, f'--workdir={tmp_path}/run'])
  user_callbacks = [Signals(stop, 1), Watcher([1], 1)]
  with pytest.raises(StoppedError):
    start.run(request, stop, user_callbacks)
  assert start.run(request) is ExitCode.DONE
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  assert (summary['rounds'], summary['stopped']) == (last, 'it is enough')


@pytest.mark.parametrize(
  ('knob', 'last'), [('checkpoint_every_rounds', 2), ('eval_every_rounds', 5)]
)
def test_a_run_ends_after_a_round_that_is_tested_and_has_its_state(
  tmp_path, knob, last
):
  watcher, rarely = Watcher(stops_at=1), config(num_rounds=6, **{knob: 5})
  result = moon_jax.run(rarely, tmp_path / 'run', callbacks=[watcher])
  assert [line['round'] for line in result.metrics] == list(range(1, last + 1))
  assert result.model.round == last
  assert watcher.calls[-2:] == ['end', 'close']


@pytest.mark.parametrize('ending', ['fails', 'diverges'])
def test_close_is_called_however_the_run_ends_and_end_is_not(tmp_path, ending):
  rate = 1e20 if ending == 'diverges' else 0.01
  watcher = Watcher(fails_at=2 if ending == 'fails' else None)
  settings = config(**{'optimizer.learning_rate': rate})
  with pytest.raises(KeyError if ending == 'fails' else DivergedError):
    moon_jax.run(settings, tmp_path / 'run', callbacks=[watcher])
  assert watcher.calls[-1] == 'close'
  assert 'end' not in watcher.calls


def test_a_config_file_registers_callbacks_for_its_own_runs(tmp_path, three_rounds):
  path = tmp_path / 'mine.py'
  path.write_text(
    'import moon_jax\nfrom moon_jax.config import import_config\n'
    "get_config = import_config('configs/digits_moon.py').get_config\n"
    'def one(round):\n  return True\n'
    'moon_jax.register_callback(one)\nmoon_jax.register_callback(one)\n'
    'for _ in range(2):\n  moon_jax.register_callback(lambda round: False)\n'
  )
  words = [f'--config={path}', *words_of(), f'--workdir={tmp_path / "run"}']
  request = cli.parse(words)
  # `one` once, and two without a name.
  assert len(catalog.registered_callbacks()) == 3
  assert start.run(request) is ExitCode.DONE
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  assert (summary['rounds'], summary['stopped']) == (1, 'one said so')
  moon_jax.load_config(path)  # forgets none: it registers them again
  forgotten = r'digits_moon\.py is loaded, so .* registered before: <lambda>, one\.$'
  with pytest.warns(UserWarning, match=forgotten):
    config()
  assert catalog.registered_callbacks() == []
  # Another file's callback of this name is another one, unless both name the same.
  code = path.read_text().partition('for')[0] + 'moon_jax.register_callback(print)\n'
  for file in (path, tmp_path / 'other.py'):
    file.write_text(code)
  moon_jax.load_config(path)
  with pytest.warns(UserWarning, match=r'other\.py is loaded, so .* before: one\.$'):
    moon_jax.load_config(tmp_path / 'other.py')
  functions = [registered.callback for registered in catalog.registered_callbacks()]
  assert functions[0].__code__.co_filename == str(tmp_path / 'other.py')
  assert functions[1:] == [print]
  catalog.forget_callbacks()


@pytest.mark.parametrize('reason', [0.93, '', 'x' * 2000])
def test_whatever_a_callback_gives_as_its_reason_can_be_read_again(tmp_path, reason):
  class Stops(moon_jax.Callback):
    def wants_state(self, number):
      return True

    def after_round(self, round):
      round.stop(reason)

  result = moon_jax.run(config(), tmp_path / 'run', callbacks=[Stops])
  assert result.summary['rounds'] == 1
  recorded_reason = result.summary['stopped']
  assert recorded_reason == (str(reason)[:1000] or 'a callback said so')


@pytest.mark.parametrize(
  ('accuracies', 'stops'),
  [
    ([0.1, 0.5] + [0.4] * 9, False),
    ([0.1, 0.5] + [0.5] * 10, True),
    ([0.1, 0.5] + [0.4] * 9 + [0.6], False),
    ([0.1, 0.5] + [None] * 20 + [0.4] * 9, False),
  ],
)
def test_early_stopping_counts_tested_rounds_since_the_best(accuracies, stops):
  callback, reasons = early_stopping.EarlyStopping(), []

  class Round:
    stop = staticmethod(reasons.append)

  lines = [{} if a is None else {'test_accuracy': a} for a in accuracies]
  callback.begin(callbacks.Run(None, None, None, lines, None))
  callback.after_round(Round)
  assert bool(reasons) == stops


def test_the_example_ends_a_run_that_learns_nothing(tmp_path):
  flags = words_of(**{'optimizer.learning_rate': 1e-9, 'num_rounds': 30})
  words = [f'--config={ROOT}/examples/early_stopping.py', '--workdir=run']
  check_success(completed := launched(tmp_path, [*words, *flags]))
  catalog.forget_callbacks()
  assert 'a callback ended the run: no better accuracy in 10 tests' in completed.stdout
  summary = json.loads((tmp_path / 'run/summary.json').read_text())
  assert summary['rounds'] == 11
  assert summary['stopped'] == 'no better accuracy in 10 tests'


def test_a_state_is_written_beside_the_next_round(tmp_path, monkeypatch, three_rounds):
  """The round's line of timings.jsonl comes when the state is on the disk."""
  round_two_is_seen = threading.Event()
  save, finish_run = checkpoint_folder.save, Records.finish
  run = tmp_path / 'run'

  def save_late(folder, state, index, entries):
    if folder.name.startswith('1.'):
      assert round_two_is_seen.wait(60)
    if folder.name.startswith('3.'):
      time.sleep(0.3)
    save(folder, state, index, entries)

  def finish(records, stop_reason, rounds_asked):
    assert (run / 'checkpoints/3').exists()
    finish_run(records, stop_reason, rounds_asked)

  def look(round):
    if round.number == 2:
      assert not (run / 'checkpoints/1').exists()
      assert (run / 'timings.jsonl').read_text() == ''
      round_two_is_seen.set()

  monkeypatch.setattr(checkpoint_folder, 'save', save_late)
  monkeypatch.setattr(Records, 'finish', finish)
  moon_jax.run(config(checkpoint_every_rounds=1), run, callbacks=[look])
  lines = (run / 'timings.jsonl').read_text().splitlines()
  assert [json.loads(line)['round'] for line in lines] == [1, 2, 3]
  assert sorted(path.name for path in (run / 'checkpoints').iterdir()) == ['2', '3']
  # Rounds 2 and 3 did not overwrite the state that was still being written.
  assert checkpoint(run, 3) == checkpoint(three_rounds[0].workdir, 3)


@pytest.mark.parametrize('keep_best', ['none', 'test'])
def test_no_line_says_that_a_state_was_saved_that_was_not(
  keep_best, tmp_path, monkeypatch, three_rounds
):
  """Otherwise a run whose first state cannot be written could never start again."""
  settings = config(checkpoint_every_rounds=1, keep_best=keep_best, best_by='loss')
  run, round_two_is_seen = tmp_path / 'run', threading.Event()

  def full(folder, state, index, entries):
    assert round_two_is_seen.wait(60)
    raise OSError(errno.ENOSPC, 'full')

  def look(round):
    if round.number == 2:
      round_two_is_seen.set()

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_folder, 'save', full)
    with pytest.raises(RunError, match=r'checkpoints/(best-)?1 cannot be written'):
      moon_jax.run(settings, run, callbacks=[look])
  assert (run / 'timings.jsonl').read_text() == ''
  assert moon_jax.run(settings, run).metrics == three_rounds[0].metrics


def test_a_run_without_its_lease_records_nothing(tmp_path, monkeypatch, three_rounds):
  """Another process has taken over, on a disk without locks, and trains the rounds."""
  run, settings = tmp_path / 'run', config(checkpoint_every_rounds=1)

  def refuse(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  def lose(round):
    if round.number == 2:
      (lease,) = run.glob('.lease-*')
      lease.unlink()

  monkeypatch.setattr(fcntl, 'flock', refuse)
  with pytest.raises(RunError, match='another process has taken over, or the folder'):
    moon_jax.run(settings, run, callbacks=[lose])
  assert len((run / 'metrics.jsonl').read_text().splitlines()) == 2
  assert moon_jax.run(settings, run).metrics == three_rounds[0].metrics
  assert checkpoint(run, 3) == checkpoint(three_rounds[0].workdir, 3)
  assert list(run.glob('.lease-*')) == []


@pytest.mark.slow
def test_the_first_line_waits_for_no_picture_tensorboard_or_checkpoint(tmp_path):
  """Nor for programs other than those of the first state, a round and a test."""
  code = f"""
import sys, jax, moon_jax

events = []
jax.monitoring.register_event_duration_secs_listener(
  lambda name, *_, **__: events.append(name)
)

def look(round):
  loaded = {{'tensorboardX', 'orbax.checkpoint', 'matplotlib'}} & set(sys.modules)
  assert round.number > 1 or not loaded, loaded

config = moon_jax.load_config('configs/digits_moon.py', {TINY | {'num_rounds': 2}!r})
moon_jax.run(config, 'run', callbacks=[look])
assert {{'tensorboardX', 'orbax.checkpoint', 'matplotlib'}} <= set(sys.modules)
assert not {{'tensorflow', 'tensorflow_datasets', 'scipy.sparse'}} & set(sys.modules)
assert events.count('/jax/core/compile/backend_compile_duration') == 3
"""
  check_success(launch(tmp_path, program=('-c', code), PYTHONPATH=str(ROOT)))


def rounds_saved(workdir):
  lines = read_lines(workdir / 'timings.jsonl')
  return [line['round'] for line in lines if line['save_seconds'] > 0]


@pytest.mark.parametrize(
  ('least_seconds', 'expected'), [(1000.0, [10, 25]), (0.0, [10, 20, 25])]
)
def test_by_default_no_round_is_saved_soon_after_another(
  least_seconds, expected, tmp_path, monkeypatch
):
  monkeypatch.setattr(callbacks, '_AUTO_SECONDS', least_seconds)
  settings = config(num_rounds=25, eval_every_rounds=25)
  assert settings['checkpoint_every_rounds'] == 'auto'
  result = moon_jax.run(settings, tmp_path / 'run')
  assert rounds_saved(result.workdir) == expected


@pytest.mark.parametrize(('number', 'has_state'), [(19, False), (20, True)])
def test_a_run_that_is_stopped_where_a_save_was_left_out_saves_the_next_round(
  number, has_state, tmp_path, monkeypatch
):
  monkeypatch.setattr(callbacks, '_AUTO_SECONDS', 1000.0)
  stop = Stop()

  class Interrupter(moon_jax.Callback):
    """Asks the run to stop when round 20 will not be saved any more."""

    def wants_state(self, number):
      return has_state

    def after_round(self, round):
      if round.number == number:
        stop.request(signal.SIGTERM)

  words = words_of(num_rounds=60, checkpoint_every_rounds='auto')
  request = cli.parse([*words, f'--workdir={tmp_path / "run"}'])
  with pytest.raises(StoppedError) as caught:
    start.run(request, stop, callbacks=[Interrupter()])
  (*_, last) = rounds_saved(tmp_path / 'run')
  assert last in (20, 21, 22)
  assert f'round {last}' in str(caught.value)


class SlowLogger(callbacks.Logger):
  """A logger that waits before each round, and may fail."""

  def __init__(self, failing_round=None):
    self.begun, self.released = threading.Event(), threading.Event()
    self.rounds = []
    self._failing_round = failing_round

  def after_round(self, round):
    self.begun.set()
    assert self.released.wait(60)
    if round.number == self._failing_round:
      raise RunError('the server has gone')
    self.rounds.append((round.number, round.metrics['train_loss'], round.state))


def some_round(number):
  metrics = {'train_loss': float(number)}
  return callbacks.Round(number, metrics, None, {}, None, None, None, 'a state')


def test_a_run_does_not_wait_for_a_logger_before_its_end():
  logger = SlowLogger()
  threaded = callbacks.InThread(logger)
  for number in (1, 2, 3):
    round = some_round(number)
    threaded.after_round(round)
    round.metrics['train_loss'] = -1.0  # by a later callback
  assert logger.begun.wait(60)
  assert logger.rounds == []
  logger.released.set()
  threaded.end()
  assert logger.rounds == [(1, 1.0, None), (2, 2.0, None), (3, 3.0, None)]
  threaded.close()


def test_what_a_logger_raises_ends_the_run():
  logger = SlowLogger(failing_round=2)
  logger.released.set()
  threaded = callbacks.InThread(logger)
  threaded.after_round(some_round(1))
  threaded.after_round(some_round(2))
  with pytest.raises(RunError, match='the server has gone'):
    threaded.end()
  threaded.close()
