"""A run that is killed, stopped or disturbed at any instant ends as if it were not.

Real processes, real signals. Where the instant matters the process is paused when a
file shows that it is there, and that is looked at again before the signal is sent.
"""

import contextlib
import os
import platform
import random
import re
import signal
import time

import pytest

import moon_jax
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.runner import loop, saved_state, signals
from tests.processes import (
  LIMIT_SECONDS,
  Running,
  check_same_records,
  check_success,
  checkpoint,
  contents,
  launch,
  launched,
  read_lines,
)
from tests.run_directories import words_of
from tests.selection import few

pytestmark = pytest.mark.faults

NUM_ROUNDS = 40
EVERY = 2
RUN = (*words_of(num_rounds=NUM_ROUNDS, checkpoint_every_rounds=EVERY), '--workdir=run')
# These rounds take seconds.
LONG = (
  *words_of(num_rounds=4, checkpoint_every_rounds=4, local_epochs=1000),
  '--workdir=run',
)


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  """The run directory of an undisturbed run."""
  place = tmp_path_factory.mktemp('undisturbed')
  check_success(launched(place, *RUN))
  return place / 'run'


@pytest.fixture
def run(tmp_path):
  """The working folder of RUN and LONG."""
  return tmp_path / 'run'


def assert_same_end(run, expected, num_rounds=NUM_ROUNDS):
  """The results are equal to the last bit, and no temporary file is left."""
  check_same_records(run, expected)
  leaves = checkpoint(expected, num_rounds)
  # The leaves include the server's weights and those that each client sent last.
  assert sum(name.endswith('kernel') for name in leaves) >= 8
  assert checkpoint(run, num_rounds) == leaves
  timed = [line['round'] for line in read_lines(run / 'timings.jsonl')]
  # If the process was killed while it saved, that round has no timings.
  assert timed == sorted(set(timed))
  assert timed[-1] == num_rounds
  ours, theirs = (  # launch.py draws pictures, a run in a test does not
    {path.name for path in folder.iterdir() if path.suffix != '.png'}
    for folder in (run, expected)
  )
  assert ours == theirs
  left = [p.name for p in run.rglob('*') if re.search(r'tmp|partial', p.name)]
  assert left == []


def resumed_after(text):
  """The round from which a start went on; None if it ended before it said so."""
  if 'run: a fresh run' in text:
    return 0
  found = re.search(r'run: resumed after round (\d+) of', text)
  return int(found[1]) if found else None


def num_lines(run):
  path = run / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def saved(run):
  """The newest step, and the newest step whose save is not complete."""
  names = os.listdir(run / 'checkpoints') if (run / 'checkpoints').exists() else []
  steps = [int(name) for name in names if name.isdigit()]
  begun = [int(n[0]) for name in names if (n := re.match(r'\d+(?=\D)', name))]
  return max(steps, default=0), max(begun, default=0)


# --- kill -9 --------------------------------------------------------------------------


def run_for(process, run, seconds, most_lines):
  """Lets the process run for a time or up to a number of lines, and pauses it."""
  end = time.monotonic() + seconds
  process.pause_when(lambda: time.monotonic() >= end or num_lines(run) >= most_lines)


@pytest.mark.parametrize(
  ('tier', 'num_kills'), few([('disk', 1)], [('device', 6), ('disk', 6)])
)
def test_killed_many_times_at_random(run, undisturbed, tier, num_kills):
  """The last start loads memories from a file to the device, where all are compared."""
  place = run.parent
  (place / 'tmp').mkdir()
  tmp = {'TMPDIR': str(place / 'tmp')}
  words = (*RUN, f'--config.execution.client_store={tier}')
  rng = random.Random(5)
  # Half of the starts end within six rounds and half within one: 21 rounds at most, and
  # a few more before the process is paused. The run has more rounds than that.
  for number in range(num_kills):
    before = num_lines(run)
    with Running(place, *words, **tmp) as process:
      if number % 2:
        run_for(process, run, rng.uniform(0, 4), before + 1)
      else:
        run_for(process, run, LIMIT_SECONDS, before + 2 * EVERY + rng.randint(0, 1))
        process.send(signal.SIGCONT)
        run_for(process, run, rng.uniform(0, 0.2), before + 2 * EVERY + 2)
      done = process.kill()
    start = resumed_after(done.stdout)
    # Only rounds that are recorded but not saved are trained again: up to two
    # intervals, because a save waits for the one before.
    assert start is None or before - 2 * EVERY <= start <= before
    assert done.stderr == ''
  assert num_lines(run) < NUM_ROUNDS
  done = launched(place, *RUN)
  check_success(done)
  assert resumed_after(done.stdout) > 0
  assert_same_end(run, undisturbed)
  assert list((place / 'tmp').iterdir()) == []


# --- SIGTERM and Ctrl-C ---------------------------------------------------------------

STOPPED = 'Stopped at once by {}; what was saved stays. To go on: {}\n'
SAVING = '{}: saving after this round; SIGTERM or Ctrl-C now stops at once.\n'


def again(words):
  return f'python launch.py {" ".join(words)}'


def catches_sigterm(pid):
  """Whether the process has a handler for SIGTERM; Python itself has none."""
  with open(f'/proc/{pid}/status') as status:
    masks = dict(line.split(':', 1) for line in status)
  return int(masks['SigCgt'], 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize('seconds', few([0.2], [0, 0.05, 0.1]))
def test_interrupted_while_it_is_loaded(tmp_path, seconds):
  with Running(tmp_path, '--workdir=run') as process:
    while not catches_sigterm(process.pid):
      time.sleep(0.002)
    time.sleep(seconds)
    process.send(signal.SIGINT)
    done = process.finish()
  assert done.returncode == ExitCode.INTERRUPTED
  commands = ('the same command', again(['--workdir=run']))
  assert done.stderr in [STOPPED.format('Ctrl-C', command) for command in commands]
  assert contents(tmp_path) == {}


def test_nothing_is_saved_on_a_signal_after_a_failure(monkeypatch):
  ended, stop = [], signals.Stop()
  monkeypatch.setattr(os, '_exit', ended.append)
  with contextlib.suppress(ValueError), stop.deferred():
    raise ValueError
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    stop.request(number)
  codes = [ExitCode.PREEMPTED, ExitCode.INTERRUPTED, ExitCode.PREEMPTED]
  assert ended == codes


def test_no_process_ends_before_the_state_is_on_the_disk(run, monkeypatch):
  """A launcher may kill process 0, which writes the state, once another has ended."""
  stop, write, found = signals.Stop(), saved_state.save, []
  check = stop.check

  class MidRound(moon_jax.Callback):
    def wants_state(self, number):  # the loop has looked for signals just before
      stop._signal = signal.SIGTERM if number == EVERY else None
      return False

  def late(*given):
    time.sleep(0.5)
    write(*given)

  def look(num_rounds):
    found.append((run / 'checkpoints' / str(num_rounds)).exists())
    check(num_rounds)

  monkeypatch.setattr(saved_state, 'save', late)
  monkeypatch.setattr(stop, 'check', look)
  request = cli.parse([*RUN, f'--workdir={run}'])
  with pytest.raises(signals.StoppedError, match=f'after round {EVERY}, which is'):
    loop.run(request, stop, callbacks=[MidRound()])
  assert found == [True]


@pytest.mark.slow
def test_stopped_while_it_compiles(tmp_path):
  words = ['--config.model=resnet18', '--workdir=run']
  with Running(tmp_path, *words, JAX_LOG_COMPILES='1') as process:
    # JAX says this just before it gives a program to XLA; compiling takes far longer.
    process.wait_for('MLIR module conversion jit(evaluate)', stream='stderr')
    time.sleep(0.5)
    process.send(signal.SIGTERM)
    begin = time.monotonic()
    done = process.finish()
  assert time.monotonic() - begin < 5
  assert done.returncode == ExitCode.PREEMPTED
  assert done.stderr.endswith(STOPPED.format('SIGTERM', again(words)))
  assert done.stdout.endswith('compiling one round and one test ... ')


@pytest.mark.slow
def test_stopped_in_a_round(run, tmp_path_factory, as_users):
  expected = tmp_path_factory.mktemp('long') / 'run'
  check_success(launch(expected.parent, *LONG))
  with Running(run.parent, *LONG) as process:
    process.wait_for('round 1/4')
    process.send(signal.SIGTERM)
    process.wait_for(SAVING.format('SIGTERM'), stream='stderr')
    process.send(signal.SIGTERM)
    done = process.finish()
  assert done.returncode == ExitCode.PREEMPTED
  told = SAVING.format('SIGTERM') + STOPPED.format('SIGTERM', again(LONG))
  assert done.stderr == told
  assert saved(run) == (0, 0)

  with Running(run.parent, *LONG) as process:
    process.wait_for('round 1/4')
    process.send(signal.SIGINT)
    done = process.finish()
  assert done.returncode == ExitCode.INTERRUPTED
  assert resumed_after(done.stdout) == 0
  step, begun = saved(run)
  # A single device may have started the third round already.
  assert step in (2, 3)
  assert begun == 0
  assert done.stderr == SAVING.format('Ctrl-C') + (
    f'Stopped by Ctrl-C after round {step}, which is saved. To go on: {again(LONG)}\n'
  )
  check_success(launch(run.parent, *LONG))
  assert_same_end(run, expected, 4)


def check_refused(run, pid):
  """Another process in its directory ends with a line and changes nothing."""
  before, second = contents(run), launched(run.parent, *RUN)
  assert second.returncode == ExitCode.USAGE
  who = f'process {pid} on {re.escape(platform.node())}'
  when = r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d'
  assert re.fullmatch(
    rf'Another process is running in run: {who}, started {when}\. '
    r'Give this one a --workdir\.\n',
    second.stderr,
  )
  assert contents(run) == before


@pytest.mark.parametrize(
  ('numbers', 'code'),
  few(
    [([signal.SIGTERM, signal.SIGHUP], ExitCode.PREEMPTED)],
    [([signal.SIGINT], ExitCode.INTERRUPTED), ([signal.SIGHUP], ExitCode.PREEMPTED)],
  ),
)
def test_stopped_in_a_save(run, undisturbed, numbers, code):
  def saving():
    step, begun = saved(run)
    return step >= EVERY and begun > step

  with Running(run.parent, *RUN) as process:
    process.pause_when(saving)
    _, begun = saved(run)
    check_refused(run, process.pid)
    process.send(numbers[0])
    process.send(signal.SIGCONT)
    for number in numbers[1:]:
      process.wait_for('saving after this round', stream='stderr')
      process.send(number)
    done = process.finish()
  assert done.returncode == code
  # A checkpoint is written during the rounds up to the next save, which waits for it.
  told = re.search(r'after round (\d+), which is saved\. To go on: python', done.stderr)
  step = int(told[1])
  assert begun <= step <= begun + EVERY + 1  # the stop may be seen a round later
  assert saved(run) == (step, 0)
  done = launched(run.parent, *RUN)
  check_success(done)
  assert resumed_after(done.stdout) == step
  assert_same_end(run, undisturbed)


@pytest.mark.slow
def test_nohup(run, undisturbed):
  with Running(run.parent, *RUN, prefix=('nohup',)) as process:
    process.pause_when(lambda: num_lines(run) > 0)
    process.send(signal.SIGHUP)
    process.send(signal.SIGCONT)
    done = process.finish()
  assert done.returncode == ExitCode.DONE
  assert_same_end(run, undisturbed)
