"""Files kept for later starts: compiled programs, C++ kernels, decoded images.

Kept programs are run, and kept images are used as the data. So files are kept in a
folder, and read from it, only if it is the user's own and nobody else may write there.
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

_REQUIREMENT = 'it must be yours, and nobody else may write there (chmod go-w)'


def folder() -> pathlib.Path:
  """The user's cache of this package: $XDG_CACHE_HOME/moon_jax or ~/.cache/moon_jax."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(home, 'moon_jax').absolute()


def subfolder(folder: pathlib.Path, name: str) -> pathlib.Path | None:
  """A folder for one kind of files, made if need be.

  Args:
    folder: the user's cache folder, or another that the user named.
    name: name of the new folder in it.

  Returns:
    The path; None if nothing may be kept there, after a line that says so.
  """
  path = folder / name
  try:
    for directory in (folder, path):
      directory.mkdir(mode=0o700, parents=True, exist_ok=True)
      status = directory.stat()
      if status.st_uid != os.getuid() or status.st_mode & 0o022:
        warn_once(f'nothing is kept in {directory}: {_REQUIREMENT}')
        return None
  except OSError as error:
    warn_once(f'nothing is kept in {folder}: {error.strerror}')
    return None
  return path


def add(path: pathlib.Path, write: Callable[[IO[bytes]], Any]) -> None:
  """Adds a file that `write` fills: wholly, or not at all, as on a full disk."""
  with (
    contextlib.suppress(OSError),
    tempfile.NamedTemporaryFile(dir=path.parent, prefix=f'{path.name}-') as file,
  ):
    write(file)
    file.flush()
    os.fsync(file.fileno())  # the content must reach the disk before the name does
    os.replace(file.name, path)  # closing does not find the old name: suppressed


@functools.cache
def warn_once(text: str) -> None:
  """Prints a line to standard error, once."""
  print(printable(text), file=sys.stderr)
