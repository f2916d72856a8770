"""Scikit-learn's digits, which need no download."""

import importlib.util
import pathlib

import numpy as np

from moon_jax.core.types import Dataset, Scale
from moon_jax.data.dataset import make_dataset
from moon_jax.data.scale import grey_levels

_SCALE = Scale(low=0.0, high=16.0, dtype='float64', declared=True)


def load_digits() -> Dataset:
  """Loads scikit-learn's 1,797 digits: 8x8 pixels, 10 classes, no download.

  Their numbers are 0 to 16, as `sklearn.datasets.load_digits` returns them.

  Every fifth example of a class is a test example: stratified, the same in every run.
  """
  # The file that `sklearn.datasets.load_digits` reads: to import that function takes a
  # second of every start, for pandas and SciPy's statistics.
  package = pathlib.Path(importlib.util.find_spec('sklearn').origin).parent
  table = np.loadtxt(package / 'datasets/data/digits.csv.gz', delimiter=',')
  pixels, labels = table[:, :-1], table[:, -1].astype(int)
  images = grey_levels(pixels, _SCALE).reshape(-1, 8, 8)
  is_test = np.zeros(len(images), bool)
  for label in range(10):
    is_test[np.flatnonzero(labels == label)[2::5]] = True
  train = images[~is_test], labels[~is_test]
  test = images[is_test], labels[is_test]
  return make_dataset('digits', train, test, num_classes=10, scale=_SCALE)
