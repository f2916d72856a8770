"""Writes a federation for the source `records`, user by user."""

import os
import pathlib
import shutil
from typing import NamedTuple

import numpy as np

from moon_jax.core import signals
from moon_jax.core.errors import RunError
from moon_jax.core.flags import flag, option
from moon_jax.core.types import Dataset, Scale
from moon_jax.data.data_errors import DataError
from moon_jax.data.dataset import Split, pair_fault, split_fault
from moon_jax.data.federated import assembled, user_records, users
from moon_jax.data.pixels import PixelSums, pixel_sums, statistics_of, with_channels


class _Written(NamedTuple):
  """What the index says of a record.

  Attributes:
    name: name of the user.
    check: see `user_records.check_of`.
    classes: the classes that the user has.
    counts: number of examples of each of these classes.
  """

  name: int | str
  check: bytes
  classes: np.ndarray
  counts: np.ndarray


def write(
  out: pathlib.Path,
  federation: assembled.Federation,
  test: assembled.Examples,
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
  if federation.form.content != 'levels' or federation.form.axes:
    raise DataError(
      f'{federation.data_flag}: records are for pictures of grey levels, with their '
      f'channels last and without {flag("data.axes")}; {option("out", f"{out}.npz")} '
      'keeps other arrays.'
    )
  partial = out.with_name(f'{out.name}.partial-{os.getpid()}')
  with signals.unfinished(partial):
    try:
      partial.mkdir(parents=True)
      written, sums = _write_records(partial / user_records.RECORDS, federation)
      index = _index(federation, written, sums, test, statistics)
      np.savez(partial / user_records.INDEX, **index)
      partial.rename(out)
    except OSError as error:
      words = option('out', str(out))
      raise RunError(f'{words} cannot be written: {error}') from error
    finally:
      shutil.rmtree(partial, ignore_errors=True)
  return index['sizes']


def _write_records(
  path: pathlib.Path, federation: assembled.Federation
) -> tuple[list[_Written], PixelSums]:
  """What was written, record by record, and `pixel_sums` of all images."""
  module = assembled.package('records', 'array_record.python.array_record_module')
  written = []
  total, squares = 0, 0
  writer = module.ArrayRecordWriter(str(path), 'group_size:1')
  try:
    for user in federation.train:
      images = with_channels(user.images)
      record = user_records.record_of(images, user.labels)
      _as_os_error(lambda record=record: writer.write(record))
      # Not a count up to the largest class, which may be beyond 2^63.
      classes, counts = np.unique(user.labels, return_counts=True)
      written.append(
        _Written(
          name=user.name,
          check=user_records.check_of(record),
          classes=classes,
          counts=counts,
        )
      )
      sums = pixel_sums(images)
      total, squares = total + sums.total, squares + sums.squares
  finally:
    _as_os_error(writer.close)
  if not written:
    raise DataError(f'{federation.data_flag} has no user with train examples.')
  return written, PixelSums(total, squares)


def _as_os_error(call):
  """Turns array_record's errors, which have many classes, into an OSError."""
  try:
    return call()
  except (RuntimeError, ValueError) as error:
    raise OSError(str(error).partition('\n')[0]) from error


def _index(federation, written, sums, test, statistics) -> dict[str, np.ndarray]:
  """The arrays of the index: the clients in the order of their names."""
  data_flag = federation.data_flag
  test_images = with_channels(test.images, data_flag)
  classes = np.unique(np.concatenate([record.classes for record in written]))
  one_image = np.empty((1, *sums.total.shape), np.uint8)
  fault = _fault(federation, one_image, classes, test_images, test.labels)
  if fault:
    raise DataError(f'{data_flag}: {fault}.')
  num_classes = federation.num_classes or len(classes)
  class_counts = np.zeros((len(written), num_classes), int)
  for row, record in zip(class_counts, written, strict=True):
    row[record.classes] = record.counts
  # One example of each user is enough to number the users.
  one_each = Dataset(
    name=federation.name,
    train_images=one_image,
    train_labels=np.zeros(len(written), np.int32),
    test_images=test_images,
    test_labels=test.labels,
    num_classes=0,
    mean=(),
    std=(),
  )
  names = np.array([record.name for record in written])
  numbered = users.named(data_flag, one_each, names, test.user_names)
  order = np.argsort(numbered.train_clients)
  checks = np.frombuffer(b''.join(record.check for record in written), np.uint8)
  sizes = class_counts.sum(1)
  mean, std = statistics or statistics_of(sums, int(sizes.sum()))
  index = {
    'sizes': sizes[order],
    'records': order,
    'checks': checks.reshape(len(order), -1)[order],
    'class_counts': class_counts[order],
    'clients': numbered.clients,
    'mean': np.asarray(mean),
    'std': np.asarray(std),
    'test_x': test_images,
    'test_y': test.labels,
  }
  if federation.scale != Scale():
    index |= user_records.arrays_of_scale(federation.scale)
  if federation.class_names:
    index['class_names'] = np.array(federation.class_names, str)
  if test.user_names is not None:
    index['test_client'] = numbered.test_clients
  return index


def _fault(federation, one_image, classes, test_images, test_labels):
  """What is wrong with the test examples, alone or with training; '' if nothing is."""
  test = Split('test_x', test_images, 'test_y', test_labels)
  train = Split('train_x', one_image, 'train_y', classes)
  return split_fault(test) or pair_fault(train, test, federation.num_classes)
