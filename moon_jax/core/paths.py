"""Paths as users write them, and names that every file system accepts."""

import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator

_MAX_NAME_BYTES = 180  # before a digest


def expand(path: str | os.PathLike) -> pathlib.Path:
  """The path, with ~ replaced by the home folder, if there is one."""
  return pathlib.Path(os.path.expanduser(path))  # Path.expanduser raises for ~nobody


def file_name(text: str) -> str:
  """A name of a file or folder; a long one ends with a digest of itself."""
  name = re.sub(r'[^\w.=+-]+', '_', text)
  if len(name.encode()) <= _MAX_NAME_BYTES:
    return name
  digest = hashlib.sha256(name.encode()).hexdigest()[:8]
  return f'{name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore")}-{digest}'


def walk(
  folder: str | os.PathLike,
  *,
  follow: bool = False,
  on_error: Callable[[OSError], None] | None = None,
) -> Iterator[tuple[str, list[str], list[str]]]:
  """As `os.walk` from the top, but without recursion: a stranger's folders may be deep.

  Args:
    folder: the folder.
    follow: whether folders behind links are looked into, each folder once.
    on_error: called with the error of each folder that cannot be listed.

  Yields:
    A folder, the names of the folders in it, and the names of what else is in it. Only
    folders that the caller leaves in the list are looked into, in its order.
  """
  unvisited = [os.fspath(folder)]
  visited = set()
  while unvisited:
    parent = unvisited.pop()
    folders, names = [], []
    try:
      if follow:
        status = os.stat(parent)
        identity = status.st_ino, status.st_dev
        if identity in visited:
          continue
        visited.add(identity)
      with os.scandir(parent) as entries:
        for entry in entries:
          (folders if _is_folder(entry) else names).append(entry.name)
    except OSError as error:
      if on_error:
        on_error(error)
      continue
    yield parent, folders, names
    children = [os.path.join(parent, name) for name in reversed(folders)]
    unvisited += [path for path in children if follow or not os.path.islink(path)]


def _is_folder(entry):
  """Whether an entry is a folder; a link that leads in a circle is none."""
  try:
    return entry.is_dir()
  except OSError:
    return False


def below(folder: pathlib.Path, *, follow: bool = False) -> Iterator[pathlib.Path]:
  """The paths below a folder, in which another process may add and remove files.

  Args:
    folder: the folder.
    follow: whether folders behind links are looked into, each folder once.
  """
  for root, folders, names in walk(folder, follow=follow):
    for name in (*folders, *names):
      yield pathlib.Path(root, name)
