"""LEAF's JSON: train/*.json and test/*.json, with `users` and their `user_data`."""

import functools
import json
import math

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.data.errors import DataError, one_line
from moon_jax.data.federated import assembled
from moon_jax.data.forms import Reading


def load_leaf(
  path: str, range: str = '', axes: str = '', normalize: str = 'auto'
) -> assembled.Federation:
  """Loads LEAF's files; users are in the order of the files.

  Args:
    path: the folder that holds train/ and test/. Images are rows of grey levels
      (FEMNIST), or of three colours, and square.
    range: numbers of black and white, 'LOW,HIGH'; '': as in `npz.load_npz`.
    axes: as in `npz.load_npz`.
    normalize: as in `npz.load_npz`.

  Raises:
    DataError: also when read: a file is missing, damaged or laid out in another way, or
      holds text (the names of CelebA's files, Shakespeare).
  """
  read = functools.partial(_read, has_pictures=not axes)
  return assembled.two_splits(
    path, read, Reading(range=range, axes=axes, normalize=normalize)
  )


def _read(data_flag, folder, split, *, has_pictures):
  requirement = f"{data_flag} must be a folder with LEAF's {split}/*.json"
  for path in assembled.files_in(requirement, folder / split, '*.json'):
    with one_line(f"{data_flag}: {split}/{path.name} is no JSON of LEAF's users"):
      content = json.loads(files.contents(path), object_hook=_unchanged)
      for name in content['users']:
        examples = content['user_data'][name]
        images = np.asarray(examples['x'])
        if has_pictures:
          images = _square_images(data_flag, name, images)
        labels = np.asarray(examples['y'])
        yield assembled.make_user(data_flag, str(name), images, labels)


def _unchanged(user):
  """The same object. Between two calls of Python the process heeds signals."""
  return user


def _square_images(data_flag, name, rows):
  """[n, pixels] -> [n, side, side] or [n, side, side, 3]; other arrays unchanged."""
  if rows.dtype.kind in 'US':
    raise DataError(
      f'{data_flag}: client {printable(str(name))!r} has text where images are needed.'
    )
  if rows.ndim != 2:
    return rows
  num_pixels = rows.shape[1]
  for channels in ((), (3,)):
    side = math.isqrt(num_pixels // math.prod(channels))
    if side and side**2 * math.prod(channels) == num_pixels:
      return rows.reshape(-1, side, side, *channels)
  return rows
