"""LEAF's JSON: train/*.json and test/*.json, with `users` and their `user_data`."""

import json
import math

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.data.arrays import DataError, one_line
from moon_jax.data.federated import assembled


def load_leaf(path: str) -> assembled.Federation:
  """Loads LEAF's files; users are in the order of the files.

  Args:
    path: the folder that holds train/ and test/. Images are rows of grey levels in [0,
      1] or [0, 255] (FEMNIST), or of three colours, and square.

  Raises:
    DataError: when read: a file is missing, damaged or laid out in another way, or
      holds text (the names of CelebA's files, Shakespeare).
  """
  return assembled.two_splits(path, _read)


def _read(flag, root, split):
  wanted = f"{flag} must be a folder with LEAF's {split}/*.json"
  for path in assembled.files_in(wanted, root / split, '*.json'):
    with one_line(f"{flag}: {split}/{path.name} is no JSON of LEAF's users"):
      content = json.loads(files.contents(path))
      for name in content['users']:
        own = content['user_data'][name]
        told = f'{flag}: client {printable(str(name))!r}'
        images = _images(told, np.asarray(own['x']))
        yield assembled.user(flag, str(name), images, np.asarray(own['y']))


def _images(told, rows):
  """[n, pixels] -> [n, side, side] or [n, side, side, 3]; other arrays unchanged."""
  if rows.dtype.kind in 'US':
    raise DataError(f'{told} has text where images are needed.')
  if rows.ndim != 2:
    return rows
  for channels in ((), (3,)):
    side = math.isqrt(rows.shape[1] // math.prod(channels))
    if side and side**2 * math.prod(channels) == rows.shape[1]:
      return rows.reshape(-1, side, side, *channels)
  return rows
