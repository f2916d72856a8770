"""The folder of one checkpoint: how it is written, read and verified.

default         the state, by orbax
clients.npz     with a client store: the places of the clients' memories in its file
manifest.json   size and SHA-256 of every other file, so that damage is found
"""

import contextlib
import json
import logging
import os
import pathlib
import re
import sys
from typing import Any

import jax
import numpy as np
from etils import epy

from moon_jax import __version__
from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError
from moon_jax.core.types import State
from moon_jax.runner import client_store
from moon_jax.runner.client_store import Index

with epy.lazy_imports():  # the first round need not wait for orbax
  import orbax.checkpoint as ocp

STATE = 'default'  # orbax's own name for the only item of a checkpoint
INDEX, MANIFEST = 'clients.npz', 'manifest.json'
FORMAT = 3  # raised when an older program could not read the folder


def save(
  folder: pathlib.Path, state: State, index: Index | None = None, **more: Any
) -> None:
  """Writes a checkpoint and waits for the disk; raises errors of many classes.

  Args:
    folder: an empty folder.
    state: state of the run; without the clients' memories if there is an index.
    index: places of these memories.
    **more: further entries of the manifest.
  """
  with _quietly(), _checkpointer(ocp.StandardCheckpointHandler) as checkpointer:
    # Otherwise orbax would compile a slice for each device's part of an array.
    content = ocp.args.StandardSave(jax.device_get(state))
    checkpointer.save(folder.absolute() / STATE, args=content)
  if index:
    files.write_arrays(folder / INDEX, index._asdict())
  write_manifest(folder, int(state.round), **more)


def _checkpointer(handler):
  """A checkpointer that waits for no other process, because only this one saves."""
  alone = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix='first'
  )
  given = {'multiprocessing_options': alone}
  return ocp.Checkpointer(handler(**given), **given)


@contextlib.contextmanager
def _quietly():
  """Hides the tracebacks that orbax's threads print before they raise the error.

  After an error, unfinished threads and tasks stay quiet until the next success.
  """
  log = logging.getLogger('absl')
  before, log.disabled = log.disabled, True
  hook = sys.unraisablehook

  def silent(unraisable):
    """Prints nothing."""

  silent.instead_of = getattr(hook, 'instead_of', hook)  # hook: of a failed save, too
  sys.unraisablehook = silent
  tasks = logging.getLogger('asyncio')
  tasks.addFilter(_is_of_others)
  try:
    yield
    sys.unraisablehook = silent.instead_of
    tasks.removeFilter(_is_of_others)
  finally:
    log.disabled = before


def _is_of_others(record):
  return 'orbax' not in record.getMessage()


def write_manifest(folder: pathlib.Path, completed_rounds: int, **more: Any) -> None:
  """Flushes everything in the folder to the disk, and writes its manifest there."""
  told = {}
  for path in sorted(folder.rglob('*')):
    files.flush(path)
    if path.is_file():
      about = {'bytes': path.stat().st_size, 'sha256': files.sha256(path)}
      told[path.relative_to(folder).as_posix()] = about
  content = {'format': FORMAT, 'moon_jax': __version__, 'round': completed_rounds}
  # The file has no end of line, so that its last byte counts too.
  files.replace(
    folder / MANIFEST, json.dumps(content | more | {'files': told}, indent=1)
  )


def fault(folder: pathlib.Path, completed_rounds: int) -> str:
  """What is wrong with a folder; '' if it holds what was written.

  Args:
    folder: the folder, which may be empty, or a file.
    completed_rounds: number of rounds that it should hold.

  Raises:
    NoCheckpointError: it has another format.
  """
  name = MANIFEST
  try:
    files.require_inside(folder)
    content = files.document(folder / MANIFEST, files.contents(folder / MANIFEST))
    if content['format'] != FORMAT:
      version = content.get('moon_jax', '0.2.0 or older')
      raise NoCheckpointError(
        f'{folder} has checkpoint format {content["format"]!r}, which moon_jax '
        f'{version} wrote; this is {__version__} and reads format {FORMAT}: go on with '
        'the version that wrote it.'
      )
    if content['round'] != completed_rounds:
      return f'it holds round {content["round"]}'
    files.require_inside(folder, content['files'])
    for name, told in content['files'].items():
      path = folder / name
      if path.stat().st_size != told['bytes'] or files.sha256(path) != told['sha256']:
        return f'{name} has changed'
    return ''
  except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
    place = getattr(error, 'filename', None) or name
    reason = getattr(error, 'strerror', None) or error
    return f'{os.path.basename(place)} cannot be read: {reason}'
  except ValueError:
    return f'{MANIFEST} has changed'


def index_of(folder: pathlib.Path) -> Index | None:
  """The index of a checkpoint; None if it has none, or a damaged one: see `fault`."""
  with contextlib.suppress(Exception):
    return client_store.read_index(folder / INDEX)
  return None


def load(folder: pathlib.Path, like: State) -> State:
  """Loads a verified checkpoint; if that fails, an older one would not help.

  Args:
    folder: folder of the checkpoint.
    like: shapes and dtypes of the state.

  Returns:
    The state, as NumPy.
  """
  place = folder.absolute() / STATE
  try:
    with _quietly(), _checkpointer(ocp.PyTreeCheckpointHandler) as checkpointer:
      # Orbax silently casts another dtype, so the types are compared first.
      saved = checkpointer.metadata(place).item_metadata.tree
      layouts = client_store.layout(saved), client_store.layout(like)
      if not (differing := set.symmetric_difference(*map(set, layouts))):
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        how = jax.tree.map(lambda leaf: as_numpy, like)
        return checkpointer.restore(place, ocp.args.PyTreeRestore(like, how))
  except Exception as error:  # reading can raise anything
    problem = f'{folder} is undamaged and cannot be read ({reason(error)}).'
    raise NoCheckpointError(problem) from error
  names = ', '.join(sorted({line.partition(' ')[0] for line in differing}))
  problem = f'Checkpoint {folder.name} holds another state; differing: {names}.'
  raise NoCheckpointError(problem)


def reason(error: Exception) -> str:
  """The cause of orbax's failure in a few words."""
  # "RESOURCE_EXHAUSTED: Error writing local file ... [os_error_code='28']"
  code = re.search(r"os_error_code='(\d+)'", str(error))
  number = int(code[1]) if code else getattr(error, 'errno', None)
  text = str(error).strip().partition('\n')[0]
  return os.strerror(number) if number else text[:200] or type(error).__name__
