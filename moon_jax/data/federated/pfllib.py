"""PFLlib's folder of a data set: train/0.npz, test/0.npz, ..., one for each client.

Each holds one pickled dict: x, channels first, in [-1, 1] or [0, 1], and y.
"""

import functools
import pathlib
import zipfile
from collections.abc import Iterator

import numpy as np

from moon_jax.core import files
from moon_jax.core.paths import expand
from moon_jax.data import pickled
from moon_jax.data.arrays import one_line
from moon_jax.data.federated import assembled


def load_pfllib(path: str) -> assembled.Federation:
  """Loads the clients of PFLlib, in the order of their numbers.

  Args:
    path: the folder that holds train/ and test/. Pixels in [-1, 1], as PFLlib's own
      scripts write them, become whole grey levels; if no pixel is below 0, they count
      as pixels in [0, 1].

  Raises:
    DataError: a file is missing, damaged or laid out in another way.
  """
  flag, root = f'--config.data.path={path!r}', expand(path)
  every = (_found(flag, root, one) for one in ('train', 'test'))
  lows = [images.min(initial=0) for one in every for _, (images, _) in one]
  is_signed = min(lows, default=0) < 0
  return assembled.two_splits(path, functools.partial(_read, is_signed))


def _read(is_signed, flag, root, split):
  for number, (images, labels) in _found(flag, root, split):
    if is_signed and (abs(images) <= 1).all():
      images = np.rint((images + 1) * 127.5).astype(np.uint8)
    yield assembled.user(flag, number, images, labels)


def _found(
  flag: str, root: pathlib.Path, split: str
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
  """Number of a client, and its images and labels as stored."""
  wanted = f"{flag} must be a folder with PFLlib's {split}/0.npz and so on"
  every = assembled.files_in(wanted, root / split, '*.npz')
  numbered = [(int(one.stem), one) for one in every if one.stem.isdecimal()]
  for number, path in sorted(numbered):
    with one_line(f"{flag}: {split}/{path.name} is no file of PFLlib's"):
      found = _dict_of(path)
      images, labels = (np.asarray(found[name]) for name in ('x', 'y'))
      if images.dtype.kind not in 'iuf':
        raise ValueError(f'x is {images.dtype}')
    yield number, (images, labels)


def _dict_of(path):
  """The dict in the array `data`, which is pickled behind the array's header."""
  with (
    files.opened(path) as file,
    zipfile.ZipFile(file) as archive,
    archive.open('data.npy') as array,
  ):
    np.lib.format.read_magic(array)
    np.lib.format.read_array_header_1_0(array)
    return pickled.load(array.read()).item()
