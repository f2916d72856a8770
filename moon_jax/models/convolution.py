"""Which arithmetic computes a convolution? Three forms with the same result.

Under `vmap` over weights the library's convolution becomes a grouped convolution, which
is many times slower on a CPU; a matrix product stays a matrix product. All forms take
the ordinary kernel [kh, kw, Cin, Cout], so a checkpoint does not depend on the form.
docs/performance.md has the measurements.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

Padding = tuple[tuple[int, int], tuple[int, int]]


def library(
  x: jax.Array, kernel: jax.Array, *, stride: int, padding: Padding
) -> jax.Array:
  """`lax.conv_general_dilated`.

  Args:
    x: [B, H, W, Cin].
    kernel: [kh, kw, Cin, Cout].
    stride: of the window, in both directions.
    padding: zeros (above, below), (left, right).

  Returns:
    [B, H', W', Cout], H' = (H + above + below - kh) // stride + 1, W' likewise.
  """
  dimensions = ('NHWC', 'HWIO', 'NHWC')
  return jax.lax.conv_general_dilated(
    x, kernel, (stride, stride), padding, dimension_numbers=dimensions
  )


def banded(
  x: jax.Array,
  kernel: jax.Array,
  *,
  stride: int,
  padding: Padding,
  block: int | None = None,
) -> jax.Array:
  """The same, as one matrix product for blocks of neighbouring output columns.

  The windows of `block` neighbours overlap: together they are kh runs of
  (block - 1) * stride + kw pixels. Their product with a banded matrix, in which the
  kernel stands `block` times, each shifted by one stride, gives all of them. Block 1 is
  im2col, which copies every pixel kh * kw times for a narrow product; a whole row as
  one block copies least and multiplies mostly zeros. The best lies between.

  Args and result are those of `library`; block is the number of columns.
  """
  kh, kw, channels, features = kernel.shape
  x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
  height = (x.shape[1] - kh) // stride + 1
  width = (x.shape[2] - kw) // stride + 1
  block = block or _block(width)
  num_blocks = -(-width // block)
  span = (block - 1) * stride + kw
  missing = (num_blocks * block - 1) * stride + kw - x.shape[2]
  if missing > 0:  # the last block reaches past the image; what it adds is cut below
    x = jnp.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0)))
  runs = x.reshape(*x.shape[:2], -1)

  def windows(number):
    first = number * block * stride * channels
    columns = slice(first, first + span * channels)
    rows = [slice(i, i + (height - 1) * stride + 1, stride) for i in range(kh)]
    return [runs[:, row, columns] for row in rows]

  pieces = [piece for number in range(num_blocks) for piece in windows(number)]
  blocks = jnp.concatenate(pieces, axis=-1).reshape(x.shape[0], height, num_blocks, -1)
  product = jnp.tensordot(blocks, _band(kernel, block, stride), axes=1)
  return product.reshape(x.shape[0], height, -1, features)[:, :, :width]


def _band(kernel, block, stride):
  """[kh, kw, Cin, Cout] -> [kh * span * Cin, block * Cout], span as in `banded`."""
  kh, kw, channels, features = kernel.shape
  span = (block - 1) * stride + kw
  # The kernel repeated with a period of span + stride, read in rows of span: each row
  # starts one stride earlier in the period, so the kernel stands one stride later.
  padded = jnp.pad(kernel, ((0, 0), (0, span + stride - kw), (0, 0), (0, 0)))
  tiled = jnp.tile(padded, (1, block, 1, 1))[:, : block * span]
  band = tiled.reshape(kh, block, span, channels, features)
  return band.transpose(0, 2, 3, 1, 4).reshape(-1, block * features)


def _block(width):
  """Columns of a block: about five, by the benchmark, and a divisor if there is one."""
  return next((b for b in (5, 4, 6, 7, 3, 8) if width % b == 0), 5)


FORMS: dict[str, Callable] = {
  'library': library,
  'im2col': functools.partial(banded, block=1),
  'banded': banded,
}


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
  """Zeros before and after, for ceil(size / stride) windows, as in TensorFlow."""
  total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
  return total // 2, total - total // 2
