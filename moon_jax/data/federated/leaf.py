"""LEAF's JSON: train/*.json and test/*.json, with `users` and their `user_data`."""

import functools
import json
import math

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.core.flags import flag
from moon_jax.data import texts
from moon_jax.data.data_errors import DataError, one_line
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled
from moon_jax.data.texts import TextOptions

# Of a tweet in Sent140, LEAF keeps id, date, query, user, text and whether it trains.
_TWEET_FIELDS, _TEXT_FIELD = 6, 4


def load_leaf(
  path: str, reading: Reading, text_options: TextOptions
) -> assembled.Federation:
  """Loads LEAF's files; users are in the order of the files.

  Args:
    path: the folder that holds train/ and test/. Images are rows of grey levels
      (FEMNIST), or of three colours, and square. Texts are those of Shakespeare, with
      the next character as the label, or the tweets of Sent140.
    reading: as in `npz.load_npz`.
    text_options: how texts are read, if the examples are these.

  Raises:
    DataError: also when read: a file is missing, damaged or laid out in another way, or
      holds the names of CelebA's files.
  """
  if text_options.has_texts:
    texts.require_no_other_reading(reading)
    federation = assembled.users_of_splits(path, _read_texts)
    return assembled.with_text_labels(federation, text_options.tokenizer)
  read = functools.partial(_read_arrays, has_pictures=not reading.axes)
  return assembled.two_splits(path, read, reading)


def _read_arrays(data_flag, folder, split, *, has_pictures):
  """The users of a split, whose examples are numbers."""
  for name, x, y in _read(data_flag, folder, split):
    with one_line(f'{data_flag}: client {printable(name)!r} cannot be used'):
      images, labels = np.asarray(x), np.asarray(y)
    if images.dtype.kind in 'US':
      raise DataError(
        f'{data_flag}: client {printable(name)!r} has texts. If they are to be read, '
        f'{flag("data.tokenizer", texts.CHARACTERS)} or '
        f'{flag("data.tokenizer", "wordpiece")} says how; the names of files, as in '
        'CelebA, are no examples.'
      )
    if has_pictures:
      images = _square_images(images)
    yield assembled.make_user(data_flag, name, images, labels)


def _read_texts(data_flag, folder, split):
  """The users of a split, whose examples are texts or tweets."""
  for name, x, y in _read(data_flag, folder, split):
    if not isinstance(x, list):
      raise DataError(
        f'{data_flag}: client {printable(name)!r} has no list of texts, but a '
        f'{type(x).__name__}.'
      )
    user_texts = [_text_of(example) for example in x]
    yield assembled.make_text_user(data_flag, name, user_texts, y)


def _read(data_flag, folder, split):
  """The name, the examples and the labels of each user, as they are in JSON."""
  requirement = f"{data_flag} must be a folder with LEAF's {split}/*.json"
  for path in assembled.files_in(requirement, folder / split, '*.json'):
    with one_line(f"{data_flag}: {split}/{path.name} is no JSON of LEAF's users"):
      content = json.loads(files.contents(path), object_hook=_unchanged)
      for name in content['users']:
        examples = content['user_data'][name]
        yield str(name), examples['x'], examples['y']


def _unchanged(user):
  """The same object. Between two calls of Python the process heeds signals."""
  return user


def _text_of(example):
  """The text of an example: itself, or that of a tweet."""
  if isinstance(example, list) and len(example) == _TWEET_FIELDS:
    return example[_TEXT_FIELD]
  return example


def _square_images(rows):
  """[n, pixels] -> [n, side, side] or [n, side, side, 3]; other arrays unchanged."""
  if rows.ndim != 2:
    return rows
  num_pixels = rows.shape[1]
  for channels in ((), (3,)):
    side = math.isqrt(num_pixels // math.prod(channels))
    if side and side**2 * math.prod(channels) == num_pixels:
      return rows.reshape(-1, side, side, *channels)
  return rows
