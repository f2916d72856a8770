"""PFLlib's folder of a data set: train/0.npz, test/0.npz, ..., one for each client.

Each holds x, images with channels first, in [-1, 1] or [0, 1], and y, labels: as PFLlib
writes them, in one pickled dict `data`, or as plain arrays.
"""

import functools
import pathlib
from collections.abc import Iterator

import numpy as np

from moon_jax.core import files
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.data import pickles
from moon_jax.data.errors import one_line
from moon_jax.data.federated import assembled


def load_pfllib(path: str, trust_pickles: bool = False) -> assembled.Federation:
  """Loads the clients of PFLlib, in the order of their numbers.

  Args:
    path: the folder that holds train/ and test/. Pixels in [-1, 1], as PFLlib's own
      scripts write them, become whole grey levels; if no pixel is below 0, they count
      as pixels in [0, 1].
    trust_pickles: whether files that hold pickles only are unpickled by Python, which
      runs whatever code is in them.

  Raises:
    DataError: a file is missing, damaged or laid out in another way, or is a pickle
      that is not trusted.
  """
  data_flag = flag('data.path', path)
  lowest_pixel = 0
  for split in ('train', 'test'):
    for _, images, _ in _clients(data_flag, expand(path), split, trust_pickles):
      lowest_pixel = min(lowest_pixel, images.min(initial=0))
  read = functools.partial(
    _read, is_signed=lowest_pixel < 0, trust_pickles=trust_pickles
  )
  return assembled.two_splits(path, read)


def _read(data_flag, folder, split, *, is_signed, trust_pickles):
  for number, images, labels in _clients(data_flag, folder, split, trust_pickles):
    if is_signed and (abs(images) <= 1).all():
      images = np.rint((images + 1) * 127.5).astype(np.uint8)
    yield assembled.make_user(data_flag, number, images, labels)


def _clients(
  data_flag: str, folder: pathlib.Path, split: str, trust_pickles: bool
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
  """Number of each client, and its images and labels as stored."""
  requirement = f"{data_flag} must be a folder with PFLlib's {split}/0.npz and so on"
  paths = assembled.files_in(requirement, folder / split, '*.npz')
  numbered = [(int(path.stem), path) for path in paths if path.stem.isdecimal()]
  for number, path in sorted(numbered):
    with one_line(f"{data_flag}: {split}/{path.name} is no file of PFLlib's"):
      arrays = _arrays(path, trust_pickles)
      images, labels = np.asarray(arrays['x']), np.asarray(arrays['y'])
      if images.dtype.kind not in 'iuf':
        raise ValueError(f'x is {images.dtype}')
    yield number, images, labels


def _arrays(path, trust_pickles):
  """The arrays x and y of a file."""
  names = files.array_names(path)
  if {'x', 'y'}.issubset(names):
    return files.arrays(path, ('x', 'y'))
  if 'data' not in names:
    raise ValueError('it has neither x and y, nor data')
  if not trust_pickles:
    raise pickles.UntrustedPickleError(
      f'{str(path)!r} is a pickle, which can run any code. Have PFLlib save plain '
      'arrays (docs/federations.md)'
    )
  with files.opened(path) as file, np.load(file, allow_pickle=True) as saved:
    return saved['data'].item()
