"""Writes data as records, or as one .npz file; `convert` is the program."""

import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag, option
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset
from moon_jax.data import npz, sources, texts
from moon_jax.data.data_errors import DataError
from moon_jax.data.dataset import ARRAY_NAMES, USER_ARRAYS
from moon_jax.data.federated import assembled, users, writing

# Of a made-up federation: the classes, the sides of its images, the users that test,
# and the test images of each.
_NUM_CLASSES, _SIDE = 10, 28
_NUM_TEST_USERS, _TEST_SIZE = 100, 10


def write_npz(out: pathlib.Path, source: str, options: Mapping[str, Any]) -> str:
  """Writes the arrays that `npz.load_npz` reads; returns a description of them.

  Args:
    out: the file.
    source: name of a data source.
    options: its knobs.

  Raises:
    UsageError: the data are unusable, or stay on disk.
    RunError: the file cannot be written.
  """
  dataset = sources.load(source, limit=0, **options)
  if dataset.form.content == 'texts':
    dataset = with_words_of_training(dataset, source, options)
  if dataset.stored:
    raise UsageError(f'{flag("data.source", source)} cannot be written as one file.')
  arrays = (
    *(dataset.train_images, dataset.train_labels),
    *(dataset.test_images, dataset.test_labels),
    *(dataset.validation_images, dataset.validation_labels),
  )
  named_arrays = {
    name: array
    for name, array in zip(ARRAY_NAMES, arrays, strict=True)
    if array is not None
  }
  owners = dataset.train_clients, dataset.test_clients
  for name, owner in zip(USER_ARRAYS, owners, strict=True):
    if owner is not None:
      named_arrays[name] = dataset.clients[owner]
  named_arrays |= npz.arrays_of_form(dataset)
  class_names = dataset.class_names
  if not class_names and len(np.unique(dataset.train_labels)) < dataset.num_classes:
    # Otherwise a gap would be refused.
    class_names = [str(number) for number in range(dataset.num_classes)]
  if class_names:
    named_arrays['class_names'] = np.array(class_names)
  files.make_folder(out.parent)
  files.write_arrays(out, named_arrays)
  return (
    f'{len(dataset.train_labels):,} training and {len(dataset.test_labels):,} test '
    f'examples of {dataset.num_classes} classes'
  )


def with_words_of_training(
  dataset: Dataset, source: str, options: Mapping[str, Any]
) -> Dataset:
  """The data set in which texts are words, of a vocabulary of all training texts.

  A line says how they are read.

  Args:
    dataset: a data set of texts.
    source: its source.
    options: the knobs of the source.
  """
  data_flag = sources.data_flag_of(source, options)
  vocabulary = texts.learn(
    data_flag, dataset.train_images, sources.text_options_of(options)
  )
  dataset, notice = texts.in_words(data_flag, dataset, vocabulary)
  print(notice, file=sys.stderr)
  return dataset


def write_records(
  out: pathlib.Path, source: str, options: Mapping[str, Any]
) -> np.ndarray:
  """Writes the records of a source, as `write_npz`; returns [N] examples by client."""
  content = sources.read(source, **options)
  if isinstance(content, assembled.Federation):
    has_validation = bool(content.validation)
  else:
    has_validation = content.validation_labels is not None
  if has_validation:
    print(
      f'{flag("data.source", source)}: the examples for validation are left out of '
      f'records; {option("out", f"{out}.npz")} keeps them.',
      file=sys.stderr,
    )
  if isinstance(content, assembled.Federation):
    test = assembled.joined(content.data_flag, 'test', content.test)
    return writing.write(out, content, test)
  return _write_records_of_memory(out, source, content)


def _write_records_of_memory(out, source, dataset):
  data_flag = flag('data.source', source)
  if dataset.stored:
    raise DataError(f'{data_flag}: the data are records already.')
  if dataset.train_clients is None:
    raise DataError(
      f'{data_flag}: the data have no user ids; write a file: '
      f'{option("out", f"{out}.npz")}.'
    )
  federation = assembled.Federation(
    data_flag=data_flag,
    name=dataset.name,
    train=of_memory(dataset),
    test=(),
    num_classes=dataset.num_classes,
    class_names=dataset.class_names,
    scale=dataset.scale,
    form=dataset.form,
  )
  owner = dataset.test_clients
  test = assembled.Examples(
    images=dataset.test_images,
    labels=dataset.test_labels,
    user_names=None if owner is None else dataset.clients[owner],
  )
  return writing.write(out, federation, test, (dataset.mean, dataset.std))


def of_memory(dataset: Dataset) -> Iterator[assembled.User]:
  """The users of a data set in memory."""
  rows = np.argsort(dataset.train_clients, kind='stable')
  rows_by_user = np.split(rows, np.cumsum(users.sizes_of(dataset))[:-1])
  for name, rows in zip(dataset.clients.tolist(), rows_by_user, strict=False):
    yield assembled.User(name, dataset.train_images[rows], dataset.train_labels[rows])


def write_synthetic(out: pathlib.Path, size: str) -> np.ndarray:
  """Writes the records of `synthetic`; returns [N] examples of each client."""
  federation = synthetic(size)
  test = assembled.joined(federation.data_flag, 'test', federation.test)
  return writing.write(out, federation, test)


def synthetic(size: str) -> assembled.Federation:
  """A made-up federation.

  Args:
    size: 'NxM', N users with M images. A user draws two classes of ten; an image is
      noise, brighter where its class is bright.
  """
  num_users, train_size = map(int, size.split('x'))
  num_test_users = min(num_users, _NUM_TEST_USERS)
  return assembled.Federation(
    data_flag=option('synthetic', size),
    name='synthetic',
    train=(_made_up_user(number, 0, train_size) for number in range(num_users)),
    test=(_made_up_user(number, 1, _TEST_SIZE) for number in range(num_test_users)),
    num_classes=_NUM_CLASSES,
  )


def _made_up_user(number: int, split: int, size: int) -> assembled.User:
  rng = host_rng(0, Purpose.SUBSET, 3 + split, number)
  labels = rng.integers(0, _NUM_CLASSES, 2, np.int32)[rng.integers(0, 2, size)]
  # Together the first users own all classes.
  labels[0] = number % _NUM_CLASSES
  images = np.frombuffer(rng.bytes(size * _SIDE**2), np.uint8) >> 1
  images = images.reshape(size, _SIDE, _SIDE).copy()
  images[np.arange(size), 2 * labels + 3] += 100
  return assembled.User(number, images, labels)
