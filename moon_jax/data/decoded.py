"""Keeps decoded images in the user's cache folder, for later starts."""

import contextlib
import glob
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from moon_jax import __version__
from moon_jax.core import cache, files, paths
from moon_jax.core.types import Dataset


def kept(
  name: str, folder: pathlib.Path, decode: Callable[[], Dataset], *more: Any
) -> Dataset:
  """The data set in a folder; it is decoded if the folder is new or has changed.

  It has changed if the folder, or a name, size or time below it, has changed. The
  decoded set is kept as one uncompressed .npz, whose checksums are compared while it is
  read. A torn file is made anew, and a file that cannot be written is not kept.

  Args:
    name: name by which the set is asked for.
    folder: folder of all versions of the set, which has the set's name; if it is
      missing, decoding has to make it.
    decode: reads and decodes the set.
    *more: further words that decide what is decoded.
  """
  asked = name, *more
  before = _path(folder, asked)
  with contextlib.suppress(Exception):  # of any class: the file is missing, or torn
    found = files.arrays(before, files.array_names(before))
    plain = {name: found[name].tolist() for name in ('name', 'num_classes')}
    names = tuple(found['class_names'].tolist())
    return Dataset(**found | plain | {'class_names': names})
  found = decode()
  path = _path(folder, asked)
  # If the set did not exist and decoding prepared it, it is kept too.
  if path and before in (None, path) and found.name == folder.name:
    _keep(path, {key: v for key, v in found._asdict().items() if v is not None})
  return found


def _path(folder, asked):
  """The file, named after the request and the folder's state."""
  try:
    folder = folder.resolve()
    below = sorted(paths.below(folder, follow=True))
    about = [(str(path), path.stat()) for path in below]
  except (OSError, ValueError, RuntimeError):  # decoding says what is wrong with it
    return None
  if not about or not (kept_in := cache.room(cache.folder(), 'data')):
    return None
  state = [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in about]
  place, key = (
    hashlib.sha256(repr(words).encode()).hexdigest()[:16]
    for words in ((folder, asked), (__version__, state))
  )
  return kept_in / f'{folder.name}-{place}-{key}.npz'


def _keep(path, arrays):
  """Writes the file, unless the disk is full; removes the file of an earlier state."""
  with contextlib.suppress(OSError):
    stem = path.stem.rpartition('-')[0]
    for old in path.parent.glob(f'{glob.escape(stem)}-*'):
      old.unlink(missing_ok=True)
    cache.add(path, lambda file: np.savez(file, **arrays))
