"""Normalisation and padding, by hand. Against PyTorch: test_parity.py."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import models
from moon_jax.models import convolution, layers

MASK = jnp.array([1.0, 1.0, 0.0])
FRESH = {
  'params': {'scale': jnp.ones(1), 'bias': jnp.full(1, 0.25)},
  'batch_stats': {'mean': jnp.full(1, 2.0), 'var': jnp.full(1, 3.0)},
}


def images(*rows):
  """[B, W], one row of pixels an example -> [1, 1, W, B]."""
  return jnp.array(rows, jnp.float32).T[None, None]


def normalised(x, mask, variables=FRESH, channels=0):
  """Images -> the same normalised, running mean, running variance."""
  run = jax.jit(
    lambda v, x, m: layers.BatchNorm(channels).apply(v, x, m, mutable=['batch_stats'])
  )
  y, state = run(variables, x, mask)
  return y, state['batch_stats']['mean'], state['batch_stats']['var']


def test_batch_norm_by_hand_without_the_filler():
  # Real values 1, 3, 5, 7: mean 4, squares 9 + 1 + 1 + 9 = 20, biased variance 5,
  # unbiased 20/3. Running mean 0.9*2 + 0.1*4, variance 0.9*3 + 0.1*20/3 = 2.7 + 2/3.
  x = images([1, 3], [5, 7], [100, -50])
  y, mean, var = normalised(x, MASK)
  expected = (np.array([[-3, 1], [-1, 3]]) / 5.00001**0.5) + 0.25
  np.testing.assert_allclose(y[0, 0, :, :2], expected, rtol=1e-6)
  np.testing.assert_allclose(mean, [2.2], rtol=1e-6)
  np.testing.assert_allclose(var, [2.7 + 2 / 3], rtol=1e-6)


def test_filler_reaches_neither_statistics_nor_gradients():
  def loss(x, filler):
    y, mean, var = normalised(jnp.concatenate([x, filler], 3), MASK)
    # The outputs of filler are in no loss.
    return jnp.sum(y[..., :2] ** jnp.float32(3)) + jnp.sum(mean) + jnp.sum(var)

  x = jax.random.normal(jax.random.key(0), (1, 2, 2, 2))
  run = jax.value_and_grad(loss, (0, 1))
  value, (gradient, of_filler) = run(x, jnp.full((1, 2, 2, 1), 1e6))
  expected, (expected_gradient, _) = run(x, jnp.full((1, 2, 2, 1), -3.0))
  assert value == expected
  np.testing.assert_array_equal(gradient, expected_gradient)
  assert not np.any(of_filler)


def test_one_real_value_has_no_variance():
  x = images([6], [1], [9])
  y, mean, var = normalised(x, jnp.array([1.0, 0.0, 0.0]))
  assert y[0, 0, 0, 0] == 0.25
  np.testing.assert_allclose(mean, [0.9 * 2 + 0.1 * 6], rtol=1e-6)
  np.testing.assert_array_equal(var, [3.0])


def test_only_filler_moves_nothing_and_is_finite():
  y, mean, var = normalised(images([6], [1], [9]), jnp.zeros(3))
  assert np.all(np.isfinite(y))
  np.testing.assert_array_equal(mean, [2.0])
  np.testing.assert_array_equal(var, [3.0])


def test_bfloat16_is_normalised_in_float32():
  # All inputs are bfloat16 numbers, but bfloat16 cannot hold the sums of 3 * 100 of
  # them. Mean 257, biased variance 1: the outputs are -1 and 1.
  channel = [256, 258] * 50
  x = images(channel, channel, channel).astype(jnp.bfloat16)
  variables = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), FRESH)
  y, mean, var = normalised(x, jnp.ones(3, jnp.bfloat16), variables)
  assert {y.dtype, mean.dtype, var.dtype} == {jnp.dtype(jnp.bfloat16)}
  np.testing.assert_array_equal(np.float32(y[0, 0, :2, 0]), [-0.75, 1.25])
  # 0.9*2 + 0.1*257 = 27.5; bfloat16's numbers are 1/8 apart here
  assert mean == 27.5


def test_a_number_pads_all_sides_alike():
  # A kernel of ones on ones counts the pixels under it. Stride 2 from -1: windows at
  # rows (and columns) -1..1 and 1..3 of 4.
  conv = layers.Conv(1, 3, convolution.FORMS['banded'], 2, padding=1, use_bias=False)
  variables = {'params': {'kernel': jnp.ones((3, 3, 1, 1))}}
  y = jax.jit(conv.apply)(variables, jnp.ones((1, 4, 4, 1)))
  np.testing.assert_array_equal(y[0, :, :, 0], [[4.0, 6.0], [6.0, 9.0]])


def test_a_dense_layer_of_bfloat16_rounds_its_results_only():
  class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
      return layers.dense(x, 24, 'dense')

  def value_and_gradients(dtype):
    def layer(x, kernel):
      params = {'kernel': kernel, 'bias': jnp.zeros(24, dtype)}
      return Dense().apply({'params': {'dense': params}}, x)

    y, backward = jax.vjp(layer, *(a.astype(dtype) for a in (x, kernel)))
    return y, *backward(gradient.astype(dtype))

  draw, shapes = np.random.default_rng(0).normal, ((5, 7, 16), (16, 24), (5, 7, 24))
  x, kernel, gradient = (jnp.asarray(draw(size=s), jnp.bfloat16) for s in shapes)
  for narrow, wide in zip(
    value_and_gradients(jnp.bfloat16), value_and_gradients(jnp.float32), strict=True
  ):
    assert narrow.dtype == jnp.bfloat16
    error = jnp.linalg.norm(narrow.astype(jnp.float32) - wide) / jnp.linalg.norm(wide)
    assert error < 2**-9


def test_bfloat16_leaves_running_statistics_in_float32():
  shape = (8, 8, 3)
  network = models.make('resnet18', image_shape=shape, num_classes=4, dtype='bfloat16')
  batch = jnp.zeros((2, *shape)), jnp.ones(2), jax.random.key(0)
  outputs = jax.eval_shape(network.train, network.shapes, *batch)
  assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype(jnp.float32)}


def test_group_norm_by_hand_in_both_layouts():
  # Two groups of two channels, two pixels: 1, 3, 5, 7 have mean 4 and biased variance
  # 5; 2, 2, 2, 6 have 3 and 3. The last channel is scaled by 2 and moved by 0.5.
  x = jnp.array([[1.0, 3.0], [5.0, 7.0], [2.0, 2.0], [2.0, 6.0]])[:, None, :, None]
  scale, bias = jnp.array([1.0, 1, 1, 2]), jnp.array([0.0, 0, 0, 0.5])
  variables = {'params': {'scale': scale, 'bias': bias}}
  wide, narrow = 5.00001**0.5, 3.00001**0.5
  expected = np.array(
    [
      [-3 / wide, -1 / wide],
      [1 / wide, 3 / wide],
      [-1 / narrow] * 2,
      [-2 / narrow, 6 / narrow],
    ]
  )
  expected[3] += 0.5

  @jax.jit
  def in_both_layouts(x):
    first = layers.GroupNorm(0, 2).apply(variables, x)[:, 0, :, 0]
    return first, layers.GroupNorm(-1, 2).apply(variables, x.swapaxes(0, -1))[0, 0].T

  first, last = in_both_layouts(x)
  np.testing.assert_allclose(first, expected, rtol=1e-6)
  np.testing.assert_allclose(last, expected, rtol=1e-6)
