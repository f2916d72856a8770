"""Convolution, and pooling, of images [C, H, W, B] as one matrix product over tiles.

A tile is a block of neighbouring outputs. In one dimension: a kernel (a, b, c), stride
1, tiles of 2 outputs y. The windows of a tile's outputs overlap: together they are one
window of 4 pixels x. The kernel stands in the band once for each output, a stride
further along each time.

               band'        windows, one column a tile
    y0 y2     a b c 0       x0 x2
    y1 y3  =  0 a b c   @   x1 x3
                            x2 x4
                            x3 x5

In two dimensions both sides of an image are divided so. A column of the windows belongs
to one tile and example, and holds the channels too; a row of the result belongs to one
output of the tile and one feature. With one output in a tile, every pixel would be
copied kh * kw times for a narrow product; a large tile copies little and multiplies
mostly zeros. The best size lies between. Outputs that are pooled together are blocks of
rows of the product, so their maximum needs no further copy.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.models.convolution import pooling
from moon_jax.models.convolution.direct import Padding, output_sides


def convolve(
  x: jax.Array, kernel: jax.Array, *, stride: int, padding: Padding, pool: bool = False
) -> jax.Array:
  """`lax.conv_general_dilated`.

  Args:
    x: [Cin, H, W, B].
    kernel: [kh, kw, Cin, Cout].
    stride: stride of the window, in both directions.
    padding: zeros (above, below), (left, right).
    pool: whether to apply `max_pool`; H' and W' must be even.

  Returns:
    [Cout, H', W', B], H' = (H + above + below - kh) // stride + 1, W' likewise; with
    pooling half of both.
  """
  kh, kw, _, features = kernel.shape
  height, width = output_sides(x.shape, kernel.shape, padding, stride)
  if pool:
    pooling.check_even(height, width)
  # Numbers of outputs in a tile that docs/performance.md finds fastest.
  tile = (2, 4 if width % 4 == 0 else 2)
  rows = _Axis.covering(height, outputs=tile[0], kernel=kh, stride=stride)
  columns = _Axis.covering(width, outputs=tile[1], kernel=kw, stride=stride)
  windows = _windows(x, padding, rows, columns)
  product = _product(_band(kernel, rows, columns, stride, 2 if pool else 1), windows)
  if pool:
    product = pooling.largest(product.reshape(4, -1, product.shape[1]))
    height, width = height // 2, width // 2
    tile = (tile[0] // 2, tile[1] // 2)
  y = product.reshape(features, *tile, rows.count, columns.count, x.shape[3])
  y = y.transpose(0, 3, 1, 4, 2, 5)
  y = y.reshape(features, rows.count * tile[0], columns.count * tile[1], x.shape[3])
  return y[:, :height, :width]


class _Axis(NamedTuple):
  """The tiles along one side of the image.

  Attributes:
    count: number of tiles.
    outputs: outputs of a tile.
    step: input pixels from one tile to the next.
    reach: steps that the window of one tile covers.
  """

  count: int
  outputs: int
  step: int
  reach: int

  @classmethod
  def covering(cls, size: int, *, outputs: int, kernel: int, stride: int) -> '_Axis':
    """For `size` outputs in tiles of `outputs`; the last tile may reach past them."""
    step = outputs * stride
    window = step - stride + kernel
    return cls(
      count=math.ceil(size / outputs),
      outputs=outputs,
      step=step,
      reach=math.ceil(window / step),
    )

  @property
  def pixels(self) -> int:
    """Input pixels that the tiles read."""
    return (self.count + self.reach - 1) * self.step


def _windows(x, padding, rows, columns):
  """[C, H, W, B] -> [K, N]: the window of every tile and example, N = tiles * B."""
  channels, height, width, batch = x.shape
  (above, _), (left, _) = padding
  # Pixels that no window reaches are cut off: the lower padding may be negative.
  below, right = rows.pixels - height - above, columns.pixels - width - left
  pads = ((0, 0, 0), (above, below, 0), (left, right, 0), (0, 0, 0))
  x = jax.lax.pad(x, jnp.zeros((), x.dtype), pads)
  steps = (rows.pixels // rows.step, rows.step, columns.pixels // columns.step)
  x = x.reshape(channels, *steps, columns.step, batch).transpose(2, 4, 0, 1, 3, 5)
  pieces = [
    x[row : row + 1, :, :, i : i + rows.count, j : j + columns.count]
    for i in range(rows.reach)
    for row in range(rows.step)  # fewer pieces would fuse into one slow loop on a CPU
    for j in range(columns.reach)
  ]
  return jnp.concatenate(pieces).reshape(-1, rows.count * columns.count * batch)


def _band(kernel, rows, columns, stride, pool):
  """[kh, kw, Cin, Cout] -> [K, M]: from a window to the outputs of its tile.

  The outputs are ordered by their place in the pooled square, then by feature.
  """
  channels, features = kernel.shape[2:]
  band = _shifted(_shifted(kernel, 0, rows, stride), 2, columns, stride)
  band = band.reshape(
    *(columns.outputs // pool, pool, columns.reach, columns.step),
    *(rows.outputs // pool, pool, rows.reach, rows.step),
    *(channels, features),
  )
  band = band.transpose(6, 7, 2, 3, 8, 5, 1, 9, 4, 0)
  return band.reshape(-1, rows.outputs * columns.outputs * features)


def _shifted(kernel, axis, tiles, stride):
  """[.., k, ..] -> [outputs, window, ..]: result[i, r] = kernel[r - i * stride]."""
  kernel = jnp.moveaxis(kernel, axis, 0)
  window, other_sides = tiles.reach * tiles.step, kernel.shape[1:]
  # The kernel repeated with a period of window + stride, read in rows of the window:
  # each row starts one stride earlier in the period, so it stands one stride later.
  pads = [(0, window + stride - kernel.shape[0])] + [(0, 0)] * len(other_sides)
  repeats = (tiles.outputs,) + (1,) * len(other_sides)
  repeated = jnp.tile(jnp.pad(kernel, pads), repeats)
  repeated = repeated[: tiles.outputs * window]
  return repeated.reshape(tiles.outputs, window, *other_sides)


@jax.custom_vjp
def _product(band, windows):
  """[K, M], [K, N] -> [M, N], with the faster of two orders for the gradient."""
  return jax.lax.dot_general(band, windows, (((0,), (0,)), ((), ())))


def _product_backward(saved, gradient):
  band, windows = saved
  # JAX's own rule takes gradient * windows' and transposes the larger of the two.
  band_gradient = jax.lax.dot_general(windows, gradient, (((1,), (1,)), ((), ())))
  return band_gradient, band @ gradient


_product.defvjp(lambda *factors: (_product(*factors), factors), _product_backward)
