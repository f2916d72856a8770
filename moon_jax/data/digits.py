"""Scikit-learn's digits, which need no download."""

import numpy as np

from moon_jax.core.types import Dataset
from moon_jax.data.dataset import make_dataset

_LARGEST_PIXEL = 16


def load_digits() -> Dataset:
  """Loads scikit-learn's 1,797 digits: 8x8 pixels, 10 classes, no download.

  Every fifth example of a class is a test example: stratified, the same in every run.
  """
  from sklearn import datasets

  digits = datasets.load_digits()
  images = np.rint(digits.images * (255 / _LARGEST_PIXEL)).astype(np.uint8)
  labels = digits.target
  is_test = np.zeros(len(images), bool)
  for label in range(10):
    is_test[np.flatnonzero(labels == label)[2::5]] = True
  train = images[~is_test], labels[~is_test]
  test = images[is_test], labels[is_test]
  return make_dataset('digits', train, test, num_classes=10)
