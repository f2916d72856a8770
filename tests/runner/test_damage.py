"""Damaged files, a full disk, a directory that goes away: how a run ends and goes on.

All runs train the same six rounds; their ends are compared byte for byte with those of
a run that nothing happened to.
"""

import resource
import shutil
import time

import pytest

import moon_jax
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode, RunError
from moon_jax.runner import callbacks, loop
from tests.conftest import draw_pictures
from tests.processes import check_same_records, checkpoint, flip, launch, launched
from tests.runner.conftest import SIX
from tests.runner.test_files import fill, told

pytestmark = pytest.mark.faults

MINE = (*SIX, '--workdir=run')
LIMIT_BEFORE_LOADING = 2.0  # seconds


def assert_same_end(run, expected):
  check_same_records(run, expected)
  assert checkpoint(run, 6) == checkpoint(expected, 6)
  assert (run / 'summary.json').exists()


def steps(run):
  return sorted(path.name for path in (run / 'checkpoints').iterdir())


def sizes(step):
  return {path: path.stat().st_size for path in step.rglob('*') if path.is_file()}


def flip_a_bit(step):
  """Flips a bit of the largest file of a checkpoint, which holds weights."""
  flip(max(found := sizes(step), key=found.get))


# --- corruption -----------------------------------------------------------------------


def test_all_damaged_and_then_all_gone(unfinished):
  for step in (unfinished / 'checkpoints').iterdir():
    flip_a_bit(step)
  before = (unfinished / 'metrics.jsonl').read_bytes()
  for set_aside in (2, 0):
    done = launched(unfinished.parent, *MINE)
    assert done.returncode == ExitCode.NO_CHECKPOINT
    assert 'checkpoints holds no usable checkpoint, but rounds' in done.stderr
    assert done.stderr.count('\n') == 1
    assert done.stdout.count('set aside as bad-') == set_aside
    assert 'compiling' not in done.stdout
    shutil.rmtree(unfinished / 'checkpoints')
  assert (unfinished / 'metrics.jsonl').read_bytes() == before


# --- a full disk ----------------------------------------------------------------------


def refused_before_loading(folder, *words):
  """What a process prints that ends before it loads JAX, and so before the data."""

  def cpu_seconds():  # of ended processes: other load does not count
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

  before = cpu_seconds()
  done = launch(folder, *words)
  assert cpu_seconds() - before < LIMIT_BEFORE_LOADING
  return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('tier', ['device', 'disk'])
def test_a_full_disk_and_then_space(disk, remount, workdir, tier):
  # There is room for two checkpoints, not three; or for all memories once, not twice.
  room = {'device': 2.5, 'disk': 1.5}[tier]
  folder = disk('small', int(room * sum(sizes(workdir / 'checkpoints/6').values())))
  done = launched(folder, *MINE, f'--config.execution.client_store={tier}')
  assert done.returncode == ExitCode.FAILED
  kept = max(int(name) for name in steps(folder / 'run') if name.isdigit())
  names = {'device': [str(kept + 1)], 'disk': ['clients.bin', str(kept + 1)]}[tier]
  full = 'No space left on device'
  assert done.stderr in [told(f'run/checkpoints/{name}', full) + '\n' for name in names]
  filler = fill(folder)
  wanted = ExitCode.FAILED, told('run', full) + '\n'
  assert refused_before_loading(folder, *MINE) == wanted
  filler.unlink()
  remount(folder, 'size=64m')
  done = launched(folder, *MINE)
  assert done.returncode == ExitCode.DONE
  assert f'resumed after round {kept} of 6' in done.stdout
  assert_same_end(folder / 'run', workdir)


def test_a_read_only_disk(disk, remount, tmp_path):
  folder = disk('frozen', '64k')
  remount(folder, 'ro')
  assert refused_before_loading(tmp_path, f'--workdir={folder}/run') == (
    ExitCode.USAGE,
    f"--workdir='{folder}/run' cannot be written: Read-only file system.\n",
  )


# --- a run directory that goes away ---------------------------------------------------


class Once(moon_jax.Callback):
  """Does something to the run directory after a round, or at the end."""

  def __init__(self, act, after=None):
    self._act, self._after = act, after

  def begin(self, run):
    self._checkpoints = run.workdir / 'checkpoints'

  def after_round(self, round):
    if round.number == self._after:
      while not (self._checkpoints / str(round.number - 1)).exists():
        time.sleep(0.01)  # this round is trained during the write
      self._act()

  def end(self):
    if self._after is None:
      self._act()


@pytest.mark.parametrize(
  ('what', 'after', 'lost'),
  [
    ('removed', 3, 'checkpoints/3'),
    ('moved', 3, 'checkpoints/3'),
    ('replaced', 3, 'checkpoints/3'),
    ('moved', None, 'curves.png'),  # after the last save
  ],
)
def test_a_run_directory_that_is_moved_or_removed(
  tmp_path, workdir, monkeypatch, what, after, lost
):
  monkeypatch.setattr(callbacks.PictureDrawer, 'end', draw_pictures)
  run, moved = tmp_path / 'run', tmp_path / 'moved'

  def act():
    if what == 'removed':
      shutil.rmtree(run)
    else:
      run.rename(moved)
    if what == 'replaced':
      run.mkdir()  # like another run that has saved nothing yet

  request = cli.parse([*SIX, f'--workdir={run}'])
  with pytest.raises(RunError) as caught:
    loop.run(request, callbacks=[Once(act, after)])
  assert caught.value.exit_code == ExitCode.FAILED
  assert str(caught.value) == told(run / lost, 'No such file or directory')
  left = {'removed': set(), 'moved': {moved}, 'replaced': {run, moved}}
  assert set(tmp_path.iterdir()) == left[what]
  if what == 'replaced':
    assert list(run.iterdir()) == []
  if what == 'moved':
    assert not (moved / 'summary.json').exists()
    done = launched(tmp_path, *SIX, '--workdir=moved')
    assert f'moved: resumed after round {(after or 7) - 1} of 6' in done.stdout
    assert_same_end(moved, workdir)
