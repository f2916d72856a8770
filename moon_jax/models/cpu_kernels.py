"""Functions in C++ for a CPU: how they are built, kept and called.

The system's C++ compiler builds them for the processor at hand when a network first
needs one, and XLA calls them as foreign functions (jax.ffi). The module beside each
source describes what it computes.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from moon_jax.core import user_cache

_FOLDER = pathlib.Path(__file__).parent
_SOURCES = tuple(
  _FOLDER / name
  for name in (
    'batch_norm.cc',
    'convolution/depthwise.cc',
    'convolution/fused_cpu.cc',
    'dropout.cc',
    'products.cc',
  )
)
_HEADERS = (_FOLDER / 'vectors.h', _FOLDER / 'xla_call.h')
_FUNCTIONS = (
  'batch_norm',
  'of_batch_norm',
  'depthwise',
  'of_depthwise',
  'dropout',
  'forward',
  'of_kernel_and_bias',
  'of_images',
  'product',
)
_FLAGS = ('-std=c++17', '-O3', '-march=native', '-fPIC', '-shared', '-w')
# Limits of the compiler, which takes five seconds of a core. By the clock it takes far
# longer on a busy machine, and the bits of a run must not depend on that.
_CPU_SECONDS = 60  # of each process
_WALL_SECONDS = 600
_LIMITED = ('sh', '-c', 'ulimit -t "$1" 2>/dev/null; shift; exec "$@"', 'sh')
_cache_folder: pathlib.Path | None = None
_is_needed = False  # by a network of the start at hand


def keep_in(folder: pathlib.Path | None) -> None:
  """From now on, keeps builds in a folder for later starts; None: keeps none."""
  global _cache_folder
  _cache_folder = folder


def begin_start() -> None:
  """From now on, `were_needed` speaks of the networks that are traced later."""
  global _is_needed
  _is_needed = False


def fault() -> str:
  """Why the functions cannot be used; '' if they can: XLA knows them from now on.

  A network that needs them calls this whenever it is traced. The compiler is `c++`, or
  what the environment's CXX names, such as 'ccache g++'.
  """
  global _is_needed
  _is_needed = True
  return _fault_of_build()


@functools.cache
def _fault_of_build() -> str:
  """Builds the functions and makes them known to XLA; the `fault`."""
  compiler = os.environ.get('CXX', '').strip() or 'c++'
  try:
    with tempfile.TemporaryDirectory() as folder:
      library = pathlib.Path(folder, 'cpu_kernels.so')
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
  if not shutil.which(compiler[0]):
    raise FileNotFoundError('there is no such program')

  def run(*words):
    return _output_of([*compiler, *_FLAGS, *words], library.parent)

  # The macros show the compiler's version and the processor's instructions. A library
  # of another jaxlib may not be registered.
  macros = run('-dM', '-E', '-x', 'c++', os.devnull)
  code = [path.read_bytes() for path in (*_SOURCES, *_HEADERS)]
  circumstances = (macros, jaxlib.__version__, _FLAGS), code
  key = hashlib.sha256(repr(circumstances).encode()).hexdigest()[:16]
  earlier_build = None
  if _cache_folder:
    folder = user_cache.subfolder(_cache_folder, 'kernels')
    earlier_build = folder and folder / f'cpu_kernels-{key}.checked'
  if content := earlier_build and _intact(earlier_build):
    library.write_bytes(content)
    return
  includes = [f'-I{folder}' for folder in (jax.ffi.include_dir(), _FOLDER)]
  run(*includes, *_SOURCES, '-o', library)
  if earlier_build:
    user_cache.add(
      earlier_build, lambda file: file.write(_with_digest(library.read_bytes()))
    )


def _output_of(command: list[str], folder: pathlib.Path) -> bytes:
  """What a compiler writes to its output, within the limits of time.

  Args:
    command: the compiler and its arguments.
    folder: where its temporary files are.

  Raises:
    subprocess.SubprocessError: it fails, or takes too long; all its processes have
      ended then.
  """
  with subprocess.Popen(
    [*_LIMITED, str(_CPU_SECONDS), *command],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=os.environ | {'TMPDIR': str(folder)},
    process_group=0,
  ) as process:
    process.args = command  # for the message of an error
    try:
      output, errors = process.communicate(timeout=_WALL_SECONDS)
    except BaseException:
      with contextlib.suppress(ProcessLookupError):  # it may have just ended
        os.killpg(process.pid, signal.SIGKILL)
      raise
  if process.returncode:
    raise subprocess.CalledProcessError(process.returncode, command, output, errors)
  return output


def _with_digest(content: bytes) -> bytes:
  return hashlib.sha256(content).digest() + content


def _intact(path: pathlib.Path) -> bytes:
  """What a file has behind its digest; b'' if it is absent or damaged."""
  try:
    kept = path.read_bytes()
  except OSError:
    return b''
  content = kept[hashlib.sha256().digest_size :]
  return content if _with_digest(content) == kept else b''


def are_for(x: jax.Array) -> bool:
  """Whether x can be an argument: it is float32, on a CPU, and there is no `fault`."""
  is_theirs = x.dtype == jnp.float32 and jax.default_backend() == 'cpu'
  return is_theirs and not fault()


def were_needed() -> bool:
  """Whether a network has asked for the functions since `begin_start`."""
  return _is_needed


def known_fault() -> str:
  """The `fault` if a network of this start has needed them, else ''; builds nothing."""
  return fault() if were_needed() else ''


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
