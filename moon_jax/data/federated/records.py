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
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset, Stored
from moon_jax.data.arrays import DataError, make_dataset, one_line
from moon_jax.data.federated import assembled

RECORDS, INDEX = 'train.array_record', 'index.npz'
# Bytes of a record's check: 16 find any damage; a forger would forge the index too.
CHECK_BYTES = 16
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
  flag = f'--config.data.path={path!r}'
  folder = expand(path)
  with one_line(f'{flag} must be a folder written by moon_jax.data.convert'):
    index = files.arrays(folder / INDEX, kinds=_INDEX)
    more = files.arrays(folder / INDEX, ('test_client', 'class_names'))
    test_clients = more.get('test_client')
    files.opened(folder / RECORDS).close()
    train = (np.empty((0, *index['test_x'].shape[1:]), np.uint8), np.empty(0, np.int32))
    data = make_dataset(
      folder.name,
      train,
      (index['test_x'], index['test_y']),
      index['class_counts'].shape[1],
      (index['mean'], index['std']),
      more.get('class_names', ()),
    )
    if data.test_images.shape != index['test_x'].shape:  # channels first, by 0.2.0
      raise DataError(f'{flag} is of an older version; convert it again.')
    reader = _Reader(folder / RECORDS, index, data.test_images.shape[1:])
    wide = (
      index[name].astype(np.int64) for name in ('sizes', 'class_counts', 'records')
    )
    stored = Stored(*wide, reader, digest_of(index))
  clients = index['clients']
  return data._replace(test_clients=test_clients, clients=clients, stored=stored)


def digest_of(index: dict[str, np.ndarray]) -> str:
  """SHA-256 of what the index says about the training examples, in hexadecimal."""
  total = hashlib.sha256()
  for name in ('sizes', 'records', 'checks', 'class_counts', 'mean', 'std'):
    total.update(f'{name}{index[name].dtype}{index[name].shape}'.encode())
    total.update(np.ascontiguousarray(index[name]))
  return total.hexdigest()


def check_of(record: bytes) -> bytes:
  """The check of a record in the index."""
  return hashlib.blake2b(record, digest_size=CHECK_BYTES).digest()


def record_of(images: np.ndarray, labels: np.ndarray) -> bytes:
  """The record of [n, H, W, C] uint8 and [n]."""
  return labels.astype(_LABEL).tobytes() + np.ascontiguousarray(images).tobytes()


class _Reader:
  """Reads records, and compares each with its check."""

  def __init__(self, path, index, image_shape):
    self._path, self._shape = path, image_shape
    order = np.argsort(index['records'])
    self._sizes, self._checks = index['sizes'][order], index['checks'][order]
    if (found := self._file.num_records()) != len(order):
      raise DataError(
        f'{path} is torn: it has {found} of {len(order)} records; convert it again.'
      )

  @functools.cached_property
  def _file(self) -> Any:
    module = assembled.package('records', 'array_record.python.array_record_module')
    # Users are read in any order: nothing is read ahead.
    return module.ArrayRecordReader(str(self._path), 'readahead_buffer_size:0')

  def __call__(self, records: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """See `Stored.read`.

    Raises:
      DataError: the file cannot be read, or is damaged.
    """
    with one_line(f'{self._path} is damaged; convert it again'):
      found = self._file.read(records.tolist())
      return [self._parsed(*pair) for pair in zip(records, found, strict=True)]

  def _parsed(self, number, record):
    size = int(self._sizes[number])
    whole = size * (_LABEL.itemsize + math.prod(self._shape))
    if len(record) != whole or check_of(record) != self._checks[number].tobytes():
      raise DataError(
        f'{self._path}: record {number} is damaged; convert it again, and the same '
        'command goes on.'
      )
    labels = np.frombuffer(record, _LABEL, size)
    images = np.frombuffer(record, np.uint8, offset=labels.nbytes)
    return images.reshape(size, *self._shape), labels
