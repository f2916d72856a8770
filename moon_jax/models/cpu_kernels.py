"""Functions in C++ for a CPU: how they are built, kept and called.

The system's C++ compiler builds them for the processor at hand when a network first
needs one, and XLA calls them as foreign functions (jax.ffi). `convolution/fused_cpu.py`
and `products.py` describe what they compute.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import subprocess
import tempfile
from collections.abc import Sequence

import jax
import jaxlib
import numpy as np

from moon_jax.core import cache

_FOLDER = pathlib.Path(__file__).parent
_SOURCES = (_FOLDER / 'convolution/fused_cpu.cc', _FOLDER / 'products.cc')
_HEADER = _FOLDER / 'xla_call.h'
_FUNCTIONS = ('forward', 'of_kernel_and_bias', 'of_images', 'product')
_FLAGS = ('-std=c++17', '-O3', '-march=native', '-fPIC', '-shared', '-w')
_SECONDS = 60  # time limit of the compiler, which takes three seconds
_cache_folder: pathlib.Path | None = None


def keep_in(folder: pathlib.Path | None) -> None:
  """From now on, keeps builds in a folder for later starts; None: keeps none."""
  global _cache_folder
  _cache_folder = folder


@functools.cache
def fault() -> str:
  """Why the functions cannot be used; '' if they can: XLA knows them from now on.

  The compiler is `c++`, or what the environment's CXX names, such as 'ccache g++'.
  """
  compiler = os.environ.get('CXX') or 'c++'
  with tempfile.TemporaryDirectory() as folder:
    library = pathlib.Path(folder, 'cpu_kernels.so')
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
  code = [path.read_bytes() for path in (*_SOURCES, _HEADER)]
  circumstances = (macros, jaxlib.__version__, _FLAGS), code
  key = hashlib.sha256(repr(circumstances).encode()).hexdigest()[:16]
  earlier_build = None
  if _cache_folder:
    folder = cache.room(_cache_folder, 'kernels')
    earlier_build = folder and folder / f'cpu_kernels-{key}.so'
  if earlier_build and earlier_build.exists():
    library.write_bytes(earlier_build.read_bytes())
    return
  includes = [f'-I{folder}' for folder in (jax.ffi.include_dir(), _FOLDER)]
  run(*includes, *_SOURCES, '-o', library)
  if earlier_build:
    cache.add(earlier_build, lambda file: file.write(library.read_bytes()))


def known_fault() -> str:
  """The `fault` if a network has needed the functions, else ''; builds nothing."""
  return fault() if fault.cache_info().currsize else ''


def call(
  name: str,
  results: Sequence[jax.ShapeDtypeStruct],
  *arrays: jax.Array,
  vmap_method: str,
  **attribute: Sequence[int],
) -> Sequence[jax.Array]:
  """Runs a function of the sources.

  Args:
    name: one of _FUNCTIONS.
    results: shapes and types of its results.
    *arrays: its arguments.
    vmap_method: see `jax.ffi.ffi_call`.
    **attribute: its only attribute.

  Raises:
    RuntimeError: there is a `fault`.
  """
  if fault():
    raise RuntimeError(fault())
  run = jax.ffi.ffi_call(f'moon_jax_{name}', results, vmap_method=vmap_method)
  attributes = {key: np.array(numbers, np.int64) for key, numbers in attribute.items()}
  return run(*arrays, **attributes)
