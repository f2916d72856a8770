"""Keeps what encoded images decode to, in the user's cache folder, for other starts."""

import contextlib
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from moon_jax import __version__
from moon_jax.core import cache, files
from moon_jax.core.types import Dataset

_KINDS = {'name': 'U ', 'num_classes': 'i ', 'mean': 'f C', 'std': 'f C'}
_KINDS |= {'train_images': 'u MHWC', 'train_labels': 'i M'}
_KINDS |= {'test_images': 'u NHWC', 'test_labels': 'i N'}
# What few sets have.
_MORE = {'train_clients': 'i M', 'test_clients': 'i N', 'clients': 'iU L'}
_MORE |= {'validation_images': 'u VHWC', 'validation_labels': 'i V'}


def kept(
  name: str, folder: pathlib.Path, decode: Callable[[], Dataset], *more: Any
) -> Dataset:
  """What is in a folder; it is decoded if it is new or has changed.

  It has changed if the folder, or the names, sizes or times of what is below it have.
  What is kept is one uncompressed .npz, whose checksums are compared as it is read; one
  that is torn is made anew, and one that cannot be written is not kept.

  Args:
    name: by which the set is asked for.
    folder: of all versions of the set, called as the data set is; if there is none,
      decoding is to make it.
    decode: reads and decodes the set.
    *more: what else tells what is decoded.
  """
  asked = name, *more
  before = _path(folder, asked)
  with contextlib.suppress(Exception):  # of many kinds: it is not there, or torn
    more = set(_MORE).intersection(files.array_names(before))
    kinds = _KINDS | {one: _MORE[one] for one in more}
    found = Dataset(**files.arrays(before, kinds=kinds))
    names = files.arrays(before, ('class_names',))['class_names']
    plain = {'name': str(found.name), 'num_classes': int(found.num_classes)}
    return found._replace(**plain, class_names=tuple(names.tolist()))
  found = decode()
  path = _path(folder, asked)
  # What was prepared in the meantime is kept if there was nothing before.
  if path and before in (None, path) and found.name == folder.name:
    _keep(path, {key: v for key, v in found._asdict().items() if v is not None})
  return found


def _path(folder, asked):
  """The file, whose name tells what is asked of a folder, and the folder's state."""
  try:
    folder = folder.resolve()
    below = sorted(files.below(folder))
    about = [(str(path), path.stat()) for path in below]
  except (OSError, ValueError, RuntimeError):  # decoding tells what is wrong with it
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
  """Writes the file, unless the disk is full; that of an earlier state goes."""
  with contextlib.suppress(OSError):
    stem = path.stem.rpartition('-')[0]
    for old in path.parent.glob(f'{stem}-*'):
      old.unlink(missing_ok=True)
    cache.add(path, lambda file: np.savez(file, **arrays))
