"""A disk that forgets, at a loss of power, what was not flushed to it.

In a folder it records what each `os.fsync` has made durable: of a file its bytes, of a
folder its names. What libraries write below Python is seen only where Python flushes
it, so that what is lost is rather more than a real disk would lose.
"""

import contextlib
import os
import pathlib
import stat
import sys
from collections.abc import Callable
from typing import NamedTuple

# Audit events that come before names on a disk change.
EVENTS = ('open', 'os.rename', 'os.remove', 'os.mkdir', 'os.rmdir')


class Point(NamedTuple):
  """An instant.

  Attributes:
    flushed: path -> bytes of the files, None of the folders, that are left if all is
      lost that was not flushed.
    named: the same if names reach the disk by themselves, and bytes do not.
    promised: what the program counted on then.
  """

  flushed: dict[str, bytes | None]
  named: dict[str, bytes | None]
  promised: int


class Disk:
  """Records what is on the disk while a program works in a folder.

  Attributes:
    points: an instant before each change of a name, and after each flush.
  """

  def __init__(self, root: pathlib.Path, promised: Callable[[], int]):
    """Records nothing yet.

    Args:
      root: the folder, which is there.
      promised: tells what the program counts on.
    """
    self._root, self._promised = str(root), promised
    self._bytes: dict[int, bytes] = {}  # of a file's inode
    self._names: dict[int, dict[str, tuple[int, bool]]] = {}  # of a folder's
    self._held: dict[int, int] = {}  # open, so that no other file gets the inode
    self._fsync = os.fsync
    self._is_busy = False
    self.points: list[Point] = []

  @contextlib.contextmanager
  def recording(self):
    """Everything done inside, by any thread, is recorded."""
    self._is_on = True
    sys.addaudithook(self._audit)
    os.fsync = self._flush
    try:
      yield
    finally:
      os.fsync, self._is_on = self._fsync, False
      for descriptor in self._held.values():
        os.close(descriptor)

  def _audit(self, event, arguments):
    is_change = self._is_on and not self._is_busy and event in EVENTS
    if is_change and str(arguments[0]).startswith(self._root):
      self._note()

  def _flush(self, descriptor):
    self._fsync(descriptor)
    self._is_busy = True
    status, path = os.fstat(descriptor), os.readlink(f'/proc/self/fd/{descriptor}')
    if status.st_ino not in self._held:
      self._held[status.st_ino] = os.dup(descriptor)
    if stat.S_ISDIR(status.st_mode):
      self._names[status.st_ino] = self._listed(path)
    else:
      self._bytes[status.st_ino] = pathlib.Path(path).read_bytes()
    self._is_busy = False
    self._note()

  def _listed(self, path):
    with os.scandir(path) as entries:
      return {e.name: (e.inode(), e.is_dir(follow_symlinks=False)) for e in entries}

  def _note(self):
    self._is_busy = True
    root = os.stat(self._root).st_ino
    flushed = self._left('', root, lambda inode, path: self._names.get(inode, {}))
    named = self._left('', root, lambda inode, path: self._listed_now(path))
    point = Point(flushed, named, self._promised())
    if not self.points or point != self.points[-1]:
      self.points.append(point)
    self._is_busy = False

  def _listed_now(self, path):
    with contextlib.suppress(OSError):
      return self._listed(os.path.join(self._root, path))
    return {}

  def _left(self, path, inode, names_of):
    left = {}
    for name, (child, is_dir) in names_of(inode, path).items():
      below = os.path.join(path, name)
      left[below] = None if is_dir else self._bytes.get(child, b'')
      left |= self._left(below, child, names_of) if is_dir else {}
    return left


def restore(left: dict[str, bytes | None], folder: pathlib.Path) -> None:
  """Makes a folder of what is left after a loss."""
  folder.mkdir()
  for path, content in left.items():
    if content is None:
      (folder / path).mkdir()
    else:
      (folder / path).write_bytes(content)
