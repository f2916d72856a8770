"""Opens files that a stranger may have made, and checks their shape: they are data.

Run directories, data sets and `.npz` files are read through here, so that nothing in
them is imported, unpickled or waited for, and what is read of them is as it is written.
"""

import errno
import functools
import json
import os
import pathlib
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import fastjsonschema
import numpy as np

from moon_jax.errors import printable

_IRREGULAR = 'It is no regular file'
Kinds = Mapping[str, str]
# Array -> its kinds of dtype, and its axes: equal letters are equally long.
PARTITION = {'class_counts': 'iu NY'}
FEATURES = {'round': 'iu ', 'confusion': 'iu YY', 'classes': 'iu M'}
FEATURES |= {'representations': 'f MD', 'embedded': 'f M2'}


def opened(path: str | os.PathLike) -> BinaryIO:
  """Opens a file for reading; waits for nobody.

  Raises:
    OSError: it cannot be read, or is a named pipe, a device or the like.
  """
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  if stat.S_ISREG(os.fstat(descriptor).st_mode):
    return os.fdopen(descriptor, 'rb')
  os.close(descriptor)
  raise OSError(errno.EINVAL, _IRREGULAR, os.fspath(path))


def require_files(folder: pathlib.Path) -> None:
  """Raises OSError if something below a folder is no file and no folder."""
  for path in folder.rglob('*'):
    if not path.is_dir() and not path.is_file():
      raise OSError(errno.EINVAL, _IRREGULAR, str(path))


def document(path: pathlib.Path, data: bytes) -> dict[str, Any]:
  """The JSON object that a file, or a line of it, holds.

  Args:
    path: its name tells what it has to hold.
    data: the JSON.

  Raises:
    ValueError: it is no JSON, or of another shape.
  """
  try:
    return _check()({path.name: json.loads(data, parse_constant=int)})[path.name]
  except (ValueError, RecursionError) as error:
    raise ValueError(f'{str(error)[:100]!r}.') from None


@functools.cache
def _check() -> Callable[[Any], Any]:
  schema = pathlib.Path(__file__).with_name('run_directory.json')
  return fastjsonschema.compile(json.loads(schema.read_bytes()))


def plain(content: Any) -> Any:
  """Words that command no terminal and no spreadsheet; of JSON all of them."""
  if isinstance(content, dict):
    return {plain(key): plain(value) for key, value in content.items()}
  if isinstance(content, list):
    return list(map(plain, content))
  if not isinstance(content, str):
    return content
  return "'" * content.startswith(('=', '+', '-', '@')) + printable(content)


def arrays(
  path: str | os.PathLike,
  names: Iterable[str] = (),
  kinds: Kinds | None = None,
) -> dict[str, np.ndarray]:
  """The arrays of an .npz file; nothing is unpickled.

  Args:
    path: the file.
    names: those that are wanted, where they are there.
    kinds: those that must be there, each of this shape.

  Raises:
    Exception: of many kinds, if the file cannot be read, or holds another thing.
  """
  with opened(path) as file:
    if not zipfile.is_zipfile(file):  # np.load would advise to unpickle it
      raise ValueError('it is no archive; save it with np.savez')
    with np.load(file) as saved:
      found = {name: saved[name] for name in kinds or names if name in saved}
  if others := [n for n, array in found.items() if not isinstance(array, np.ndarray)]:
    raise ValueError(f'{others[0]} is no array')
  sizes = {'2': 2}
  for name, kind in (kinds or {}).items():
    array, (dtypes, axes) = found[name], kind.split(' ')
    fits = array.ndim == len(axes) and array.dtype.kind in dtypes and array.size
    pairs = zip(axes, array.shape, strict=False)
    fits = fits and all(sizes.setdefault(axis, size) == size for axis, size in pairs)
    if not fits or (dtypes == 'iu' and array.min() < 0):
      raise ValueError(f'{name} is {array.dtype} of shape {array.shape}, or below 0')
  return found
