"""A state survives saving and loading bit for bit, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.checkpoint import Checkpoints
from moon_jax.errors import NoCheckpointError, RunError
from tests import world


def saved_state(tmp_path, algorithm='moon'):
  state, _ = world.run(algorithm, 2)[-1]
  with Checkpoints(tmp_path / 'checkpoints') as checkpoints:
    checkpoints.save(state)
  return state


def load(tmp_path, template):
  with Checkpoints(tmp_path / 'checkpoints') as checkpoints:
    return checkpoints.newest_or(template)


@pytest.mark.parametrize('algorithm', world.OPTIONS)
def test_round_trip_is_exact(tmp_path, algorithm):
  state = saved_state(tmp_path, algorithm)
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
  with Checkpoints(tmp_path / 'checkpoints') as checkpoints:
    for completed in (1, 2, 10):
      checkpoints.save(state._replace(round=jnp.int32(completed)))
  assert int(load(tmp_path, state).round) == 10
  kept = {path.name for path in (tmp_path / 'checkpoints').iterdir()}
  assert kept == {'2', '10'}


def test_a_checkpoint_is_not_overwritten(tmp_path):
  state = saved_state(tmp_path)
  with (
    Checkpoints(tmp_path / 'checkpoints') as checkpoints,
    pytest.raises(RunError, match='Checkpoint 2 was not saved'),
  ):
    checkpoints.save(state)


def test_another_dtype_shape_or_algorithm_is_refused(tmp_path):
  saved_state(tmp_path)
  first = world.first_state('moon')
  with pytest.raises(NoCheckpointError, match=r'differing: round\.'):
    load(tmp_path, first._replace(round=jnp.float32(0)))
  longer = jax.tree.map(lambda leaf: jnp.zeros((9, *leaf.shape[1:])), first.clients)
  with pytest.raises(NoCheckpointError, match=r'clients\.count'):
    load(tmp_path, first._replace(clients=longer))
  with pytest.raises(NoCheckpointError, match=r'clients\.models'):
    load(tmp_path, world.first_state('fedavg'))


@pytest.mark.parametrize('damage', ['truncated', 'emptied'])
def test_a_damaged_checkpoint_is_one_line(tmp_path, damage):
  saved_state(tmp_path)
  step = tmp_path / 'checkpoints/2'
  files = [path for path in step.rglob('*') if path.is_file()]
  for path in files:
    if damage == 'truncated':
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
      path.unlink()
  with pytest.raises(NoCheckpointError, match=r'2 cannot be read') as caught:
    load(tmp_path, world.first_state('moon'))
  assert '\n' not in str(caught.value)
