"""Keeps compiled programs for later starts, in JAX's persistent cache.

The cache never ends a run. If anything goes wrong with it, such as a damaged entry, a
full disk or a lock that is not free, JAX raises an error, and the programs are compiled
without the cache.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.stages import Compiled, Lowered

from moon_jax.core import activity, files, user_cache
from moon_jax.core.errors import RunError
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.models import cpu_kernels

AUTO, OFF = 'auto', 'off'
# The folder, below that of the programs, of what XLA measured on a GPU; JAX's name.
_MEASURED = 'xla_gpu_per_fusion_autotune_cache_dir'
_SETTINGS = {
  'jax_compilation_cache_max_size': 2**28,
  'jax_persistent_cache_min_compile_time_secs': 0.0,
  'jax_persistent_cache_enable_xla_caches': 'none',  # the folder holds only entries
  'jax_raise_persistent_cache_errors': True,
}

Programs = TypeVar('Programs')

_takes_turns = False
# Held while JAX's settings are those of a folder: threads enter one after another.
_settings_lock = threading.Lock()


def keep_kernels(choice: str) -> None:
  """From now on, what the C++ compiler builds for the networks is kept, too."""
  cpu_kernels.keep_in(_folder(choice))


def compiled(choice: str, compile_programs: Callable[[], Programs]) -> Programs:
  """Compiles programs; those of an earlier start are read from the cache.

  If the cache fails, for whatever reason, the programs are compiled without it, a line
  says why, and all entries are removed (unless another start holds the lock).

  Args:
    choice: 'auto', 'off', or a folder. 'auto' is the user's cache folder, unless JAX
      has a cache of its own, such as from JAX_COMPILATION_CACHE_DIR.
    compile_programs: compiles and returns the programs. It may be called twice.
  """
  try:
    return _compiled(choice, compile_programs)
  finally:
    _release_freed_memory()


def _compiled(choice, compile_programs):
  folder = _programs_folder(choice)
  if folder is None:
    return compile_programs()
  try:
    with _enabled(folder):
      return compile_programs()
  except RunError:  # of the user's own parts
    raise
  except Exception as error:  # each part of JAX's cache has its own
    failure = error
  programs = compile_programs()  # raises again what is not the cache's fault
  reason = str(failure).partition('\n')[0]
  user_cache.warn_once(f'compile cache {folder}: {type(failure).__name__}: {reason}')
  # JAX never replaces an entry: a damaged one would fail at every start.
  if not isinstance(failure, TimeoutError):  # of the lock, which another start holds
    _empty(folder)
  return programs


def _release_freed_memory() -> None:
  """Gives the memory that the compiler has freed back to the system.

  glibc keeps it for each thread that compiled: some 300 MiB after MOON's CNN.
  """
  with contextlib.suppress(AttributeError):  # not glibc
    ctypes.CDLL(None).malloc_trim(0)


def take_turns() -> None:
  """From now on, of the processes of a sweep only one compiles a program at a time."""
  global _takes_turns
  _takes_turns = True


def compile_in_turn(
  program: Lowered, name: str, options: Mapping[str, str | bool] | None = None
) -> Compiled:
  """Compiles a program; waits while another process of a sweep compiles the same one.

  Then the cache has it. Call this inside `compiled`.

  Args:
    program: the program.
    name: what it is, for a user who waits: 'the round'.
    options: XLA's compiler options; with others the cache holds another program.
  """
  with contextlib.ExitStack() as stack:
    if _takes_turns and jax.config.jax_compilation_cache_dir:
      stack.enter_context(activity.doing(f'waiting for {name}, which is compiled'))
      stack.enter_context(_turn(program))
    stack.enter_context(activity.doing(f'compiling {name}'))
    return program.compile(compiler_options=dict(options) if options else None)


@contextlib.contextmanager
def _turn(program: Lowered) -> Iterator[None]:
  """Inside, this process has the lock of a program, if the disk has locks."""
  programs_folder = pathlib.Path(jax.config.jax_compilation_cache_dir)
  folder = user_cache.subfolder(programs_folder.parent, 'compiling')
  if folder is None:
    yield
    return
  digest = hashlib.sha256(program.as_text().encode()).hexdigest()
  path = folder / digest[:32]
  with contextlib.ExitStack() as stack:
    with contextlib.suppress(OSError):  # then two may compile the same program
      file = stack.enter_context(path.open('wb'))
      # Removed before the lock is free: who waits has the file open.
      stack.callback(path.unlink, missing_ok=True)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _folder(choice: str) -> pathlib.Path | None:
  if choice in ('', OFF):  # earlier versions recorded ''
    return None
  if choice == AUTO:
    return user_cache.folder()
  return expand(choice).absolute()


def _programs_folder(choice: str) -> pathlib.Path | None:
  """The folder of the compiled programs; None if they are not to be kept there."""
  if choice == AUTO and jax.config.jax_compilation_cache_dir:
    return None
  folder = _folder(choice)
  programs_folder = folder and user_cache.subfolder(folder, 'programs')
  if programs_folder and (reason := _why_unusable(programs_folder)):
    user_cache.warn_once(f'nothing is kept in {programs_folder}: {reason}')
    return None
  return programs_folder


def _why_unusable(programs_folder: pathlib.Path) -> str:
  """Why JAX cannot keep programs in a folder; '' if it can."""
  if not os.access(programs_folder, os.W_OK):
    return 'it cannot be written'
  with contextlib.suppress(OSError):  # the cache itself says what is wrong
    if not files.has_locks(programs_folder):
      return (
        'its file system has no locks; '
        f'{flag("execution.compile_cache")} names another folder'
      )
  return ''


def _empty(folder: pathlib.Path) -> None:
  """Removes all entries that can be removed; the lock of another process stays."""
  with contextlib.suppress(OSError):  # the folder cannot be listed
    for entry in [*folder.glob('[!.]*'), *folder.glob(f'{_MEASURED}/*')]:
      with contextlib.suppress(OSError):
        entry.unlink()


@contextlib.contextmanager
def _enabled(folder: pathlib.Path) -> Iterator[None]:
  """Inside, JAX uses the folder."""
  settings = _SETTINGS | {'jax_compilation_cache_dir': str(folder)}
  if jax.default_backend() != 'cpu':
    # XLA also keeps what it measured for each product, which other programs have too.
    settings['jax_persistent_cache_enable_xla_caches'] = _MEASURED
  with _settings_lock:
    settings_before = {name: getattr(jax.config, name) for name in settings}
    _set(settings)
    try:
      yield
    finally:
      _set(settings_before)


def _set(settings: dict[str, object]) -> None:
  for name, setting in settings.items():
    jax.config.update(name, setting)
  compilation_cache.reset_cache()
