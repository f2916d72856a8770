"""Convolutions with fewer multiplications equal the library's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import convolution
from moon_jax.models.convolution import winograd
from tests.models.test_models import assert_same_values_and_gradients, normal

SAME3, NONE = ((1, 1), (1, 1)), ((0, 0), (0, 0))


def library(x, kernel, padding):
  return jax.lax.conv_general_dilated(
    x, kernel, (1, 1), padding, dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


@pytest.mark.parametrize(
  ('images', 'size', 'tile', 'padding'),
  [
    ((2, 9, 11), 3, 4, ((2, 0), (0, 1))),  # tiles reach past the 9 x 10 outputs
    ((4, 26, 25), 3, 2, SAME3),  # 169 tiles an image: one image at a time
    ((7, 44, 30), 3, 4, SAME3),  # 88 tiles: three at a time, and filler
    ((3, 7, 6), 5, 2, ((4, 0), (1, 2))),
  ],
)
def test_values_and_gradients_are_the_librarys(images, size, tile, padding):
  mine = functools.partial(winograd.convolve, tile=tile, padding=padding)
  theirs = functools.partial(library, padding=padding)
  x, kernel = normal(*images, 3), normal(size, size, 3, 5, seed=1)
  assert_same_values_and_gradients(mine, theirs, x, kernel)


def test_each_lane_gets_the_gradients_of_its_own_weights():
  x = normal(2, 4, 9, 9, 3).astype(np.float32)
  kernel = normal(2, 3, 3, 3, 5, seed=1).astype(np.float32)

  def total(x, kernel):
    return jnp.sum(winograd.convolve(x, kernel, 4, SAME3) ** 2)

  gradients = jax.grad(total, (0, 1))
  of_lanes = jax.jit(jax.vmap(gradients))(x, kernel)
  for lane in range(2):
    of_lane = jax.jit(gradients)(x[lane], kernel[lane])
    for stacked, gradient in zip(of_lanes, of_lane, strict=True):
      np.testing.assert_allclose(stacked[lane], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ('size', 'tile', 'largest_error'), [(3, 4, 1.1e-6), (3, 2, 4e-7), (5, 2, 1.2e-6)]
)
def test_rounding_errors_of_float32_stay_small(size, tile, largest_error):
  x, kernel = normal(4, 16, 16, 64), normal(size, size, 64, 32, seed=1)
  with jax.enable_x64(True):
    exact = library(jnp.asarray(x), jnp.asarray(kernel), NONE)
  y = winograd.convolve(x.astype(np.float32), kernel.astype(np.float32), tile, NONE)
  error = np.sqrt(np.mean(np.square(y - np.asarray(exact))) / np.mean(np.square(exact)))
  assert error < largest_error


def test_bfloat16_is_rounded_at_the_points_and_nowhere_else():
  def value_and_gradients(convolve, x, kernel, direction):
    y, backward = jax.vjp(convolve, x, kernel)
    return y, *backward(direction)

  mine = functools.partial(winograd.convolve, tile=4, padding=SAME3)
  shapes = (4, 8, 8, 32), (3, 3, 32, 48), (4, 8, 8, 48)
  narrow = [jnp.asarray(normal(*shape), jnp.bfloat16) for shape in shapes]
  exact = jax.jit(value_and_gradients, static_argnums=0)(
    functools.partial(library, padding=SAME3), *[x.astype(jnp.float32) for x in narrow]
  )
  rounded = value_and_gradients(mine, *narrow)
  for array, true_array in zip(rounded, exact, strict=True):
    assert array.dtype == jnp.bfloat16
    difference = array.astype(jnp.float32) - true_array
    error = jnp.linalg.norm(difference) / jnp.linalg.norm(true_array)
    assert error < 0.015  # 2**-9 for the result; the points enlarge that of the factors


@pytest.mark.parametrize(
  ('images', 'kernel', 'stride', 'padding', 'tile'),
  [
    ((32, 32, 32, 64), (3, 3, 64, 64), 1, SAME3, 4),
    ((32, 4, 4, 512), (3, 3, 512, 512), 1, SAME3, 2),  # 32 tiles of 4x4 are too few
    ((10, 4, 4, 512), (3, 3, 512, 512), 1, SAME3, None),
    ((64, 14, 14, 32), (5, 5, 32, 64), 1, NONE, 2),
    ((32, 32, 32, 64), (3, 3, 64, 128), 2, SAME3, None),
    ((32, 32, 32, 64), (1, 1, 64, 128), 1, NONE, None),
    ((32, 32, 32, 3), (3, 3, 3, 64), 1, SAME3, None),
    ((32, 32, 32, 64), (3, 5, 64, 64), 1, SAME3, None),
    ((32, 32, 32, 64), (3, 3, 64, 64), 1, ((3, 0), (0, 0)), None),
  ],
)
def test_winograd_is_used_where_it_was_faster(images, kernel, stride, padding, tile):
  assert winograd.fastest_tile(images, kernel, stride, padding) == tile


def test_the_form_multiplies_less():
  """XLA's count includes the transforms."""
  x, kernel = jnp.zeros((8, 12, 12, 64)), jnp.zeros((3, 3, 64, 64))

  def flops(form):
    convolve = jax.jit(convolution.FORMS[form].convolve, static_argnums=(2, 3))
    return convolve.lower(x, kernel, 1, SAME3).compile().cost_analysis()['flops']

  assert 2.5 * flops('winograd') < flops('direct')
