"""A state survives saving and loading bit for bit, or is refused."""

import gc
import json
import logging
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core.errors import ExitCode, NoCheckpointError, RunError
from moon_jax.core.types import State
from moon_jax.engine import devices
from moon_jax.runner import saved_state
from moon_jax.runner.checkpoint import Checkpoints
from tests import world


def opened(tmp_path, said=None):
  """The checkpoints of a folder; what they say is appended to `said`."""
  return Checkpoints(tmp_path / 'checkpoints', ([] if said is None else said).append)


def saved(tmp_path, algorithm='moon'):
  state, _ = world.run(algorithm, 2)[-1]
  with opened(tmp_path) as checkpoints:
    checkpoints.save(state)
  return state


def load(tmp_path, template, said=None, **more):
  with opened(tmp_path, said) as checkpoints:
    return checkpoints.newest_or(template, **more)


def names(tmp_path):
  return sorted(path.name for path in (tmp_path / 'checkpoints').iterdir())


@pytest.mark.parametrize('algorithm', world.OPTIONS)
def test_round_trip_is_exact(tmp_path, algorithm):
  state = saved(tmp_path, algorithm)
  loaded = load(tmp_path, world.first_state(algorithm))
  assert jax.tree.structure(loaded) == jax.tree.structure(state)
  for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(state), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  assert int(loaded.round) == 2


def test_without_a_checkpoint_the_first_state_is_used(tmp_path):
  first = world.first_state('moon')
  assert load(tmp_path, first) is first


def test_the_newest_of_several_is_used_and_two_are_kept(tmp_path):
  state = world.first_state('fedavg')
  with opened(tmp_path) as checkpoints:
    for completed in (1, 2, 10):
      checkpoints.save(state._replace(round=jnp.int32(completed)))
  assert int(load(tmp_path, state).round) == 10
  assert names(tmp_path) == ['10', '2']


def test_a_checkpoint_is_not_overwritten(tmp_path):
  state = saved(tmp_path)
  with (
    opened(tmp_path) as checkpoints,
    pytest.raises(
      RunError, match='checkpoints/2 cannot be written: Directory not empty'
    ),
  ):
    checkpoints.save(state)


def test_another_dtype_shape_or_algorithm_is_refused(tmp_path):
  saved(tmp_path)
  first = world.first_state('moon')
  with pytest.raises(NoCheckpointError, match=r'differing: round\.'):
    load(tmp_path, first._replace(round=jnp.float32(0)))
  longer = jax.tree.map(lambda leaf: jnp.zeros((9, *leaf.shape[1:])), first.clients)
  with pytest.raises(NoCheckpointError, match=r'clients\.count'):
    load(tmp_path, first._replace(clients=longer))
  with pytest.raises(NoCheckpointError, match=r'clients\.models'):
    load(tmp_path, world.first_state('fedavg'))
  # What is wrong with the command says nothing against the checkpoint.
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


def truncate(path):
  path.write_bytes(path.read_bytes()[:-1])


def empty(path):
  path.write_bytes(b'')


def delete(path):
  path.unlink()


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


@pytest.mark.faults
@pytest.mark.parametrize('damage', [truncate, empty, delete, flip])
def test_damage_to_any_file_is_found(tmp_path, two_steps, damage):
  folder, (before, after) = two_steps
  template = world.first_state('fedavg')
  assert_same(load(folder, template), after)
  newest = folder / 'checkpoints/2'
  files = [p.relative_to(newest) for p in newest.rglob('*') if p.is_file()]
  # Weights, their index, the metadata, the manifest.
  assert len(files) > 8
  damaged = 0
  for number, name in enumerate(files):
    here = tmp_path / str(number)
    shutil.copytree(folder, here)
    path = here / 'checkpoints/2' / name
    if path.stat().st_size == 0 and damage is not delete:
      continue
    damage(path)
    damaged += 1
    said = []
    assert_same(load(here, template, said), before)
    assert names(here) == ['1', 'bad-2-1']
    (line,) = said
    assert line.startswith('checkpoint 2 is damaged (')
    assert line.endswith('); set aside as bad-2-1')
    # What differs from the manifest: a file, unless it is the manifest that changed.
    assert name.name in line or name.name == saved_state.MANIFEST
    shutil.rmtree(here)
  assert damaged > 8


def test_what_has_a_steps_name_and_what_has_not(tmp_path, two_steps):
  folder, (_, after) = two_steps
  shutil.copytree(folder / 'checkpoints', tmp_path / 'checkpoints')
  inside = tmp_path / 'checkpoints'
  (inside / '7').mkdir()
  (inside / '8').write_text('a file')
  shutil.copytree(inside / '1', inside / '9')
  junk = ['notes.txt', '-3', '007', '1e3', '12.bak', 'ten', '.hidden', '\u0663']
  for name in junk:
    (inside / name).mkdir()
  said = []
  assert_same(load(tmp_path, world.first_state('fedavg'), said), after)
  unread = 'manifest.json cannot be read'
  assert said == [
    'checkpoint 9 is damaged (it holds round 1); set aside as bad-9-1',
    f'checkpoint 8 is damaged ({unread}: Not a directory); set aside as bad-8-1',
    f'checkpoint 7 is damaged ({unread}: No such file or directory); '
    'set aside as bad-7-1',
  ]
  aside = ['bad-7-1', 'bad-8-1', 'bad-9-1']
  assert set(names(tmp_path)) == {'1', '2', *aside, *junk}
  # Once more at the same step: the first one stays.
  (inside / '7').mkdir()
  assert_same(load(tmp_path, world.first_state('fedavg')), after)
  assert 'bad-7-2' in names(tmp_path)


def test_without_a_good_one_nothing_begins_anew(tmp_path, two_steps):
  shutil.copytree(two_steps[0] / 'checkpoints', tmp_path / 'checkpoints')
  for step in (1, 2):
    flip(tmp_path / f'checkpoints/{step}/manifest.json')
  said, template = [], world.first_state('fedavg')
  with pytest.raises(NoCheckpointError, match='holds no usable checkpoint') as caught:
    load(tmp_path, template, said)
  assert '\n' not in str(caught.value)
  assert [line.split(' is ')[0] for line in said] == ['checkpoint 2', 'checkpoint 1']
  # The second time there is nothing left to look at.
  with pytest.raises(NoCheckpointError):
    load(tmp_path, template)
  assert names(tmp_path) == ['bad-1-1', 'bad-2-1']


def test_checkpoints_that_are_gone_are_missed(tmp_path):
  template = world.first_state('fedavg')
  with pytest.raises(NoCheckpointError, match='but rounds were saved'):
    load(tmp_path, template, rounds_saved=2)
  assert load(tmp_path, template, rounds_saved=0) is template


def test_a_later_format_is_refused_and_stays(tmp_path, two_steps):
  shutil.copytree(two_steps[0] / 'checkpoints', tmp_path / 'checkpoints')
  path = tmp_path / 'checkpoints/2' / saved_state.MANIFEST
  path.write_text(json.dumps(json.loads(path.read_text()) | {'format': 9}))
  with pytest.raises(NoCheckpointError, match=r'checkpoints/2 has checkpoint format 9'):
    load(tmp_path, world.first_state('fedavg'))
  assert names(tmp_path) == ['1', '2']


def test_what_a_crash_leaves_is_removed(tmp_path, two_steps):
  folder, (_, after) = two_steps
  shutil.copytree(folder / 'checkpoints', tmp_path / 'checkpoints')
  inside = tmp_path / 'checkpoints'
  # Killed before a rename; and between the rename and the end of the removal.
  shutil.copytree(inside / '2', inside / '3.partial')
  shutil.copytree(inside / '1', inside / '0')
  (inside / 'mine.partial').mkdir()
  assert_same(load(tmp_path, world.first_state('fedavg')), after)
  assert names(tmp_path) == ['1', '2', 'mine.partial']


# The weights alone would fit into 16 kB: it is orbax that finds the disk full. One of
# its threads may complain of that late.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('size', ['4k', '16k'])
def test_a_full_disk_keeps_what_is_there(disk, size):
  folder = disk('small', '1m')
  state = world.first_state('fedavg')
  with opened(folder) as checkpoints:
    checkpoints.save(state)
    free = shutil.disk_usage(folder).free
    taken = free - {'4k': 4096, '16k': 16384}[size]
    (folder / 'taken').write_bytes(bytes(taken))
    with pytest.raises(RunError) as caught:
      checkpoints.save(state._replace(round=jnp.int32(1)))
  assert str(caught.value) == (
    f'{folder}/checkpoints/1 cannot be written: No space left on device. What was '
    'saved before is kept, and the same command goes on from there.'
  )
  assert caught.value.exit_code == ExitCode.FAILED
  assert names(folder) == ['0']
  (folder / 'taken').unlink()
  assert_same(load(folder, state), state)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_nothing_is_logged_of_an_error_that_is_raised(disk, caplog, monkeypatch):
  monkeypatch.setattr(sys, 'unraisablehook', sys.unraisablehook)  # back in the end
  folder = disk('small', '100k')
  rng = np.random.default_rng(0)  # what orbax cannot make smaller
  state = {str(index): rng.normal(size=20_000) for index in range(12)}
  for index in range(60):  # one time in ten a task of orbax outlives the failure
    with pytest.raises(ValueError, match='No space left on device'):
      saved_state.save(folder / str(index), State(state, (), np.int32(0)))
    shutil.rmtree(folder / str(index), ignore_errors=True)  # a thread may still write
    gc.collect()
  assert caplog.text == ''


def test_after_a_save_others_are_heard(tmp_path, caplog):
  saved(tmp_path)
  logging.getLogger('asyncio').error("a user's task at orbax/checkpoints")
  assert "a user's task" in caplog.text


def test_a_save_compiles_nothing(tmp_path, caplog):
  # Of a shape that no other test compiles for.
  shared = devices.replicate({'a': jnp.zeros((34, 46))}, devices.mesh(2))
  with jax.log_compiles():
    saved_state.save(tmp_path, State(shared, (), np.int32(0)))
  assert 'Compiling' not in caplog.text


@pytest.mark.parametrize(('saved_on', 'loaded_on'), [(1, 2), (1, 3), (8, 1), (3, 8)])
def test_any_number_of_devices_reads_any_other(tmp_path, saved_on, loaded_on):
  state = world.run('moon', 2)[-1][0]
  with opened(tmp_path) as checkpoints:
    checkpoints.save(devices.replicate(state, devices.mesh(saved_on)))
  template = devices.replicate(world.first_state('moon'), devices.mesh(loaded_on))
  loaded = load(tmp_path, template)
  assert_same(loaded, state)
  for leaf in jax.tree.leaves(loaded):
    assert len(leaf.sharding.device_set) == loaded_on
