"""Batch normalisation in C++, against NumPy's and JAX's float64."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import batch_norm, cpu_kernels, layers

# Less than a vector, vectors, vectors and single numbers; one pixel, several blocks.
SHAPES = [(3, 2, 2, 1), (4, 1, 1, 20), (3, 5, 7, 32), (5, 40, 13, 23)]


@pytest.fixture(autouse=True)
def a_compiler():
  if not shutil.which('c++'):
    pytest.skip('there is no C++ compiler c++')
  assert not cpu_kernels.fault()


def arrays(shape):
  """Images far from 0, the last of which is filler; scale, bias and gradients."""
  rng = np.random.default_rng(0)
  channels = shape[-1:]

  def normal(sides):
    return np.float32(rng.normal(size=sides))

  mask = np.ones(shape[0], np.float32)
  mask[-1] = 0
  x = normal(shape) + 30 * normal(channels)
  gradients = normal(shape), normal(channels), normal(channels)
  return x, mask, normal(channels) + 1, normal(channels), gradients


def reference(x, mask, scale, bias, relu):
  """The definition, in whatever precision its arguments have."""
  real = mask[:, None, None, None] > 0
  count = mask.sum() * x.shape[1] * x.shape[2]
  mean = jnp.where(real, x, 0).sum((0, 1, 2)) / count
  apart = x - mean[None, None, None]
  variance = jnp.where(real, apart**2, 0).sum((0, 1, 2)) / count
  factor = scale / jnp.sqrt(variance + 1e-5)
  y = factor[None, None, None] * apart + bias[None, None, None]
  return jnp.maximum(y, 0) if relu else y, mean, variance


@functools.partial(jax.jit, static_argnums=(0, 1))
def outputs_and_gradients(function, relu, inputs):
  """The three outputs, and what the gradients of these make of x, scale and bias."""
  x, mask, scale, bias, gradients = inputs

  def normalise(x, scale, bias):
    return function(x, mask, scale, bias, relu)

  outputs, pull = jax.vjp(normalise, x, scale, bias)
  return *outputs, *pull(gradients)


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('relu', [False, True])
def test_outputs_statistics_and_gradients_equal_the_definition(shape, relu):
  inputs = arrays(shape)
  computed = outputs_and_gradients(batch_norm.normalise, relu, inputs)
  with jax.enable_x64(True):
    wide_inputs = jax.tree.map(np.float64, inputs)
    expected = outputs_and_gradients(reference, relu, wide_inputs)
  for actual, exact in zip(computed, expected, strict=True):
    assert actual.shape == exact.shape
    np.testing.assert_allclose(
      actual, exact, rtol=0, atol=3e-5 * max(1, np.abs(exact).max())
    )


def test_filler_changes_neither_statistics_nor_real_outputs():
  x, mask, scale, bias, gradients = arrays((5, 4, 4, 20))
  gradients[0][-1] = 0  # filler is in no loss
  other = np.array(x)
  other[-1] = np.nan

  @jax.jit
  def run(x):
    outputs, pull = jax.vjp(
      lambda x, scale, bias: batch_norm.normalise(x, mask, scale, bias, True),
      x,
      scale,
      bias,
    )
    return outputs, pull(gradients)

  (y, mean, variance), (of_x, of_scale, of_bias) = run(x)
  (y2, mean2, variance2), (_, _, of_bias2) = run(other)
  np.testing.assert_array_equal(y[:-1], y2[:-1])
  np.testing.assert_array_equal(mean, mean2)
  np.testing.assert_array_equal(variance, variance2)
  np.testing.assert_array_equal(of_bias, of_bias2)
  assert not np.any(of_x[-1])
  assert np.isfinite(of_scale).all()


def test_what_is_no_number_stays_one_behind_relu():
  x, mask, scale, bias, _ = arrays((3, 2, 2, 20))
  x[0, 0, 0, 3] = np.nan
  y, _, _ = batch_norm.normalise(x, mask, scale, bias, True)
  assert np.isnan(y[..., 3]).all()
  assert np.isfinite(np.delete(y, 3, axis=-1)).all()


def test_bits_depend_neither_on_lanes_nor_on_the_place_in_memory():
  x, mask, scale, bias, gradients = arrays((4, 3, 3, 21))

  def step(x, gradient):
    outputs, pull = jax.vjp(
      lambda x: batch_norm.normalise(x, mask, scale, bias, True), x
    )
    return outputs, pull((gradient, gradients[1], gradients[2]))

  alone = jax.jit(step)(x, gradients[0])
  lanes = jax.jit(jax.vmap(step))(np.stack([x] * 3), np.stack([gradients[0]] * 3))
  for of_lane, of_lanes in zip(
    jax.tree.leaves(alone), jax.tree.leaves(lanes), strict=True
  ):
    for lane in of_lanes:
      np.testing.assert_array_equal(lane, of_lane)


def test_a_layer_without_a_compiler_has_the_same_numbers(monkeypatch):
  x, mask, scale, bias, _ = arrays((4, 6, 6, 20))
  variables = {
    'params': {'scale': scale, 'bias': bias},
    'batch_stats': {'mean': np.zeros(20, 'f'), 'var': np.ones(20, 'f')},
  }
  layer = layers.BatchNorm(-1, relu=True)

  def apply(x):
    return layer.apply(variables, x, mask, mutable=['batch_stats'])

  assert 'ffi_call' in str(jax.make_jaxpr(apply)(x))
  ours = apply(x)
  monkeypatch.setattr(cpu_kernels, 'fault', lambda: 'there is none')
  assert 'ffi_call' not in str(jax.make_jaxpr(lambda x: apply(x))(x))
  for leaf, leaf_of_xla in zip(
    jax.tree.leaves(ours), jax.tree.leaves(apply(x)), strict=True
  ):
    np.testing.assert_allclose(leaf, leaf_of_xla, rtol=0, atol=1e-4)
