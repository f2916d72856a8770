"""Data sets by the source's name, whole or in part; the embedded digits."""

import hashlib

import numpy as np

from moon_jax import catalog
from moon_jax.data import npz
from moon_jax.data.arrays import make_dataset
from moon_jax.keys import Purpose, host_rng
from moon_jax.types import Dataset


def load(source: str, *, limit: int, **options: str | int | float | bool) -> Dataset:
  """Loads a data set, or a fixed pseudo-random part of it.

  Args:
    source: its name in the catalog.
    limit: most examples to keep of each split; 0 keeps all. The choice does not
      depend on the run's seed, and a smaller limit keeps a subset of a larger one's.
    **options: the knobs of the source.

  Returns:
    The data set; mean and standard deviation are those of the whole training split.

  Raises:
    DataError: the data is missing or unusable.
  """
  part = catalog.part('data', source)
  dataset = part.build(tuple, **options)
  if part.registered:
    dataset = npz.checked(source, dataset)
  if not limit:
    return dataset
  # Splits may be stored class by class: the first examples would not do.
  train, test = (
    host_rng(0, Purpose.SUBSET, split).permutation(len(labels))[:limit]
    for split, labels in enumerate((dataset.train_labels, dataset.test_labels))
  )
  return dataset._replace(
    train_images=dataset.train_images[train],
    train_labels=dataset.train_labels[train],
    test_images=dataset.test_images[test],
    test_labels=dataset.test_labels[test],
  )


def digest(dataset: Dataset) -> str:
  """SHA-256 of the four arrays, with their shapes, in hexadecimal."""
  total = hashlib.sha256()
  for array in dataset[1:5]:
    total.update(f'{array.dtype}{array.shape}'.encode())
    total.update(np.ascontiguousarray(array))
  return total.hexdigest()


def load_digits() -> Dataset:
  """Loads scikit-learn's 1,797 digits: 8x8 pixels, 10 classes, no download.

  Every fifth example of a class is a test example: stratified, the same in every run.
  """
  from sklearn import datasets

  digits = datasets.load_digits()
  images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # grey levels 0 to 16
  is_test = np.zeros(len(images), bool)
  for label in range(10):
    is_test[np.flatnonzero(digits.target == label)[2::5]] = True
  train = images[~is_test], digits.target[~is_test]
  test = images[is_test], digits.target[is_test]
  return make_dataset('digits', train, test, num_classes=10)
