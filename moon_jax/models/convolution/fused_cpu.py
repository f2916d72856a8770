"""Convolution, bias, 2x2 max-pooling and ReLU as one kernel for a CPU; its gradients.

fused_cpu.cc has the arithmetic, in float32. The system's C++ compiler builds it for the
processor at hand when a network first needs it, and XLA calls it as foreign functions
(jax.ffi), one lane after the other.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import subprocess
import tempfile

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from moon_jax.core import cache
from moon_jax.models.convolution.direct import Padding, output_sides
from moon_jax.models.convolution.pooling import check_even

_SOURCE = pathlib.Path(__file__).with_suffix('.cc')
_FUNCTIONS = ('forward', 'of_kernel_and_bias', 'of_images')
_GROUP = 16  # examples of a group, and numbers of whole vectors, as in the source
_FLAGS = ('-std=c++17', '-O3', '-march=native', '-fPIC', '-shared', '-w')
_SECONDS = 60  # time limit of the compiler, which takes one second
_kept_in: pathlib.Path | None = None


def keep_in(folder: pathlib.Path | None) -> None:
  """From now on, keeps builds in a folder for later starts; None: keeps none."""
  global _kept_in
  _kept_in = folder


@functools.cache
def fault() -> str:
  """Why the kernels cannot be used; '' if they can: XLA knows them from now on.

  The compiler is `c++`, or what the environment's CXX names, such as 'ccache g++'.
  """
  compiler = os.environ.get('CXX') or 'c++'
  with tempfile.TemporaryDirectory() as folder:
    library = pathlib.Path(folder, 'fused_cpu.so')
    try:
      _build(shlex.split(compiler), library)
      functions = ctypes.CDLL(library)  # a folder may forbid to run what is in it
    except (OSError, ValueError, subprocess.SubprocessError) as error:
      told = (getattr(error, 'stderr', None) or b'').decode(errors='replace')
      reason = told.partition('\n')[0] or getattr(error, 'strerror', None) or error
      return f'the C++ compiler {compiler} cannot be used: {reason}'
  for name in _FUNCTIONS:
    function = jax.ffi.pycapsule(getattr(functions, name))
    jax.ffi.register_ffi_target(f'moon_jax_{name}', function, platform='cpu')
  return ''


def _build(compiler, new):
  """Writes the built library, from an earlier start or built anew, to `new`."""

  def run(*words):
    command, limits = (*compiler, *_FLAGS, *words), {'check': True, 'timeout': _SECONDS}
    return subprocess.run(command, capture_output=True, **limits).stdout

  # The macros show the compiler's version and the processor's instructions. A library
  # of another jaxlib may not be registered.
  about = run('-dM', '-E', '-x', 'c++', os.devnull), jaxlib.__version__, _FLAGS
  key = hashlib.sha256(repr((about, _SOURCE.read_bytes())).encode()).hexdigest()[:16]
  folder = _kept_in and cache.room(_kept_in, 'kernels')
  kept = folder and folder / f'fused_cpu-{key}.so'
  if kept and kept.exists():
    new.write_bytes(kept.read_bytes())
    return
  run(f'-I{jax.ffi.include_dir()}', _SOURCE, '-o', new)
  if kept:
    cache.add(kept, lambda file: file.write(new.read_bytes()))


def known_fault() -> str:
  """The `fault` if a network has needed the kernels, else ''; builds nothing."""
  return fault() if fault.cache_info().currsize else ''


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def convolve_pool_relu(
  x: jax.Array, kernel: jax.Array, bias: jax.Array, padding: Padding
) -> jax.Array:
  """ReLU of the largest of each 2x2 outputs of a convolution of stride 1, and a bias.

  The gradient goes to the first of the largest.

  Args:
    x: [Cin, H, W, B] float32.
    kernel: [kh, kw, Cin, Cout] float32.
    bias: [Cout] float32.
    padding: zeros (above, below), (left, right).

  Returns:
    [Cout, H' / 2, W' / 2, B], H' = H + above + below - kh + 1, W' likewise.

  Raises:
    UsageError: H' or W' is odd, or below 2.
    ValueError: a number of zeros is negative.
    RuntimeError: there is a `fault`.
  """
  return _saved(x, kernel, bias, padding)[0]


def _saved(x, kernel, bias, padding):
  height, width = output_sides(x.shape, kernel.shape, padding)
  check_even(height, width)
  if min(map(min, padding)) < 0:  # what the source writes beside an image
    raise ValueError(f'The padding {padding} must not be negative.')
  pooled = (kernel.shape[3], height // 2, width // 2, x.shape[3])
  results = [jax.ShapeDtypeStruct(pooled, dtype) for dtype in (jnp.float32, jnp.int8)]
  results.append(_scratch(kernel.shape, pooled))
  y, winners = _call('forward', padding, results, x, kernel, bias)
  return y, (x, kernel, winners)


def _backward(padding, saved, gradient):
  x, kernel, winners = saved
  shapes = (x.shape, kernel.shape, kernel.shape[3:])
  of_x, of_kernel, of_bias = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
  scratch = _scratch(kernel.shape, gradient.shape)
  given = (gradient, winners)
  (of_x,) = _call('of_images', padding, [of_x, scratch], kernel, *given)
  of_weights = [of_kernel, of_bias, scratch]
  return of_x, *_call('of_kernel_and_bias', padding, of_weights, x, *given)


convolve_pool_relu.defvjp(_saved, _backward)


def _call(name, padding, results, *arrays):
  """Runs a function of the source; returns its results, without its scratch."""
  if fault():
    raise RuntimeError(fault())
  call = jax.ffi.ffi_call(f'moon_jax_{name}', results, vmap_method='broadcast_all')
  return call(*arrays, zeros=np.array([before for before, _ in padding]))[:-1]


def _scratch(kernel, pooled):
  """Memory for a group of images with zeros, two kernels in whole vectors, lists."""
  kh, kw, channels, features = kernel
  _, height, width, _ = pooled
  image = (2 * height + kh - 1) * (2 * width + kw - 1) * channels + _GROUP
  row = -(-(kw + 1) * channels // _GROUP) * _GROUP
  lists = 2 * _GROUP * max(height * width, 2 * features)
  numbers = _GROUP * image + 2 * features * kh * row + lists
  return jax.ShapeDtypeStruct((4 * numbers,), jnp.uint8)
