"""Convolution of images [B, H, W, C] with gradients that a CPU's loop computes fast.

Inside a loop XLA has fast kernels for a CPU only for this order of the dimensions. The
convolutions that JAX derives for the gradients have another order, and take some 20
times as long. Here they are written as a convolution in this order and as matrix
products. Under `vmap` lanes are computed one after the other: a grouped convolution
would be slow again.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax.models import cpu_kernels, products

Padding = tuple[tuple[int, int], tuple[int, int]]  # zeros (above, below), (left, right)


def convolve(
  x: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
  """`lax.conv_general_dilated`; one of single pixels is a product, if that is faster.

  Args:
    x: [B, H, W, Cin].
    kernel: [kh, kw, Cin, Cout].
    stride: stride of the window, in both directions.
    padding: zeros around the images.

  Returns:
    [B, H', W', Cout], H' = (H + above + below - kh) // stride + 1, W' likewise.
  """
  has_zeros = any(map(any, padding))
  is_pixelwise = kernel.shape[:2] == (1, 1) and stride == 1 and not has_zeros
  if is_pixelwise and cpu_kernels.are_for(x):
    rows = products.affine(x.reshape(-1, x.shape[-1]), kernel[0, 0])
    return rows.reshape((*x.shape[:-1], -1))
  return _convolve(x, kernel, stride, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x, kernel, stride, padding):
  return _convolution(x, kernel, window_strides=(stride, stride), padding=padding)


def _forward(x, kernel, stride, padding):
  return _convolve(x, kernel, stride, padding), (x, kernel)


def _backward(stride, padding, saved, gradient):
  x, kernel = saved
  kernel_gradient_of_lane = lane_by_lane(
    functools.partial(_kernel_gradient, kernel.shape, stride, padding)
  )
  kernel_gradient = kernel_gradient_of_lane(x, gradient)
  image_gradient = _image_gradient(x.shape, kernel, stride, padding, gradient)
  return image_gradient, kernel_gradient.astype(kernel.dtype)


_convolve.defvjp(_forward, _backward)


def lane_by_lane(function: Callable) -> Callable:
  """The function of arrays, for which `vmap` computes lanes one after the other."""
  return jax.custom_batching.sequential_vmap(function)


def _convolution(x, kernel, *, window_strides, padding, lhs_dilation=None):
  convolve_lane = functools.partial(
    jax.lax.conv_general_dilated,
    window_strides=window_strides,
    padding=padding,
    lhs_dilation=lhs_dilation,
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
  return lane_by_lane(convolve_lane)(x, kernel)


def _image_gradient(shape, kernel, stride, padding, gradient):
  """[B, H', W', Cout] -> [B, H, W, Cin], by the kernel turned round."""
  pads = [
    (size - 1 - before, side + before - (outputs - 1) * stride - 1)
    for side, outputs, size, (before, _) in zip(
      shape[1:3], gradient.shape[1:3], kernel.shape[:2], padding, strict=True
    )
  ]
  turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
  return _convolution(
    gradient, turned, window_strides=(1, 1), padding=pads, lhs_dilation=(stride, stride)
  )


# A function of its own, so that layers of one shape are traced once.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _kernel_gradient(shape, stride, padding, x, gradient):
  """[B, H, W, Cin], [B, H', W', Cout] -> [kh, kw, Cin, Cout]; bfloat16 in float32.

  The pixels are copied once for each column of the kernel, a few images at a time so
  that the copies stay in the cache. In a copy, rows of pixels are sorted by their
  remainder under the stride, so that a row of the kernel reads its rows in one piece.
  """
  (kh, kw, channels, features), (batch, height, width) = shape, gradient.shape[:3]
  # Products over fewer than 256 pixels are slow.
  images = max(1, 256 // (height * width))
  while batch % images:
    images -= 1
  reach = (kh - 1) // stride + height  # rows of pixels with one remainder
  pads = [
    (before, size - side - before, 0)
    for (before, _), size, side in zip(
      padding, (reach * stride, (width - 1) * stride + kw), x.shape[1:3], strict=True
    )
  ]

  def add_block(total, block):
    x, gradient = block
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    x = x.transpose(3, 1, 0, 2)
    columns = [x[..., j : j + (width - 1) * stride + 1 : stride] for j in range(kw)]
    windows = jnp.concatenate(columns)
    phases = [
      windows[:, first::stride].reshape(kw * channels, -1)
      for first in range(min(stride, kh))
    ]
    gradient = gradient.swapaxes(0, 1).reshape(-1, features)
    products = []
    for i in range(kh):
      first = i // stride * images * width
      row = phases[i % stride][:, first : first + len(gradient)]
      products.append(jnp.dot(row, gradient, preferred_element_type=total.dtype))
    return total + jnp.stack(products), None

  blocks = (
    x.reshape((-1, images, *x.shape[1:])),
    gradient.reshape((-1, images, *gradient.shape[1:])),
  )
  zeros = jnp.zeros((kh, kw * channels, features), widened(x).dtype)
  total, _ = jax.lax.scan(add_block, zeros, blocks)
  return total.reshape(shape)


def output_sides(
  images: tuple[int, ...], kernel: tuple[int, ...], padding: Padding, stride: int = 1
) -> list[int]:
  """H' and W' of images of a shape [., H, W, .] under a kernel [kh, kw, ...]."""
  return [
    (side + sum(zeros) - size) // stride + 1
    for side, size, zeros in zip(images[1:3], kernel[:2], padding, strict=True)
  ]


def widened(x: jax.Array) -> jax.Array:
  """bfloat16 -> float32, so that sums lose nothing; other types do not change."""
  return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


def summed(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
  """`jnp.einsum`, whose sums and result are float32 if the factors are bfloat16.

  XLA's CPU kernels for bfloat16 need this, and a sum over the last axis of `a`.
  """
  sum_dtype = jnp.float32 if a.dtype == jnp.bfloat16 else a.dtype
  return jnp.einsum(equation, a, b, preferred_element_type=sum_dtype)


def summed_over_rows(a: jax.Array, b: jax.Array) -> jax.Array:
  """`summed`: [..., n, i], [..., n, j] -> [..., i, j]."""
  if a.dtype != jnp.bfloat16:
    return summed('...ni,...nj->...ij', a, b)
  # A barrier keeps the transposition out of the product, whose form would be slow.
  turned = jax.lax.optimization_barrier(a.swapaxes(-1, -2))
  return summed('...in,...nj->...ij', turned, b)
