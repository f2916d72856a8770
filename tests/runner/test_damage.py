"""Damaged files, a full disk, another machine: what a real process makes of them.

All runs train the same six rounds; their ends are compared byte for byte with those of
a run that nothing happened to.
"""

import re
import resource
import shutil

import pytest
from matplotlib import font_manager

from moon_jax.core.errors import ExitCode
from tests.processes import check_success, checkpoint, launch, read_lines
from tests.runner.test_files import fill
from tests.runner.test_launch import EVERY, TINY

pytestmark = pytest.mark.faults

ONE_DEVICE = '--config.execution.devices=1'
RUN = (*TINY, f'{EVERY}1', '--workdir=run')
SIX = (*RUN, ONE_DEVICE, '--config.num_rounds=6')
LIMIT_BEFORE_LOADING = 2.0  # seconds


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  """The run directory of six rounds on one device that nothing happened to."""
  font_manager.findfont('DejaVu Sans')  # says on first use that it lists the fonts
  folder = tmp_path_factory.mktemp('expected')
  check_success(launch(folder, *SIX))
  return folder / 'run'


@pytest.fixture
def unfinished(expected, tmp_path):
  """A copy of it as if it had been killed after the last save."""
  shutil.copytree(expected, tmp_path / 'run')
  (tmp_path / 'run/summary.json').unlink()
  return tmp_path / 'run'


def assert_same_end(run, expected):
  assert (run / 'metrics.jsonl').read_bytes() == (
    expected / 'metrics.jsonl'
  ).read_bytes()
  assert checkpoint(run, 6) == checkpoint(expected, 6)
  assert (run / 'summary.json').exists()


def steps(run):
  return sorted(path.name for path in (run / 'checkpoints').iterdir())


def flip_a_bit(step):
  """In the largest file of a checkpoint, which holds weights."""
  path = max(
    (path for path in step.rglob('*') if path.is_file()),
    key=lambda path: path.stat().st_size,
  )
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)
  return path


def cpu_seconds():
  """Of the processes that have ended: a busy machine does not count."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def one_line(done):
  assert len(done.stderr.splitlines()) == 1, done.stderr
  return done.stderr


# --- corruption -----------------------------------------------------------------------


def test_a_flipped_bit_costs_a_round(unfinished, expected):
  name = flip_a_bit(unfinished / 'checkpoints/6').name
  done = launch(unfinished.parent, *SIX)
  check_success(done)
  (line,) = (line for line in done.stdout.splitlines() if 'damaged' in line)
  assert re.fullmatch(
    rf'checkpoint 6 is damaged \(.*{name} has changed\); set aside as bad-6-1', line
  )
  assert 'resumed after round 5 of 6' in done.stdout
  assert steps(unfinished) == ['5', '6', 'bad-6-1']
  assert_same_end(unfinished, expected)


def test_all_damaged_and_then_all_gone(unfinished):
  for step in (unfinished / 'checkpoints').iterdir():
    flip_a_bit(step)
  before = (unfinished / 'metrics.jsonl').read_bytes()
  done = launch(unfinished.parent, *SIX)
  assert done.returncode == ExitCode.NO_CHECKPOINT
  assert 'checkpoints holds no usable checkpoint, but rounds' in one_line(done)
  assert done.stdout.count('set aside as bad-') == 2
  assert 'compiling' not in done.stdout

  shutil.rmtree(unfinished / 'checkpoints')
  done = launch(unfinished.parent, *SIX)
  assert done.returncode == ExitCode.NO_CHECKPOINT
  assert 'checkpoints holds no usable checkpoint, but rounds' in one_line(done)
  assert 'compiling' not in done.stdout
  assert (unfinished / 'metrics.jsonl').read_bytes() == before


# --- a full disk ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_and_then_space(disk, remount, expected):
  # Two checkpoints fit, and not a third.
  size = sum(
    path.stat().st_size
    for path in (expected / 'checkpoints/6').rglob('*')
    if path.is_file()
  )
  folder = disk('small', int(2.5 * size))
  done = launch(folder, *SIX)
  assert done.returncode == ExitCode.FAILED
  kept = [int(name) for name in steps(folder / 'run')]
  assert len(kept) == 2
  assert done.stderr == (
    f'run/checkpoints/{kept[1] + 1} cannot be written: No space left on device. What '
    'was saved before is kept, and the same command goes on from there.\n'
  )
  assert len(read_lines(folder / 'run/metrics.jsonl')) == kept[1] + 1

  # Before JAX is loaded, and so before the data is.
  filler = fill(folder)
  before = cpu_seconds()
  done = launch(folder, *SIX)
  assert cpu_seconds() - before < LIMIT_BEFORE_LOADING
  assert done.returncode == ExitCode.FAILED
  assert 'run cannot be written: No space left on device. What' in one_line(done)

  filler.unlink()
  remount(folder, 'size=64m')
  done = launch(folder, *SIX)
  check_success(done)
  assert f'resumed after round {kept[1]} of 6' in done.stdout
  assert steps(folder / 'run') == ['5', '6']
  assert_same_end(folder / 'run', expected)


@pytest.mark.slow
def test_a_full_disk_while_memories_are_written(disk, remount, expected):
  # One version of all memories fits, and not a second.
  whole = expected / 'checkpoints/6'
  size = sum(path.stat().st_size for path in whole.rglob('*') if path.is_file())
  folder = disk('small', int(1.5 * size))
  done = launch(folder, *SIX, '--config.execution.client_store=disk')
  assert done.returncode == ExitCode.FAILED
  assert one_line(done) == (
    'run/checkpoints/clients.bin cannot be written: No space left on device. What was '
    'saved before is kept, and the same command goes on from there.\n'
  )
  remount(folder, 'size=64m')
  done = launch(folder, *SIX)
  check_success(done)
  assert 'resumed after round 2 of 6' in done.stdout
  assert_same_end(folder / 'run', expected)


def test_a_read_only_disk(disk, remount, tmp_path):
  folder = disk('frozen', '64k')
  remount(folder, 'ro')
  before = cpu_seconds()
  done = launch(tmp_path, f'--workdir={folder}/run')
  assert cpu_seconds() - before < LIMIT_BEFORE_LOADING
  assert done.returncode == ExitCode.USAGE
  assert one_line(done) == (
    f"--workdir='{folder}/run' cannot be written: Read-only file system.\n"
  )


# --- another machine ------------------------------------------------------------------


@pytest.mark.slow
def test_on_three_devices_then_eight_then_one(tmp_path, expected):
  """The rounds of the last one are traced too, which changes no number."""
  for devices, num_rounds in ((3, 2), (8, 4), (1, 6)):
    done = launch(
      tmp_path,
      *RUN,
      f'--config.num_rounds={num_rounds}',
      f'--config.execution.devices={devices}',
      f'--config.execution.profile={devices == 1}',
    )
    check_success(done)
    assert f'{devices} x cpu' in done.stdout
    lanes = f'lanes: {devices} on {devices} device'
    assert (lanes in done.stdout) == (devices < 8)  # five clients are in a round
  assert 'resumed after round 4 of 6' in done.stdout
  went = re.search(r'where the time went: .*train ([\d.]+) s', done.stdout)
  assert went
  assert list((tmp_path / 'run/profile').rglob('*.xplane.pb'))
  assert_close(tmp_path / 'run', expected)


def assert_close(run, expected):
  """Equal choices; equal numbers up to the order of float32 sums."""
  found, wanted = (read_lines(folder / 'metrics.jsonl') for folder in (run, expected))
  assert len(found) == len(wanted)
  for line, truth in zip(found, wanted, strict=True):
    assert line['clients'] == truth['clients']
    for name in ('train_loss', 'contrastive_loss', 'test_loss', 'drift'):
      assert line[name] == pytest.approx(truth[name], rel=1e-4)
