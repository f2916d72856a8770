"""Convolution, bias, max-pooling and ReLU in one kernel for a CPU, with gradients.

fused_cpu.cc has the arithmetic, in float32. The system's C++ compiler builds it for the
processor at hand when a network first needs it, and XLA calls it as foreign functions
(jax.ffi), one lane after the other.
"""

import ctypes
import functools
import hashlib
import math
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
_cache_folder: pathlib.Path | None = None


def keep_in(folder: pathlib.Path | None) -> None:
  """From now on, keeps builds in a folder for later starts; None: keeps none."""
  global _cache_folder
  _cache_folder = folder


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
      return f'the C++ compiler {compiler} cannot be used: {_reason(error)}'
  for name in _FUNCTIONS:
    function = jax.ffi.pycapsule(getattr(functions, name))
    jax.ffi.register_ffi_target(f'moon_jax_{name}', function, platform='cpu')
  return ''


def _reason(error: Exception) -> object:
  """The compiler's first line, or what the system says, or the error."""
  stderr = getattr(error, 'stderr', None) or b''
  first_line = stderr.decode(errors='replace').partition('\n')[0]
  return first_line or getattr(error, 'strerror', None) or error


def _build(compiler: list[str], library: pathlib.Path) -> None:
  """Writes the library: a build of an earlier start, or a new one."""

  def run(*words):
    completed = subprocess.run(
      [*compiler, *_FLAGS, *words], capture_output=True, check=True, timeout=_SECONDS
    )
    return completed.stdout

  # The macros show the compiler's version and the processor's instructions. A library
  # of another jaxlib may not be registered.
  macros = run('-dM', '-E', '-x', 'c++', os.devnull)
  circumstances = (macros, jaxlib.__version__, _FLAGS), _SOURCE.read_bytes()
  key = hashlib.sha256(repr(circumstances).encode()).hexdigest()[:16]
  earlier_build = None
  if _cache_folder:
    folder = cache.room(_cache_folder, 'kernels')
    earlier_build = folder and folder / f'fused_cpu-{key}.so'
  if earlier_build and earlier_build.exists():
    library.write_bytes(earlier_build.read_bytes())
    return
  run(f'-I{jax.ffi.include_dir()}', _SOURCE, '-o', library)
  if earlier_build:
    cache.add(earlier_build, lambda file: file.write(library.read_bytes()))


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
  y, _ = _forward(x, kernel, bias, padding)
  return y


def _forward(x, kernel, bias, padding):
  height, width = output_sides(x.shape, kernel.shape, padding)
  check_even(height, width)
  if min(map(min, padding)) < 0:  # the source would write past an image
    raise ValueError(f'The padding {padding} must not be negative.')
  pooled_shape = (kernel.shape[3], height // 2, width // 2, x.shape[3])
  results = [
    jax.ShapeDtypeStruct(pooled_shape, jnp.float32),
    jax.ShapeDtypeStruct(pooled_shape, jnp.int8),
    _scratch(kernel.shape, pooled_shape),
  ]
  y, winners = _call('forward', padding, results, x, kernel, bias)
  return y, (x, kernel, winners)


def _backward(padding, saved, gradient):
  x, kernel, winners = saved
  image_shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
  kernel_shape = jax.ShapeDtypeStruct(kernel.shape, jnp.float32)
  bias_shape = jax.ShapeDtypeStruct(kernel.shape[3:], jnp.float32)
  scratch = _scratch(kernel.shape, gradient.shape)
  (image_gradient,) = _call(
    'of_images', padding, [image_shape, scratch], kernel, gradient, winners
  )
  kernel_gradient, bias_gradient = _call(
    'of_kernel_and_bias',
    padding,
    [kernel_shape, bias_shape, scratch],
    x,
    gradient,
    winners,
  )
  return image_gradient, kernel_gradient, bias_gradient


convolve_pool_relu.defvjp(_forward, _backward)


def _call(name, padding, results, *arrays):
  """Runs a function of the source; returns its results, without its scratch."""
  if fault():
    raise RuntimeError(fault())
  call = jax.ffi.ffi_call(f'moon_jax_{name}', results, vmap_method='broadcast_all')
  return call(*arrays, zeros=np.array([before for before, _ in padding]))[:-1]


def _scratch(kernel_shape, pooled_shape):
  """Memory for a group of images with zeros, two kernels in whole vectors, lists."""
  kh, kw, channels, features = kernel_shape
  _, height, width, _ = pooled_shape
  image = (2 * height + kh - 1) * (2 * width + kw - 1) * channels + _GROUP
  kernel_row = math.ceil((kw + 1) * channels / _GROUP) * _GROUP
  lists = 2 * _GROUP * max(height * width, 2 * features)
  numbers = _GROUP * image + 2 * features * kh * kernel_row + lists
  return jax.ShapeDtypeStruct((4 * numbers,), jnp.uint8)
