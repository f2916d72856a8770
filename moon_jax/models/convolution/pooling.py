"""The largest of each 2x2 pixels, with a gradient that a CPU computes fast."""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag


def max_pool(x: jax.Array) -> jax.Array:
  """[., H, W, .] -> [., H/2, W/2, .]: the largest of each 2x2 pixels.

  Raises:
    UsageError: H or W is odd, or 0.
  """
  c, h, w, b = x.shape
  check_even(h, w)
  squares = x.reshape(c, h // 2, 2, w // 2, 2, b).transpose(2, 4, 0, 1, 3, 5)
  return largest(squares.reshape(4, c, h // 2, w // 2, b))


def max_pool_3x3(x: jax.Array) -> jax.Array:
  """[., H, W, .] -> [., H', W', .]: the largest of 3x3 pixels, in every other place.

  H' = ceil(H / 2), and W' likewise: one row and column around the images count as
  -infinity. It is torchvision's after the first convolution of a ResNet.
  """
  return jax.lax.reduce_window(
    x,
    # A constant: with a traced number JAX does not see a maximum, and has no gradient.
    np.array(-np.inf, x.dtype),
    jax.lax.max,
    window_dimensions=(1, 3, 3, 1),
    window_strides=(1, 2, 2, 1),
    padding=((0, 0), (1, 1), (1, 1), (0, 0)),
  )


def check_even(height: int, width: int) -> None:
  """Raises UsageError if one of them is odd, or below 2."""
  if height % 2 or width % 2 or min(height, width) < 2:
    raise UsageError(
      f'it would pool {max(height, 0)}x{max(width, 0)} pixels by 2x2. Use '
      f'{flag("model", "mlp")}, or images of other sides (an image folder has '
      f'{flag("data.image_size")}).'
    )


@jax.custom_vjp
def largest(x: jax.Array) -> jax.Array:
  """[4, ...] -> [...]; the gradient goes to the first of the largest.

  The gradient of `reduce_window` is several times slower on a CPU.
  """
  return jnp.maximum(jnp.maximum(x[0], x[1]), jnp.maximum(x[2], x[3]))


def _largest_backward(x, gradient):
  # Not `x == largest`: XLA may compute x twice, with other roundings, and find none.
  a, b, c, d = x
  above = jnp.maximum(a, b) >= jnp.maximum(c, d)
  winner = jnp.where(above, jnp.where(a >= b, 0, 1), jnp.where(c >= d, 2, 3))
  index = jax.lax.broadcasted_iota(winner.dtype, x.shape, 0)
  return (jnp.where(index == winner[None], gradient[None], 0.0),)


largest.defvjp(lambda x: (largest(x), x), _largest_backward)
