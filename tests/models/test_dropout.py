"""Dropout in C++, against Flax's."""

import itertools
import shutil

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import cpu_kernels, layers
from tests.selection import few

# One number; less and more than the draws that are made at once; several axes.
SHAPES = [(1,), (63,), (65,), (3, 7, 100)]


@pytest.fixture(autouse=True)
def a_compiler():
  if not shutil.which('c++'):
    pytest.skip('there is no C++ compiler c++')
  assert not cpu_kernels.fault()


def outputs_and_gradient(layer, x, key):
  """What a layer makes of x, and the gradient of the sum of squares."""

  def apply(x):
    return layer.apply({}, x, deterministic=False, rngs={'dropout': key})

  y, pull = jax.vjp(apply, x)
  return y, pull(2 * y)[0]


def numbers(shape):
  return np.float32(np.random.default_rng(0).normal(size=shape))


RATES = [1e-6, 0.1, 0.5, 0.997]


@pytest.mark.parametrize(
  ('shape', 'rate'),
  few([*zip(SHAPES, RATES, strict=True)], itertools.product(SHAPES, RATES)),
)
def test_bits_are_those_of_flax(shape, rate):
  x, key = numbers(shape), jax.random.key(7)
  run = jax.jit(outputs_and_gradient, static_argnums=0)
  layer = layers.Dropout(rate)
  ours = run(layer, x, key)
  assert 'ffi_call' in str(jax.make_jaxpr(lambda x: run(layer, x, key))(x))
  for actual, expected in zip(ours, run(nn.Dropout(rate), x, key), strict=True):
    np.testing.assert_array_equal(actual, expected)


def test_a_lane_has_the_bits_that_it_has_alone():
  x, keys = numbers((3, 70)), jax.random.split(jax.random.key(1), 3)

  def run(x, key):
    return outputs_and_gradient(layers.Dropout(0.3), x, key)

  together = jax.jit(jax.vmap(run))(x, keys)
  one_key = jax.jit(jax.vmap(run, in_axes=(0, None)))(x, keys[0])
  for lane in range(3):
    for of_all, alone in zip(together, run(x[lane], keys[lane]), strict=True):
      np.testing.assert_array_equal(of_all[lane], alone)
    for of_all, alone in zip(one_key, run(x[lane], keys[0]), strict=True):
      np.testing.assert_array_equal(of_all[lane], alone)


def test_without_a_compiler_or_in_evaluation_there_is_no_call(monkeypatch):
  x, key = jnp.asarray(numbers((5, 70))), jax.random.key(3)
  layer = layers.Dropout(0.2)
  ours = jax.jit(outputs_and_gradient, static_argnums=0)(layer, x, key)
  assert layer.apply({}, x, deterministic=True) is x
  assert layers.Dropout(0.0).apply({}, x, deterministic=False) is x
  monkeypatch.setattr(cpu_kernels, 'fault', lambda: 'there is none')
  of_xla = jax.jit(lambda x: outputs_and_gradient(layer, x, key))
  assert 'ffi_call' not in str(jax.make_jaxpr(of_xla)(x))
  for actual, expected in zip(ours, of_xla(x), strict=True):
    np.testing.assert_array_equal(actual, expected)
