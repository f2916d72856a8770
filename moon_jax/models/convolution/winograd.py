"""Convolution of images [B, H, W, C] with fewer multiplications, in a CPU's loop.

A tile of m x m outputs of an r x r kernel g sees n x n pixels d, n = m + r - 1. Taken
as polynomials, g and d are known by their values at n points in each direction, and
there their product is one multiplication for each pair of points: n^2, not (m r)^2.

  y = A' [(G g G') * (B' d B)] A       (Lavin and Gray 2016, arXiv:1509.09308, eq. 8)

Summed over the channels it is a matrix product for each pair of points. So kernels of
3x3 take 4 times fewer multiplications with tiles of 4x4, 2.25 times with 2x2, and those
of 5x5 2.8 times with 2x2.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.models.convolution import direct
from moon_jax.models.convolution.direct import Padding, widened

# n - 1 points; the last is infinity. All are exact in binary; the rounding errors of
# the five are half of those of 0, 1, -1, 2, -2.
_POINTS = {4: (0.0, 1.0, -1.0), 6: (0.0, 0.75, -0.75, 1.5, -1.5)}


def convolve_or_direct(
  x: jax.Array, kernel: jax.Array, stride: int, padding: Padding
) -> jax.Array:
  """`direct.convolve`, with fewer multiplications where that is faster."""
  tile = fastest_tile(x.shape, kernel.shape, stride, padding)
  if tile is None:
    return direct.convolve(x, kernel, stride, padding)
  return convolve(x, kernel, tile, padding)


def fastest_tile(
  images: tuple[int, ...], kernel: tuple[int, ...], stride: int, padding: Padding
) -> int | None:
  """The m that docs/performance.md finds fastest, or None: another form is faster.

  Args:
    images: shape [B, H, W, Cin].
    kernel: shape [kh, kw, Cin, Cout].
    stride: stride of the window, in both directions.
    padding: zeros (above, below), (left, right).
  """
  height, width, *channels = kernel
  suits = stride == 1 and height == width and height in (3, 5) and min(channels) >= 32
  if not suits or max(map(max, padding)) >= height:
    return None
  outputs = direct.output_sides(images, kernel, padding)
  for tile in (4, 2) if height == 3 else (2,):
    rows, columns = (max(-(-side // tile), 0) for side in outputs)
    # A weight becomes n^2 / r^2 numbers: enough tiles must share them.
    if tile * images[0] * rows * columns >= 150:
      return tile
  return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(x: jax.Array, kernel: jax.Array, tile: int, padding: Padding) -> jax.Array:
  """`lax.conv_general_dilated` with stride 1.

  If x is bfloat16, so are the values at the points; transforms and sums are float32.

  Args:
    x: [B, H, W, Cin].
    kernel: [r, r, Cin, Cout], r 3 or 5.
    tile: m: 2, or 4 if r is 3.
    padding: zeros (above, below), (left, right), each less than r.

  Returns:
    [B, H', W', Cout], H' = H + above + below - r + 1, W' likewise.
  """
  return direct.lane_by_lane(_convolution, tile, padding, False)(x, kernel)


def _forward(x, kernel, tile, padding):
  return convolve(x, kernel, tile, padding), (x, kernel)


def _backward(tile, padding, saved, gradient):
  x, kernel = saved
  around = tuple(tuple(len(kernel) - 1 - zeros for zeros in pair) for pair in padding)
  of_images = direct.lane_by_lane(_convolution, tile, around, True)(gradient, kernel)
  of_kernel = direct.lane_by_lane(_of_kernel, len(kernel), tile, padding)(x, gradient)
  return of_images, of_kernel.astype(kernel.dtype)


convolve.defvjp(_forward, _backward)


# Functions of their own, so that layers of one shape are traced once.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _convolution(tile, padding, turned, x, kernel):
  """By the kernel, or turned round: [B, H, W, Cout] by [r, r, Cin, Cout]."""
  grid = _Grid.of(x.shape, len(kernel), tile, padding)
  outputs_of, of_kernel, of_pixels = _matrices(tile, len(kernel))
  kernels = _product(of_kernel[:, ::-1] if turned else of_kernel, widened(kernel))
  kernels = kernels.astype(x.dtype)
  equation = 'ijtf,ijcf->ijtc' if turned else 'ijtc,ijcf->ijtf'

  def of_images(images):
    points = grid.transformed(of_pixels, images, grid.pads).astype(x.dtype)
    products = direct.summed(equation, points, kernels)
    *points, _, channels = products.shape
    tiles = products.reshape(*points, -1, grid.rows, grid.columns, channels)
    y = _sums(outputs_of, tiles, 1).transpose(2, 3, 0, 4, 1, 5)
    y = y.reshape(len(y), grid.rows * tile, grid.columns * tile, channels)
    return y[:, : grid.height, : grid.width].astype(x.dtype)

  y = jax.lax.map(of_images, grid.blocks(x))
  return y.reshape(-1, *y.shape[2:])[: len(x)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _of_kernel(size, tile, padding, x, gradient):
  """[B, H, W, Cin], [B, H', W', Cout] -> [r, r, Cin, Cout]."""
  grid = _Grid.of(x.shape, size, tile, padding)
  outputs_of, of_kernel, of_pixels = _matrices(tile, size)

  def add(total, block):
    images, gradient = block
    tiles = grid.transformed(outputs_of.T, gradient, beside).astype(x.dtype)
    pixels = grid.transformed(of_pixels, images, grid.pads).astype(x.dtype)
    return total + direct.summed_over_rows(pixels, tiles), None

  beside = (0, grid.rows * tile - grid.height), (0, grid.columns * tile - grid.width)
  shape = (*of_pixels.shape, x.shape[3], gradient.shape[3])
  blocks = grid.blocks(x), grid.blocks(gradient)
  total, _ = jax.lax.scan(add, jnp.zeros(shape, widened(x).dtype), blocks)
  return _product(of_kernel.T, total)


class _Grid(NamedTuple):
  """The tiles of images.

  Attributes:
    rows, columns: number of tiles of an image.
    height, width: outputs of an image; the last tiles may reach past them.
    tile: m.
    pads: zeros around an image, so that all tiles are full.
    images: number of images that are transformed at a time.
  """

  rows: int
  columns: int
  height: int
  width: int
  tile: int
  pads: tuple[tuple[int, int], ...]
  images: int

  @classmethod
  def of(cls, images: tuple[int, ...], size: int, tile: int, padding):
    """The grid for images of a shape [B, H, W, Cin] and kernels of a size."""
    batch, *sides, _ = images
    outputs = direct.output_sides(images, (size, size), padding)
    rows, columns = (-(-side // tile) for side in outputs)
    pads = tuple(
      (before, count * tile + size - 1 - side - before)
      for count, side, (before, _) in zip((rows, columns), sides, padding, strict=True)
    )
    # Few images, so that the transformed ones stay in the cache, yet enough tiles for a
    # fast matrix product.
    least = min(-(-128 // (rows * columns)), batch)
    at_a_time = -(-batch // (batch // least))
    return cls(rows, columns, *outputs, tile, pads, at_a_time)

  def blocks(self, x):
    """[B, ...] -> [blocks, images, ...], the last filled with zeros."""
    filler = -len(x) % self.images
    x = jnp.pad(x, [(0, filler)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, self.images, *x.shape[1:])

  def transformed(self, matrix, images, pads):
    """[images, H, W, C] -> [n, n, tiles, C]: M d M' of each tile d."""

    def pieces(x, axis):
      last = x.shape[axis] - matrix.shape[1]  # where the last tile begins
      return [
        jax.lax.slice_in_dim(x, i, i + last + 1, self.tile, axis)
        for i in range(matrix.shape[1])
      ]

    images = jnp.pad(widened(images), ((0, 0), *pads, (0, 0)))
    found = _sums(matrix, images, 2, pieces)
    return found.reshape(len(matrix), len(matrix), -1, images.shape[3])


@functools.cache
def _matrices(tile, size):
  """A' [m, n], G [n, r] and B' [n, n], in float64."""
  points = np.array(_POINTS[tile + size - 1])

  def values(terms):  # of 1, t, t^2, ... at the points; at infinity only the last term
    return np.vstack([points[:, None] ** np.arange(terms), np.eye(terms)[-1:]])

  of_kernel, of_pixels = values(size), np.zeros((len(points) + 1,) * 2)
  for i, point in enumerate(points):
    others = np.delete(points, i)
    of_kernel[i] /= np.prod(point - others)
    of_pixels[i, :-1] = np.poly(others)[::-1]
  of_pixels[-1] = np.poly(points)[::-1]
  return values(tile).T, of_kernel, of_pixels


def _product(matrix, x):
  """[p, q], [q, q, ...] -> [p, p, ...]: two axes transformed, as one matrix product."""
  p, q = matrix.shape
  both = jnp.asarray(np.kron(matrix, matrix), x.dtype)
  return (both @ x.reshape(q * q, -1)).reshape(p, p, *x.shape[2:])


def _sums(matrix, x, axis, pieces=jnp.unstack):
  """`_product` for a larger array: a sum of its pieces along each of the two axes.

  The columns go first, from `axis`. Their transform becomes the first axis, so the
  rows, which were before them, are then at `axis`. Factors of 0 cost nothing.
  """
  for _ in range(2):
    found = pieces(x, axis=axis)
    terms = (zip(map(float, row), found, strict=True) for row in matrix)
    x = jnp.stack(
      [sum(factor * piece for factor, piece in row if factor) for row in terms]
    )
  return x
