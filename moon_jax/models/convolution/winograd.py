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
import math
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
  size, width, *channels = kernel
  if stride != 1 or size != width or size not in (3, 5) or min(channels) < 32:
    return None
  if max(map(max, padding)) >= size:
    return None
  height, width = direct.output_sides(images, kernel, padding)
  for tile in (4, 2) if size == 3 else (2,):
    rows = max(math.ceil(height / tile), 0)
    columns = max(math.ceil(width / tile), 0)
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
  convolve_lane = functools.partial(_convolution, tile, padding, False)
  return direct.lane_by_lane(convolve_lane)(x, kernel)


def _forward(x, kernel, tile, padding):
  return convolve(x, kernel, tile, padding), (x, kernel)


def _backward(tile, padding, saved, gradient):
  x, kernel = saved
  size = len(kernel)
  full_padding = tuple(
    (size - 1 - before, size - 1 - after) for before, after in padding
  )
  image_gradient_of_lane = direct.lane_by_lane(
    functools.partial(_convolution, tile, full_padding, True)
  )
  kernel_gradient_of_lane = direct.lane_by_lane(
    functools.partial(_kernel_gradient, size, tile, padding)
  )
  image_gradient = image_gradient_of_lane(gradient, kernel)
  kernel_gradient = kernel_gradient_of_lane(x, gradient)
  return image_gradient, kernel_gradient.astype(kernel.dtype)


convolve.defvjp(_forward, _backward)


# Functions of their own, so that layers of one shape are traced once.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _convolution(tile, padding, turned, x, kernel):
  """By the kernel, or turned round: [B, H, W, Cout] by [r, r, Cin, Cout]."""
  grid = _Grid.covering(x.shape, len(kernel), tile, padding)
  matrices = _transforms(tile, len(kernel))
  kernel_matrix, equation = matrices.kernel, 'ijtc,ijcf->ijtf'
  if turned:
    kernel_matrix, equation = matrices.kernel[:, ::-1], 'ijtf,ijcf->ijtc'
  kernel_values = _product(kernel_matrix, widened(kernel)).astype(x.dtype)

  def convolve_block(images):
    pixel_values = grid.transformed(matrices.pixels, images, grid.pads)
    products = direct.summed(equation, pixel_values.astype(x.dtype), kernel_values)
    n, _, _, channels = products.shape
    tiles = products.reshape(n, n, -1, grid.rows, grid.columns, channels)
    y = _sums(matrices.outputs, tiles, 1).transpose(2, 3, 0, 4, 1, 5)
    y = y.reshape(len(y), grid.rows * tile, grid.columns * tile, channels)
    return y[:, : grid.height, : grid.width].astype(x.dtype)

  y = jax.lax.map(convolve_block, grid.blocks(x))
  return y.reshape((-1, *y.shape[2:]))[: len(x)]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _kernel_gradient(size, tile, padding, x, gradient):
  """[B, H, W, Cin], [B, H', W', Cout] -> [r, r, Cin, Cout]."""
  grid = _Grid.covering(x.shape, size, tile, padding)
  matrices = _transforms(tile, size)
  # Zeros that fill up the last tiles.
  fill = ((0, grid.rows * tile - grid.height), (0, grid.columns * tile - grid.width))

  def add_block(total, block):
    images, gradient = block
    tiles = grid.transformed(matrices.outputs.T, gradient, fill).astype(x.dtype)
    pixels = grid.transformed(matrices.pixels, images, grid.pads).astype(x.dtype)
    return total + direct.summed_over_rows(pixels, tiles), None

  shape = (*matrices.pixels.shape, x.shape[3], gradient.shape[3])
  blocks = grid.blocks(x), grid.blocks(gradient)
  total, _ = jax.lax.scan(add_block, jnp.zeros(shape, widened(x).dtype), blocks)
  return _product(matrices.kernel.T, total)


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
  def covering(
    cls, images: tuple[int, ...], size: int, tile: int, padding: Padding
  ) -> '_Grid':
    """The grid for images of a shape [B, H, W, Cin] and kernels of a size."""
    batch, image_height, image_width, _ = images
    height, width = direct.output_sides(images, (size, size), padding)
    rows, columns = math.ceil(height / tile), math.ceil(width / tile)
    (above, _), (left, _) = padding
    below = rows * tile + size - 1 - image_height - above
    right = columns * tile + size - 1 - image_width - left
    # Few images, so that the transformed ones stay in the cache, yet enough tiles for a
    # fast matrix product.
    fewest_images = min(math.ceil(128 / (rows * columns)), batch)
    num_blocks = batch // fewest_images
    return cls(
      rows=rows,
      columns=columns,
      height=height,
      width=width,
      tile=tile,
      pads=((above, below), (left, right)),
      images=math.ceil(batch / num_blocks),
    )

  def blocks(self, x):
    """[B, ...] -> [blocks, images, ...], the last filled with zeros."""
    filler = -len(x) % self.images
    x = jnp.pad(x, [(0, filler)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape((-1, self.images, *x.shape[1:]))

  def transformed(self, matrix, images, pads):
    """[images, H, W, C] -> [n, n, tiles, C]: M d M' of each tile d."""

    def pieces(x, axis):
      last = x.shape[axis] - matrix.shape[1]  # where the last tile begins
      return [
        jax.lax.slice_in_dim(x, i, i + last + 1, self.tile, axis)
        for i in range(matrix.shape[1])
      ]

    images = jnp.pad(widened(images), ((0, 0), *pads, (0, 0)))
    values = _sums(matrix, images, 2, pieces)
    return values.reshape(len(matrix), len(matrix), -1, images.shape[3])


class _Transforms(NamedTuple):
  """The matrices of the equation at the head of this file, in float64.

  Attributes:
    outputs: A' [m, n], from the values at the points to the outputs of a tile.
    kernel: G [n, r], from a kernel to its values at the points.
    pixels: B' [n, n], from the pixels of a tile to their values at the points.
  """

  outputs: np.ndarray
  kernel: np.ndarray
  pixels: np.ndarray


@functools.cache
def _transforms(tile: int, size: int) -> _Transforms:
  """The matrices for tiles of m = `tile` and kernels of r = `size`."""
  points = np.array(_POINTS[tile + size - 1])

  def powers(num_terms):
    """1, t, t^2, ... at each point t; at infinity only the last term counts."""
    at_infinity = np.eye(num_terms)[-1:]
    return np.vstack([points[:, None] ** np.arange(num_terms), at_infinity])

  kernel = powers(size)
  pixels = np.zeros((len(points) + 1, len(points) + 1))
  for i, point in enumerate(points):
    other_points = np.delete(points, i)
    kernel[i] /= np.prod(point - other_points)
    pixels[i, :-1] = np.poly(other_points)[::-1]
  pixels[-1] = np.poly(points)[::-1]
  return _Transforms(outputs=powers(tile).T, kernel=kernel, pixels=pixels)


def _product(matrix, x):
  """[p, q], [q, q, ...] -> [p, p, ...]: two axes transformed, as one matrix product."""
  p, q = matrix.shape
  squared_matrix = jnp.asarray(np.kron(matrix, matrix), x.dtype)
  return (squared_matrix @ x.reshape(q * q, -1)).reshape((p, p, *x.shape[2:]))


def _sums(matrix, x, axis, pieces=jnp.unstack):
  """`_product` for a larger array: a sum of its pieces along each of the two axes.

  The columns go first, from `axis`. Their transform becomes the first axis, so the
  rows, which were before them, are then at `axis`. Factors of 0 cost nothing.
  """
  for _ in range(2):
    pieces_of_x = pieces(x, axis=axis)
    row_sums = []
    for row in matrix:
      terms = [
        float(factor) * piece
        for factor, piece in zip(row, pieces_of_x, strict=True)
        if factor
      ]
      row_sums.append(sum(terms))
    x = jnp.stack(row_sums)
  return x
