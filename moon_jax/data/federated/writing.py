"""Writes a federation for `records`, user by user."""

import os
import pathlib
import shutil

import numpy as np

from moon_jax.core.errors import RunError
from moon_jax.core.types import Dataset
from moon_jax.data import npz
from moon_jax.data.arrays import DataError, pixel_sums, statistics_of, with_channels
from moon_jax.data.federated import assembled, records, users

# Images [M, H, W] or [M, H, W, C], labels [M], ids [M] of their users or None.
Test = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def write(
  out: pathlib.Path,
  federation: assembled.Federation,
  test: Test,
  statistics: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
  """Makes the folder, whole or not at all.

  Args:
    out: path of the folder, which must not exist.
    federation: federation whose training examples are read.
    test: the test examples.
    statistics: [C] mean and deviation of pixel / 255; None: they are computed.

  Returns:
    [N] examples of each client.

  Raises:
    RunError: the data are unusable, or the folder cannot be written.
  """
  partial = out.with_name(f'{out.name}.partial-{os.getpid()}')
  try:
    partial.mkdir(parents=True)
    rows, sums = _write_records(partial / records.RECORDS, federation)
    index = _index(federation, rows, sums, test, statistics)
    np.savez(partial / records.INDEX, **index)
    partial.rename(out)
  except OSError as error:
    raise RunError(f'--out={str(out)!r} cannot be written: {error}') from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return index['sizes']


def _write_records(path: pathlib.Path, federation: assembled.Federation):
  """For each record the user, its check and its class counts; `pixel_sums` of all."""
  module = assembled.package('records', 'array_record.python.array_record_module')
  rows, sums = [], (0, 0)
  writer = module.ArrayRecordWriter(str(path), 'group_size:1')
  try:
    for name, images, labels in federation.train:
      images = with_channels(images)
      record = records.record_of(images, labels)
      _as_os_error(writer.write, record)
      owned = np.unique(labels, return_counts=True)  # classes may be beyond 2^63
      rows.append((name, records.check_of(record), *owned))
      own = pixel_sums(images)
      sums = tuple(a + b for a, b in zip(sums, own, strict=True))
  finally:
    _as_os_error(writer.close)
  if not rows:
    raise DataError(f'{federation.flag} has no user with train examples.')
  return rows, sums


def _as_os_error(call, *given):
  """Turns array_record's errors, which have many classes, into an OSError."""
  try:
    return call(*given)
  except (RuntimeError, ValueError) as error:
    raise OSError(str(error).partition('\n')[0]) from error


def _index(federation, rows, sums, test, statistics) -> dict[str, np.ndarray]:
  """The arrays of the index: the clients in the order of their names."""
  images, labels, ids = with_channels(test[0], federation.flag), *test[1:]
  names, checks, owned, numbers = zip(*rows, strict=True)
  classes = np.unique(np.concatenate(owned))
  like = np.empty((1, *sums[0].shape), np.uint8)
  train = 'train_x', like, 'train_y', classes
  tested = 'test_x', images, 'test_y', labels
  fault = npz.split_fault(*tested)
  if fault := fault or npz.pair_fault(train, tested, federation.num_classes):
    raise DataError(f'{federation.flag}: {fault}.')
  counts = np.zeros((len(rows), federation.num_classes or len(classes)), int)
  for row, own, number in zip(counts, owned, numbers, strict=True):
    row[own] = number
  # One example of each class is enough to number the classes.
  one_each = np.zeros(len(counts), np.int32)
  data = Dataset(federation.name, like, one_each, images, labels, 0, (), ())
  data = users.named(federation.flag, data, np.array(names), ids)
  order = np.argsort(data.train_clients)
  checks = np.frombuffer(b''.join(checks), np.uint8).reshape(len(order), -1)
  sizes = counts.sum(1)
  mean, std = statistics or statistics_of(*sums, int(sizes.sum()))
  index = {
    'sizes': sizes[order],
    'records': order,
    'checks': checks[order],
    'class_counts': counts[order],
    'clients': data.clients,
    'mean': np.asarray(mean),
    'std': np.asarray(std),
    'test_x': images,
    'test_y': labels,
  }
  if names := federation.class_names:
    index['class_names'] = np.array(names, str)
  return index | ({} if ids is None else {'test_client': data.test_clients})
