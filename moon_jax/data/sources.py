"""Data sets by the source's name, whole or in part; the embedded digits."""

import hashlib
import importlib.util

import numpy as np

from moon_jax import catalog
from moon_jax.core.types import Dataset
from moon_jax.data import layouts, npz
from moon_jax.data.arrays import make_dataset
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
  with layouts.told(source, options.get('path', '')):
    found = read(source, **options)
    is_divided = isinstance(found, assembled.Federation)
    dataset = assembled.dataset(found) if is_divided else found
  return users.limited(dataset, limit) if limit else dataset


def read(
  source: str, **options: str | int | float | bool
) -> Dataset | assembled.Federation:
  """The content of a source, whole or user by user; see `load`."""
  part = catalog.part('data', source)
  found = part.build(tuple, **options)
  return npz.checked(source, found) if part.registered else found


def digest(dataset: Dataset) -> str:
  """SHA-256 of the arrays, with their shapes and users, in hexadecimal.

  Validation examples count if there are some.
  """
  total = hashlib.sha256((dataset.stored.digest if dataset.stored else '').encode())
  more = (dataset.train_clients, dataset.test_clients, dataset.clients)
  more += (dataset.validation_images, dataset.validation_labels)
  for array in (*dataset[1:5], *(one for one in more if one is not None)):
    total.update(f'{array.dtype}{array.shape}'.encode())
    total.update(np.ascontiguousarray(array))
  return total.hexdigest()


def load_digits() -> Dataset:
  """Loads scikit-learn's 1,797 digits: 8x8 pixels, 10 classes, no download.

  Every fifth example of a class is a test example: stratified, the same in every run.
  """
  # Importing scikit-learn only to read its file would take a third of a short start.
  (folder,) = importlib.util.find_spec('sklearn').submodule_search_locations
  rows = np.loadtxt(f'{folder}/datasets/data/digits.csv.gz', delimiter=',')
  images = np.rint(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
  labels = rows[:, -1].astype(np.int64)
  is_test = np.zeros(len(images), bool)
  for label in range(10):
    is_test[np.flatnonzero(labels == label)[2::5]] = True
  train = images[~is_test], labels[~is_test]
  test = images[is_test], labels[is_test]
  return make_dataset('digits', train, test, num_classes=10)
