"""Convolutions as matrix products: under `vmap` over weights they stay matrix products.

The library's convolution becomes a grouped convolution there, which is many times
slower on a CPU. All forms take the ordinary kernel [kh, kw, Cin, Cout], so a checkpoint
does not depend on the form.
"""

import jax
import jax.numpy as jnp


def library(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """`lax.conv_general_dilated`, stride 1, no padding.

  Args:
    x: [B, H, W, Cin].
    kernel: [kh, kw, Cin, Cout].

  Returns:
    [B, H - kh + 1, W - kw + 1, Cout].
  """
  dimensions = ('NHWC', 'HWIO', 'NHWC')
  return jax.lax.conv_general_dilated(
    x, kernel, (1, 1), 'VALID', dimension_numbers=dimensions
  )


def im2col(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """The same, as one product of all windows [B H' W', kh kw Cin] with the kernel."""
  kh, kw, _, _ = kernel.shape
  height, width = x.shape[1] - kh + 1, x.shape[2] - kw + 1
  windows = [x[:, i : i + height, j : j + width] for i in range(kh) for j in range(kw)]
  columns = jnp.concatenate(windows, axis=-1)
  return jnp.tensordot(columns, kernel.reshape(-1, kernel.shape[-1]), axes=1)


def banded(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """The same, as one product of window rows [B H', kh W Cin] with a banded matrix.

  Whole rows are contiguous in memory and the product is wide; the zeros in the matrix
  cost more arithmetic than the copies of `im2col` cost time.
  """
  kh, kw, channels, features = kernel.shape
  batch, full, width, _ = x.shape
  height, columns = full - kh + 1, width - kw + 1
  rows = x.reshape(batch, full, width * channels)
  windows = jnp.concatenate([rows[:, i : i + height] for i in range(kh)], axis=-1)
  # Row o of the band is the kernel shifted by o columns. Repeating the kernel with a
  # period of width + 1 and cutting every `width` shifts each row by one.
  padded = jnp.pad(kernel, ((0, 0), (0, width + 1 - kw), (0, 0), (0, 0)))
  tiled = jnp.tile(padded, (1, columns, 1, 1))[:, : columns * width]
  band = tiled.reshape(kh, columns, width, channels, features)
  band = band.transpose(0, 2, 3, 1, 4).reshape(-1, columns * features)
  return jnp.tensordot(windows, band, axes=1).reshape(batch, height, columns, features)
