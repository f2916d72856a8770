"""What survives a crash? The whole state, saved by orbax after a number of rounds."""

import pathlib

import jax
import numpy as np
import orbax.checkpoint as ocp

from moon_jax.errors import NoCheckpointError, RunError
from moon_jax.types import State

_KEPT = 2


class Checkpoints:
  """The checkpoints of one run directory; a step is a number of completed rounds.

  Saving waits until the bytes are on disk. A context manager.
  """

  def __init__(self, directory: pathlib.Path):
    options = ocp.CheckpointManagerOptions(
      max_to_keep=_KEPT, enable_async_checkpointing=False
    )
    self._manager = ocp.CheckpointManager(
      directory.absolute(),
      options=options,
      item_handlers=ocp.StandardCheckpointHandler(),
    )

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self._manager.close()

  def save(self, state: State) -> None:
    """Saves under the number of completed rounds.

    Raises:
      RunError: a checkpoint of this round is there already.
    """
    step = int(state.round)
    if not self._manager.save(step, args=ocp.args.StandardSave(state)):
      raise RunError(f'Checkpoint {step} was not saved: it is there already.')

  def newest_or(self, first: State) -> State:
    """Loads the newest checkpoint; `first` if there is none.

    Args:
      first: the state before the first round; what is loaded has its shapes, dtypes
        and devices.

    Raises:
      NoCheckpointError: the newest checkpoint does not hold such a state.
    """
    step = self._manager.latest_step()
    if step is None:
      return first
    try:
      # Orbax casts another dtype without a word, so the types are compared first.
      there, wanted = _layout(self._manager.item_metadata(step)), _layout(first)
      if not there:
        raise ValueError('it holds no state')
      if there == wanted:
        return self._manager.restore(step, args=ocp.args.StandardRestore(first))
    except Exception as error:  # a damaged file can raise anything
      reason = str(error).strip().partition('\n')[0][:200]
      raise NoCheckpointError(
        f'{self._manager.directory / str(step)} cannot be read ({reason}). Remove '
        'that folder to go on from the one before, if there is one.'
      ) from error
    differing = sorted({path for path, _ in there ^ wanted})
    raise NoCheckpointError(
      f'Checkpoint {step} holds another state; differing: {", ".join(differing)}.'
    )


def newest_part(directory: pathlib.Path, state: State, needed: State) -> State:
  """Loads some leaves of the newest checkpoint to the host; writes nothing.

  Args:
    directory: the checkpoints of a run directory.
    state: of `jax.ShapeDtypeStruct`s, what the checkpoint has to hold.
    needed: whether each leaf is needed; the others become zeros that take no memory.

  Raises:
    NoCheckpointError: there is no checkpoint, or the newest holds no such state.
  """
  if not directory.is_dir():
    raise NoCheckpointError(f'{directory} is not there: nothing is saved yet.')
  part = jax.tree.map(lambda x, load: x if load else ocp.PLACEHOLDER, state, needed)
  how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), state)
  with ocp.CheckpointManager(
    directory.absolute(),
    options=ocp.CheckpointManagerOptions(create=False),
    item_handlers=ocp.PyTreeCheckpointHandler(),
  ) as manager:
    step = manager.latest_step()
    if step is None:
      raise NoCheckpointError(f'{directory} is empty: nothing is saved yet.')
    try:
      if _layout(manager.item_metadata(step)) != _layout(state):
        raise ValueError('it holds another state')
      args = ocp.args.PyTreeRestore(part, restore_args=how)
      loaded = manager.restore(step, args=args)
    except Exception as error:  # a damaged file can raise anything
      reason = str(error).strip().partition('\n')[0][:200]
      raise NoCheckpointError(
        f'{directory / str(step)} cannot be read ({reason}).'
      ) from error
  nothing = jax.tree.map(
    lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), state
  )
  return jax.tree.map(
    lambda load, x, zeros: x if load else zeros, needed, loaded, nothing
  )


def _layout(tree) -> set[tuple[str, tuple]]:
  """{(path, (shape, dtype))} of every leaf, whatever the containers are called."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    ('.'.join(_name(key) for key in path), (tuple(leaf.shape), str(leaf.dtype)))
    for path, leaf in leaves
  }


def _name(key) -> str:
  """A NamedTuple's field and a dict's key of the same name count as equal."""
  return str(getattr(key, 'name', getattr(key, 'key', getattr(key, 'idx', key))))
