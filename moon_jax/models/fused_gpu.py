"""Convolution, bias, 2x2 max-pooling and ReLU as one kernel for a GPU; its gradients.

`convolution.banded` writes the windows of a convolution to memory, reads them for a
matrix product, and reads that for the pooling. Here a program of the card loads the
window of a tile from the images, multiplies it piece by piece with the weights of the
four outputs of each pooled square, and stores the largest alone. What the gradients
need beside images and weights is which of the four it was, one byte a square.

The kernels are Triton's, through Pallas, and for GPUs. On a CPU JAX interprets them,
which is slow and for tests.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from moon_jax.models.fused_cpu import Padding
from moon_jax.models.pooling import first_largest
from moon_jax.models.tiles import SIDE, Tiles, both, digits, filled, load, store

# Outputs of a pooled square, in the order in which a tie is decided; and none of them.
_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))
_NONE = len(_PLACES)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def convolve_pool_relu(
  x: jax.Array, kernel: jax.Array, bias: jax.Array, padding: Padding
) -> jax.Array:
  """ReLU of the largest of each 2x2 outputs of a convolution of stride 1, and a bias.

  The gradient goes to the first of the largest.

  Args:
    x: [Cin, H, W, B], float32 or a narrower type.
    kernel: [kh, kw, Cin, Cout], of the same type.
    bias: [Cout], of the same type.
    padding: zeros (above, below), (left, right).

  Returns:
    [Cout, H' / 2, W' / 2, B], H' = H + above + below - kh + 1, W' likewise. Sums are
    float32.

  Raises:
    ValueError: H' or W' is odd.
  """
  return _forward(x, kernel, bias, padding, keep_winners=False)[0]


def _saved(x, kernel, bias, padding):
  y, winners = _forward(x, kernel, bias, padding, keep_winners=True)
  return y, (x, kernel, winners)


def _backward(padding, saved, gradient):
  x, kernel, winners = saved
  tiles = Tiles.of(x.shape, kernel.shape, padding)
  of_images = _of_images(tiles, kernel, gradient, winners)
  of_weights = _of_kernel_and_bias(tiles, x, gradient, winners)
  return of_images, *(array.astype(kernel.dtype) for array in of_weights)


convolve_pool_relu.defvjp(_saved, _backward)


def _forward(x, kernel, bias, padding, *, keep_winners):
  """[Cout, H'/2, W'/2, B], and of the same shape which place was the largest."""
  tiles = Tiles.of(x.shape, kernel.shape, padding)

  def outputs(x, kernel, bias, y, *winners):
    tile, batch = (pallas.program_id(1), pallas.program_id(0)), pallas.program_id(2)

    def add(piece, sums):
      window = tiles.load_window(x, piece, tile, batch)
      return [
        total + triton.dot(tiles.load_weights(kernel, piece, place), window)
        for total, place in zip(sums, _PLACES, strict=True)
      ]

    zeros = [jnp.zeros((tiles.outputs, tiles.examples), jnp.float32)] * 4
    a, b, c, d = jax.lax.fori_loop(0, tiles.pieces, add, zeros)
    square, feature = tiles.squares()
    sums = jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))
    sums += load(bias, feature, square < tiles.across).astype(sums.dtype)[:, None]
    at, exist = tiles.pooled_at(tile, batch)
    # Not jnp.maximum: Triton's has no NaN.
    store(y, at, jnp.where(sums <= 0, 0, sums), exist)
    if keep_winners:
      winner = jnp.where(sums > 0, first_largest(a, b, c, d), _NONE)
      store(winners[0], at, winner, exist)

  shape = (tiles.kernel[3], *tiles.pooled, tiles.images[3])
  results = [jax.ShapeDtypeStruct(shape, x.dtype)]
  results += [jax.ShapeDtypeStruct(shape, jnp.int8)] if keep_winners else []
  grid = (tiles.pooled[1] // tiles.across, tiles.pooled[0], tiles.batches)
  products = tiles.pieces * 4 * tiles.outputs * SIDE * tiles.examples
  return _run(outputs, grid, results, products, x, kernel, bias)


def _of_kernel_and_bias(tiles, x, gradient, winners):
  """[kh, kw, Cin, Cout] and [Cout], the sums as they are.

  A program adds up, for a row of tiles, what one piece of their windows contributes to
  the weights of each place; weights that places share are added afterwards. The bias is
  the weight of one more term of the window, which is 1.
  """
  rows, size = tiles.pooled[0], math.prod(tiles.window)
  pieces = pallas.cdiv(size + 1, SIDE)
  count = tiles.pooled[1] // tiles.across * tiles.batches

  def kernel_gradient(x, gradient, winners, sums):
    piece, row = pallas.program_id(0), pallas.program_id(1)
    terms = piece * SIDE + jnp.arange(SIDE)

    def add(index, sums):
      column, batch = digits(index, (0, tiles.batches))
      window = tiles.load_window(x, piece, (row, column), batch)
      window = jnp.where((terms == size)[:, None], 1, window).astype(window.dtype)
      at, exist = tiles.pooled_at((row, column), batch)
      largest, values = load(winners, at, exist), load(gradient, at, exist)
      return [
        total + triton.dot(_where_it_is(place, largest, values), window, trans_b=True)
        for place, total in enumerate(sums)
      ]

    zeros = [jnp.zeros((tiles.outputs, SIDE), sums.dtype)] * 4
    for place, total in enumerate(jax.lax.fori_loop(0, count, add, zeros)):
      lines = ((row * 4 + place) * tiles.outputs) + jnp.arange(tiles.outputs)
      at = lines[:, None] * (pieces * SIDE) + terms[None]
      triton.store(sums.at[at], total)

  shape = (rows, 4, tiles.outputs, pieces * SIDE)
  products = count * 4 * tiles.outputs * SIDE * tiles.examples
  result = [jax.ShapeDtypeStruct(shape, jnp.float32)]
  grid = (pieces, rows)
  arrays = (x, gradient, winners)
  # More warps than a product has sides of 16 would compute the same.
  warps = min(4, tiles.outputs // SIDE)
  (sums,) = _run(kernel_gradient, grid, result, products, *arrays, warps=warps)
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
  pixels, terms = filled(4 * channels), filled(features)

  def image_gradient(kernel, gradient, winners, x):
    y, z, batch = pallas.program_id(1), pallas.program_id(0), pallas.program_id(2)
    below, right, channel = digits(jnp.arange(pixels), (0, 2, channels))
    feature = jnp.arange(terms)
    examples, exist = tiles.batch(batch)

    def add(index, total):
      i, j = digits(index, (0, count[1]))
      i, j = i + first[0], j + first[1]
      row, column = y + i, z + j
      at = (feature * tiles.pooled[0] + row) * tiles.pooled[1] + column
      at = at[:, None] * size + examples[None]
      inside = (row >= 0) & (row < tiles.pooled[0])
      inside &= (column >= 0) & (column < tiles.pooled[1])
      inside = both((feature < features) & inside, exist)
      largest, values = load(winners, at, inside), load(gradient, at, inside)
      for place, (down, aside) in enumerate(_PLACES):
        r = below + tiles.zeros[0] - 2 * i - down
        c = right + tiles.zeros[1] - 2 * j - aside
        tap = (below < 2) & (r >= 0) & (r < kh) & (c >= 0) & (c < kw)
        taps = ((r * kw + c) * channels + channel) * features
        taps = taps[:, None] + feature[None]
        weights = load(kernel, taps, both(tap, feature < features))
        total += triton.dot(weights, _where_it_is(place, largest, values))
      return total

    zeros = jnp.zeros((pixels, tiles.examples), jnp.float32)
    total = jax.lax.fori_loop(0, math.prod(count), add, zeros)
    row, column = 2 * y + below, 2 * z + right
    inside = (below < 2) & (row < height) & (column < width)
    at = ((channel * height + row) * width + column)[:, None] * size + examples[None]
    store(x, at, total, both(inside, exist))

  grid = (pallas.cdiv(width, 2), pallas.cdiv(height, 2), tiles.batches)
  products = math.prod(count) * 4 * pixels * terms * tiles.examples
  result = [jax.ShapeDtypeStruct(tiles.images, gradient.dtype)]
  arrays = (kernel, gradient, winners)
  return _run(image_gradient, grid, result, products, *arrays)[0]


def _squares_that_reach(zeros, size):
  """Of a pixel's own square, the first one (-2: two before) and how many there are."""
  first, last = (zeros - size + 1) // 2, (zeros + 1) // 2
  return first, last - first + 1


def _run(program, grid, results, products, *arrays, warps=4):
  """Runs a program for each place of a grid; all arrays are flat inside.

  products: multiplications of one program, which the compiled call tells of itself.
  """
  flat = [jax.ShapeDtypeStruct((math.prod(r.shape),), r.dtype) for r in results]
  call = functools.partial(pallas.pallas_call, program, flat, grid=grid)
  compiled = call(
    # To load ahead takes memory that smaller cards do not have for many channels.
    compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
    metadata={'flops': str(2 * products)},
  )
  found = jax.lax.platform_dependent(
    *(array.reshape(-1) for array in arrays), cpu=call(interpret=True), default=compiled
  )
  return [array.reshape(r.shape) for array, r in zip(found, results, strict=True)]


def _where_it_is(place, winners, gradient):
  return jnp.where(winners == place, gradient, jnp.zeros_like(gradient))
