"""What is kept for other starts: compiled programs, C++ kernels, decoded images.

What is kept is run, or taken for the data. So nothing is kept in a folder, nor read
from it, unless it is the user's own and nobody else may write there.
"""

import contextlib
import functools
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Any

from moon_jax.core.errors import printable

_WANTED = 'it must be yours, and nobody else may write there (chmod go-w)'


def folder() -> pathlib.Path:
  """The user's, for this package: $XDG_CACHE_HOME/moon_jax or ~/.cache/moon_jax."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(home, 'moon_jax').absolute()


def room(folder: pathlib.Path, name: str) -> pathlib.Path | None:
  """A folder for one kind of files, made if need be.

  Args:
    folder: the user's, or another that the user named.
    name: of the folder in it.

  Returns:
    The path; None if nothing may be kept there, which a line tells.
  """
  path = folder / name
  try:
    for one in (folder, path):
      one.mkdir(mode=0o700, parents=True, exist_ok=True)
      about = one.stat()
      if about.st_uid != os.getuid() or about.st_mode & 0o022:
        tell(f'nothing is kept in {one}: {_WANTED}')
        return None
  except OSError as error:
    tell(f'nothing is kept in {folder}: {error.strerror}')
    return None
  return path


def add(path: pathlib.Path, write: Callable[[IO[bytes]], Any]) -> None:
  """Adds a file, which `write` fills, wholly; or not at all, as on a full disk."""
  with (
    contextlib.suppress(OSError),
    tempfile.NamedTemporaryFile(dir=path.parent, prefix=f'{path.name}-') as file,
  ):
    write(file)
    file.flush()
    os.fsync(file.fileno())  # its name must not be on the disk before it is
    os.replace(file.name, path)  # closing it misses the name, which is suppressed


@functools.cache
def tell(text: str) -> None:
  """Prints a line to standard error, once."""
  print(printable(text), file=sys.stderr)
