"""The forms in which a network computes its convolutions, and the choice of one."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.models.convolution import banded, direct, fused_cpu, pooling, winograd
from moon_jax.models.convolution.direct import Padding


def library(
  x: jax.Array, kernel: jax.Array, *, stride: int, padding: Padding
) -> jax.Array:
  """`lax.conv_general_dilated`.

  Args:
    x: [Cin, H, W, B].
    kernel: [kh, kw, Cin, Cout].
    stride: stride of the window, in both directions.
    padding: zeros (above, below), (left, right).

  Returns:
    [Cout, H', W', B], H' = (H + above + below - kh) // stride + 1, W' likewise.
  """
  dimensions = ('CHWN', 'HWIO', 'CHWN')
  return jax.lax.conv_general_dilated(
    x, kernel, (stride, stride), padding, dimension_numbers=dimensions
  )


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
      # max(y + b) = max(y) + b, so the bias is added on a quarter of the pixels.
      y = (largest or convolve)(x, kernel, stride=1, padding=padding)
      y = y if largest else pooling.max_pool(y)
      return jax.nn.relu(y + along(channels, bias))

    return cls(convolve, pooled, channels)

  def arranged(self, x: jax.Array) -> jax.Array:
    """[B, ..., C] -> the form's layout, and back: an exchange of two axes, or none."""
    return x if self.channels == -1 else jnp.swapaxes(x, 0, -1)


def along(axis: int, vector: jax.Array) -> jax.Array:
  """[N] -> four axes; `axis`, 0 or -1, has N, so that it broadcasts over images."""
  return vector.reshape((-1, 1, 1, 1) if axis == 0 else (1, 1, 1, -1))


def _fused(x, kernel, bias, padding):
  """One pass of a compiled function, of bfloat16 in float32 too."""
  wide = [direct.widened(array) for array in (x, kernel, bias)]
  return fused_cpu.convolve_pool_relu(*wide, padding).astype(x.dtype)


FORMS: dict[str, Form] = {
  'library': Form.of(library, 0),
  'banded': Form.of(banded.convolve, 0, functools.partial(banded.convolve, pool=True)),
  'fused': Form(banded.convolve, _fused, 0),
  'direct': Form.of(direct.convolve, -1),
  'winograd': Form.of(winograd.convolve_or_direct, -1),
}


def choose(name: str, *, size: int, features: int) -> Form:
  """The form of a network's convolutions.

  Args:
    name: a key of FORMS; or 'auto': of the forms that every device has, the one that
      docs/performance.md finds fastest inside a loop on a CPU; or 'auto_on_cpu': the
      fastest form there; or 'auto_on_gpu': the form whose program for a GPU, compiled
      but not run, moves the fewest bytes. Small networks train in many lanes there, for
      which the library has no backward kernels.
    size: side of the network's larger kernels.
    features: output channels of its first convolution.
  """
  if name == 'auto_on_cpu' and size >= 5 and not fused_cpu.fault():
    name = 'fused'
  elif name == 'auto_on_gpu':
    name = 'banded' if size >= 5 else 'library'
  elif name in ('auto', 'auto_on_cpu'):
    name = 'banded' if size >= 5 and features < 32 else 'winograd'
  return FORMS[name]
