"""Paths as users write them, and names that every file system accepts."""

import hashlib
import os
import pathlib
import re
from collections.abc import Iterator

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


def below(folder: pathlib.Path, *, follow: bool = False) -> Iterator[pathlib.Path]:
  """The paths below a folder, in which another process may add and remove files.

  Args:
    folder: the folder.
    follow: whether folders behind links are looked into, each folder once.
  """
  visited = set()
  for root, folders, names in os.walk(folder, followlinks=follow):
    if follow:
      status = os.stat(root)
      identity = status.st_ino, status.st_dev
      if identity in visited:
        folders.clear()  # os.walk does not enter them
        continue
      visited.add(identity)
    for name in (*folders, *names):
      yield pathlib.Path(root, name)
