"""Saves the whole state by orbax every few rounds, and loads the newest undamaged one.

A checkpoint is a folder whose name is a number of completed rounds. It holds the state,
as `default`, and the manifest. It is written under another name and renamed when it is
whole, so a crash never leaves half a checkpoint, or one that cannot be verified. With a
client store the state is the server's, and an index says where the clients' memories
are in the file that all checkpoints share.
"""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import numpy as np

from moon_jax.core import files, tree
from moon_jax.core.errors import NoCheckpointError
from moon_jax.core.types import PyTree, State
from moon_jax.runner import client_store, saved_state
from moon_jax.runner.client_store import ClientStore

_KEPT = 2


class Checkpoints:
  """The checkpoints of one run directory; a step is a number of completed rounds.

  A thread writes while the next round trains; `wait` returns once the bytes are on
  disk. It is a context manager.

  Attributes:
    manifest: manifest of the checkpoint that was loaded; {} if there was none.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    say: Callable[[str], None],
    store: ClientStore | None = None,
  ):
    """Opens or makes the directory, and removes what a crash left unfinished.

    Args:
      directory: the folder of the checkpoints, and of nothing else.
      say: called with one line for each checkpoint that is set aside.
      store: store of the clients' memories, if they are not in the state.
    """
    self.manifest = {}
    self._directory = directory
    self._say = say
    self._store = store
    self._indices = {}  # name of a checkpoint -> its index
    self._writing = None  # the future of the checkpoint that is being written
    files.make_folder(directory)
    with files.writing(directory):
      for path in directory.iterdir():
        if re.fullmatch(rf'\d+{re.escape(files.PARTIAL)}', path.name):
          shutil.rmtree(path)
      # It stays open, so that no other folder can get its inode.
      self._descriptor = os.open(directory, os.O_RDONLY)
    self._thread = futures.ThreadPoolExecutor(1, 'saving')

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    try:
      self.wait()
    finally:
      self._thread.shutdown()
      os.close(self._descriptor)

  def save(self, state: State, **more: Any) -> None:
    """Saves under the number of completed rounds, and removes all but the newest two.

    Returns when the state has been copied: the next round may overwrite it. `more` are
    further entries of the manifest.

    Raises:
      RunError: see `wait`; it concerns the checkpoint before.
    """
    self.wait()
    name, index = str(int(state.round)), None
    if self._store:
      index, state = self._store.index(), state._replace(clients=())
      self._indices[name] = index
      self._keep_named([*folders(self._directory), self._directory / name])
    copied = jax.tree.map(np.array, state)
    self._writing = self._thread.submit(self._write, name, copied, index, more)

  def is_writing(self) -> bool:
    """Whether the newest checkpoint is not on disk yet."""
    return self._writing is not None and not self._writing.done()

  def wait(self) -> None:
    """Waits until the newest checkpoint is on disk.

    Raises:
      RunError: it cannot be written, or the folder was moved or removed.
    """
    writing, self._writing = self._writing, None
    if writing:
      writing.result()

  def _write(self, name, state, index, more):
    folder = self._directory / name
    partial = _partial(folder)
    if self._store:
      self._store.flush()
    try:
      # The write goes to the folder that was opened: another run may have made its path
      # anew.
      os.mkdir(partial.name, dir_fd=self._descriptor)
      os.stat(partial)
      saved_state.save(partial, state, index, **more)
      self._rename(partial, folder)
    except Exception as error:  # orbax reports a full disk as a ValueError
      shutil.rmtree(partial, ignore_errors=True)
      raise files.failure(folder, saved_state.reason(error)) from error
    self._remove_older()

  def newest_or(self, first: State, rounds_saved: int = 0) -> State:
    """Loads the newest undamaged checkpoint; returns `first` if nothing was ever saved.

    Newer checkpoints that are damaged are renamed: bad-12-1 was checkpoint 12.

    Args:
      first: the state before the first round; the loaded state gets its shapes, dtypes
        and devices.
      rounds_saved: number of rounds that were saved, by the run's records.

    Raises:
      NoCheckpointError: no undamaged checkpoint is left, or the newest has another
        format or another state.
    """
    self._indices = {f.name: saved_state.index_of(f) for f in folders(self._directory)}
    # The store may have to write the memories of a checkpoint without an index.
    self._keep_named(folders(self._directory))
    for folder in folders(self._directory):
      reason = saved_state.fault(folder, int(folder.name))
      if not reason:
        state, reason = self._load(folder, self._indices[folder.name], first)
      if not reason:
        self.manifest = files.read_json(folder / saved_state.MANIFEST)
        self._remove_older()
        self._keep_named(folders(self._directory))
        return jax.tree.map(_placed, state, first)
      self._set_aside(folder, reason)
    if rounds_saved or list(self._directory.glob('bad-*')):
      raise NoCheckpointError(
        f'{self._directory} holds no usable checkpoint, but rounds were saved there. '
        'Put one back, or give another --workdir to begin again.'
      )
    return first

  def _load(self, folder, index, first):
    """The state, whose memories are put where they belong now; or what is wrong."""
    store = self._store
    if index and store:
      state = saved_state.load(folder, first._replace(clients=()))
      if not (reason := store.fault(index)):
        store.restore(index)
      return state._replace(clients=first.clients), reason
    like = first._replace(clients=store.shapes) if store else first
    state, reason = _read(
      folder, index, like, slice(None), lambda: tree.gather(first.clients, 0)
    )
    if store:
      store.write(np.arange(_size(state)), state.clients)
      state = state._replace(clients=first.clients)
    return state, reason

  def _set_aside(self, folder, reason):
    places = (folder.with_name(f'bad-{folder.name}-{n}') for n in itertools.count(1))
    place = next(place for place in places if not place.exists())
    with files.writing(self._directory):
      self._rename(folder, place)
    self._say(
      f'checkpoint {folder.name} is damaged ({reason}); set aside as {place.name}'
    )

  def _remove_older(self):
    kept = folders(self._directory)
    with files.writing(self._directory):
      for folder in kept[_KEPT:]:
        # An unfinished checkpoint must not look like a whole one.
        self._rename(folder, _partial(folder))
        shutil.rmtree(_partial(folder))
    if not (self._store or any(self._indices.get(f.name) for f in kept[:_KEPT])):
      (self._directory / client_store.CLIENTS).unlink(missing_ok=True)

  def _keep_named(self, kept):
    """From now on the store writes over no memory of these checkpoints, by name."""
    named = {folder.name for folder in kept}
    self._indices = {k: v for k, v in self._indices.items() if k in named}
    if self._store:
      self._store.keep(filter(None, self._indices.values()))

  def _rename(self, old, new):
    os.rename(old, new)
    os.fsync(self._descriptor)


def folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """The checkpoints of a directory, the newest first; `fault` finds damaged ones."""
  found = [p for p in directory.glob('*') if re.fullmatch(r'0|[1-9][0-9]*', p.name)]
  return sorted(found, key=lambda path: -int(path.name))


def _size(state):
  return len(jax.tree.leaves(state.clients)[0])


def _placed(leaf, like):
  """The leaf, on the devices of `like` if that is on devices."""
  return jax.device_put(leaf, like.sharding) if isinstance(like, jax.Array) else leaf


def _partial(folder):
  """The path of a checkpoint before it gets its name, and after it has lost it."""
  return folder.with_name(folder.name + files.PARTIAL)


def newest(
  directory: pathlib.Path, like: State, client: int, first: Callable[[], PyTree]
) -> State:
  """Loads the newest undamaged checkpoint to the host, as numpy; writes nothing.

  Args:
    directory: the checkpoints of a run directory.
    like: shapes that a checkpoint without an index must have, `jax.ShapeDtypeStruct`s.
    client: the client whose memory is wanted.
    first: makes the memory of a client before its first round.

  Returns:
    The state; its clients are only this one, leaves [1, ...].

  Raises:
    NoCheckpointError: there is no undamaged checkpoint, or it holds another state.
  """
  chosen = slice(client, client + 1)
  for folder in folders(directory):
    if not saved_state.fault(folder, int(folder.name)):
      index = saved_state.index_of(folder)
      state, reason = _read(folder, index, like, chosen, first)
      if not reason:
        return state
  raise NoCheckpointError(f'{directory} holds no undamaged checkpoint.')


def _read(folder, index, like, chosen, first):
  """The state as NumPy, with the memories of the chosen clients; and what is wrong."""
  if not index:
    state = saved_state.load(folder, like)
    return state._replace(clients=tree.gather(state.clients, chosen)), ''
  state, num_clients = saved_state.load(folder, like._replace(clients=())), _size(like)
  clients = np.arange(num_clients)[chosen]
  index, path = index.of(clients), folder.parent / client_store.CLIENTS
  try:
    store = ClientStore(path, first(), num_clients, only_read=True)
  except OSError as error:
    return state, f'{path.name} cannot be read: {error.strerror}'
  with contextlib.closing(store):
    if not (reason := store.fault(index)):
      store.restore(index)
      state = state._replace(clients=store.read(clients))
  return state, reason
