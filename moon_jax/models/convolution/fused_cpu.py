"""Convolution, bias, max-pooling and ReLU in one kernel for a CPU, with gradients.

fused_cpu.cc has the arithmetic, in float32; it computes one lane after the other.
`cpu_kernels` builds it.
"""

import functools
import math

import jax
import jax.numpy as jnp

from moon_jax.models import cpu_kernels
from moon_jax.models.convolution.direct import Padding, output_sides
from moon_jax.models.convolution.pooling import check_even

_GROUP = 16  # examples of a group, and numbers of whole vectors, as in the source


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def convolve_pool_relu(
  x: jax.Array, kernel: jax.Array, bias: jax.Array, padding: Padding
) -> jax.Array:
  """ReLU of the largest of each 2x2 outputs of a convolution of stride 1, and a bias.

  The gradient goes to the first of the largest. If the kernel has five columns, the
  outputs are computed by Winograd's algorithm. Then those of equal windows may differ
  by rounding; the rounding error is relative to the largest pixel of eight columns, not
  of an output's own five, and a window of zeros need not give exactly 0; what is no
  number reaches one square more in each row, beside those whose windows have it.

  Args:
    x: [Cin, H, W, B] float32.
    kernel: [kh, kw, Cin, Cout] float32.
    bias: [Cout] float32.
    padding: zeros (above, below), (left, right).

  Returns:
    [Cout, H' / 2, W' / 2, B], H' = H + above + below - kh + 1, W' likewise.

  Raises:
    UsageError: H' or W' is odd, or below 2.
    ValueError: a number of zeros is negative.
    RuntimeError: there is a `cpu_kernels.fault`.
  """
  y, _ = _forward(x, kernel, bias, padding)
  return y


def _forward(x, kernel, bias, padding):
  height, width = output_sides(x.shape, kernel.shape, padding)
  check_even(height, width)
  if min(map(min, padding)) < 0:  # the source would write past an image
    raise ValueError(f'The padding {padding} must not be negative.')
  pooled_shape = (kernel.shape[3], height // 2, width // 2, x.shape[3])
  results = [
    jax.ShapeDtypeStruct(pooled_shape, jnp.float32),
    jax.ShapeDtypeStruct(pooled_shape, jnp.int8),
    _forward_scratch(kernel.shape, pooled_shape),
  ]
  y, winners = _call('forward', padding, results, x, kernel, bias)
  return y, (x, kernel, winners)


def _backward(padding, saved, gradient):
  x, kernel, winners = saved
  image_shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
  kernel_shape = jax.ShapeDtypeStruct(kernel.shape, jnp.float32)
  bias_shape = jax.ShapeDtypeStruct(kernel.shape[3:], jnp.float32)
  scratch = _scratch(kernel.shape, gradient.shape)
  (image_gradient,) = _call(
    'of_images', padding, [image_shape, scratch], kernel, gradient, winners
  )
  kernel_gradient, bias_gradient = _call(
    'of_kernel_and_bias',
    padding,
    [kernel_shape, bias_shape, scratch],
    x,
    gradient,
    winners,
  )
  return image_gradient, kernel_gradient, bias_gradient


convolve_pool_relu.defvjp(_forward, _backward)


def _call(name, padding, results, *arrays):
  """Runs a function of the source; returns its results, without its scratch."""
  zeros = [before for before, _ in padding]
  return cpu_kernels.call(
    name, results, *arrays, vmap_method='broadcast_all', zeros=zeros
  )[:-1]


def _forward_scratch(kernel_shape, pooled_shape):
  """Memory for a group of images with zeros, columns and kernels at points, offsets."""
  kh, kw, channels, features = kernel_shape
  _, height, width, _ = pooled_shape
  rows = 2 * height + kh - 1
  image = rows * (2 * width + kw - 1) * channels
  # Winograd's algorithm has 8 points for four outputs, and 6 for two.
  points = 8 * _GROUP * rows * channels + (8 + 6) * kh * channels * features
  numbers = _GROUP * image + points + kh * kw * channels
  return jax.ShapeDtypeStruct((4 * numbers,), jnp.uint8)


def _scratch(kernel_shape, pooled_shape):
  """Memory for a group of images with zeros, two kernels in whole vectors, lists."""
  kh, kw, channels, features = kernel_shape
  _, height, width, _ = pooled_shape
  image = (2 * height + kh - 1) * (2 * width + kw - 1) * channels + _GROUP
  kernel_row = math.ceil((kw + 1) * channels / _GROUP) * _GROUP
  lists = 2 * _GROUP * max(height * width, 2 * features)
  numbers = _GROUP * image + 2 * features * kh * kernel_row + lists
  return jax.ShapeDtypeStruct((4 * numbers,), jnp.uint8)
