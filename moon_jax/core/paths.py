"""Paths as users write them, and names that every file system accepts."""

import hashlib
import os
import pathlib
import re
from collections.abc import Iterator

_LONGEST = 180  # bytes, before a digest


def expand(path: str | os.PathLike) -> pathlib.Path:
  """The path, with ~ replaced by the home folder, if there is one."""
  return pathlib.Path(os.path.expanduser(path))  # Path.expanduser raises for ~nobody


def file_name(text: str) -> str:
  """A name of a file or folder; a long one ends with a digest of itself."""
  name = re.sub(r'[^\w.=+-]+', '_', text)
  if len(name.encode()) <= _LONGEST:
    return name
  digest = hashlib.sha256(name.encode()).hexdigest()[:8]
  return f'{name.encode()[:_LONGEST].decode(errors="ignore")}-{digest}'


def below(folder: pathlib.Path, *, follow: bool = False) -> Iterator[pathlib.Path]:
  """The paths below a folder, in which another process may add and remove files.

  Args:
    folder: the folder.
    follow: whether folders behind links are looked into, each folder once.
  """
  seen = set()
  for root, folders, names in os.walk(folder, followlinks=follow):
    place = os.stat(root)[1:3] if follow else root  # inode and device
    if place in seen:
      names, folders[:] = [], []
    seen.add(place)
    yield from (pathlib.Path(root, name) for name in (*folders, *names))
