"""A run that is killed, stopped or disturbed at any instant ends as if it were not.

Real processes, real signals. Where the instant matters the process is paused when a
file shows that it is there, and that is looked at again before the signal is sent.
"""

import contextlib
import fcntl
import os
import pathlib
import platform
import pty
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from tests.processes import (
  LAUNCH,
  LIMIT_SECONDS,
  ROOT,
  Running,
  check_success,
  checkpoint,
  contents,
  launch,
  no_signal_ignored,
  read_lines,
)
from tests.selection import few

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures('as_users')]

NUM_ROUNDS = 80
EVERY = 2
RUN = (
  '--config.data.limit=300',
  '--config.partition.min_size=2',
  '--config.participation=0.5',
  '--config.local_epochs=1',
  '--config.mlp.width=16',
  '--config.mlp.representation=8',
  f'--config.num_rounds={NUM_ROUNDS}',
  f'--config.checkpoint_every_rounds={EVERY}',
  '--workdir=run',
)
# Rounds that take seconds.
LONG = (
  *RUN[:3],
  *RUN[4:6],
  '--config.local_epochs=2000',
  '--config.num_rounds=4',
  '--config.checkpoint_every_rounds=4',
  '--workdir=run',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Makes a folder in which RUN can run."""
  return tmp_path_factory.mktemp


@pytest.fixture(scope='module')
def undisturbed(folder):
  """The run directory of a run that nothing happened to, and its duration, seconds."""
  place, begin = folder('undisturbed'), time.monotonic()
  check_success(launch(place, *RUN))
  return place / 'run', time.monotonic() - begin


@pytest.fixture(scope='module')
def cached(folder, undisturbed):
  """The words of RUN with a compile cache that is filled; and that changes no bit."""
  place = folder('cached')
  cache = f'--config.execution.compile_cache={place / "programs"}'
  check_success(launch(place, *RUN, cache, '--config.execution.deterministic=true'))
  assert_same_end(place / 'run', undisturbed[0])
  return (*RUN, cache)


def assert_same_end(run, expected, num_rounds=NUM_ROUNDS):
  """The same results to the last bit, and nothing that does not belong there."""
  for name in ('metrics.jsonl', 'partition.npz'):
    assert (run / name).read_bytes() == (expected / name).read_bytes(), name
  leaves = checkpoint(expected, num_rounds)
  # The server's weights, and those that each client sent last.
  assert sum(name.endswith('kernel') for name in leaves) >= 8
  assert checkpoint(run, num_rounds) == leaves
  timed = [line['round'] for line in read_lines(run / 'timings.jsonl')]
  # How long a save took is not known when the process is killed in it.
  assert timed == sorted(set(timed))
  assert timed[-1] == num_rounds
  assert {path.name for path in run.iterdir()} == {
    path.name for path in expected.iterdir()
  }
  names = {path.name for path in (run / 'checkpoints').iterdir()}
  assert names == {path.name for path in (expected / 'checkpoints').iterdir()}
  left = [p.name for p in run.rglob('*') if re.search(r'tmp|partial', p.name)]
  assert left == []


def resumed_after(text):
  """The rounds that a start did not have to do; None if it did not come so far."""
  if 'run: a fresh run' in text:
    return 0
  found = re.search(r'run: resumed after round (\d+) of', text)
  return int(found[1]) if found else None


def num_lines(run):
  path = run / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def saved(run):
  """The newest step, and the newest of those that are not saved yet."""
  names = os.listdir(run / 'checkpoints') if (run / 'checkpoints').exists() else []
  steps = [int(name) for name in names if name.isdigit()]
  begun = [int(n[0]) for name in names if (n := re.match(r'\d+(?=\D)', name))]
  return max(steps, default=0), max(begun, default=0)


# --- kill -9 --------------------------------------------------------------------------


def run_for(process, run, seconds, most_lines):
  """Lets it run so long, but not beyond so many rounds, and pauses it."""
  end = time.monotonic() + seconds
  process.pause_when(lambda: time.monotonic() >= end or num_lines(run) >= most_lines)


@pytest.mark.parametrize('num_kills', few([2], [10]))
def test_killed_many_times_at_random(folder, undisturbed, cached, num_kills):
  kill_many_times(folder('killed'), undisturbed, cached, cached, num_kills)


@pytest.mark.parametrize('num_kills', few([2], [10]))
def test_killed_many_times_at_random_with_the_file(
  folder, undisturbed, cached, num_kills
):
  # The last start takes what the file has to the device, where all is compared.
  on_disk = (*cached, '--config.execution.client_store=disk')
  kill_many_times(folder('killed'), undisturbed, on_disk, cached, num_kills)


def kill_many_times(place, undisturbed, words, last_words, num_kills):
  (place / 'tmp').mkdir()
  rng = random.Random(5)
  expected, whole = undisturbed
  timings = read_lines(expected / 'timings.jsonl')
  phases = ('train_seconds', 'evaluate_seconds', 'save_seconds')
  in_rounds = sum(line[phase] for line in timings for phase in phases)
  # It is shorter with compiled programs.
  start_seconds = 0.6 * (whole - in_rounds)
  # Half anywhere in the start, half within four rounds: fewer than there are in all,
  # whatever else the machine does.
  kinds = [True, False] * (num_kills // 2)
  rng.shuffle(kinds)
  for in_start in kinds:
    before = num_lines(place / 'run')
    with Running(place, *words, TMPDIR=str(place / 'tmp')) as process:
      if in_start:
        run_for(process, place / 'run', rng.uniform(0, start_seconds), before + 1)
      else:
        goal = before + rng.randint(1, 3)
        run_for(process, place / 'run', LIMIT_SECONDS, goal)
        process.send(signal.SIGCONT)
        seconds = rng.uniform(0, 2) * in_rounds / NUM_ROUNDS
        run_for(process, place / 'run', seconds, before + 4)
      done = process.kill()
    start = resumed_after(done.stdout)
    # What is recorded and not saved is all that is done again.
    assert start is None or before - EVERY <= start <= before
    assert done.stderr == ''
  assert num_lines(place / 'run') < NUM_ROUNDS
  done = launch(place, *last_words, TMPDIR=str(place / 'tmp'))
  check_success(done)
  assert resumed_after(done.stdout) > 0
  assert_same_end(place / 'run', expected)
  assert list((place / 'tmp').iterdir()) == []


@pytest.mark.slow
def test_killed_before_the_rename_after_it_and_in_a_line(folder, undisturbed, cached):
  run = folder('points') / 'run'

  def saving():
    step, begun = saved(run)
    return step >= 2 * EVERY and begun > step

  with Running(run.parent, *cached) as process:
    process.pause_when(saving)
    step, begun = saved(run)
    assert begun == step + EVERY == num_lines(run)
    process.kill()

  def has_saved():
    return saved(run)[0] == begun == num_lines(run)

  with Running(run.parent, *cached) as process:
    process.pause_when(has_saved)
    assert resumed_after(process.kill().stdout) == step

  # A limit on the size of files: the kernel takes a part of a line and no more.
  def has_recorded():
    return num_lines(run) == begun + 1

  with Running(run.parent, *cached) as process:
    process.pause_when(has_recorded)
    size = (run / 'metrics.jsonl').stat().st_size + 40
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
    process.send(signal.SIGCONT)
    while (run / 'metrics.jsonl').stat().st_size < size:
      time.sleep(0.001)
    process.send(signal.SIGKILL)
    assert resumed_after(process.finish().stdout) == begun
  assert not (run / 'metrics.jsonl').read_bytes().endswith(b'\n')
  assert num_lines(run) == begun + 1

  done = launch(run.parent, *cached)
  check_success(done)
  assert resumed_after(done.stdout) == begun
  assert_same_end(run, undisturbed[0])


# --- SIGTERM and Ctrl-C ---------------------------------------------------------------


def catches_sigterm(pid):
  """Whether the process has a handler for SIGTERM; Python itself has none."""
  with open(f'/proc/{pid}/status') as status:
    masks = dict(line.split(':', 1) for line in status)
  return int(masks['SigCgt'], 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize('seconds', few([0.2], [0, 0.05, 1]))
def test_interrupted_while_it_is_loaded(tmp_path, seconds):
  with Running(tmp_path, '--workdir=run') as process:
    while not catches_sigterm(process.pid):
      time.sleep(0.0005)
    time.sleep(seconds)
    process.send(signal.SIGINT)
    done = process.finish()
  assert done.returncode == ExitCode.INTERRUPTED
  (line,) = done.stderr.splitlines()
  assert re.fullmatch(
    'Stopped at once by Ctrl-C; what was saved stays. To go on: '
    '(the same command|python launch.py --workdir=run)',
    line,
  )
  assert contents(tmp_path) == {}


STOPPED = 'Stopped at once by {}; what was saved stays. To go on: python launch.py {}\n'


def _open_files(pid):
  """The paths that a process has open."""
  found = []
  for link in pathlib.Path(f'/proc/{pid}/fd').iterdir():
    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
      found.append(link.readlink())
  return found


def test_stopped_while_data_is_loaded(tmp_path):
  path = tmp_path / 'large.npz'
  images, labels = np.zeros((100_000, 16, 16), np.uint8), np.arange(100_000) % 2
  np.savez(path, train_x=images, train_y=labels, test_x=images, test_y=labels)
  words = ['--config.data.source=npz', f'--config.data.path={path}', '--workdir=run']

  with Running(tmp_path, *words) as process:
    process.pause_when(lambda: path in _open_files(process.pid))
    process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)
    done = process.finish()
  assert done.returncode == ExitCode.PREEMPTED
  assert done.stderr == STOPPED.format('SIGTERM', ' '.join(words))
  assert not (tmp_path / 'run').exists()


_FAILS_IN_A_ROUND = """
import os, signal, time
from moon_jax.runner import signals
stop = signals.listen()
try:
  with stop.deferred():
    raise ValueError
except ValueError:
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(60)
"""


def test_nothing_is_saved_on_a_signal_after_a_failure(tmp_path):
  done = launch(tmp_path, program=('-c', _FAILS_IN_A_ROUND), PYTHONPATH=str(ROOT))
  assert done.returncode == ExitCode.PREEMPTED
  assert done.stderr == (
    'Stopped at once by SIGTERM; what was saved stays. To go on: the same command\n'
  )


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
  assert done.stderr.endswith(STOPPED.format('SIGTERM', ' '.join(words)))
  assert done.stdout.endswith('compiling one round and one test ... ')


SAVING = '{}: saving after this round; SIGTERM or Ctrl-C now stops at once.\n'


@pytest.mark.slow
def test_stopped_in_a_round(folder):
  expected = folder('long') / 'run'
  check_success(launch(expected.parent, *LONG))
  run = folder('stopped') / 'run'

  with Running(run.parent, *LONG) as process:
    process.wait_for('round 1/4')
    process.send(signal.SIGTERM)
    process.wait_for(SAVING.format('SIGTERM'), stream='stderr')
    process.send(signal.SIGTERM)
    done = process.finish()
  assert done.returncode == ExitCode.PREEMPTED
  again = STOPPED.format('SIGTERM', ' '.join(LONG))
  assert done.stderr == SAVING.format('SIGTERM') + again
  assert saved(run) == (0, 0)

  with Running(run.parent, *LONG) as process:
    process.wait_for('round 1/4')
    process.send(signal.SIGINT)
    done = process.finish()
  assert done.returncode == ExitCode.INTERRUPTED
  assert resumed_after(done.stdout) == 0
  step, begun = saved(run)
  # A single device may have been given the third one already.
  assert step in (2, 3)
  assert begun == 0
  assert done.stderr == SAVING.format('Ctrl-C') + (
    f'Stopped by Ctrl-C after round {step}, which is saved. '
    f'To go on: python launch.py {" ".join(LONG)}\n'
  )

  check_success(launch(run.parent, *LONG))
  assert_same_results(run, expected)


def assert_same_results(run, expected):
  """As assert_same_end, after other saves than usual."""
  assert (run / 'metrics.jsonl').read_bytes() == (
    expected / 'metrics.jsonl'
  ).read_bytes()
  assert checkpoint(run, 4) == checkpoint(expected, 4)


@pytest.mark.parametrize(
  ('numbers', 'code'),
  few(
    [([signal.SIGTERM, signal.SIGHUP], ExitCode.PREEMPTED)],
    [([signal.SIGINT], ExitCode.INTERRUPTED)],
  ),
)
def test_stopped_in_a_save(folder, undisturbed, cached, numbers, code):
  run = folder('saving') / 'run'

  def saving():
    step, begun = saved(run)
    return step >= EVERY and begun > step

  with Running(run.parent, *cached) as process:
    process.pause_when(saving)
    _, begun = saved(run)
    process.send(numbers[0])
    process.send(signal.SIGCONT)
    for number in numbers[1:]:
      process.wait_for('saving after this round', stream='stderr')
      process.send(number)
    done = process.finish()
  assert done.returncode == code
  assert f'after round {begun}, which is saved. To go on: python' in done.stderr
  assert saved(run) == (begun, 0)
  done = launch(run.parent, *cached)
  check_success(done)
  assert resumed_after(done.stdout) == begun
  assert_same_end(run, undisturbed[0])


@pytest.mark.slow
def test_nohup(folder, undisturbed, cached):
  run = folder('nohup') / 'run'
  with Running(run.parent, *cached, prefix=('nohup',)) as process:
    process.pause_when(lambda: num_lines(run) > 0)
    process.send(signal.SIGHUP)
    process.send(signal.SIGCONT)
    done = process.finish()
  assert done.returncode == ExitCode.DONE
  assert_same_end(run, undisturbed[0])


def test_a_terminal_that_is_closed(folder):
  run = folder('terminal') / 'run'
  terminal, inside = pty.openpty()
  line = shlex.join([sys.executable, LAUNCH, *LONG])
  # The shell, which the kernel tells first, passes the signal on; then it tells all.
  with no_signal_ignored():
    shell = subprocess.Popen(
      ['setsid', '--ctty', 'bash', '--norc', '-i', '-c', f'{line}; true'],
      cwd=run.parent,
      stdin=inside,
      stdout=inside,
      stderr=inside,
    )
  os.close(inside)
  try:
    while num_lines(run) == 0:
      os.read(terminal, 65536)
  finally:
    os.close(terminal)
    shell.wait(LIMIT_SECONDS)
  with (run / '.lock').open() as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)  # the run has ended
  assert saved(run) == (num_lines(run), 0)
  assert num_lines(run) < 4


# --- two runs in one directory --------------------------------------------------------


def test_two_runs_in_one_directory(folder, undisturbed, cached):
  run = folder('two') / 'run'
  with Running(run.parent, *cached) as first:
    first.pause_when(lambda: saved(run)[0] > 0)
    before = contents(run)
    second = launch(run.parent, *cached)
    assert second.returncode == ExitCode.USAGE
    who = f'process {first.pid} on {re.escape(platform.node())}'
    when = r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d'
    assert re.fullmatch(
      rf'Another process is running in run: {who}, started {when}\. '
      r'Give this one a --workdir\.\n',
      second.stderr,
    )
    assert contents(run) == before
    first.kill()
  # Its lock file is still there, and means nothing.
  assert (run / '.lock').exists()
  done = launch(run.parent, *cached)
  check_success(done)
  assert resumed_after(done.stdout) >= EVERY
  assert_same_end(run, undisturbed[0])


# --- a run directory that goes away ---------------------------------------------------


MOVED = (
  r'run/{} cannot be written: No such file or directory\. What was saved before is '
  r'kept, and the same command goes on from there\.\n'
)


@pytest.mark.slow
def test_a_run_directory_that_is_moved_or_removed(folder, undisturbed, cached):
  run = folder('away') / 'run'

  def between_saves():
    step, begun = saved(run)
    return step >= EVERY and not begun and num_lines(run) == step + 1

  with Running(run.parent, *cached) as process:
    process.pause_when(between_saves)
    shutil.rmtree(run)
    process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)
    done = process.finish()
  assert done.returncode == ExitCode.FAILED
  moved = MOVED.format(r'checkpoints/\d+')
  assert re.fullmatch(re.escape(SAVING.format('SIGTERM')) + moved, done.stderr)
  assert list(run.parent.iterdir()) == []

  moved = run.with_name('moved')
  with Running(run.parent, *cached) as process:
    process.pause_when(between_saves)
    step, _ = saved(run)
    run.rename(moved)
    run.mkdir()  # as another run would, which has saved nothing yet
    process.send(signal.SIGCONT)
    done = process.finish()
  assert done.returncode == ExitCode.FAILED
  assert re.fullmatch(MOVED.format(r'checkpoints/\d+'), done.stderr)
  assert list(run.iterdir()) == []
  run.rmdir()
  words = [word for word in cached if 'workdir' not in word]
  done = launch(run.parent, *words, '--workdir=moved')
  check_success(done)
  assert f'moved: resumed after round {step} of {NUM_ROUNDS}' in done.stdout
  assert_same_end(moved, undisturbed[0])


PNG = b'\x89PNG'


@pytest.mark.slow
def test_a_run_directory_that_is_moved_after_the_last_save(folder):
  run = folder('last') / 'run'
  words = [word for word in LONG if 'num_rounds' not in word]
  with Running(run.parent, *words, '--config.num_rounds=2') as process:
    process.wait_for('round 1/2')
    # The next line, which follows the save, has to wait for somebody who reads.
    pipe = os.open(f'/proc/{process.pid}/fd/1', os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
      while True:
        os.write(pipe, b'.')
    os.close(pipe)
    # What is drawn beside the second round is there, too, and TensorBoard has it.
    (events,) = (run / 'tensorboard').iterdir()
    while len(read_lines(run / 'timings.jsonl')) < 2 or PNG not in events.read_bytes():
      time.sleep(0.001)
    run.rename(run.with_name('moved'))
    done = process.finish()
  assert done.returncode == ExitCode.FAILED
  assert re.fullmatch(MOVED.format(r'curves\.png'), done.stderr)
  assert [path.name for path in run.parent.iterdir()] == ['moved']
  assert not (run.with_name('moved') / 'summary.json').exists()
