"""Saves the whole state by orbax every few rounds, and loads the newest undamaged one.

A checkpoint is a folder with a number of completed rounds for a name. In it are the
state, as `default`, and the manifest. It is written under another name and renamed when
it is whole: at no instant does a crash leave half a checkpoint, or one that cannot be
verified.
"""

import contextlib
import functools
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp

from moon_jax import untrusted
from moon_jax.errors import NoCheckpointError
from moon_jax.runner import files
from moon_jax.types import State

STATE = 'default'  # orbax's own name for the only item of a checkpoint
_KEPT = 2
MANIFEST = 'manifest.json'
# Raised when an older program could not read the folder. Format 1 has a digest of the
# manifest itself, too, which is not looked at any more.
FORMAT = 2
_READ = (1, FORMAT)


class Checkpoints:
  """The checkpoints of one run directory; a step is a number of completed rounds.

  Saving waits until the bytes are on disk. A context manager.
  """

  def __init__(self, directory: pathlib.Path, say: Callable[[str], None]):
    """Opens the directory, or makes it, and removes what a crash left half done.

    Args:
      directory: for checkpoints only.
      say: is told, in one line, of each checkpoint that is set aside.
    """
    self._directory = directory
    self._say = say
    self._checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    files.make_folder(directory)
    with files.writing(directory):
      for path in directory.iterdir():
        if re.fullmatch(rf'\d+{re.escape(files.PARTIAL)}', path.name):
          shutil.rmtree(path)
      # Stays open: no other folder gets its inode.
      self._descriptor = os.open(directory, os.O_RDONLY)

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self._checkpointer.close()
    os.close(self._descriptor)

  def save(self, state: State) -> None:
    """Saves under the number of completed rounds, and removes all but the newest two.

    Raises:
      RunError: it cannot be written, or the folder was moved or removed.
    """
    step = int(state.round)
    folder = self._directory / str(step)
    partial = _partial(folder)
    try:
      # In the folder that was opened: another one at its path is another run's.
      os.mkdir(partial.name, dir_fd=self._descriptor)
      os.stat(partial)
      with _quietly():
        content = ocp.args.StandardSave(state)
        self._checkpointer.save(partial.absolute() / STATE, args=content)
      write_manifest(partial, step)
      self._rename(partial, folder)
    except Exception as error:  # orbax reports a full disk as a ValueError
      shutil.rmtree(partial, ignore_errors=True)
      raise files.failure(folder, _reason(error)) from error
    self._remove_older()

  def newest_or(self, first: State, rounds_saved: int = 0) -> State:
    """Loads the newest undamaged checkpoint; `first` if nothing was ever saved.

    Damaged ones that are newer are renamed: bad-12-1 was checkpoint 12.

    Args:
      first: the state before the first round; what is loaded has its shapes, dtypes
        and devices.
      rounds_saved: how many rounds the run's records say were saved.

    Raises:
      NoCheckpointError: no undamaged one is left, or the newest is of another format
        or does not hold such a state.
    """
    for folder in folders(self._directory):
      if not (reason := fault(folder, int(folder.name))):
        state = _load(folder, first)
        self._remove_older()
        return state
      self._set_aside(folder, reason)
    if rounds_saved or list(self._directory.glob('bad-*')):
      raise NoCheckpointError(
        f'{self._directory} holds no usable checkpoint, but rounds were saved there. '
        'Put one back, or give another --workdir to begin again.'
      )
    return first

  def _set_aside(self, folder, reason):
    places = (folder.with_name(f'bad-{folder.name}-{n}') for n in itertools.count(1))
    place = next(place for place in places if not place.exists())
    with files.writing(self._directory):
      self._rename(folder, place)
    self._say(
      f'checkpoint {folder.name} is damaged ({reason}); set aside as {place.name}'
    )

  def _remove_older(self):
    with files.writing(self._directory):
      for folder in folders(self._directory)[_KEPT:]:
        # Half a checkpoint must not look like one.
        self._rename(folder, _partial(folder))
        shutil.rmtree(_partial(folder))

  def _rename(self, old, new):
    os.rename(old, new)
    os.fsync(self._descriptor)


def write_manifest(folder: pathlib.Path, completed_rounds: int) -> None:
  """Flushes everything in the folder to the disk, and writes its manifest there."""
  told = {}
  for path in sorted(folder.rglob('*')):
    files.flush(path)
    if path.is_file():
      about = {'bytes': path.stat().st_size, 'sha256': files.sha256(path)}
      told[path.relative_to(folder).as_posix()] = about
  content = {'format': FORMAT, 'round': completed_rounds, 'files': told}
  # The last byte counts: no end of line.
  files.replace(folder / MANIFEST, json.dumps(content, indent=1))


def fault(folder: pathlib.Path, completed_rounds: int) -> str:
  """What is wrong with a folder; '' if it is what was written.

  Args:
    folder: may be empty, or a file.
    completed_rounds: what it should hold.

  Raises:
    NoCheckpointError: it is of a format that is not known here.
  """
  try:
    untrusted.require_files(folder)
    with untrusted.opened(folder / MANIFEST) as file:
      content = untrusted.document(folder / MANIFEST, file.read())
    if content['format'] not in _READ:
      raise NoCheckpointError(
        f'{folder} has checkpoint format {content["format"]!r}, and this program reads '
        f'format {FORMAT}: go on with the version of moon_jax that wrote it.'
      )
    if content['round'] != completed_rounds:
      return f'it holds round {content["round"]}'
    for name, told in content['files'].items():
      path = folder / name
      if path.stat().st_size != told['bytes'] or files.sha256(path) != told['sha256']:
        return f'{name} has changed'
    return ''
  except OSError as error:
    return f'{os.path.basename(error.filename)} cannot be read: {error.strerror}'
  except ValueError:
    return f'{MANIFEST} has changed'


def folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """The checkpoints of a directory, the newest first.

  They may be damaged; `fault` tells.
  """
  found = [p for p in directory.glob('*') if re.fullmatch(r'0|[1-9][0-9]*', p.name)]
  return sorted(found, key=lambda path: -int(path.name))


def _partial(folder):
  """Where a checkpoint is before it has its name, and once it has lost it."""
  return folder.with_name(folder.name + files.PARTIAL)


@contextlib.contextmanager
def _quietly():
  """Orbax and its threads print tracebacks, and then raise the error too.

  After an error threads that are not done yet stay quiet.
  """
  log, hook = logging.getLogger('absl'), sys.unraisablehook
  before, log.disabled = log.disabled, True
  sys.unraisablehook = lambda unraisable: None
  try:
    yield
    sys.unraisablehook = hook
  finally:
    log.disabled = before


def _reason(error):
  """The cause of orbax's failure in a few words."""
  text = str(error).strip().partition('\n')[0]
  # "RESOURCE_EXHAUSTED: Error writing local file ... [os_error_code='28']"
  code = re.search(r"os_error_code='(\d+)'", text)
  number = int(code[1]) if code else getattr(error, 'errno', None)
  return os.strerror(number) if number else text[:200] or type(error).__name__


def newest(directory: pathlib.Path, like: State) -> State:
  """Loads the newest undamaged checkpoint to the host, as numpy; writes nothing.

  Args:
    directory: the checkpoints of a run directory.
    like: of `jax.ShapeDtypeStruct`s, what the checkpoint has to hold.

  Raises:
    NoCheckpointError: there is no undamaged checkpoint, or it holds no such state.
  """
  for folder in folders(directory):
    if not fault(folder, int(folder.name)):
      return _load(folder, like)
  raise NoCheckpointError(f'{directory} holds no undamaged checkpoint.')


def _load(folder: pathlib.Path, like: State) -> State:
  """A verified checkpoint; what goes wrong now is not for an older one to mend.

  Args:
    folder: of the checkpoint.
    like: what it has to hold; of `jax.ShapeDtypeStruct`s the leaves become numpy, else
      they go to its devices.
  """
  place = folder.absolute() / STATE
  try:
    with _quietly(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      # Orbax casts another dtype without a word, so the types are compared first.
      saved = checkpointer.metadata(place).item_metadata.tree
      if not (differing := _layout(saved) ^ _layout(like)):
        how = ocp.args.PyTreeRestore(like, jax.tree.map(_restored_as, like))
        return checkpointer.restore(place, how)
  except Exception as error:  # reading can raise anything
    problem = f'{folder} is undamaged and cannot be read ({_reason(error)}).'
    raise NoCheckpointError(problem) from error
  names = ', '.join(sorted({name for name, _ in differing}))
  problem = f'Checkpoint {folder.name} holds another state; differing: {names}.'
  raise NoCheckpointError(problem)


def _restored_as(leaf: jax.Array | jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
  """How orbax is to make a leaf like this one."""
  if isinstance(leaf, jax.ShapeDtypeStruct):
    return ocp.RestoreArgs(restore_type=np.ndarray)
  return ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype)


def _layout(tree) -> set[tuple[str, tuple]]:
  """{(path, (shape, dtype))} of every leaf, whatever the containers are called."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  name = functools.partial(jax.tree_util.keystr, simple=True, separator='.')
  return {(name(path), (tuple(leaf.shape), str(leaf.dtype))) for path, leaf in leaves}
