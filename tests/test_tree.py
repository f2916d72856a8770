"""Algebra on pytrees against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.core import tree


def test_weighted_sum_of_three_clients():
  # 0.125 * 8 + 0.25 * 0 + 0.625 * 16 = 11
  stacked = {'w': jnp.array([[8.0, 0.0], [0.0, 4.0], [16.0, 0.0]])}
  total = tree.weighted_sum(stacked, jnp.array([0.125, 0.25, 0.625]))
  np.testing.assert_array_equal(total['w'], [11.0, 1.0])


def test_a_weight_of_zero_hides_a_nan_and_another_does_not():
  stacked = {'w': jnp.array([[jnp.nan, 1.0], [2.0, 3.0]])}
  hidden = tree.weighted_sum(stacked, jnp.array([0.0, 0.5]))
  np.testing.assert_array_equal(hidden['w'], [1.0, 1.5])
  assert jnp.isnan(tree.weighted_sum(stacked, jnp.array([0.5, 0.5]))['w'][0])


def test_where_selects_whole_lanes():
  a = {'m': jnp.ones((2, 2, 2)), 's': jnp.ones(2)}
  b = {'m': jnp.full((2, 2, 2), jnp.nan), 's': jnp.zeros(2)}
  chosen = tree.where(jnp.array([True, False]), a, b)
  np.testing.assert_array_equal(chosen['m'][0], 1.0)
  assert jnp.isnan(chosen['m'][1]).all()
  np.testing.assert_array_equal(chosen['s'], [1.0, 0.0])


def test_scatter_skips_minus_one():
  stacked = jnp.arange(4.0)
  written = tree.scatter(stacked, jnp.array([2, -1, -1]), jnp.array([10.0, 20.0, 30.0]))
  np.testing.assert_array_equal(written, [0.0, 1.0, 10.0, 3.0])


def test_gather_and_repeat():
  stacked = {'w': jnp.arange(6.0).reshape(3, 2)}
  np.testing.assert_array_equal(
    tree.gather(stacked, jnp.array([2, 0]))['w'], [[4.0, 5.0], [0.0, 1.0]]
  )
  assert tree.repeat(stacked, 5)['w'].shape == (5, 3, 2)


def test_sizes():
  leaves = {'a': jnp.zeros((2, 3)), 'b': jnp.zeros(4, jnp.uint8)}
  assert tree.num_parameters(leaves) == 10
  assert tree.num_bytes(leaves) == 6 * 4 + 4
  assert tree.squared_norm({'a': jnp.array([3.0]), 'b': jnp.array([4.0])}) == 25.0


def test_recorded_numbers_are_float32_where_jax_computes_in_float64():
  with jax.enable_x64(True):
    numbers = tree.float_scalars({'drift': jnp.float64(0.5)}, 'report')
  assert numbers['drift'].dtype == jnp.float32
