"""Convolution, bias, 2x2 max-pooling and ReLU as one kernel for a GPU; its gradients.

`convolution.banded` writes the windows of a convolution to memory, reads them for a
matrix product, and reads that for the pooling. Here a program of the card loads the
window of a tile from the images, multiplies it piece by piece with the weights of the
four outputs of each pooled square, and stores the largest alone. What the gradients
need beside images and weights is which of the four it was, one byte a square.

The kernels are Triton's, through Pallas, and for GPUs. On a CPU JAX interprets them,
which is slow and for tests. A tile is one row of pooled squares high and `across` of
them wide; a program has one tile of up to 128 examples.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

# Triton's products need at least so many rows, columns and terms, a power of two.
_SIDE = 16
# Numbers of one sum of products that a program holds in registers.
_SUMS = 4096
# Outputs of a pooled square, in the order in which a tie is decided; and none of them.
_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))
_NONE = len(_PLACES)

Padding = tuple[tuple[int, int], tuple[int, int]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def convolve_pool_relu(
  x: jax.Array, kernel: jax.Array, bias: jax.Array, padding: Padding
) -> jax.Array:
  """ReLU of the largest of each 2x2 outputs of a convolution of stride 1, and a bias.

  The gradient goes to the first of the largest.

  Args:
    x: [Cin, H, W, B], of a floating type.
    kernel: [kh, kw, Cin, Cout], of the same type.
    bias: [Cout], of the same type.
    padding: zeros (above, below), (left, right).

  Returns:
    [Cout, H' / 2, W' / 2, B], H' = H + above + below - kh + 1, W' likewise. Sums of
    bfloat16 are float32.

  Raises:
    ValueError: H' or W' is odd.
  """
  return _forward(x, kernel, bias, padding, keep_winners=False)[0]


def _saved(x, kernel, bias, padding):
  y, winners = _forward(x, kernel, bias, padding, keep_winners=True)
  return y, (x, kernel, winners)


def _backward(padding, saved, gradient):
  x, kernel, winners = saved
  tiles = _Tiles.of(x.shape, kernel.shape, padding)
  of_images = _of_images(tiles, kernel, gradient, winners)
  of_weights = _of_kernel_and_bias(tiles, x, gradient, winners)
  return of_images, *(array.astype(kernel.dtype) for array in of_weights)


convolve_pool_relu.defvjp(_saved, _backward)


@dataclasses.dataclass(frozen=True)
class _Tiles:
  """How tiles lie on the images, and where in memory their numbers are.

  Attributes:
    images: (Cin, H, W, B).
    kernel: (kh, kw, Cin, Cout).
    zeros: above and left of the images.
    pooled: rows and columns of pooled squares.
    across: squares of one tile.
    outputs: of one place of a tile's squares: across * Cout, filled up.
    examples: of one program.
  """

  images: tuple[int, int, int, int]
  kernel: tuple[int, int, int, int]
  zeros: tuple[int, int]
  pooled: tuple[int, int]
  across: int
  outputs: int
  examples: int

  @classmethod
  def of(cls, images, kernel, padding):
    sides = [
      size + sum(pads) - k + 1
      for size, pads, k in zip(images[1:3], padding, kernel[:2], strict=True)
    ]
    if any(side % 2 for side in sides):
      raise ValueError(f'Squares of 2x2 do not fill {sides[0]}x{sides[1]} pixels.')
    rows, columns = (side // 2 for side in sides)
    features = kernel[3]
    most = max(1, _SIDE // features)
    across = max(n for n in range(1, most + 1) if columns % n == 0)
    outputs = _filled(across * features)
    examples = min(_filled(images[3]), 128, max(_SIDE, _SUMS // outputs))
    zeros = (padding[0][0], padding[1][0])
    return cls(images, kernel, zeros, (rows, columns), across, outputs, examples)

  @property
  def window(self):
    """(rows, columns, Cin) of the images that one tile needs."""
    kh, kw, channels, _ = self.kernel
    return kh + 1, kw + 2 * self.across - 1, channels

  @property
  def pieces(self):
    """Of the window, of _SIDE terms each."""
    return pallas.cdiv(math.prod(self.window), _SIDE)

  @property
  def batches(self):
    """Programs that share the examples."""
    return pallas.cdiv(self.images[3], self.examples)

  def batch(self, index):
    """[examples] which they are, and whether they exist."""
    examples = index * self.examples + jnp.arange(self.examples)
    return examples, examples < self.images[3]

  def terms(self, piece):
    """[_SIDE] row, column, channel of a piece of the window, and whether inside."""
    terms = piece * _SIDE + jnp.arange(_SIDE)
    return (*_digits(terms, self.window), terms < math.prod(self.window))

  def load_window(self, x, piece, tile, batch):
    """[_SIDE, examples] of the flat images: a piece of the window of a tile."""
    _, height, width, size = self.images
    row, column, channel, inside = self.terms(piece)
    row += 2 * tile[0] - self.zeros[0]
    column += 2 * self.across * tile[1] - self.zeros[1]
    inside &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = ((channel * height + row) * width + column) * size
    examples, exist = self.batch(batch)
    return _load(x, _outer(jnp.add, places, examples), _both(inside, exist))

  def load_weights(self, kernel, piece, place):
    """[outputs, _SIDE] of the flat kernel: from a piece of the window to a place."""
    kh, kw, channels, features = self.kernel
    row, column, channel, inside = self.terms(piece)
    square, feature = self.squares()
    row -= place[0]
    column = _outer(lambda square, column: column - 2 * square, square, column)
    column -= place[1]
    inside = _both(square < self.across, inside & (row >= 0) & (row < kh))
    inside &= (column >= 0) & (column < kw)
    taps = (row[None] * kw + column) * channels + channel[None]
    return _load(kernel, taps * features + feature[:, None], inside)

  def squares(self):
    """[outputs] square, from `across` on none, and feature of each."""
    return _digits(jnp.arange(self.outputs), (self.across, self.kernel[3]))

  def pooled_at(self, tile, batch):
    """[outputs, examples] places of a tile's squares in flat arrays, which exist."""
    square, feature = self.squares()
    rows, columns = self.pooled
    places = (feature * rows + tile[0]) * columns + tile[1] * self.across + square
    examples, exist = self.batch(batch)
    at = _outer(jnp.add, places * self.images[3], examples)
    return at, _both(square < self.across, exist)


def _forward(x, kernel, bias, padding, *, keep_winners):
  """[Cout, H'/2, W'/2, B], and of the same shape which place was the largest."""
  tiles = _Tiles.of(x.shape, kernel.shape, padding)

  def outputs(x, kernel, bias, y, *winners):
    tile, batch = (pallas.program_id(1), pallas.program_id(0)), pallas.program_id(2)

    def add(piece, sums):
      window = tiles.load_window(x, piece, tile, batch)
      return [
        total + triton.dot(tiles.load_weights(kernel, piece, place), window)
        for total, place in zip(sums, _PLACES, strict=True)
      ]

    zeros = [jnp.zeros((tiles.outputs, tiles.examples), _sums_of(x))] * 4
    a, b, c, d = jax.lax.fori_loop(0, tiles.pieces, add, zeros)
    upper, lower = jnp.maximum(a, b), jnp.maximum(c, d)
    square, feature = tiles.squares()
    sums = jnp.maximum(upper, lower)
    sums += _load(bias, feature, square < tiles.across).astype(sums.dtype)[:, None]
    at, exist = tiles.pooled_at(tile, batch)
    _store(y, at, jnp.maximum(sums, 0), exist)
    if keep_winners:
      of_upper, of_lower = jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3)
      winner = jnp.where(upper >= lower, of_upper, of_lower)
      winner = jnp.where(sums > 0, winner, _NONE)
      _store(winners[0], at, winner, exist)

  shape = (tiles.kernel[3], *tiles.pooled, tiles.images[3])
  results = [jax.ShapeDtypeStruct(shape, x.dtype)]
  results += [jax.ShapeDtypeStruct(shape, jnp.int8)] if keep_winners else []
  grid = (tiles.pooled[1] // tiles.across, tiles.pooled[0], tiles.batches)
  products = tiles.pieces * 4 * tiles.outputs * _SIDE * tiles.examples
  return _run(outputs, grid, results, products, x, kernel, bias)


def _of_kernel_and_bias(tiles, x, gradient, winners):
  """[kh, kw, Cin, Cout] and [Cout], the sums as they are.

  A program adds up, for a row of tiles, what one piece of their windows contributes to
  the weights of each place; weights that places share are added afterwards. The bias is
  the weight of one more term of the window, which is 1.
  """
  rows, size = tiles.pooled[0], math.prod(tiles.window)
  pieces = pallas.cdiv(size + 1, _SIDE)

  def kernel_gradient(x, gradient, winners, sums):
    piece, row = pallas.program_id(0), pallas.program_id(1)
    terms = piece * _SIDE + jnp.arange(_SIDE)

    def add(index, sums):
      column, batch = _digits(index, (0, tiles.batches))
      window = tiles.load_window(x, piece, (row, column), batch)
      window = jnp.where((terms == size)[:, None], 1, window).astype(window.dtype)
      at, exist = tiles.pooled_at((row, column), batch)
      largest, values = _load(winners, at, exist), _load(gradient, at, exist)
      return [
        total + triton.dot(_where_it_is(place, largest, values), window, trans_b=True)
        for place, total in enumerate(sums)
      ]

    zeros = [jnp.zeros((tiles.outputs, _SIDE), sums.dtype)] * 4
    count = tiles.pooled[1] // tiles.across * tiles.batches
    for place, total in enumerate(jax.lax.fori_loop(0, count, add, zeros)):
      lines = ((row * 4 + place) * tiles.outputs) + jnp.arange(tiles.outputs)
      at = _outer(jnp.add, lines * (pieces * _SIDE), terms)
      triton.store(sums.at[at], total)

  shape = (rows, 4, tiles.outputs, pieces * _SIDE)
  products = math.prod(tiles.pooled) // tiles.across // rows * tiles.batches
  products *= 4 * tiles.outputs * _SIDE * tiles.examples
  result = [jax.ShapeDtypeStruct(shape, _sums_of(x))]
  grid = (pieces, rows)
  arrays = (x, gradient, winners)
  (sums,) = _run(kernel_gradient, grid, result, products, *arrays)
  kh, kw, _, features = tiles.kernel
  sums = sums.sum(0)[:, : tiles.across * features]
  of_bias = sums[:, :, size].reshape(-1, features).sum(0)
  sums = sums[:, :, :size].reshape(4, tiles.across, features, *tiles.window)
  of_kernel = sum(
    sums[place, square, :, y : y + kh, x + 2 * square : x + 2 * square + kw]
    for place, (y, x) in enumerate(_PLACES)
    for square in range(tiles.across)
  )
  return jnp.moveaxis(of_kernel, 0, -1), of_bias


def _of_images(tiles, kernel, gradient, winners):
  """[Cin, H, W, B], a program for 2x2 pixels: from the squares whose windows reach."""
  (channels, height, width, size), (kh, kw, _, features) = tiles.images, tiles.kernel
  first, count = zip(*map(_squares_that_reach, tiles.zeros, (kh, kw)), strict=True)
  pixels, terms = _filled(4 * channels), _filled(features)

  def image_gradient(kernel, gradient, winners, x):
    y, z, batch = pallas.program_id(1), pallas.program_id(0), pallas.program_id(2)
    below, right, channel = _digits(jnp.arange(pixels), (0, 2, channels))
    feature = jnp.arange(terms)
    examples, exist = tiles.batch(batch)

    def add(index, total):
      i, j = _digits(index, (0, count[1]))
      i, j = i + first[0], j + first[1]
      row, column = y + i, z + j
      at = (feature * tiles.pooled[0] + row) * tiles.pooled[1] + column
      at = _outer(jnp.add, at * size, examples)
      inside = (row >= 0) & (row < tiles.pooled[0])
      inside &= (column >= 0) & (column < tiles.pooled[1])
      inside = _both((feature < features) & inside, exist)
      largest, values = _load(winners, at, inside), _load(gradient, at, inside)
      for place, (down, aside) in enumerate(_PLACES):
        r = below + tiles.zeros[0] - 2 * i - down
        c = right + tiles.zeros[1] - 2 * j - aside
        tap = (below < 2) & (r >= 0) & (r < kh) & (c >= 0) & (c < kw)
        taps = ((r * kw + c) * channels + channel) * features
        taps = _outer(jnp.add, taps, feature)
        weights = _load(kernel, taps, _both(tap, feature < features))
        total += triton.dot(weights, _where_it_is(place, largest, values))
      return total

    zeros = jnp.zeros((pixels, tiles.examples), _sums_of(gradient))
    total = jax.lax.fori_loop(0, math.prod(count), add, zeros)
    row, column = 2 * y + below, 2 * z + right
    inside = (below < 2) & (row < height) & (column < width)
    at = _outer(jnp.add, ((channel * height + row) * width + column) * size, examples)
    _store(x, at, total, _both(inside, exist))

  grid = (pallas.cdiv(width, 2), pallas.cdiv(height, 2), tiles.batches)
  products = math.prod(count) * 4 * pixels * terms * tiles.examples
  result = [jax.ShapeDtypeStruct(tiles.images, gradient.dtype)]
  arrays = (kernel, gradient, winners)
  return _run(image_gradient, grid, result, products, *arrays)[0]


def _squares_that_reach(zeros, size):
  """Of a pixel's own square, the first one (-2: two before) and how many there are."""
  first, last = (zeros - size + 1) // 2, (zeros + 1) // 2
  return first, last - first + 1


def _run(program, grid, results, products, *arrays):
  """Runs a program for each place of a grid; all arrays are flat inside.

  products: multiplications of one program, which the compiled call tells of itself.
  """
  flat = [jax.ShapeDtypeStruct((math.prod(r.shape),), r.dtype) for r in results]
  call = functools.partial(pallas.pallas_call, program, flat, grid=grid)
  compiled = call(
    # To load ahead takes memory that smaller cards do not have for many channels.
    compiler_params=triton.CompilerParams(num_stages=1),
    metadata={'flops': str(2 * products)},
  )
  found = jax.lax.platform_dependent(
    *(array.reshape(-1) for array in arrays), cpu=call(interpret=True), default=compiled
  )
  return [array.reshape(r.shape) for array, r in zip(found, results, strict=True)]


def _sums_of(array):
  """The type in which products are added up."""
  return jnp.float32 if array.dtype == jnp.bfloat16 else array.dtype


def _filled(size):
  return max(_SIDE, pallas.next_power_of_2(size))


def _digits(number, sizes):
  """`number`, >= 0, in digits of the sizes; the first size bounds nothing."""
  digits = []
  for size in sizes[:0:-1]:
    size = jnp.full_like(number, size)
    digits.append(jax.lax.rem(number, size))
    number = jax.lax.div(number, size)
  return [number, *reversed(digits)]


def _outer(function, rows, columns):
  return function(rows[:, None], columns[None])


def _both(rows, columns):
  return _outer(jnp.logical_and, rows, columns)


def _load(array, at, exist):
  return triton.load(array.at[at], mask=exist, other=0)


def _store(array, at, values, exist):
  # JAX's interpreter writes old numbers where the mask is false: not over new ones.
  at = jnp.where(exist, at, array.shape[0])
  triton.store(array.at[at], values.astype(array.dtype), mask=exist)


def _where_it_is(place, winners, gradient):
  return jnp.where(winners == place, gradient, jnp.zeros_like(gradient))
