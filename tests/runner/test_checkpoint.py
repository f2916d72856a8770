"""A state survives saving and loading bit for bit, or is refused."""

import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core import files
from moon_jax.core.errors import ExitCode, NoCheckpointError, RunError
from moon_jax.core.types import State
from moon_jax.platform import devices
from moon_jax.runner import checkpoint_folder
from moon_jax.runner.checkpoint import Checkpoints
from tests import world
from tests.processes import flip
from tests.refusals import refused
from tests.runner.test_files import cannot_be_written


def opened(tmp_path, printed_lines=None):
  """The checkpoints of a folder; what they print is appended to the list."""
  if printed_lines is None:
    printed_lines = []
  return Checkpoints(tmp_path / 'checkpoints', printed_lines.append)


def saved(tmp_path, algorithm='moon'):
  state, _ = world.run(algorithm, 2)[-1]
  with opened(tmp_path) as checkpoints:
    checkpoints.save(state)
  return state


def load(tmp_path, template, printed_lines=None, **options):
  with opened(tmp_path, printed_lines) as checkpoints:
    return checkpoints.newest_or(template, **options)


def names(tmp_path):
  return sorted(path.name for path in (tmp_path / 'checkpoints').iterdir())


def test_the_newest_of_several_is_used_and_two_are_kept(tmp_path):
  state = world.first_state('fedavg')

  def save(rounds):
    with opened(tmp_path) as checkpoints:
      for completed in rounds:
        checkpoints.save(state._replace(round=jnp.int32(completed)))

  save([1, 2, 10])
  # An existing checkpoint is not overwritten.
  full = 'checkpoints/10 cannot be written: Directory not empty'
  with pytest.raises(RunError, match=full):
    save([10])
  assert int(load(tmp_path, state).round) == 10
  assert names(tmp_path) == ['10', '2']


def test_what_others_still_read_on_nfs_ends_no_run(tmp_path, monkeypatch):
  state = world.first_state('fedavg')

  def still_read(folder, *_, **__):
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))

  with monkeypatch.context() as patch:
    patch.setattr(shutil, 'rmtree', still_read)
    with opened(tmp_path) as checkpoints:
      for completed in (1, 2, 3):
        checkpoints.save(state._replace(round=jnp.int32(completed)))
  assert names(tmp_path) == ['1.partial', '2', '3']
  assert int(load(tmp_path, state).round) == 3  # and what was left is removed
  assert names(tmp_path) == ['2', '3']


def test_another_dtype_shape_algorithm_or_format_is_refused(tmp_path):
  saved(tmp_path)
  first = world.first_state('moon')
  with pytest.raises(NoCheckpointError, match=r'differing: round\.'):
    load(tmp_path, first._replace(round=jnp.float32(0)))
  longer = jax.tree.map(lambda leaf: jnp.zeros((9, *leaf.shape[1:])), first.clients)
  with pytest.raises(NoCheckpointError, match=r'clients\.count'):
    load(tmp_path, first._replace(clients=longer))
  with pytest.raises(NoCheckpointError, match=r'clients\.models'):
    load(tmp_path, world.first_state('fedavg'))
  # A later format is refused too. The fault is the command's and not the checkpoint's,
  # so the checkpoint stays in its place.
  path = tmp_path / 'checkpoints/2' / checkpoint_folder.MANIFEST
  path.write_text(json.dumps(json.loads(path.read_text()) | {'format': 9}))
  with pytest.raises(NoCheckpointError, match=r'checkpoints/2 has checkpoint format 9'):
    load(tmp_path, first)
  assert names(tmp_path) == ['2']


# --- damage ---------------------------------------------------------------------------


@pytest.fixture(scope='module')
def two_steps(tmp_path_factory):
  """A folder with the checkpoints 1 and 2 of a run, and the states."""
  folder = tmp_path_factory.mktemp('two_steps')
  states = [state for state, _ in world.run('fedavg', 2)]
  with opened(folder) as checkpoints:
    for state in states:
      checkpoints.save(state)
  return folder, states


def assert_same(loaded, state):
  assert world.largest_difference(loaded, state) == 0


@pytest.mark.faults
def test_damage_to_any_file_is_found(tmp_path, two_steps):
  folder, (before, after) = two_steps
  template, newest = world.first_state('fedavg'), folder / 'checkpoints/2'
  assert_same(load(folder, template), after)
  files = [p for p in newest.rglob('*') if p.is_file() and p.stat().st_size]
  # They are weights, their index, the metadata and the manifest.
  assert len(files) > 8
  for path in files:
    damaged_folder, printed_lines = tmp_path / 'here', []
    shutil.copytree(folder, damaged_folder)
    flip(damaged_folder / path.relative_to(folder))
    assert_same(load(damaged_folder, template, printed_lines), before)
    assert names(damaged_folder) == ['1', 'bad-2-1']
    (line,) = printed_lines
    # The message names the file that differs from the manifest, unless it is the
    # manifest.
    file_named = (
      '.*' if path.name == checkpoint_folder.MANIFEST else f'.*{path.name} .*'
    )
    set_aside = r'set aside as bad-2-1'
    assert re.fullmatch(rf'checkpoint 2 is damaged \({file_named}\); {set_aside}', line)
    shutil.rmtree(damaged_folder)


def test_which_folders_are_taken_for_checkpoints(tmp_path, two_steps):
  folder, (_, after) = two_steps
  shutil.copytree(folder / 'checkpoints', tmp_path / 'checkpoints')
  inside = tmp_path / 'checkpoints'
  (inside / '7').mkdir()
  (inside / '8').write_text('a file')
  shutil.copytree(inside / '1', inside / '9')
  junk = ['notes.txt', '-3', '007', '1e3', '12.bak', 'ten', '.hidden', '\u0663']
  for name in junk:
    (inside / name).mkdir()
  printed_lines = []
  assert_same(load(tmp_path, world.first_state('fedavg'), printed_lines), after)
  unread = 'manifest.json cannot be read'
  assert printed_lines == [
    'checkpoint 9 is damaged (it holds round 1); set aside as bad-9-1',
    f'checkpoint 8 is damaged ({unread}: Not a directory); set aside as bad-8-1',
    f'checkpoint 7 is damaged ({unread}: No such file or directory); '
    'set aside as bad-7-1',
  ]
  aside = ['bad-7-1', 'bad-8-1', 'bad-9-1']
  assert set(names(tmp_path)) == {'1', '2', *aside, *junk}
  # A second save at the same step leaves the first one.
  (inside / '7').mkdir()
  assert_same(load(tmp_path, world.first_state('fedavg')), after)
  assert 'bad-7-2' in names(tmp_path)


def test_missing_checkpoints_of_saved_rounds_are_reported(tmp_path):
  template = world.first_state('fedavg')
  with pytest.raises(NoCheckpointError, match='but rounds were saved'):
    load(tmp_path, template, rounds_saved=2)
  (tmp_path / 'checkpoints/bad-1-1').mkdir()
  with pytest.raises(NoCheckpointError, match='but rounds were saved'):
    load(tmp_path, template)
  (tmp_path / 'checkpoints/bad-1-1').rmdir()
  assert load(tmp_path, template, rounds_saved=0) is template


def test_what_a_crash_leaves_is_removed(tmp_path, two_steps):
  folder, (_, after) = two_steps
  shutil.copytree(folder / 'checkpoints', tmp_path / 'checkpoints')
  inside = tmp_path / 'checkpoints'
  # One process was killed before a rename, one between a rename and the removal's end.
  shutil.copytree(inside / '2', inside / '3.partial')
  shutil.copytree(inside / '1', inside / '0')
  (inside / 'mine.partial').mkdir()
  assert_same(load(tmp_path, world.first_state('fedavg')), after)
  assert names(tmp_path) == ['1', '2', 'mine.partial']


# The weights alone would fit into 16 kB, and orbax's metadata would not.
@pytest.mark.parametrize('num_bytes_left', [4096, 16384])
def test_a_full_disk_keeps_what_is_there(disk, num_bytes_left, capfd):
  folder = disk('small', '1m')
  state = world.first_state('fedavg')
  with opened(folder) as checkpoints:
    checkpoints.save(state)
    checkpoints.wait()
    num_bytes_taken = shutil.disk_usage(folder).free - num_bytes_left
    (folder / 'taken').write_bytes(bytes(num_bytes_taken))
  with pytest.raises(RunError) as caught, opened(folder) as checkpoints:
    checkpoints.save(state._replace(round=jnp.int32(1)))
  assert str(caught.value) == cannot_be_written(
    f'{folder}/checkpoints/1', 'No space left on device'
  )
  assert caught.value.exit_code == ExitCode.FAILED
  assert capfd.readouterr().err == ''  # orbax's threads would print tracebacks
  assert names(folder) == ['0']
  (folder / 'taken').unlink()
  assert_same(load(folder, state), state)


@pytest.mark.parametrize(
  ('error', 'reason'),
  [
    (OSError(errno.ENOSPC, 'No space left on device'), 'No space left on device'),
    (
      ValueError('RESOURCE_EXHAUSTED: Error writing\nSource:'),
      'RESOURCE_EXHAUSTED: .*',
    ),
    (ValueError('x' * 5000), 'x{500}'),
    (KeyError(), 'KeyError'),
  ],
)
def test_the_reason_of_a_failure_is_one_line(error, reason, tmp_path):
  assert re.fullmatch(reason, checkpoint_folder.reason(error))
  cause = checkpoint_folder.cause_of_failed_save(error, tmp_path, 10)
  assert re.fullmatch(reason, cause.strerror or str(cause))
  assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_without_the_system_s_words_is_tried_once_more(disk):
  folder = disk('small', '64k')
  error = ValueError('UNKNOWN: Error writing')
  # The disk has room for the first of these numbers of bytes.
  causes = [
    checkpoint_folder.cause_of_failed_save(error, folder, num_bytes)
    for num_bytes in (50_000, 3_000_000)
  ]
  assert [cause.errno for cause in causes] == [None, errno.ENOSPC]
  assert list(folder.iterdir()) == []
  moved = checkpoint_folder.cause_of_failed_save(error, folder / 'moved', 10)
  assert moved.errno == errno.ENOENT


def lock_except_in(path, lock):
  """A function of `fcntl`, which fails for the files of a folder."""

  def fails_there(file, operation):
    descriptor = file if isinstance(file, int) else file.fileno()
    if os.readlink(f'/proc/self/fd/{descriptor}').startswith(str(path)):
      raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return lock(file, operation)

  return fails_there


def remove_temporary_folder(tmp_path, monkeypatch):
  (tmp_path / 'temporary').rmdir()


def remove_locks(tmp_path, monkeypatch):
  for name in ('flock', 'lockf'):
    monkeypatch.setattr(fcntl, name, lock_except_in(tmp_path, getattr(fcntl, name)))


def fill_disk(tmp_path, monkeypatch):
  usage = shutil.disk_usage

  def without_space(path):
    is_full = 'temporary' in str(path)
    return usage(path)._replace(free=100) if is_full else usage(path)

  monkeypatch.setattr(shutil, 'disk_usage', without_space)


@pytest.mark.parametrize(
  ('strike', 'reason', 'until'),
  [
    (
      remove_temporary_folder,
      'no temporary folder can be made (No such file or directory); TMPDIR names one',
      'it can be written',
    ),
    (
      remove_locks,
      '{}, where it is written first, has no locks; TMPDIR names another place',
      'it can be written',
    ),
    (
      fill_disk,
      'No space left in {}; TMPDIR names another place',
      'there is space',
    ),
  ],
)
def test_a_save_on_a_disk_without_locks_needs_a_temporary_folder(
  tmp_path, monkeypatch, strike, reason, until
):
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(temporary))
  path = tmp_path / 'checkpoints'
  monkeypatch.setattr(fcntl, 'flock', lock_except_in(path, fcntl.flock))
  state = State(server=np.ones(3), clients=np.ones(3), round=np.int32(0))
  with Checkpoints(path, print) as checkpoints:
    checkpoints.save(state)
  assert checkpoint_folder.find_damage(path / '0', 0) == ''
  assert list(temporary.iterdir()) == []
  strike(tmp_path, monkeypatch)
  with pytest.raises(RunError) as caught, Checkpoints(path, print) as checkpoints:
    checkpoints.save(state._replace(round=np.int32(1)))
  line = f'{path}/1 cannot be written: {reason.format(temporary)}. '
  remedy = f'What was saved before is kept: once {until}, give the same command again.'
  assert str(caught.value) == line + remedy
  assert [folder.name for folder in path.iterdir()] == ['0']


def test_a_save_compiles_nothing(tmp_path, caplog):
  # No other test compiles for this shape.
  shared = devices.replicate({'a': jnp.zeros((34, 46))}, devices.mesh(2))
  with jax.log_compiles():
    checkpoint_folder.save(tmp_path, State(shared, (), np.int32(0)))
  assert 'Compiling' not in caplog.text


@pytest.mark.parametrize(('saved_on', 'loaded_on'), [(1, 3), (3, 8), (8, 2), (2, 1)])
def test_any_number_of_devices_reads_any_other(tmp_path, saved_on, loaded_on):
  state = world.run('moon', 2)[-1][0]
  with opened(tmp_path) as checkpoints:
    checkpoints.save(devices.replicate(state, devices.mesh(saved_on)))
  template = devices.replicate(world.first_state('moon'), devices.mesh(loaded_on))
  loaded = load(tmp_path, template)
  assert_same(loaded, state)
  for leaf in jax.tree.leaves(loaded):
    assert len(leaf.sharding.device_set) == loaded_on


# --- the manifest: a folder is what was written, or it says what is wrong -------------

MISSING = 'cannot be read: No such file or directory'


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'deep/er').mkdir(parents=True)
  (tmp_path / 'one').write_bytes(b'first')
  (tmp_path / 'deep/er/two').write_bytes(b'')
  checkpoint_folder.write_manifest(tmp_path, 12)
  return tmp_path


def test_the_manifest_by_hand(folder):
  content = json.loads((folder / checkpoint_folder.MANIFEST).read_text())
  digest_of_nothing = hashlib.sha256(b'').hexdigest()
  digest_of_first = hashlib.sha256(b'first').hexdigest()
  assert content['files'] == {
    'deep/er/two': {'bytes': 0, 'sha256': digest_of_nothing},
    'one': {'bytes': 5, 'sha256': digest_of_first},
  }
  assert content['round'] == 12
  assert checkpoint_folder.find_damage(folder, 12) == ''


def test_a_manifest_that_is_none_is_damage(folder):
  for text in ('', '{"format": 3, "rou', '[]', '{}', '{"format": 3}'):
    (folder / checkpoint_folder.MANIFEST).write_text(text)
    assert checkpoint_folder.find_damage(folder, 12) == 'manifest.json has changed'


def to_a_link(path):
  path.symlink_to(path.rename(path.parent.parent / 'elsewhere'))


def to_a_folder(path):
  path.unlink()
  path.mkdir()


@pytest.mark.parametrize(
  ('name', 'damage', 'reason'),
  [
    ('not_saved', lambda path: path.write_text('by somebody else'), ''),
    ('one', lambda path: path.write_bytes(b'First'), 'one has changed'),
    ('one', lambda path: path.write_bytes(b'fir'), 'one has changed'),
    ('one', to_a_folder, 'one has changed'),
    ('one', to_a_link, 'one cannot be read: It is not in its folder'),
    ('deep/er/two', lambda path: path.write_bytes(b'x'), 'deep/er/two has changed'),
    ('deep/er/two', pathlib.Path.unlink, f'two {MISSING}'),
    ('manifest.json', pathlib.Path.unlink, f'manifest.json {MISSING}'),
    ('', shutil.rmtree, f'manifest.json {MISSING}'),
  ],
)
def test_a_damaged_file_of_a_checkpoint_is_named(folder, name, damage, reason):
  damage(folder / name)
  assert checkpoint_folder.find_damage(folder, 12) == reason


def test_a_disk_that_cannot_be_read_is_a_fault(folder, monkeypatch):
  def worn(path):
    raise OSError(errno.EIO, 'Input/output error')  # of `read`: without a name

  monkeypatch.setattr(files, 'sha256', worn)
  assert (
    checkpoint_folder.find_damage(folder, 12)
    == 'two cannot be read: Input/output error'
  )


@pytest.mark.parametrize(
  ('content', 'wrote'),
  [
    ({'format': 2}, 'format 2, which moon_jax 0.2.0 or older wrote'),
    # A later version may write this: only the number of the format has to be there.
    ({'format': 4, 'moon_jax': '9.1.0'}, 'format 4, which moon_jax 9.1.0 wrote'),
    ({'format': 'x'}, "format 'x', which moon_jax 0.2.0 or older wrote"),
  ],
)
def test_another_format_is_told_from_damage(folder, content, wrote):
  (folder / checkpoint_folder.MANIFEST).write_text(json.dumps(content))
  with refused(NoCheckpointError, wrote) as caught:
    checkpoint_folder.find_damage(folder, 12)
  assert caught.value.exit_code == ExitCode.NO_CHECKPOINT
