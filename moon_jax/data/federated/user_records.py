"""A federation that stays on disk: one record for each user, and an index.

A folder of two files:

  train.array_record   a record: the labels of a user, int32, then the images, uint8
  index.npz            the index of all users, and the test examples

`writing` makes it, with the users in any order: the index has the place of each one.
"""

import functools
import hashlib
import math
from typing import Any

import numpy as np

from moon_jax.core import files
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset, Scale, Stored
from moon_jax.data.data_errors import DataError, one_line
from moon_jax.data.dataset import make_dataset
from moon_jax.data.federated import assembled
from moon_jax.data.scale import is_valid_scale

RECORDS, INDEX = 'train.array_record', 'index.npz'
# Bytes of a record's check: 16 find any damage; a forger would forge the index too.
CHECK_BYTES = 16
# Arrays of the index for the fields of a Scale, if it is not that of grey levels.
_SCALE = ('scale_low', 'scale_high', 'scale_dtype', 'scale_declared')
_LABEL = np.dtype('<i4')
# Array of the index -> its kinds of dtype and axes, as `files.arrays` checks them.
_INDEX = {
  'sizes': 'iu N',
  'records': 'iu N',
  'checks': 'u NK',
  'class_counts': 'iu NY',
  'clients': 'iU L',
  'mean': 'f C',
  'std': 'f C',
  'test_x': 'u MHWC',
  'test_y': 'iu M',
}


def load_records(path: str) -> Dataset:
  """Opens a converted federation; the training examples stay on disk.

  Args:
    path: the folder.

  Raises:
    DataError: it is no such folder, or damaged.
  """
  data_flag = flag('data.path', path)
  folder = expand(path)
  with one_line(f'{data_flag} must be a folder written by moon_jax.data.convert'):
    index = files.arrays(folder / INDEX, kinds=_INDEX)
    optional_names = 'test_client', 'class_names', *_SCALE
    optional = files.arrays(folder / INDEX, optional_names)
    files.require_regular(folder / RECORDS)
    image_shape = index['test_x'].shape[1:]
    dataset = make_dataset(
      folder.name,
      train=(np.empty((0, *image_shape), np.uint8), np.empty(0, np.int32)),
      test=(index['test_x'], index['test_y']),
      num_classes=index['class_counts'].shape[1],
      statistics=(index['mean'], index['std']),
      class_names=optional.get('class_names', ()),
      scale=_scale(optional),
    )
    if dataset.test_images.shape[1:] != image_shape:  # channels first, by 0.2.0
      raise DataError(f'{data_flag} is of an older version; convert it again.')
    stored = Stored(
      sizes=index['sizes'].astype(np.int64),
      class_counts=index['class_counts'].astype(np.int64),
      records=index['records'].astype(np.int64),
      read=_Reader(folder / RECORDS, index, image_shape),
      digest=digest_of(index),
    )
  return dataset._replace(
    test_clients=optional.get('test_client'), clients=index['clients'], stored=stored
  )


def arrays_of_scale(scale: Scale) -> dict[str, np.ndarray]:
  """The arrays of the index that say which scale the images had in their source."""
  return dict(zip(_SCALE, (np.array(field) for field in scale), strict=True))


def _scale(arrays):
  """The scale in an index; grey levels if none is in it."""
  if not arrays.keys() >= {*_SCALE}:
    return Scale()
  low, high, dtype, declared = (arrays[name].item() for name in _SCALE)
  scale = Scale(float(low), float(high), str(dtype), bool(declared))
  if not is_valid_scale(scale):
    raise ValueError(f'it has the scale {tuple(scale)}')
  return scale


def digest_of(index: dict[str, np.ndarray]) -> str:
  """SHA-256 of what the index says about the training examples, in hexadecimal."""
  total = hashlib.sha256()
  for name in ('sizes', 'records', 'checks', 'class_counts', 'mean', 'std'):
    total.update(f'{name}{index[name].dtype}{index[name].shape}'.encode())
    total.update(np.ascontiguousarray(index[name]))
  return total.hexdigest()


def check_of(record: bytes) -> bytes:
  """The check of a record in the index."""
  return hashlib.blake2b(
    record, digest_size=CHECK_BYTES, usedforsecurity=False
  ).digest()


def record_of(images: np.ndarray, labels: np.ndarray) -> bytes:
  """The record of [n, H, W, C] uint8 and [n]."""
  return labels.astype(_LABEL).tobytes() + np.ascontiguousarray(images).tobytes()


class _Reader:
  """Reads records, and compares each with its check."""

  def __init__(self, path, index, image_shape):
    self._path = path
    self._image_shape = image_shape
    order = np.argsort(index['records'])
    self._sizes = index['sizes'][order]
    self._checks = index['checks'][order]
    num_records = self._file.num_records()
    if num_records != len(order):
      raise DataError(
        f'{path} is torn: it has {num_records} of {len(order)} records; convert it '
        'again.'
      )

  @functools.cached_property
  def _file(self) -> Any:
    module = assembled.package('records', 'array_record.python.array_record_module')
    # Users are read in any order: nothing is read ahead.
    return module.ArrayRecordReader(str(self._path), 'readahead_buffer_size:0')

  def __call__(self, numbers: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """See `Stored.read`.

    Raises:
      DataError: the file cannot be read, or is damaged.
    """
    with one_line(f'{self._path} is damaged; convert it again'):
      records = self._file.read(numbers.tolist())
      return [
        self._parsed(number, record)
        for number, record in zip(numbers, records, strict=True)
      ]

  def _parsed(self, number, record):
    size = int(self._sizes[number])
    num_bytes = size * (_LABEL.itemsize + math.prod(self._image_shape))
    check = self._checks[number].tobytes()
    if len(record) != num_bytes or check_of(record) != check:
      raise DataError(
        f'{self._path}: record {number} is damaged; convert it again, and the same '
        'command goes on.'
      )
    labels = np.frombuffer(record, _LABEL, size)
    images = np.frombuffer(record, np.uint8, offset=labels.nbytes)
    return images.reshape((size, *self._image_shape)), labels
