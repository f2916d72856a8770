"""How orbax writes the state of a run into a folder, and reads it back."""

import contextlib
import functools
import logging
import os
import pathlib
import re
import sys

import jax
import numpy as np
from etils import epy

from moon_jax.engine import hosts
from moon_jax.errors import NoCheckpointError
from moon_jax.types import State

with epy.lazy_imports():  # the first round need not wait for it
  import orbax.checkpoint as ocp

STATE = 'default'  # orbax's own name for the only item of a checkpoint


def checkpointer() -> 'ocp.Checkpointer':
  """What `save` saves with; to be closed."""
  return ocp.Checkpointer(ocp.StandardCheckpointHandler(**_alone()), **_alone())


def save(by: 'ocp.Checkpointer', folder: pathlib.Path, state: State) -> None:
  """Writes the state into the folder; raises many kinds of errors."""
  with _quietly():
    # Of what several devices hold, orbax would compile a slice for each to write.
    content = ocp.args.StandardSave(jax.device_get(state))
    by.save(folder.absolute() / STATE, args=content)


@contextlib.contextmanager
def _quietly():
  """Orbax, its threads and tasks print tracebacks, and then raise the error too.

  After an error threads and tasks that are not done yet stay quiet until the next
  success.
  """
  log, hook = logging.getLogger('absl'), sys.unraisablehook
  before, log.disabled = log.disabled, True
  sys.unraisablehook = lambda unraisable: None
  tasks = logging.getLogger('asyncio')
  tasks.addFilter(_is_of_others)
  try:
    yield
    sys.unraisablehook = hook
    tasks.removeFilter(_is_of_others)
  finally:
    log.disabled = before


def _is_of_others(record):
  return 'orbax' not in record.getMessage()


def _alone():
  """Tells orbax to wait for no other process of the run: none of them saves."""
  if hosts.count() == 1:
    return {}
  only = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix='first'
  )
  return {'multiprocessing_options': only}


def reason(error):
  """The cause of orbax's failure in a few words."""
  text = str(error).strip().partition('\n')[0]
  # "RESOURCE_EXHAUSTED: Error writing local file ... [os_error_code='28']"
  code = re.search(r"os_error_code='(\d+)'", text)
  number = int(code[1]) if code else getattr(error, 'errno', None)
  return os.strerror(number) if number else text[:200] or type(error).__name__


def load(folder: pathlib.Path, like: State) -> State:
  """A verified checkpoint; what goes wrong now is not for an older one to mend.

  Args:
    folder: of the checkpoint.
    like: what it has to hold; where it has arrays of JAX they go to the same devices,
      else they become numpy.
  """
  place = folder.absolute() / STATE
  try:
    handler = ocp.PyTreeCheckpointHandler(**_alone())
    with _quietly(), ocp.Checkpointer(handler, **_alone()) as checkpointer:
      # Orbax casts another dtype without a word, so the types are compared first.
      saved = checkpointer.metadata(place).item_metadata.tree
      if not (differing := _layout(saved) ^ _layout(like)):
        how = ocp.args.PyTreeRestore(like, jax.tree.map(_restored_as, like))
        return checkpointer.restore(place, how)
  except Exception as error:  # reading can raise anything
    problem = f'{folder} is undamaged and cannot be read ({reason(error)}).'
    raise NoCheckpointError(problem) from error
  names = ', '.join(sorted({name for name, _ in differing}))
  problem = f'Checkpoint {folder.name} holds another state; differing: {names}.'
  raise NoCheckpointError(problem)


def _restored_as(leaf: jax.Array | jax.ShapeDtypeStruct) -> 'ocp.RestoreArgs':
  """How orbax is to make a leaf like this one."""
  if not isinstance(leaf, jax.Array):
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype)


def _layout(tree) -> set[tuple[str, tuple]]:
  """{(path, (shape, dtype))} of every leaf, whatever the containers are called."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  name = functools.partial(jax.tree_util.keystr, simple=True, separator='.')
  return {(name(path), (tuple(leaf.shape), str(leaf.dtype))) for path, leaf in leaves}
