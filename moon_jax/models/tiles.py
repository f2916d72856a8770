"""Where in memory the numbers of a tile are, for the kernels of `fused_gpu`.

A tile is one row of pooled squares high and `across` of them wide; a program has one
tile of up to 128 examples. All arrays are flat, and indices int32.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from moon_jax.models.pooling import check_even

# Triton's products need at least so many rows, columns and terms, a power of two.
SIDE = 16
# Numbers of one sum of products that a program holds in registers.
_SUMS = 4096


@dataclasses.dataclass(frozen=True)
class Tiles:
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
    check_even(*sides)
    rows, columns = (side // 2 for side in sides)
    features = kernel[3]
    most = max(1, SIDE // features)
    across = max(n for n in range(1, most + 1) if columns % n == 0)
    outputs = filled(across * features)
    examples = min(filled(images[3]), 128, max(SIDE, _SUMS // outputs))
    zeros = (padding[0][0], padding[1][0])
    return cls(images, kernel, zeros, (rows, columns), across, outputs, examples)

  @property
  def window(self):
    """(rows, columns, Cin) of the images that one tile needs."""
    kh, kw, channels, _ = self.kernel
    return kh + 1, kw + 2 * self.across - 1, channels

  @property
  def pieces(self):
    """Of the window, of SIDE terms each."""
    return pallas.cdiv(math.prod(self.window), SIDE)

  @property
  def batches(self):
    """Programs that share the examples."""
    return pallas.cdiv(self.images[3], self.examples)

  def batch(self, index):
    """[examples] which they are, and whether they exist."""
    examples = index * self.examples + jnp.arange(self.examples)
    return examples, examples < self.images[3]

  def terms(self, piece):
    """[SIDE] row, column, channel of a piece of the window, and whether inside."""
    terms = piece * SIDE + jnp.arange(SIDE)
    return (*digits(terms, self.window), terms < math.prod(self.window))

  def load_window(self, x, piece, tile, batch):
    """[SIDE, examples] of the flat images: a piece of the window of a tile."""
    _, height, width, size = self.images
    row, column, channel, inside = self.terms(piece)
    row += 2 * tile[0] - self.zeros[0]
    column += 2 * self.across * tile[1] - self.zeros[1]
    inside &= (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = ((channel * height + row) * width + column) * size
    examples, exist = self.batch(batch)
    return load(x, places[:, None] + examples[None], both(inside, exist))

  def load_weights(self, kernel, piece, place):
    """[outputs, SIDE] of the flat kernel: from a piece of the window to a place."""
    kh, kw, channels, features = self.kernel
    row, column, channel, inside = self.terms(piece)
    square, feature = self.squares()
    row -= place[0]
    column = column[None] - 2 * square[:, None] - place[1]
    inside = both(square < self.across, inside & (row >= 0) & (row < kh))
    inside &= (column >= 0) & (column < kw)
    taps = (row[None] * kw + column) * channels + channel[None]
    return load(kernel, taps * features + feature[:, None], inside)

  def squares(self):
    """[outputs] square, from `across` on none, and feature of each."""
    return digits(jnp.arange(self.outputs), (self.across, self.kernel[3]))

  def pooled_at(self, tile, batch):
    """[outputs, examples] places of a tile's squares in flat arrays, which exist."""
    square, feature = self.squares()
    rows, columns = self.pooled
    places = (feature * rows + tile[0]) * columns + tile[1] * self.across + square
    examples, exist = self.batch(batch)
    at = places[:, None] * self.images[3] + examples[None]
    return at, both(square < self.across, exist)


def filled(size):
  """The least size of a product's side that is as large."""
  return max(SIDE, pallas.next_power_of_2(size))


def digits(number, sizes):
  """`number`, >= 0, in digits of the sizes; the first size bounds nothing."""
  digits = []
  for size in sizes[:0:-1]:
    size = jnp.full_like(number, size)
    digits.append(jax.lax.rem(number, size))
    number = jax.lax.div(number, size)
  return [number, *reversed(digits)]


def both(rows, columns):
  """[M], [N] bool -> [M, N], whether both."""
  return rows[:, None] & columns[None]


def load(array, at, exist):
  """What is at these places of a flat array, 0 where nothing exists."""
  return triton.load(array.at[at], mask=exist, other=0)


def store(array, at, values, exist):
  """Writes values, in the array's type, to its places that exist."""
  # JAX's interpreter writes old numbers where the mask is false: not over new ones.
  at = jnp.where(exist, at, array.shape[0])
  triton.store(array.at[at], values.astype(array.dtype), mask=exist)
