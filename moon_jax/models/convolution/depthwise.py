"""A 3x3 convolution of each channel by itself, for a CPU: one pass forward and back.

depthwise.cc has the arithmetic, in float32; it computes one lane after the other, so
the bits depend neither on lanes nor on devices.
"""

import functools

import jax
import jax.numpy as jnp

from moon_jax.models import cpu_kernels


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """The convolution, with a zero on each side of the images.

  Args:
    x: [B, H, W, C] float32.
    kernel: [3, 3, 1, C] float32.
    stride: stride of the window, in both directions.

  Returns:
    [B, H', W', C], H' = (H - 1) // stride + 1, W' likewise.

  Raises:
    RuntimeError: there is a `cpu_kernels.fault`.
  """
  batch, height, width, channels = x.shape
  sides = ((height - 1) // stride + 1, (width - 1) // stride + 1)
  shape = jax.ShapeDtypeStruct((batch, *sides, channels), jnp.float32)
  return cpu_kernels.call(
    'depthwise', shape, x, kernel, vmap_method='broadcast_all', stride=[stride]
  )


def _forward(x, kernel, stride):
  return convolve(x, kernel, stride), (x, kernel)


def _backward(stride, saved, gradient):
  x, kernel = saved
  results = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in saved]
  of_x, of_kernel = cpu_kernels.call(
    'of_depthwise',
    results,
    x,
    kernel,
    gradient,
    vmap_method='broadcast_all',
    stride=[stride],
  )
  return of_x, of_kernel


convolve.defvjp(_forward, _backward)
