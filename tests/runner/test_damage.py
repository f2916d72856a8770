"""Damaged files, a full disk, another number of devices: what a run makes of them.

All runs train the same six rounds; their ends are compared byte for byte with those of
a run that nothing happened to.
"""

import re
import resource
import shutil

import pytest

from moon_jax import __main__
from moon_jax.core.errors import ExitCode
from tests.processes import checkpoint, launch, read_lines
from tests.runner.test_files import fill
from tests.runner.test_launch import EVERY, TINY

pytestmark = pytest.mark.faults

RUN = (*TINY, f'{EVERY}1')
SIX = (*RUN, '--config.execution.devices=1', '--config.num_rounds=6')
LIMIT_BEFORE_LOADING = 2.0  # seconds
KEPT = 'What was saved before is kept, and the same command goes on from there.\n'


@pytest.fixture
def trained(capsys):
  """Run directory and flags -> exit code, and what was printed and said on stderr."""

  def run(workdir, *words):
    code = __main__.launch([*words, f'--workdir={workdir}'])
    return code, *capsys.readouterr()

  return run


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  """The run directory of six rounds on one device that nothing happened to."""
  workdir = tmp_path_factory.mktemp('expected') / 'run'
  assert __main__.launch([*SIX, f'--workdir={workdir}']) == ExitCode.DONE
  return workdir


@pytest.fixture
def unfinished(expected, tmp_path):
  """A copy of it as if it had been killed after the last save."""
  shutil.copytree(expected, tmp_path / 'run')
  (tmp_path / 'run/summary.json').unlink()
  return tmp_path / 'run'


def assert_same_end(run, expected):
  records, wanted = (
    (folder / 'metrics.jsonl').read_bytes() for folder in (run, expected)
  )
  assert records == wanted
  assert checkpoint(run, 6) == checkpoint(expected, 6)
  assert (run / 'summary.json').exists()


def steps(run):
  return sorted(path.name for path in (run / 'checkpoints').iterdir())


def size_of(step):
  return sum(path.stat().st_size for path in step.rglob('*') if path.is_file())


def flip_a_bit(step):
  """In the largest file of a checkpoint, which holds weights."""
  every = (path for path in step.rglob('*') if path.is_file())
  path = max(every, key=lambda path: path.stat().st_size)
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)
  return path


# --- corruption -----------------------------------------------------------------------


def test_a_flipped_bit_costs_a_round(trained, unfinished, expected):
  name = flip_a_bit(unfinished / 'checkpoints/6').name
  code, told, _ = trained(unfinished, *SIX)
  assert code == ExitCode.DONE
  (line,) = (line for line in told.splitlines() if 'damaged' in line)
  assert re.fullmatch(
    rf'checkpoint 6 is damaged \(.*{name} has changed\); set aside as bad-6-1', line
  )
  assert 'resumed after round 5 of 6' in told
  assert steps(unfinished) == ['5', '6', 'bad-6-1']
  assert_same_end(unfinished, expected)


def test_all_damaged_and_then_all_gone(trained, unfinished):
  for step in (unfinished / 'checkpoints').iterdir():
    flip_a_bit(step)
  before = (unfinished / 'metrics.jsonl').read_bytes()
  for set_aside in (2, 0):
    code, told, problem = trained(unfinished, *SIX)
    assert code == ExitCode.NO_CHECKPOINT
    assert 'checkpoints holds no usable checkpoint, but rounds' in problem
    assert problem.count('\n') == 1
    assert told.count('set aside as bad-') == set_aside
    assert 'compiling' not in told
    shutil.rmtree(unfinished / 'checkpoints')
  assert (unfinished / 'metrics.jsonl').read_bytes() == before


# --- a full disk ----------------------------------------------------------------------


def cpu_seconds():
  """Of the processes that have ended: a busy machine does not count."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def refused_before_loading(folder, *words):
  """What a process says that ends before JAX is loaded, and so before the data is."""
  before = cpu_seconds()
  done = launch(folder, *words)
  assert cpu_seconds() - before < LIMIT_BEFORE_LOADING
  assert len(done.stderr.splitlines()) == 1, done.stderr
  return done.returncode, done.stderr


@pytest.mark.slow
def test_a_full_disk_and_then_space(trained, disk, remount, expected):
  # Two checkpoints fit, and not a third.
  folder = disk('small', int(2.5 * size_of(expected / 'checkpoints/6')))
  code, _, problem = trained(folder / 'run', *SIX)
  assert code == ExitCode.FAILED
  kept = [int(name) for name in steps(folder / 'run')]
  assert len(kept) == 2
  place = folder / f'run/checkpoints/{kept[1] + 1}'
  assert problem == f'{place} cannot be written: No space left on device. {KEPT}'
  assert len(read_lines(folder / 'run/metrics.jsonl')) == kept[1] + 1

  filler = fill(folder)
  full = f'run cannot be written: No space left on device. {KEPT}'
  words = (*SIX, '--workdir=run')
  assert refused_before_loading(folder, *words) == (ExitCode.FAILED, full)

  filler.unlink()
  remount(folder, 'size=64m')
  code, told, _ = trained(folder / 'run', *SIX)
  assert code == ExitCode.DONE
  assert f'resumed after round {kept[1]} of 6' in told
  assert steps(folder / 'run') == ['5', '6']
  assert_same_end(folder / 'run', expected)


@pytest.mark.slow
def test_a_full_disk_while_memories_are_written(trained, disk, remount, expected):
  # One version of all memories fits, and not a second.
  folder = disk('small', int(1.5 * size_of(expected / 'checkpoints/6')))
  code, _, problem = trained(
    folder / 'run', *SIX, '--config.execution.client_store=disk'
  )
  assert code == ExitCode.FAILED
  place = folder / 'run/checkpoints/clients.bin'
  assert problem == f'{place} cannot be written: No space left on device. {KEPT}'
  remount(folder, 'size=64m')
  code, told, _ = trained(folder / 'run', *SIX)
  assert code == ExitCode.DONE
  assert 'resumed after round 2 of 6' in told
  assert_same_end(folder / 'run', expected)


def test_a_read_only_disk(disk, remount, tmp_path):
  folder = disk('frozen', '64k')
  remount(folder, 'ro')
  code, problem = refused_before_loading(tmp_path, f'--workdir={folder}/run')
  assert code == ExitCode.USAGE
  assert problem == (
    f"--workdir='{folder}/run' cannot be written: Read-only file system.\n"
  )


# --- another machine ------------------------------------------------------------------


@pytest.mark.slow
def test_on_three_devices_then_eight_then_one(trained, tmp_path, expected):
  """The rounds of the last one are traced too, which changes no number."""
  for devices, num_rounds in ((3, 2), (8, 4), (1, 6)):
    code, told, _ = trained(
      tmp_path / 'run',
      *RUN,
      f'--config.num_rounds={num_rounds}',
      f'--config.execution.devices={devices}',
      f'--config.execution.profile={devices == 1}',
    )
    assert code == ExitCode.DONE
    # Five clients are in a round.
    assert (f'lanes: {devices} on {devices} device' in told) == (devices < 8)
  assert 'resumed after round 4 of 6' in told
  assert re.search(r'where the time of the traced rounds went: train ([\d.]+) s', told)
  assert list((tmp_path / 'run/profile').rglob('*.xplane.pb'))
  # Equal choices; equal numbers up to the order of float32 sums.
  every = (read_lines(run / 'metrics.jsonl') for run in (tmp_path / 'run', expected))
  for line, truth in zip(*every, strict=True):
    assert line['clients'] == truth['clients']
    for name in ('train_loss', 'contrastive_loss', 'test_loss', 'drift'):
      assert line[name] == pytest.approx(truth[name], rel=1e-4)
