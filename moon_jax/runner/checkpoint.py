"""Saves the whole state by orbax every few rounds, and loads the newest undamaged one.

A checkpoint is a folder whose name is a number of completed rounds. It holds the state,
as `default`, and the manifest. It is written under another name and renamed when it is
whole, so a crash never leaves half a checkpoint, or one that cannot be verified.
`checkpoint_folder` writes, reads and verifies it (`checkpoint_folder.find_damage`).
With a client store the state is the server's, and an index says where the clients'
memories are in the file that all checkpoints share.

`best-12` is such a folder too: the state of the best round so far, if it is kept. It is
written with the next checkpoint, before it. For each checkpoint that stays, the best
round up to it stays: a run that continues from it has the best round that it had then.
"""

import contextlib
import errno
import functools
import itertools
import os
import pathlib
import re
import shutil
import types
import warnings
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from moon_jax.core import files, tree
from moon_jax.core.errors import NoCheckpointError, UsageError
from moon_jax.core.flags import flag, option
from moon_jax.core.types import PyTree, State
from moon_jax.runner import checkpoint_folder, client_store
from moon_jax.runner.client_store import ClientStore, Index

_NUM_CHECKPOINTS = 2  # that stay after a save
_NO_ENTRIES = types.MappingProxyType({})
BEST = 'best'  # the choice of the best round
_BEST = f'{BEST}-'  # begins the name of the folder of a best round


class _Content(NamedTuple):
  """What is written to a folder.

  Attributes:
    folder: the folder.
    state: the state on the host; with an index without the clients' memories.
    index: places of these memories; None if they are in the state.
    entries: further entries of the manifest.
  """

  folder: pathlib.Path
  state: State
  index: Index | None
  entries: Mapping[str, Any]


class Checkpoints:
  """The checkpoints of one run directory; a step is a number of completed rounds.

  A thread writes while the next round trains; `wait` returns once the bytes are on
  disk. It is a context manager.

  Attributes:
    manifest: manifest of the checkpoint that was loaded; {} if there was none.
    best_manifest: manifest of the best round that was kept by then; {} if there was
      none.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    print_line: Callable[[str], None],
    store: ClientStore | None = None,
  ):
    """Opens or makes the directory, and removes what a crash left unfinished.

    Args:
      directory: the folder of the checkpoints, and of nothing else.
      print_line: called with one line for each checkpoint that is set aside.
      store: store of the clients' memories, if they are not in the state.
    """
    self.manifest = {}
    self.best_manifest = {}
    self._directory = directory
    self._print_line = print_line
    self._store = store
    self._indices = {}  # name of a checkpoint -> its index, None without a store
    self._writing = None  # the future of the checkpoint that is being written
    self._best: _Content | None = None  # the best round, until it is written
    files.make_folder(directory)
    with files.writing(directory):
      for path in directory.iterdir():
        if re.fullmatch(rf'({_BEST})?\d+{re.escape(files.PARTIAL)}', path.name):
          _clear(path)
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

  def save(self, state: State, entries: Mapping[str, Any] = _NO_ENTRIES) -> None:
    """Saves under the number of completed rounds, and removes all but the newest two.

    Returns when the state has been copied: the next round may overwrite it.

    Args:
      state: the state.
      entries: further entries of the manifest.

    Raises:
      RunError: see `wait`; it concerns the checkpoint before.
    """
    self.wait()
    content = self._content(self._directory / str(int(state.round)), state, entries)
    self._protect_memories([*self._folders(), content.folder])
    best = self._best
    self._best = None
    self._writing = self._thread.submit(self._write, content, best)

  def keep_best(self, state: State, entries: Mapping[str, Any] = _NO_ENTRIES) -> None:
    """Keeps the state as that of the best round; the next `save` writes it.

    Returns when the state has been copied.

    Args:
      state: the state.
      entries: further entries of the manifest.

    Raises:
      RunError: see `wait`.
    """
    self.wait()
    folder = self._directory / f'{_BEST}{int(state.round)}'
    self._best = self._content(folder, state, entries)
    self._protect_memories(self._folders())

  def _content(self, folder, state, entries):
    """What will be written to a folder, copied from the devices."""
    index = None
    if self._store:
      index = self._store.index()
      state = state._replace(clients=())
      self._indices[folder.name] = index
    copied = jax.tree.map(np.array, state)
    return _Content(folder=folder, state=copied, index=index, entries=entries)

  def _folders(self):
    """The folders with a state, on the disk or soon."""
    pending = [self._best.folder] if self._best else []
    return [*folders(self._directory), *best_folders(self._directory), *pending]

  def is_writing(self) -> bool:
    """Whether the newest checkpoint is not on disk yet."""
    return self._writing is not None and not self._writing.done()

  def wait(self) -> None:
    """Waits until the newest checkpoint is on disk.

    Raises:
      RunError: it cannot be written, or the folder was moved or removed. Each later
        call raises it too, so that nobody takes the state for saved.
    """
    if self._writing:
      self._writing.result()
    self._writing = None

  def _write(self, content, best):
    if best:
      self._write_folder(best)
    self._write_folder(content)
    self._remove_older()

  def _write_folder(self, content):
    folder, state = content.folder, content.state
    partial = _partial(folder)
    if self._store:
      self._store.bytes_reserved = functools.partial(
        _bytes_missing, partial, checkpoint_folder.bytes_needed(state)
      )
      self._store.flush()
    try:
      # The write goes to the folder that was opened: another run may have made its path
      # anew.
      os.mkdir(partial.name, dir_fd=self._descriptor)
      os.stat(partial)
      checkpoint_folder.save(partial, state, content.index, content.entries)
      self._rename(partial, folder)
    except Exception as error:  # orbax raises errors of many classes
      cause = checkpoint_folder.cause_of_failed_save(
        error, partial, checkpoint_folder.bytes_needed(state)
      )
      shutil.rmtree(partial, ignore_errors=True)
      raise files.failure(folder, cause) from error
    finally:
      if self._store:
        self._store.bytes_reserved = None

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
    for folder in self._folders():
      self._indices[folder.name] = checkpoint_folder.index_of(folder)
    # The store may have to write the memories of a checkpoint without an index.
    self._protect_memories(self._folders())
    for folder in folders(self._directory):
      reason = checkpoint_folder.find_damage(folder, int(folder.name))
      if not reason:
        state, reason = self._load(folder, self._indices[folder.name], first)
      if not reason:
        self.manifest = files.read_json(folder / checkpoint_folder.MANIFEST)
        self._find_best(int(folder.name))
        self._remove_older()
        self._protect_memories(self._folders())
        return jax.tree.map(_on_the_devices_of, first, state)
      self._set_aside(folder, reason)
    if rounds_saved or list(self._directory.glob('bad-*')):
      raise NoCheckpointError(
        f'{self._directory} holds no usable checkpoint, but rounds were saved there. '
        f'Put one back, or give another {option("workdir")} to begin again.'
      )
    self._find_best(completed_rounds=0)
    self._protect_memories(self._folders())
    return first

  def _find_best(self, completed_rounds):
    """Removes best rounds that come again; sets aside the last one if it is damaged."""
    for folder in best_folders(self._directory):
      if _round_of(folder) > completed_rounds:
        self._remove(folder)
        continue
      reason = checkpoint_folder.find_damage(folder, _round_of(folder))
      index = self._indices.get(folder.name)
      if index and self._store and not reason:
        reason = self._store.find_damage(index)
      if not reason:
        self.best_manifest = files.read_json(folder / checkpoint_folder.MANIFEST)
        return
      self._set_aside(folder, reason)

  def _load(self, folder, index, first):
    """The state, whose memories are put where they belong now; and what is wrong.

    The state counts only if nothing is wrong: then the second result is ''.
    """
    store = self._store
    if index and store:
      state = checkpoint_folder.load(folder, first._replace(clients=()))
      reason = store.find_damage(index)
      if not reason:
        store.restore(index)
      return state._replace(clients=first.clients), reason
    template = first._replace(clients=store.shapes) if store else first
    state, reason = _read(
      folder, index, template, slice(None), lambda: tree.gather(first.clients, 0)
    )
    if store:
      store.write(np.arange(_num_clients(state)), state.clients)
      state = state._replace(clients=first.clients)
    return state, reason

  def _set_aside(self, folder, reason):
    for number in itertools.count(1):
      target = folder.with_name(f'bad-{folder.name}-{number}')
      if not target.exists():
        break
    with files.writing(self._directory):
      self._rename(folder, target)
    self._print_line(
      f'checkpoint {folder.name} is damaged ({reason}); set aside as {target.name}'
    )

  def _remove_older(self):
    newest_first = folders(self._directory)
    for folder in newest_first[_NUM_CHECKPOINTS:]:
      self._remove(folder)
    remaining = newest_first[:_NUM_CHECKPOINTS]
    bests = best_folders(self._directory)
    needed = {_newest_until(bests, _round_of(folder)) for folder in remaining}
    for folder in bests:
      if folder in needed or folder == bests[0]:
        remaining.append(folder)
      else:
        self._remove(folder)
    needs_memories = any(self._indices.get(folder.name) for folder in remaining)
    if not self._store and not needs_memories:
      (self._directory / client_store.CLIENTS).unlink(missing_ok=True)

  def _remove(self, folder):
    with files.writing(self._directory):
      # An unfinished checkpoint must not look like a whole one.
      self._rename(folder, _partial(folder))
      _clear(_partial(folder))

  def _protect_memories(self, checkpoints):
    """From now on the store writes over no memory that these checkpoints name."""
    names = {folder.name for folder in checkpoints}
    self._indices = {
      name: index for name, index in self._indices.items() if name in names
    }
    if self._store:
      self._store.protect(filter(None, self._indices.values()))

  def _rename(self, source, target):
    files.rename(source, target)
    files.flush_descriptor(self._descriptor)


def _clear(partial: pathlib.Path) -> None:
  """Removes an unfinished checkpoint.

  On NFS what another program still reads stays, under another name: its folder goes
  with the next start.
  """
  try:
    shutil.rmtree(partial)
  except OSError as error:
    if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
      raise


def folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """The checkpoints of a directory, the newest first; some may be damaged."""
  checkpoints = [
    path for path in directory.glob('*') if re.fullmatch(r'0|[1-9][0-9]*', path.name)
  ]
  return sorted(checkpoints, key=lambda path: -int(path.name))


def best_folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """The best rounds that are kept, the newest, which is the best, first."""
  kept = [
    path
    for path in directory.glob(f'{_BEST}*')
    if re.fullmatch(rf'{_BEST}[1-9][0-9]*', path.name)
  ]
  return sorted(kept, key=lambda path: -_round_of(path))


def _round_of(folder: pathlib.Path) -> int:
  """The number of completed rounds of a checkpoint or of a best round."""
  return int(folder.name.removeprefix(_BEST))


def _newest_until(newest_first, completed_rounds):
  """The newest of some folders that has at most so many rounds; None if none has."""
  for folder in newest_first:
    if _round_of(folder) <= completed_rounds:
      return folder
  return None


def _num_clients(state):
  return len(jax.tree.leaves(state.clients)[0])


def _on_the_devices_of(template, leaf):
  """The leaf, on the devices of the template's leaf if that is on devices."""
  if isinstance(template, jax.Array):
    return jax.device_put(leaf, template.sharding)
  return leaf


def _partial(folder):
  """The path of a checkpoint before it gets its name, and after it has lost it."""
  return folder.with_name(folder.name + files.PARTIAL)


def _bytes_missing(partial, bytes_needed):
  """The space that a save still needs: what it has written is no longer free."""
  return max(bytes_needed - files.bytes_on_disk(partial), 0)


def chosen_folders(
  directory: pathlib.Path, round_choice: int | str | None
) -> list[pathlib.Path]:
  """The folders of a choice, of which the first undamaged one is wanted.

  Args:
    directory: the checkpoints of a run directory.
    round_choice: None for the newest checkpoint; 'best' for the best round; or the
      number of a round that is kept.

  Raises:
    UsageError: no such round is kept.
  """
  if round_choice is None:
    return folders(directory)
  kept, bests = folders(directory), best_folders(directory)
  if round_choice == BEST:
    if not bests:
      raise UsageError(
        f'{directory.parent} has no best round: {flag("keep_best", "validation")} '
        'keeps it.'
      )
    # An older one was the best only up to a checkpoint. The best round may have been
    # saved as a checkpoint, too.
    round_choice = _round_of(bests[0])
  chosen = [folder for folder in (*kept, *bests) if _round_of(folder) == round_choice]
  if not chosen:
    numbers = ', '.join(str(_round_of(folder)) for folder in reversed(kept))
    best = f', and the best round, {_round_of(bests[0])}' if bests else ''
    raise UsageError(
      f'round={round_choice!r} is not kept in {directory.parent}; kept are: '
      f'{numbers or "none"}{best}.'
    )
  return chosen


def newest(
  directory: pathlib.Path,
  template: State,
  client: int,
  first_memory: Callable[[], PyTree],
  round_choice: int | str | None = None,
) -> State:
  """Loads the newest undamaged checkpoint to the host, as numpy; writes nothing.

  A warning names each newer checkpoint that is damaged. If the best round is damaged,
  no other round takes its place.

  Args:
    directory: the checkpoints of a run directory.
    template: shapes that a checkpoint without an index must have,
      `jax.ShapeDtypeStruct`s.
    client: the client whose memory is wanted.
    first_memory: makes the memory of a client before its first round.
    round_choice: see `chosen_folders`.

  Returns:
    The state; its clients are only this one, leaves [1, ...].

  Raises:
    UsageError: the chosen round is not kept.
    NoCheckpointError: there is no undamaged checkpoint, or it holds another state.
  """
  only_client = slice(client, client + 1)
  damages = []
  for folder in chosen_folders(directory, round_choice):
    reason = checkpoint_folder.find_damage(folder, _round_of(folder))
    if not reason:
      index = checkpoint_folder.index_of(folder)
      state, reason = _read(folder, index, template, only_client, first_memory)
    if not reason:
      # A round that was asked for may be kept twice.
      if damages and round_choice is None:
        warnings.warn(
          f'{"; ".join(damages)}; round {_round_of(folder)} is loaded', stacklevel=4
        )
      return state
    damages.append(f'checkpoint {folder.name} is damaged ({reason})')
  choice = '' if round_choice is None else f' for round={round_choice!r}'
  reasons = f': {"; ".join(damages)}' if damages else ''
  older_bests = best_folders(directory)[1:] if round_choice == BEST else []
  hint = ''
  if older_bests:
    hint = f' round={_round_of(older_bests[0])} loads the best round before it.'
  raise NoCheckpointError(
    f'{directory} holds no undamaged checkpoint{choice}{reasons}.{hint}'
  )


def _read(folder, index, template, chosen_clients, first_memory):
  """The state as NumPy, with the memories of some clients; and what is wrong, or ''.

  Args:
    folder: the checkpoint.
    index: its index; None if the memories are in the state.
    template: shapes of the state, with the memories of all clients.
    chosen_clients: slice of the clients.
    first_memory: makes the memory of a client before its first round.
  """
  if not index:
    state = checkpoint_folder.load(folder, template)
    return state._replace(clients=tree.gather(state.clients, chosen_clients)), ''
  state = checkpoint_folder.load(folder, template._replace(clients=()))
  num_clients = _num_clients(template)
  clients = np.arange(num_clients)[chosen_clients]
  index = index.for_clients(clients)
  path = folder.parent / client_store.CLIENTS
  try:
    store = ClientStore(path, first_memory(), num_clients, only_read=True)
  except OSError as error:
    return state, f'{path.name} cannot be read: {error.strerror}'
  with contextlib.closing(store):
    reason = store.find_damage(index)
    if not reason:
      store.restore(index)
      state = state._replace(clients=store.read(clients))
  return state, reason
