"""Keeps what a TFDS set decodes to, in the user's cache folder, for other starts."""

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax import __version__
from moon_jax.core import cache, files


class Decoded(NamedTuple):
  """A prepared set. Images are [M, H, W, C] uint8, labels [M] int32.

  Attributes:
    name: TFDS's own.
    num_classes: Y.
    train_images: of the training split.
    train_labels: of it.
    test_images: of the test split.
    test_labels: of it.
    train_clients: [M] ids of the users; None if nobody asked for them.
    test_clients: of the test split.
  """

  name: str
  num_classes: int
  train_images: np.ndarray
  train_labels: np.ndarray
  test_images: np.ndarray
  test_labels: np.ndarray
  train_clients: np.ndarray | None = None
  test_clients: np.ndarray | None = None


_KINDS = {'name': 'U ', 'num_classes': 'i '}
_KINDS |= {'train_images': 'u MHWC', 'train_labels': 'i M'}
_KINDS |= {'test_images': 'u NHWC', 'test_labels': 'i N'}
_IDS = {'train_clients': 'iuS M', 'test_clients': 'iuS N'}


def kept(
  name: str, folder: pathlib.Path, decode: Callable[[], Decoded], client: str, *more
) -> Decoded:
  """What is in a folder; it is decoded if it is new or has changed.

  It has changed if the folder, or the names, sizes or times of what is below it have.
  What is kept is one uncompressed .npz, whose checksums are compared as it is read; one
  that is torn is made anew, and one that cannot be written is not kept.

  Args:
    name: by which the set is asked for.
    folder: of all versions of the set, called as TFDS calls the set; if there is none,
      decoding is to make it.
    decode: reads and decodes the set.
    client: the feature that names the users; '' is none.
    *more: what else tells what is decoded.
  """
  asked = name, client, *more
  before = _path(folder, asked)
  with contextlib.suppress(Exception):  # of many kinds: it is not there, or torn
    found = Decoded(**files.arrays(before, kinds=_KINDS | (_IDS if client else {})))
    return found._replace(name=str(found.name), num_classes=int(found.num_classes))
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
    below = [
      pathlib.Path(root, one)
      for root, folders, files in os.walk(folder, followlinks=True)
      for one in (*folders, *files)
    ]
    files = [(path, path.stat()) for path in sorted(below)]
  except (OSError, ValueError, RuntimeError):  # decoding tells what is wrong with it
    return None
  if not files or not (kept_in := cache.room(cache.folder(), 'data')):
    return None
  state = [(str(path), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in files]
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
