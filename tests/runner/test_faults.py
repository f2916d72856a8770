"""The fault matrix: what strikes a run at which moment, and what must hold afterwards.

All rows train the same experiment. A row says how the run ends: its exit code, and its
only line on standard error. Then the same command goes on to the end of a run that
nothing happened to: equal records, and equal arrays to the last bit.

Calls of the system fail in a real process, by a library that it loads first. Signals
are sent to real processes. Where the instant matters the process is paused when
a file shows that it is there, and that is checked again before the signal is sent.
"""

import contextlib
import errno
import functools
import itertools
import json
import os
import pathlib
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import moon_jax
from moon_jax.config import cli
from moon_jax.core import files, signals
from moon_jax.core.errors import ExitCode, RunError
from moon_jax.runner import (
  callbacks,
  checkpoint,
  checkpoint_folder,
  client_store,
  start,
)
from moon_jax.runner import stop_requests as signals_lib
from tests import power_loss
from tests.conftest import draw_pictures
from tests.processes import (
  LIMIT_SECONDS,
  ROOT,
  Running,
  check_same_records,
  check_success,
  contents,
  flip,
  launch,
  launched,
  read_lines,
)
from tests.processes import checkpoint as read_checkpoint
from tests.run_directories import TINY, words_of
from tests.runner.conftest import SIX
from tests.runner.test_files import cannot_be_written, fill
from tests.selection import few

pytestmark = pytest.mark.faults

SHARED_DISK = pathlib.Path(__file__).with_name('shared_disk.c')
EVERY = 1  # rounds between two saves
SIX_ROUNDS = (*SIX, '--workdir=run')
TWELVE_ROUNDS = (*SIX, '--config.num_rounds=12', '--workdir=run')
FORTY_ROUNDS = (*SIX, '--config.num_rounds=40', '--workdir=run')
# These rounds take seconds.
LONG_ROUNDS = (
  *words_of(num_rounds=4, checkpoint_every_rounds=4, local_epochs=1000),
  '--workdir=run',
)
NUM_ROUNDS = {SIX_ROUNDS: 6, TWELVE_ROUNDS: 12, FORTY_ROUNDS: 40, LONG_ROUNDS: 4}


@pytest.fixture(scope='module')
def undisturbed(workdir, tmp_path_factory):
  """Command -> the run directory of a run that nothing happened to."""

  @functools.cache
  def run_directory_of(command):
    folder = tmp_path_factory.mktemp('undisturbed')
    if command is LONG_ROUNDS:
      check_success(launch(folder, *command))
    else:  # more rounds continue the run of six
      shutil.copytree(workdir, folder / 'run')
      check_success(launched(folder, command))
    return folder / 'run'

  return run_directory_of


def check_same_end(run, expected, num_rounds):
  """The results are equal to the last bit, and no temporary file is left."""
  check_same_records(run, expected)
  leaves = read_checkpoint(expected, num_rounds)
  # The leaves include the server's weights and those that each client sent last.
  assert sum(name.endswith('kernel') for name in leaves) >= 4
  assert read_checkpoint(run, num_rounds) == leaves
  timed = [line['round'] for line in read_lines(run / 'timings.jsonl')]
  # If the process was killed while it saved, that round has no timings.
  assert timed == sorted(set(timed))
  assert timed[-1] == num_rounds
  ours, theirs = (  # launch.py draws pictures, a run in a test does not
    {path.name for path in folder.iterdir() if path.suffix != '.png'}
    for folder in (run, expected)
  )
  assert ours == theirs
  temporary = [p.name for p in run.rglob('*') if re.search(r'tmp|partial', p.name)]
  assert temporary == []


def check_goes_on(run, command, undisturbed, completed_rounds=None):
  """The same command goes on, after so many rounds, to the undisturbed end."""
  if completed_rounds is None:
    completed_rounds = newest_steps(run).complete
  words = [*command, f'--workdir={run.name}']
  if command is LONG_ROUNDS:
    resumed = launch(run.parent, *words)
  else:
    resumed = launched(run.parent, words)
  check_success(resumed)
  assert resumed_after(resumed.stdout) == completed_rounds
  check_same_end(run, undisturbed(command), NUM_ROUNDS[command])


def resumed_after(text):
  """The round from which a start went on; None if it ended before it said so."""
  if ': a fresh run' in text:
    return 0
  match = re.search(r': resumed after round (\d+) of', text)
  return int(match[1]) if match else None


def num_lines(run):
  path = run / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


class Steps(NamedTuple):
  """The newest complete checkpoint of a run, and the newest that is being written."""

  complete: int
  begun: int


def newest_steps(run):
  folder = run / 'checkpoints'
  names = os.listdir(folder) if folder.exists() else []
  complete = [int(name) for name in names if name.isdigit()]
  matches = [re.match(r'(\d+)\.partial', name) for name in names]
  begun = [int(match[1]) for match in matches if match]
  return Steps(max(complete, default=0), max(begun, default=0))


# --- signals --------------------------------------------------------------------------


def catches_sigterm(process):
  """Whether the process has a handler for SIGTERM; Python itself has none."""
  with open(f'/proc/{process.pid}/status') as status:
    masks = dict(line.split(':', 1) for line in status)
  return int(masks['SigCgt'], 16) >> (signal.SIGTERM - 1) & 1


def until_loading(seconds):
  """While Python loads the packages: some seconds after signals are caught."""

  def wait(process, run):
    while not catches_sigterm(process):
      time.sleep(0.002)
    time.sleep(seconds)

  return wait


def until_compiling(process, run):
  # JAX says this just before it gives a program to XLA; compiling takes far longer.
  process.wait_for('MLIR module conversion jit(evaluate)', stream='stderr')
  time.sleep(0.5)


def until_in_round(process, run):
  process.wait_for('round 1/4')


def until_a_round_is_recorded(process, run):
  process.pause_when(lambda: num_lines(run) > 0)


def until_saving(process, run):
  """Pauses in a save, in which a second process is refused."""

  def is_saving():
    steps = newest_steps(run)
    return steps.complete >= EVERY and steps.begun > steps.complete

  process.pause_when(is_saving)
  before = contents(run)
  second = launched(run.parent, TWELVE_ROUNDS)
  assert second.returncode == ExitCode.USAGE
  holder = f'process {process.pid} on {re.escape(platform.node())}'
  start = r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d'
  assert re.fullmatch(
    rf'Another process is running in run: {holder}, started {start}\. '
    r'Give this one a --workdir\.\n',
    second.stderr,
  )
  assert contents(run) == before


AT_ONCE = 'Stopped at once by {name}; what was saved stays. To go on: {command}\n'
SAVING = '{name}: saving after this round; SIGTERM or Ctrl-C now stops at once.\n'
SAVED = (
  'Stopped by {name} after round {completed_rounds}, which is saved. '
  'To go on: {command}\n'
)
SIGNAL_NAMES = {
  signal.SIGTERM: 'SIGTERM',
  signal.SIGINT: 'Ctrl-C',
  signal.SIGHUP: 'SIGHUP',
}


class SignalCase(NamedTuple):
  """Signals at a moment, and what must hold.

  Attributes:
    wait: (process, run directory) -> returns at the moment.
    numbers: the signals; each waits for what the first one makes the process say.
    exit_code: of the process.
    stderr: all that the process prints there, with the `name` of the first signal.
    command: what is run.
    prefix: what runs it.
    tier: where the clients' memories are. The last start loads them to the device,
      where all are compared.
    is_killed_next: whether the run that goes on is killed by SIGKILL, too.
  """

  wait: Callable
  numbers: tuple[signal.Signals, ...]
  exit_code: ExitCode
  stderr: str
  command: tuple[str, ...] = TWELVE_ROUNDS
  prefix: tuple[str, ...] = ()
  tier: str = 'auto'
  is_killed_next: bool = False


SIGNALS = {
  'Ctrl-C while it is loaded': SignalCase(
    until_loading(0.2), (signal.SIGINT,), ExitCode.INTERRUPTED, AT_ONCE
  ),
  'SIGTERM and SIGHUP in a save': SignalCase(
    until_saving,
    (signal.SIGTERM, signal.SIGHUP),
    ExitCode.PREEMPTED,
    SAVING + SAVED,
    tier='disk',
  ),
}
RARER_SIGNALS = {
  'SIGTERM in a save, then a kill': SignalCase(
    until_saving,
    (signal.SIGTERM,),
    ExitCode.PREEMPTED,
    SAVING + SAVED,
    tier='disk',
    is_killed_next=True,
  ),
  'Ctrl-C as soon as it is caught': SignalCase(
    until_loading(0), (signal.SIGINT,), ExitCode.INTERRUPTED, AT_ONCE
  ),
  'Ctrl-C in a save': SignalCase(
    until_saving, (signal.SIGINT,), ExitCode.INTERRUPTED, SAVING + SAVED
  ),
  'Ctrl-C in a round': SignalCase(
    until_in_round,
    (signal.SIGINT,),
    ExitCode.INTERRUPTED,
    SAVING + SAVED,
    LONG_ROUNDS,
  ),
  'SIGTERM twice in a round': SignalCase(
    until_in_round,
    (signal.SIGTERM, signal.SIGTERM),
    ExitCode.PREEMPTED,
    SAVING + AT_ONCE,
    LONG_ROUNDS,
  ),
  'SIGHUP under nohup': SignalCase(
    until_a_round_is_recorded,
    (signal.SIGHUP,),
    ExitCode.DONE,
    '',
    prefix=('nohup',),
  ),
}


@pytest.mark.parametrize('name', few([*SIGNALS], [*RARER_SIGNALS]))
def test_a_signal_at_a_moment(name, tmp_path, undisturbed, request):
  case = (SIGNALS | RARER_SIGNALS)[name]
  run = tmp_path / 'run'
  if case.command is LONG_ROUNDS:
    request.getfixturevalue('as_users')
  words = (*case.command, f'--config.execution.client_store={case.tier}')
  with Running(tmp_path, *words, prefix=case.prefix) as process:
    case.wait(process, run)
    begun = newest_steps(run).begun
    for number in case.numbers:
      process.send(number)
      process.send(signal.SIGCONT)
      if number != case.numbers[-1] or len(case.numbers) > 1:
        process.wait_for('saving after this round', stream='stderr')
    completed = process.finish()
  assert completed.returncode == case.exit_code
  completed_rounds, still_begun = newest_steps(run)
  whole_command = f'python launch.py {" ".join(words)}'
  stderr = case.stderr.format(
    name=SIGNAL_NAMES[case.numbers[0]],
    command=whole_command,
    completed_rounds=completed_rounds,
  )
  # The command line may not have been read yet.
  assert completed.stderr in (stderr, stderr.replace(whole_command, 'the same command'))
  if case.exit_code == ExitCode.DONE:
    check_same_end(run, undisturbed(case.command), NUM_ROUNDS[case.command])
    return
  if not run.exists():
    assert contents(tmp_path) == {}
    return
  assert still_begun == 0
  if case.stderr.endswith(SAVED):
    # A checkpoint is written during the rounds up to the next save, which waits for
    # it; the stop may be seen a round later.
    assert begun <= completed_rounds <= max(begun + EVERY + 1, 3)
    assert completed_rounds > 0
  if case.is_killed_next:
    killed = kill_at_random(run, words, random.Random(5), is_early=False)
    assert resumed_after(killed.stdout) == completed_rounds
  check_goes_on(run, case.command, undisturbed)


@pytest.mark.slow
def test_stopped_while_it_compiles(tmp_path):
  words = ['--config.model=resnet18', '--workdir=run']
  with Running(tmp_path, *words, JAX_LOG_COMPILES='1') as process:
    until_compiling(process, tmp_path / 'run')
    process.send(signal.SIGTERM)
    begin = time.monotonic()
    completed = process.finish()
  assert time.monotonic() - begin < 5
  assert completed.returncode == ExitCode.PREEMPTED
  command = f'python launch.py {" ".join(words)}'
  assert completed.stderr.endswith(AT_ONCE.format(name='SIGTERM', command=command))
  assert completed.stdout.endswith('compiling one round and one test ... ')


# A source of the user's own code that does not return to Python.
ENDLESS_SOURCE = """
import sqlite3
import moon_jax
from moon_jax.config import import_config
def read():
  print('reading', flush=True)
  query = 'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) '
  sqlite3.connect(':memory:').execute(query + 'SELECT max(i) FROM n')
moon_jax.register_data('endless', read)
get_config = import_config('configs/digits_moon.py').get_config
"""


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_it_reads_the_data(number, tmp_path):
  (tmp_path / 'mine.py').write_text(ENDLESS_SOURCE)
  words = ['--config=mine.py', '--config.data.source=endless', '--workdir=run']
  with Running(tmp_path, *words) as process:
    process.wait_for('reading')
    process.send(number)
    begin = time.monotonic()
    completed = process.finish()
  assert time.monotonic() - begin < 5
  assert completed.returncode == signals.ENDINGS[number].exit_code
  command = f'python launch.py {" ".join(words)}'
  name = SIGNAL_NAMES[number]
  assert completed.stderr == AT_ONCE.format(name=name, command=command)
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_pictures_are_drawn(number, tmp_path, undisturbed):
  """The process ends at once; the same command draws them."""
  run = tmp_path / 'run'
  with Running(tmp_path, *SIX_ROUNDS) as process:
    process.pause_when(lambda: (run / 'curves.png').exists())
    assert not (run / 'summary.json').exists()
    process.send(number)
    process.send(signal.SIGCONT)
    begin = time.monotonic()
    completed = process.finish()
  assert time.monotonic() - begin < 5
  assert completed.returncode == signals.ENDINGS[number].exit_code
  command = f'python launch.py {" ".join(SIX_ROUNDS)}'
  name = SIGNAL_NAMES[number]
  assert completed.stderr == AT_ONCE.format(name=name, command=command)
  resumed = launch(tmp_path, *SIX_ROUNDS)
  check_success(resumed)
  assert (run / 'partition.png').exists()
  check_same_end(run, undisturbed(SIX_ROUNDS), NUM_ROUNDS[SIX_ROUNDS])


def run_for(process, run, seconds, max_lines):
  """Lets the process run for a time or up to a number of lines, and pauses it."""
  end = time.monotonic() + seconds
  process.pause_when(lambda: time.monotonic() >= end or num_lines(run) >= max_lines)


def kill_at_random(run, words, rng, *, is_early):
  """Lets a process go on with a run, and kills it.

  Args:
    run: the run directory.
    words: the command.
    rng: chooses the instant.
    is_early: whether that is within a round; otherwise it is within six.

  Returns:
    The process, with what it has printed.
  """
  before = num_lines(run)
  temporary = run.parent / 'tmp'
  temporary.mkdir(exist_ok=True)
  with Running(run.parent, *words, TMPDIR=str(temporary)) as process:
    if is_early:
      run_for(process, run, rng.uniform(0, 4), before + 1)
    else:
      max_lines = before + 4 + rng.randint(0, 1)
      run_for(process, run, LIMIT_SECONDS, max_lines)
      process.send(signal.SIGCONT)
      run_for(process, run, rng.uniform(0, 0.2), max_lines + 1)
    killed = process.kill()
  start = resumed_after(killed.stdout)
  # Only rounds that are recorded but not saved are trained again: up to two intervals,
  # because a save waits for the one before.
  assert start is None or before - 2 * EVERY <= start <= before
  assert killed.stderr == ''
  assert list(temporary.iterdir()) == []
  return killed


@pytest.mark.slow
@pytest.mark.parametrize('tier', ['device', 'disk'])
def test_killed_many_times_at_random(tmp_path, undisturbed, tier):
  run = tmp_path / 'run'
  words = (*FORTY_ROUNDS, f'--config.execution.client_store={tier}')
  rng = random.Random(5)
  for number in range(6):
    kill_at_random(run, words, rng, is_early=number % 2 == 1)
  assert num_lines(run) < NUM_ROUNDS[FORTY_ROUNDS]
  check_goes_on(run, FORTY_ROUNDS, undisturbed)


def test_nothing_is_saved_on_a_signal_after_a_failure(monkeypatch):
  exit_codes = []
  stop = signals_lib.Stop()
  monkeypatch.setattr(os, '_exit', exit_codes.append)
  with contextlib.suppress(ValueError), stop.deferred():
    raise ValueError
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    stop.request(number)
  assert exit_codes == [
    ExitCode.PREEMPTED,
    ExitCode.INTERRUPTED,
    ExitCode.PREEMPTED,
  ]


def test_no_process_ends_before_the_state_is_on_the_disk(tmp_path, monkeypatch):
  """A launcher may kill process 0, which writes the state, once another has ended."""
  run = tmp_path / 'run'
  stop = signals_lib.Stop()
  save, check = checkpoint_folder.save, stop.check
  is_saved_at_check = []

  class SignalsInRoundTwo(moon_jax.Callback):
    def wants_state(self, number):  # the loop has looked for signals just before
      stop._signal = signal.SIGTERM if number == 2 else None
      return False

  def save_slowly(folder, state, index, entries):
    time.sleep(0.5)
    save(folder, state, index, entries)

  def watched_check(num_rounds):
    is_saved_at_check.append((run / 'checkpoints' / str(num_rounds)).exists())
    check(num_rounds)

  monkeypatch.setattr(checkpoint_folder, 'save', save_slowly)
  monkeypatch.setattr(stop, 'check', watched_check)
  words = words_of(num_rounds=40, checkpoint_every_rounds=2)
  request = cli.parse([*words, f'--workdir={run}'])
  with pytest.raises(signals_lib.StoppedError, match='after round 2, which is'):
    start.run(request, stop, [SignalsInRoundTwo()])
  assert is_saved_at_check == [True]


@pytest.mark.parametrize('number', few([signal.SIGTERM], [signal.SIGINT]))
def test_a_signal_at_the_line_of_the_last_round(
  number, tmp_path, monkeypatch, undisturbed
):
  """The pictures are not waited for, and the same command draws them."""
  stop = signals_lib.Stop()

  class SignalInTheLastRound(moon_jax.Callback):
    def after_round(self, round):
      if round.number == NUM_ROUNDS[SIX_ROUNDS]:
        stop.request(number)

  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(callbacks.PictureDrawer, 'end', draw_pictures)
  request = cli.parse([*SIX_ROUNDS])
  with pytest.raises(signals_lib.StoppedError, match='after round 6, which') as caught:
    start.run(request, stop, [SignalInTheLastRound()])
  assert caught.value.exit_code == signals.ENDINGS[number].exit_code
  assert not (tmp_path / 'run/curves.png').exists()
  assert start.run(request) == ExitCode.DONE
  assert (tmp_path / 'run/curves.png').exists()
  check_same_end(tmp_path / 'run', undisturbed(SIX_ROUNDS), NUM_ROUNDS[SIX_ROUNDS])


# --- the disk and the run directory ---------------------------------------------------

LIMIT_BEFORE_LOADING = 2.0  # seconds


def sizes(step):
  return {path: path.stat().st_size for path in step.rglob('*') if path.is_file()}


def flip_a_bit(step):
  """Flips a bit of the largest file of a checkpoint, which holds weights."""
  size_of = sizes(step)
  flip(max(size_of, key=size_of.get))


def test_all_damaged_and_then_all_gone(unfinished):
  checkpoints = unfinished / 'checkpoints'
  for step in checkpoints.iterdir():
    flip_a_bit(step)
  before = (unfinished / 'metrics.jsonl').read_bytes()
  for num_set_aside in (2, 0):
    completed = launched(unfinished.parent, SIX_ROUNDS)
    assert completed.returncode == ExitCode.NO_CHECKPOINT
    assert 'checkpoints holds no usable checkpoint, but rounds' in completed.stderr
    assert completed.stderr.count('\n') == 1
    assert completed.stdout.count('set aside as bad-') == num_set_aside
    assert 'compiling' not in completed.stdout
    shutil.rmtree(checkpoints)
  assert (unfinished / 'metrics.jsonl').read_bytes() == before


def refused_before_loading(folder, words):
  """What a process prints that ends before it loads JAX, and so before the data."""

  def cpu_seconds():  # of ended processes: other load does not count
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

  before = cpu_seconds()
  completed = launch(folder, *words)
  assert cpu_seconds() - before < LIMIT_BEFORE_LOADING
  return completed.returncode, completed.stderr


@pytest.mark.slow
@pytest.mark.parametrize('tier', ['device', 'disk'])
def test_a_full_disk_and_then_space(disk, remount, workdir, undisturbed, tier):
  # There is room for two checkpoints, not three; or for all memories once, not twice.
  num_checkpoints = {'device': 2.5, 'disk': 1.5}[tier]
  checkpoint_bytes = sum(sizes(workdir / 'checkpoints/6').values())
  folder = disk('small', int(num_checkpoints * checkpoint_bytes))
  completed = launched(folder, [*SIX_ROUNDS, f'--config.execution.client_store={tier}'])
  assert completed.returncode == ExitCode.FAILED
  run = folder / 'run'
  completed_rounds = newest_steps(run).complete
  names = {
    'device': [str(completed_rounds + 1)],
    'disk': ['clients.bin', str(completed_rounds + 1)],
  }
  full = 'No space left on device'
  lines = [cannot_be_written(f'run/checkpoints/{name}', full) for name in names[tier]]
  assert completed.stderr.removesuffix('\n') in lines
  filler = fill(folder)
  exit_code, line = refused_before_loading(folder, SIX_ROUNDS)
  assert exit_code == ExitCode.FAILED
  assert line == cannot_be_written('run', full) + '\n'
  filler.unlink()
  remount(folder, 'size=64m')
  check_goes_on(run, SIX_ROUNDS, undisturbed, completed_rounds)


def test_a_read_only_disk(disk, remount, tmp_path):
  folder = disk('frozen', '64k')
  remount(folder, 'ro')
  assert refused_before_loading(tmp_path, [f'--workdir={folder}/run']) == (
    ExitCode.USAGE,
    f"--workdir='{folder}/run' cannot be written: Read-only file system.\n",
  )


class StrikesOnce(moon_jax.Callback):
  """Does something to the run directory after a round, or at the end."""

  def __init__(self, strike, round_number=None):
    self._strike, self._round_number = strike, round_number

  def begin(self, run):
    self._checkpoints = run.workdir / 'checkpoints'

  def after_round(self, round):
    if round.number == self._round_number:
      while not (self._checkpoints / str(round.number - 1)).exists():
        time.sleep(0.01)  # this round is trained during the write
      self._strike()

  def end(self):
    if self._round_number is None:
      self._strike()


@pytest.mark.parametrize(
  ('fault', 'round_number', 'unwritable'),
  [
    ('removed', 3, 'checkpoints/3'),
    ('moved', 3, 'checkpoints/3'),
    ('replaced', 3, 'checkpoints/3'),
    ('moved', None, 'curves.png'),  # after the last save
  ],
)
def test_a_run_directory_that_is_moved_or_removed(
  tmp_path, undisturbed, monkeypatch, fault, round_number, unwritable
):
  run, moved = tmp_path / 'run', tmp_path / 'moved'

  def strike():
    if fault == 'removed':
      shutil.rmtree(run)
    else:
      run.rename(moved)
    if fault == 'replaced':
      run.mkdir()  # like another run that has saved nothing yet

  request = cli.parse([*SIX, f'--workdir={run}'])
  with monkeypatch.context() as patch:
    patch.setattr(callbacks.PictureDrawer, 'end', draw_pictures)
    with pytest.raises(RunError) as caught:
      start.run(request, callbacks=[StrikesOnce(strike, round_number)])
  assert caught.value.exit_code == ExitCode.FAILED
  line = cannot_be_written(run / unwritable, 'No such file or directory')
  assert str(caught.value) == line
  remaining = {'removed': set(), 'moved': {moved}, 'replaced': {run, moved}}
  assert set(tmp_path.iterdir()) == remaining[fault]
  if fault == 'replaced':
    assert list(run.iterdir()) == []
  if fault == 'moved':
    assert not (moved / 'summary.json').exists()
    completed_rounds = round_number - 1 if round_number else 6
    check_goes_on(moved, SIX_ROUNDS, undisturbed, completed_rounds)


# --- shared disks ---------------------------------------------------------------------


class DiskCase(NamedTuple):
  """Calls of the system that fail for a whole start, and how it ends.

  Attributes:
    faults: as `shared_disk.c` reads them.
    says: a part of a line on standard output.
    unwritable: path of the file that the only line names; '' if the run ends well.
    reason: why that file cannot be written, in the system's words.
    exit_code: of the start.
    tier: where the clients' memories are.
    is_resumed: whether the start goes on with a run that has two rounds left.
    has_tracebacks: whether orbax prints them before the line.
  """

  faults: str
  says: str = ''
  unwritable: str = ''
  reason: str = ''
  exit_code: ExitCode = ExitCode.DONE
  tier: str = 'auto'
  is_resumed: bool = False
  has_tracebacks: bool = False


def without_locks(number):
  faults = f'flock {number} 0 run; fcntl {number} 0 run'
  return DiskCase(faults, says='run: the file system has no locks, so only the lease')


def ends_at(unwritable, number, faults, **options):
  return DiskCase(
    faults.format(number),
    unwritable=f'run/{unwritable}',
    reason=os.strerror(number),
    exit_code=ExitCode.FAILED,
    **options,
  )


# Test_lease.py has every error of a lock, and test_files.py every one of a folder.
SHARED_DISKS = {
  'no locks': without_locks(errno.EOPNOTSUPP),
  'no locks by fcntl alone': DiskCase(f'fcntl {errno.ENOLCK} 0 run'),
  'folders are not flushed': DiskCase(f'fsync_folder {errno.EBADF} 0 run'),
  **{
    f'another host uses {name}: {errno.errorcode[number]}': DiskCase(
      f'rename {number} 3 run/{name}$', is_resumed=True
    )
    for number, name in (
      (errno.ETXTBSY, 'summary.json'),
      (errno.EBUSY, 'config.json'),
      (errno.ESTALE, 'checkpoints/6'),
    )
  },
  **{
    f'{name} was replaced by another host: {call}': DiskCase(
      f'{call} {errno.ESTALE} 2 run/{name}', is_resumed=True
    )
    for call, name in (
      ('open', 'config.json'),
      ('read', 'metrics.jsonl'),
      ('open', 'checkpoints/5/manifest.json'),
      ('read', 'checkpoints/5/manifest.json'),
      ('stat', 'checkpoints/5/default'),
    )
  },
  **{
    f'the clock is wrong by an hour: {seconds}': without_locks(errno.ENOSYS)._replace(
      faults=f'clock {seconds} 0 clock; flock 38 0 run; fcntl 38 0 run', is_resumed=True
    )
    for seconds in (-3600, 3600)
  },
  'all of these': DiskCase(
    'clock -3600 0 clock; flock 37 0 run; fcntl 37 0 run; fsync_folder 22 0 run; '
    'rename 26 3 run/summary.json$; open 116 1 run/config.json',
    says='has no locks',
    is_resumed=True,
  ),
  'a summary that stays in use': ends_at(
    'summary.json', errno.ETXTBSY, 'rename {} 0 run/summary.json'
  ),
  **{
    f'no space at close: {errno.errorcode[number]}, {name}': case
    for number in (errno.EDQUOT, errno.ENOSPC)
    for name, case in {
      'a partition': ends_at('partition.npz', number, 'close {} 1 run/partition.npz'),
      'a manifest': ends_at(
        'checkpoints/4', number, 'close {} 1 checkpoints/4.partial/manifest'
      ),
      # All that they hold has been flushed.
      'files that have been flushed': DiskCase(
        f'close {number} 0 run/metrics.jsonl$; '
        f'close {number} 0 run/timings.jsonl$; close {number} 0 run/.lock'
      ),
    }.items()
  },
  'a quota in a checkpoint': ends_at(
    'checkpoints/3',
    errno.EDQUOT,
    'fsync_file {} 0 run/checkpoints/3.partial/',
    has_tracebacks=True,
  ),
  'a full disk in the records': ends_at(
    'metrics.jsonl', errno.ENOSPC, 'write {} 1 run/metrics.jsonl', is_resumed=True
  ),
  'a broken disk under the records': ends_at(
    'metrics.jsonl', errno.EIO, 'fsync_file {} 1 run/metrics.jsonl'
  ),
  'records that cannot be flushed': ends_at(
    'metrics.jsonl', errno.EINVAL, 'fsync_file {} 0 run/metrics.jsonl'
  ),
  'a broken disk under the memories': ends_at(
    'checkpoints/clients.bin', errno.EIO, 'write {} 1 /clients.bin', tier='disk'
  ),
  'a broken disk under a folder': ends_at(
    'checkpoints/2', errno.EIO, 'fsync_folder {} 1 checkpoints/2.partial/default/'
  ),
  'a broken lock': ends_at('.lock', errno.EIO, 'flock {} 0 run/.lock'),
}
# One start after the other, each with its faults.
FAULTY_STARTS = """
import json, os, pathlib, sys
from moon_jax.building import programs
from moon_jax.runner import callbacks
from tests.processes import launched
from tests.programs import compile_once
callbacks.PictureDrawer.end = lambda self: None
programs.compile_programs = compile_once
for folder, faults, words in json.loads(pathlib.Path('starts.json').read_text()):
  os.environ['FAULTS_MET'] = str(pathlib.Path(folder, 'met'))
  os.environ['FAULTS'] = faults
  completed = launched(folder, words)
  os.environ['FAULTS'] = ''
  ended = [completed.returncode, completed.stdout, completed.stderr]
  pathlib.Path(folder, 'ended.json').write_text(json.dumps(ended))
"""


@pytest.fixture(scope='module')
def faulty_disk(tmp_path_factory):
  """The environment of a process whose system calls can fail."""
  library = tmp_path_factory.mktemp('library') / 'shared_disk.so'
  words = ('-shared', '-fPIC', '-O1', '-o', library, SHARED_DISK, '-ldl', '-lpthread')
  try:
    subprocess.run(['cc', *words], check=True, capture_output=True)
  except (OSError, subprocess.CalledProcessError) as error:
    pytest.skip(f'no library can be built that makes system calls fail: {error}')
  return {'LD_PRELOAD': str(library), 'PYTHONPATH': str(ROOT)}


def words_on(case):
  return [*SIX_ROUNDS, f'--config.execution.client_store={case.tier}']


@pytest.fixture(scope='module')
def faulty_starts(tmp_path_factory, faulty_disk, workdir):
  """Name of a case -> the folder in which it was started, with its `ended.json`."""
  base = tmp_path_factory.mktemp('faulty')
  folders, starts = {}, []
  for number, (name, case) in enumerate(SHARED_DISKS.items()):
    folder = folders[name] = base / f'{number}'
    folder.mkdir()
    if case.is_resumed:
      shutil.copytree(workdir, folder / 'run')
      (folder / 'run/summary.json').unlink()
      shutil.rmtree(folder / 'run/checkpoints/6')
    starts.append((str(folder), case.faults, words_on(case)))
  (base / 'starts.json').write_text(json.dumps(starts))
  completed = launch(base, program=('-c', FAULTY_STARTS), **faulty_disk)
  assert completed.returncode == ExitCode.DONE, completed.stderr
  return folders


@pytest.mark.slow
@pytest.mark.parametrize('name', SHARED_DISKS)
def test_a_shared_disk(name, faulty_starts, undisturbed):
  case, folder = SHARED_DISKS[name], faulty_starts[name]
  met = set((folder / 'met').read_text().split())
  calls = {fault.split()[0] for fault in case.faults.split(';')}
  # Where `flock` fails, `fcntl` is not tried.
  assert calls - met <= ({'fcntl'} if 'flock' in calls else set())
  exit_code, stdout, stderr = json.loads((folder / 'ended.json').read_text())
  *tracebacks, line = [*stderr.splitlines(), ''] if not stderr else stderr.splitlines()
  expected = cannot_be_written(case.unwritable, case.reason) if case.unwritable else ''
  assert (exit_code, line) == (case.exit_code, expected)
  assert case.has_tracebacks or tracebacks == []
  assert case.says in stdout
  assert ('has no locks' in stdout) == bool(case.says)
  assert not list((folder / 'run').glob('checkpoints/bad-*'))
  if exit_code == ExitCode.DONE:
    check_same_end(folder / 'run', undisturbed(SIX_ROUNDS), 6)
  else:
    check_goes_on(folder / 'run', SIX_ROUNDS, undisturbed)


@pytest.mark.slow
def test_a_killed_run_on_a_disk_without_locks(tmp_path, faulty_disk, undisturbed):
  """A second start is refused while it lives; the next one on its host goes on."""
  faults = {'FAULTS': without_locks(errno.ENOLCK).faults}
  with Running(tmp_path, *TWELVE_ROUNDS, **faulty_disk, **faults) as process:
    until_a_round_is_recorded(process, tmp_path / 'run')
    second = launch(tmp_path, *TWELVE_ROUNDS, **faulty_disk, **faults)
    holder = rf'process {process.pid} on {re.escape(platform.node())}, started [^,]+'
    assert second.returncode == ExitCode.USAGE
    assert re.fullmatch(
      rf'Another process is running in run: {holder}, which renewed its lease \d+ s '
      r'ago\. Give this one a --workdir\.\n',
      second.stderr,
    )
    process.kill()
  third = launch(tmp_path, *TWELVE_ROUNDS, **faulty_disk, **faults)
  check_success(third)
  assert re.search(
    rf'{holder}, has ended: its lease on run is taken over', third.stdout
  )
  check_same_end(tmp_path / 'run', undisturbed(TWELVE_ROUNDS), 12)


# --- power ----------------------------------------------------------------------------

POWER_KINDS = ('flushed', 'named')
POWER_CHANGES = TINY | {'num_rounds': 4, 'checkpoint_every_rounds': 1}


def run_on_disk(folder, tier):
  changes = POWER_CHANGES | {'execution.client_store': tier}
  config = moon_jax.load_config('configs/digits_moon.py', changes)
  return moon_jax.run(config, folder / 'deep' / 'run')


@pytest.fixture(scope='module')
def record(tmp_path_factory):
  """Tier -> the instants of a run, and its end."""

  @functools.cache
  def recorded(tier):
    folder = tmp_path_factory.mktemp('disk')
    timings = folder / 'deep' / 'run' / 'timings.jsonl'
    # A round's line is written when its state has been saved.
    disk = power_loss.Disk(folder, lambda: len(files.read_lines(timings)))
    with disk.recording():
      run_on_disk(folder, tier)
    return disk.points, end_of(folder)

  return recorded


def end_of(folder):
  workdir = folder / 'deep' / 'run'
  num_rounds = POWER_CHANGES['num_rounds']
  metrics = (workdir / 'metrics.jsonl').read_bytes()
  memories = ()
  index_path = workdir / f'checkpoints/{num_rounds}/clients.npz'
  if index_path.exists():
    index = client_store.read_index(index_path)
    memories = (index.clients.tolist(), index.checksums.tolist())
  return metrics, read_checkpoint(workdir, num_rounds), memories


def left_at(point, kind, folder):
  """The run directory that is left; all that the program counted on is whole."""
  power_loss.restore(getattr(point, kind), folder)
  workdir = folder / 'deep' / 'run'
  undamaged = [
    int(path.name)
    for path in checkpoint.folders(workdir / 'checkpoints')
    if not checkpoint_folder.find_damage(path, int(path.name))
  ]
  assert max(undamaged, default=0) >= point.promised
  return workdir


def spread_instants(points, count):
  """This many instants, evenly spread, with each kind of loss in turn."""
  positions = np.linspace(0, len(points) - 1, count + 2).astype(int)[1:-1]
  kinds = itertools.cycle(POWER_KINDS)
  return [(points[position], next(kinds)) for position in positions]


@pytest.mark.parametrize(('tier', 'count'), few([('device', 2)], [('disk', 6)]))
def test_losses_of_power(record, tier, count, tmp_path):
  points, expected_end = record(tier)
  assert len(points) > 50
  for number, (point, kind) in enumerate(spread_instants(points, count)):
    folder = tmp_path / str(number)
    workdir = left_at(point, kind, folder)
    assert not list(workdir.glob('checkpoints/bad-*'))
    assert run_on_disk(folder, tier).metrics
    assert end_of(folder) == expected_end
    assert not list(workdir.glob('checkpoints/bad-*'))


@pytest.mark.slow
@pytest.mark.parametrize('tier', ['device', 'disk'])
def test_at_any_instant_what_was_counted_on_is_whole(record, tier, tmp_path):
  points, _ = record(tier)
  promised = {point.promised for point in points}
  assert promised == set(range(POWER_CHANGES['num_rounds'] + 1))
  for point, kind in itertools.product(points, POWER_KINDS):
    left_at(point, kind, tmp_path / 'left')
    shutil.rmtree(tmp_path / 'left')
