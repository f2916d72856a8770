"""Convolutions in several forms, different arithmetic with the same result.

All take the ordinary kernel [kh, kw, Cin, Cout], so a checkpoint does not depend on the
form. Images stand as [C, H, W, B]: windows are then copied, and pixels compared, in
runs of at least B numbers. Only `direct` and `winograd` have them as [B, H, W, C], as
XLA's own kernels for a CPU do. docs/performance.md has the measurements.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.models import channels_last, fused_cpu, pooling, winograd
from moon_jax.models.fused_cpu import Padding


def library(
  x: jax.Array, kernel: jax.Array, *, stride: int, padding: Padding
) -> jax.Array:
  """`lax.conv_general_dilated`.

  Args:
    x: [Cin, H, W, B].
    kernel: [kh, kw, Cin, Cout].
    stride: of the window, in both directions.
    padding: zeros (above, below), (left, right).

  Returns:
    [Cout, H', W', B], H' = (H + above + below - kh) // stride + 1, W' likewise.
  """
  dimensions = ('CHWN', 'HWIO', 'CHWN')
  return jax.lax.conv_general_dilated(
    x, kernel, (stride, stride), padding, dimension_numbers=dimensions
  )


# In one dimension: a kernel (a, b, c), stride 1, tiles of 2 outputs y. The windows of a
# tile's outputs overlap: together they are one window of 4 pixels x. The kernel stands
# in the band once for each output, a stride further along each time.
#
#                band'        windows, one column a tile
#     y0 y2     a b c 0       x0 x2
#     y1 y3  =  0 a b c   @   x1 x3
#                             x2 x4
#                             x3 x5
#
# In two dimensions both sides of an image are divided so. A column of the windows is of
# one tile and example, and holds the channels too; a row of the result is of one output
# of the tile and one feature.
def banded(
  x: jax.Array,
  kernel: jax.Array,
  *,
  stride: int,
  padding: Padding,
  pool: bool = False,
  tile: tuple[int, int] | None = None,
) -> jax.Array:
  """The same, as one matrix product for tiles of neighbouring outputs.

  The windows of a tile overlap: together they are one larger window. Its product with a
  banded matrix, in which the kernel stands once for each output of the tile, shifted by
  a stride, gives them all. A tile of one output is im2col, which copies every pixel
  kh * kw times for a narrow product; a large tile copies little and multiplies mostly
  zeros. The best lies between. Outputs that are pooled together are blocks of rows of
  the product, so their maximum needs no further copy.

  Args:
    x, kernel, stride, padding: as in `library`.
    pool: whether to apply `max_pool`; H' and W' must be even.
    tile: rows and columns of outputs, even if they are pooled.

  Returns:
    [Cout, H', W', B], with pooling half of both sides.
  """
  kh, kw, _, features = kernel.shape
  height, width = (
    (size + sum(pads) - k) // stride + 1
    for size, pads, k in zip(x.shape[1:3], padding, (kh, kw), strict=True)
  )
  # As docs/performance.md finds fastest.
  tile = tile or (2, 4 if width % 4 == 0 else 2)
  rows = _Axis.of(height, tile[0], kh, stride)
  columns = _Axis.of(width, tile[1], kw, stride)
  windows = _windows(x, padding, rows, columns)
  product = _product(_band(kernel, rows, columns, stride, 2 if pool else 1), windows)
  if pool:
    pooling.check_even(height, width)
    product = pooling.largest(product.reshape(4, -1, product.shape[1]))
    height, width = height // 2, width // 2
    tile = (tile[0] // 2, tile[1] // 2)
  y = product.reshape(features, *tile, rows.count, columns.count, x.shape[3])
  y = y.transpose(0, 3, 1, 4, 2, 5)
  y = y.reshape(features, rows.count * tile[0], columns.count * tile[1], x.shape[3])
  return y[:, :height, :width]


class _Axis(NamedTuple):
  """How the tiles lie along one side of the image.

  Attributes:
    count: tiles.
    outputs: of one tile.
    step: input pixels from one tile to the next.
    reach: steps that the window of one tile covers.
  """

  count: int
  outputs: int
  step: int
  reach: int

  @classmethod
  def of(cls, size: int, outputs: int, kernel: int, stride: int):
    """For `size` outputs in tiles of `outputs`; the last tile may reach past them."""
    step = outputs * stride
    window = step - stride + kernel
    return cls(-(-size // outputs), outputs, step, -(-window // step))

  @property
  def pixels(self) -> int:
    """Input pixels that the tiles read."""
    return (self.count + self.reach - 1) * self.step


def _windows(x, padding, rows, columns):
  """[C, H, W, B] -> [K, N]: the window of every tile and example, N = tiles * B."""
  channels, height, width, batch = x.shape
  (above, _), (left, _) = padding
  # What no window reaches is cut off: the lower padding may be negative.
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
  window, rest = tiles.reach * tiles.step, kernel.shape[1:]
  # The kernel repeated with a period of window + stride, read in rows of the window:
  # each row starts one stride earlier in the period, so it stands one stride later.
  pads = [(0, window + stride - kernel.shape[0])] + [(0, 0)] * len(rest)
  repeated = jnp.tile(jnp.pad(kernel, pads), (tiles.outputs,) + (1,) * len(rest))
  return repeated[: tiles.outputs * window].reshape(tiles.outputs, window, *rest)


@jax.custom_vjp
def _product(band, windows):
  """[K, M], [K, N] -> [M, N], with the faster of two orders for the gradient."""
  return jax.lax.dot_general(band, windows, (((0,), (0,)), ((), ())))


def _product_backward(saved, gradient):
  band, windows = saved
  # JAX's own rule takes gradient * windows' and transposes the larger of the two.
  of_band = jax.lax.dot_general(windows, gradient, (((1,), (1,)), ((), ())))
  return of_band, band @ gradient


_product.defvjp(lambda *factors: (_product(*factors), factors), _product_backward)


def direct(
  x: jax.Array, kernel: jax.Array, *, stride: int, padding: Padding
) -> jax.Array:
  """The same for images [B, H, W, Cin], by the library's kernels for a CPU's loop.

  Args and result are those of `library`, but for the order of the dimensions.
  """
  return channels_last.convolve(x, kernel, stride, padding)


def fewest_products(
  x: jax.Array, kernel: jax.Array, *, stride: int, padding: Padding
) -> jax.Array:
  """The same as `direct`, with fewer multiplications where that is faster."""
  tile = winograd.fastest_tile(x.shape, kernel.shape, stride, padding)
  if tile is None:
    return direct(x, kernel, stride=stride, padding=padding)
  return winograd.convolve(x, kernel, tile, padding)


class Form(NamedTuple):
  """How a network computes its convolutions.

  Attributes:
    convolve: (x, kernel, *, stride, padding) -> images.
    pooled: (x, kernel, bias, padding) -> ReLU of the largest of each 2x2 outputs of a
      convolution of stride 1, and a bias [Cout].
    channels: the axis of the channels: 0 for images [C, H, W, B], -1 for [B, H, W, C].
  """

  convolve: Callable
  pooled: Callable
  channels: int

  @classmethod
  def of(cls, convolve: Callable, channels: int, largest: Callable | None = None):
    """largest: (x, kernel, *, stride, padding), if there is more than `max_pool`."""

    def pooled(x, kernel, bias, padding):
      # The maximum of sums is the sum of the maximum, on a quarter of the pixels.
      y = (largest or convolve)(x, kernel, stride=1, padding=padding)
      y = y if largest else pooling.max_pool(y)
      return jax.nn.relu(y + along(channels, bias))

    return cls(convolve, pooled, channels)

  def arranged(self, x: jax.Array) -> jax.Array:
    """[B, ..., C] -> the form's layout, and back: an exchange of two axes, or none."""
    return x if self.channels == -1 else jnp.swapaxes(x, 0, -1)


def along(axis: int, vector: jax.Array) -> jax.Array:
  """[N] -> four axes, of which `axis`, 0 or -1, has N, to meet images."""
  return vector.reshape((-1, 1, 1, 1) if axis == 0 else (1, 1, 1, -1))


_im2col = functools.partial(banded, tile=(1, 1))
_banded = Form.of(banded, 0, functools.partial(banded, pool=True))


def _fused_on_cpu(x, kernel, bias, padding):
  """One pass of a compiled function in float32; banded in any other type."""
  float32 = all(array.dtype == jnp.float32 for array in (x, kernel, bias))
  return (fused_cpu.convolve_pool_relu if float32 else _banded.pooled)(
    x, kernel, bias, padding
  )


def _fused_on_gpu(x, kernel, bias, padding):
  from moon_jax.models import fused_gpu  # loads Pallas, which takes time

  return fused_gpu.convolve_pool_relu(x, kernel, bias, padding)


FORMS: dict[str, Form] = {
  'library': Form.of(library, 0),
  'im2col': Form.of(_im2col, 0),
  'banded': _banded,
  'fused_on_cpu': Form(banded, _fused_on_cpu, 0),
  'fused_on_gpu': Form(library, _fused_on_gpu, 0),
  'direct': Form.of(direct, -1),
  'winograd': Form.of(fewest_products, -1),
}


def choose(name: str, *, size: int, features: int) -> Form:
  """The form of a network's convolutions.

  Args:
    name: a key of FORMS; or 'auto', what docs/performance.md finds fastest inside a
      loop on a CPU of the forms that every device has; or 'auto_on_cpu', the fastest
      there; or 'auto_on_gpu', whose program for a GPU, compiled but not run, moves the
      fewest bytes: small networks train in many lanes there, for which the library has
      no backward kernels.
    size: side of the network's larger kernels.
    features: output channels of its first convolution.
  """
  if name == 'auto_on_cpu' and size >= 5 and not fused_cpu.fault():
    name = 'fused_on_cpu'
  elif name == 'auto_on_gpu':
    name = 'banded' if size >= 5 else 'library'
  elif name in ('auto', 'auto_on_cpu'):
    name = 'banded' if size >= 5 and features < 32 else 'winograd'
  return FORMS[name]


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
  """Zeros before and after, for ceil(size / stride) windows, as in TensorFlow."""
  total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
  return total // 2, total - total // 2
