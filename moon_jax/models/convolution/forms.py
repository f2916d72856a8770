"""The forms in which a network computes its convolutions, and the choice of one."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.models import cpu_kernels
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

  def arranged(self, x: jax.Array) -> jax.Array:
    """[B, ..., C] -> the form's layout, and back: an exchange of two axes, or none."""
    return x if self.channels == -1 else jnp.swapaxes(x, 0, -1)


def _in_steps(
  convolve: Callable, *, channels: int, convolve_and_pool: Callable | None = None
) -> Form:
  """A form that convolves, then pools, then adds the bias and applies ReLU.

  Args:
    convolve: see `Form`.
    channels: see `Form`.
    convolve_and_pool: (x, kernel, *, stride, padding) -> the largest of each 2x2
      outputs; None: `convolve`, then `max_pool`.
  """

  def pooled(x, kernel, bias, padding):
    if convolve_and_pool:
      y = convolve_and_pool(x, kernel, stride=1, padding=padding)
    else:
      y = pooling.max_pool(convolve(x, kernel, stride=1, padding=padding))
    # max(y + b) = max(y) + b, so the bias is added on a quarter of the pixels.
    return jax.nn.relu(y + along(channels, bias))

  return Form(convolve=convolve, pooled=pooled, channels=channels)


def along(axis: int, vector: jax.Array) -> jax.Array:
  """[N] -> four axes; `axis`, 0 or -1, has N, so that it broadcasts over images."""
  return vector.reshape((-1, 1, 1, 1) if axis == 0 else (1, 1, 1, -1))


def _fused(x, kernel, bias, padding):
  """One pass of a compiled function; it computes bfloat16 in float32."""
  y = fused_cpu.convolve_pool_relu(
    direct.widened(x), direct.widened(kernel), direct.widened(bias), padding
  )
  return y.astype(x.dtype)


FORMS: dict[str, Form] = {
  'library': _in_steps(library, channels=0),
  'banded': _in_steps(
    banded.convolve,
    channels=0,
    convolve_and_pool=functools.partial(banded.convolve, pool=True),
  ),
  'fused': Form(convolve=banded.convolve, pooled=_fused, channels=0),
  'direct': _in_steps(direct.convolve, channels=-1),
  'winograd': _in_steps(winograd.convolve_or_direct, channels=-1),
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
  if name == 'auto_on_cpu' and size >= 5 and not cpu_kernels.fault():
    name = 'fused'
  elif name == 'auto_on_gpu':
    name = 'banded' if size >= 5 else 'library'
  elif name in ('auto', 'auto_on_cpu'):
    name = 'banded' if size >= 5 and features < 32 else 'winograd'
  return FORMS[name]
