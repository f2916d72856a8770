"""The folder of one checkpoint: how it is written, read and verified.

default         the state, by orbax
clients.npz     with a client store: the places of the clients' memories in its file
manifest.json   size and SHA-256 of every other file, so that damage is found
"""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import tempfile
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epy

from moon_jax import __version__
from moon_jax.core import files, tree
from moon_jax.core.errors import NoCheckpointError
from moon_jax.core.types import State
from moon_jax.runner import client_store
from moon_jax.runner.client_store import Index

with epy.lazy_imports():  # the first round need not wait for orbax
  import orbax.checkpoint as ocp

STATE = 'default'  # orbax's own name for the only item of a checkpoint
INDEX, MANIFEST = 'clients.npz', 'manifest.json'
FORMAT = 3  # raised when an older program could not read the folder
_NO_ENTRIES = types.MappingProxyType({})
# Orbax's files of metadata need 60 to 80 kB; weights are compressed by some 7 %.
_METADATA_BYTES = 2**17
_MAX_REASON_LETTERS = 500


def save(
  folder: pathlib.Path,
  state: State,
  index: Index | None = None,
  entries: Mapping[str, Any] = _NO_ENTRIES,
) -> None:
  """Writes a checkpoint and waits for the disk; raises errors of many classes.

  Args:
    folder: an empty folder.
    state: state of the run; without the clients' memories if there is an index.
    index: places of these memories.
    entries: further entries of the manifest.
  """
  files.require_space(folder, bytes_needed(state))
  if files.has_locks(folder) and files.can_flush_folders(folder):
    _save_by_orbax(folder, state)
  else:
    _save_elsewhere_and_copy(folder, state)
  if index:
    files.write_arrays(folder / INDEX, index._asdict())
  write_manifest(folder, int(state.round), entries)


def _save_by_orbax(folder, state):
  with _checkpointer(ocp.StandardCheckpointHandler) as checkpointer:
    # Otherwise orbax would compile a slice for each device's part of an array.
    content = ocp.args.StandardSave(jax.device_get(state))
    checkpointer.save(folder.absolute() / STATE, args=content)


def _save_elsewhere_and_copy(folder, state):
  """Saves in a temporary folder first: tensorstore locks files and flushes folders."""
  with _temporary_folder(bytes_needed(state)) as local:
    _save_by_orbax(local, state)
    for path in sorted(local.rglob('*')):
      target = folder / path.relative_to(local)
      if path.is_dir():
        target.mkdir()
      else:
        shutil.copyfile(path, target)


@contextlib.contextmanager
def _temporary_folder(num_bytes: int) -> Iterator[pathlib.Path]:
  """A temporary folder in which orbax can save so much.

  Raises:
    OSError: there is none; the error says that TMPDIR can name another place.
  """
  try:
    temporary = tempfile.TemporaryDirectory(prefix='moon_jax-')
  except OSError as error:  # of another number: the run's own folder is not gone
    problem = f'no temporary folder can be made ({error.strerror}); TMPDIR names one'
    raise OSError(errno.EIO, problem) from None
  with temporary:
    folder = pathlib.Path(temporary.name)
    remedy = 'TMPDIR names another place'
    if shutil.disk_usage(folder).free < num_bytes:
      raise OSError(errno.ENOSPC, f'No space left in {folder.parent}; {remedy}')
    if not (files.has_record_locks(folder) and files.can_flush_folders(folder)):
      problem = f'{folder.parent}, where it is written first, has no locks; {remedy}'
      raise OSError(errno.ENOLCK, problem)
    yield folder


def bytes_needed(state: State) -> int:
  """The space that orbax needs for a save, at most.

  Where that is not free a save must not begin: on a full disk orbax's threads print
  hundreds of lines of tracebacks before they raise the error.
  """
  return tree.num_bytes(state) + _METADATA_BYTES


def _checkpointer(handler):
  """A checkpointer that waits for no other process, because only this one saves."""
  only_this_process = ocp.options.MultiprocessingOptions(
    primary_host=0, active_processes={0}, barrier_sync_key_prefix='first'
  )
  return ocp.Checkpointer(
    handler(multiprocessing_options=only_this_process),
    multiprocessing_options=only_this_process,
  )


def write_manifest(
  folder: pathlib.Path,
  completed_rounds: int,
  entries: Mapping[str, Any] = _NO_ENTRIES,
) -> None:
  """Flushes everything in the folder to the disk, and writes its manifest there."""
  descriptions = {}
  for path in sorted(folder.rglob('*')):
    files.flush(path)
    if path.is_file():
      name = path.relative_to(folder).as_posix()
      descriptions[name] = {
        'bytes': path.stat().st_size,
        'sha256': files.sha256(path),
      }
  content = {
    'format': FORMAT,
    'moon_jax': __version__,
    'round': completed_rounds,
    **entries,
    'files': descriptions,
  }
  # The file has no end of line, so that its last byte counts too.
  files.replace(folder / MANIFEST, json.dumps(content, indent=1))


def find_damage(folder: pathlib.Path, completed_rounds: int) -> str:
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
    for name, description in content['files'].items():
      path = folder / name
      has_size = files.size(path) == description['bytes']
      if not has_size or files.sha256(path) != description['sha256']:
        return f'{name} has changed'
    return ''
  except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
    path = getattr(error, 'filename', None) or name
    problem = getattr(error, 'strerror', None) or error
    return f'{os.path.basename(path)} cannot be read: {problem}'
  except ValueError:
    return f'{MANIFEST} has changed'


def index_of(folder: pathlib.Path) -> Index | None:
  """The index of a checkpoint; None if it has none, or one that cannot be read."""
  try:
    return client_store.read_index(folder / INDEX)
  except Exception:  # reading can raise anything
    return None


def load(folder: pathlib.Path, template: State) -> State:
  """Loads a verified checkpoint; if that fails, an older one would not help.

  Args:
    folder: folder of the checkpoint.
    template: shapes and dtypes of the state.

  Returns:
    The state, as NumPy.
  """
  path = folder.absolute() / STATE
  try:
    with _checkpointer(ocp.PyTreeCheckpointHandler) as checkpointer:
      # Orbax silently casts another dtype, so the types are compared first.
      saved = checkpointer.metadata(path).item_metadata.tree
      saved_layout = client_store.layout(saved)
      differing = set(saved_layout) ^ set(client_store.layout(template))
      if not differing:
        as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
        restore_args = jax.tree.map(lambda leaf: as_numpy, template)
        return checkpointer.restore(
          path, ocp.args.PyTreeRestore(template, restore_args)
        )
  except Exception as error:  # reading can raise anything
    problem = f'{folder} is undamaged and cannot be read ({reason(error)}).'
    raise NoCheckpointError(problem) from error
  names = ', '.join(sorted({line.partition(' ')[0] for line in differing}))
  problem = f'Checkpoint {folder.name} holds another state; differing: {names}.'
  raise NoCheckpointError(problem)


def cause_of_failed_save(
  error: Exception, folder: pathlib.Path, num_bytes: int
) -> OSError:
  """The system's error behind a save that failed; one without a number if unknown.

  Where the error does not have it, as much is written once more, in the same place.

  Args:
    error: the error of the save.
    folder: the folder of the checkpoint, with what has been written.
    num_bytes: the space that the save needs.
  """
  if known_error := _system_error(error):
    return known_error
  try:
    files.try_to_write(folder, num_bytes)
  except OSError as repeated_error:
    return repeated_error
  return OSError(_first_line(error))


def reason(error: Exception) -> str:
  """Why reading failed: the system's words, or the first line of the error."""
  known_error = _system_error(error)
  return known_error.strerror if known_error else _first_line(error)


def _system_error(error):
  for system_error in (error, error.__cause__):
    if isinstance(system_error, OSError) and system_error.strerror:
      return system_error
  return None


def _first_line(error):
  first_line, _, _ = str(error).strip().partition('\n')
  return first_line[:_MAX_REASON_LETTERS] or type(error).__name__
