"""Data sets by the source's name, whole or in part."""

import hashlib

import numpy as np

from moon_jax import catalog
from moon_jax.core.types import Dataset
from moon_jax.data import layouts
from moon_jax.data.dataset import registered_dataset
from moon_jax.data.federated import assembled, users


def load(source: str, *, limit: int, **options: str | int | float | bool) -> Dataset:
  """Loads a data set, or a fixed pseudo-random part of it.

  Args:
    source: name of the source in the catalog.
    limit: most examples to keep of each split, by whole users if it has user ids; 0
      keeps all. The choice does not depend on the run's seed; see `users.limited`.
    **options: the knobs of the source.

  Returns:
    The data set; mean and standard deviation are those of the whole training split.

  Raises:
    DataError: the data are missing or unusable.
  """
  with layouts.hint_at_other_source(source, options.get('path', '')):
    dataset = read(source, **options)
    if isinstance(dataset, assembled.Federation):
      dataset = assembled.dataset_of(dataset)
  return users.limited(dataset, limit) if limit else dataset


def read(
  source: str, **options: str | int | float | bool
) -> Dataset | assembled.Federation:
  """The content of a source, whole or user by user; see `load`."""
  part = catalog.part('data', source)
  content = part.build(tuple, **options)
  return registered_dataset(source, content) if part.registered else content


def digest(dataset: Dataset) -> str:
  """SHA-256 of the arrays, with their shapes and users, in hexadecimal.

  Validation examples count if there are some.
  """
  total = hashlib.sha256((dataset.stored.digest if dataset.stored else '').encode())
  arrays = (
    *(dataset.train_images, dataset.train_labels),
    *(dataset.test_images, dataset.test_labels),
    *(dataset.train_clients, dataset.test_clients, dataset.clients),
    *(dataset.validation_images, dataset.validation_labels),
  )
  for array in arrays:
    if array is not None:
      total.update(f'{array.dtype}{array.shape}'.encode())
      total.update(np.ascontiguousarray(array))
  return total.hexdigest()
