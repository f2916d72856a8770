"""PFLlib's folder of a data set: train/0.npz, test/0.npz, ..., one for each client.

Each holds x, images with channels first, in [-1, 1], and y, labels: as PFLlib writes
them, in one pickled dict `data`, or as plain arrays.
"""

import functools
import pathlib
from collections.abc import Iterator

import numpy as np

from moon_jax.core import files
from moon_jax.data import pickles
from moon_jax.data.data_errors import one_line
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled

_FLOAT_RANGE = (-1.0, 1.0)  # of images that PFLlib's own scripts write


def load_pfllib(
  path: str,
  trust_pickles: bool = False,
  *,
  reading: Reading,
) -> assembled.Federation:
  """Loads the clients of PFLlib, in the order of their numbers.

  Args:
    path: the folder that holds train/ and test/. Floats are in [-1, 1], as PFLlib's own
      scripts write them, integers in [0, 255].
    trust_pickles: whether files that hold pickles only are unpickled by Python, which
      runs whatever code is in them.
    reading: as in `npz.load_npz`, but for the range of floats.

  Raises:
    DataError: also when read: a file is missing, damaged or laid out in another way, or
      is a pickle that is not trusted.
  """
  read = functools.partial(_read, trust_pickles=trust_pickles)
  return assembled.two_splits(path, read, reading, _FLOAT_RANGE)


def _read(data_flag, folder, split, *, trust_pickles):
  for number, images, labels in _clients(data_flag, folder, split, trust_pickles):
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
