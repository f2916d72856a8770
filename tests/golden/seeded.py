"""Weights and inputs that PyTorch and JAX both make, so that no file has to hold them.

RandomState's stream is frozen, unlike a Generator's.
"""

import math
import zlib

import numpy as np


def numbers(name, shape):
  """[*shape] float64, uniform in [-1, 1), a function of name and shape."""
  return np.random.RandomState(zlib.crc32(name.encode())).uniform(-1, 1, shape)


def leaf(path, shape):
  """The weights of a leaf of the variables: 'conv1/kernel', 'norm/scale', ...

  A kernel [..., inputs, outputs] keeps the size of what it multiplies.
  """
  values = numbers(path, shape)
  kind = path.split('/')[-1]
  if kind == 'kernel':
    return values * math.sqrt(3 / math.prod(shape[:-1]))
  return 1 + 0.3 * values if kind in ('scale', 'var') else 0.3 * values


def summary(path, values):
  """[11]: sum, norm, product with a random direction, and the first 8 numbers."""
  values = np.asarray(values)
  direction = numbers(f'direction of {path}', values.shape)
  totals = [values.sum(), np.linalg.norm(values), (values * direction).sum()]
  return np.concatenate([totals, np.resize(values.ravel(), 8)])
