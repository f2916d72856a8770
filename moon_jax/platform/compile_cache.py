"""Keeps compiled programs for later starts: JAX's persistent cache, which never fails.

JAX locks the folder while it reads or writes it, and its zlib finds a damaged entry.
But JAX never replaces an entry, and warns of a torn one at every start. So entries torn
by a kill or a full disk are removed first, and unreadable ones at the end.
"""

import contextlib
import pathlib
import re
import warnings
from collections.abc import Collection, Iterator

import filelock
import jax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax.core import cache
from moon_jax.core.paths import expand
from moon_jax.models import fused_cpu

AUTO, OFF = 'auto', 'off'
_SETTINGS = {
  'jax_compilation_cache_max_size': 2**28,
  'jax_persistent_cache_min_compile_time_secs': 0.0,
  'jax_persistent_cache_enable_xla_caches': 'none',  # the folder holds only entries
}
_TROUBLE = "Error (reading|writing) persistent compilation cache entry for '(.*?)'"
_LOCK_SECONDS = 10.0  # JAX waits for its lock as long as this


def keep_kernels(choice: str) -> None:
  """From now on, what the C++ compiler builds for the networks is kept, too."""
  fused_cpu.keep_in(_folder(choice))


@contextlib.contextmanager
def using(choice: str) -> Iterator[None]:
  """Inside, compiled programs are read from the folder and added to it.

  A program that cannot be kept or read, for whatever reason, is compiled; a line says
  why.

  Args:
    choice: 'auto', 'off', or a folder. 'auto' is the user's cache folder, unless JAX
      has a cache of its own, such as from JAX_COMPILATION_CACHE_DIR.
  """
  folder = _folder(choice)
  if choice == AUTO and jax.config.jax_compilation_cache_dir:
    folder = None
  folder = folder and cache.room(folder, 'programs')
  if not folder or not _mended(folder):
    yield
    return
  with _enabled(folder), warnings.catch_warnings(record=True) as caught:
    warnings.filterwarnings('always', _TROUBLE)
    yield
  troubles = [found for w in caught if (found := re.match(_TROUBLE, str(w.message)))]
  for warning in caught:
    if not re.match(_TROUBLE, str(warning.message)):
      place = warning.filename, warning.lineno
      warnings.warn_explicit(warning.message, warning.category, *place)
  if troubles:
    cache.warn_once(f'compile cache {folder}: {troubles[0].string}')
    _mended(folder, {found[2] for found in troubles if found[1] == 'reading'})


def _folder(choice: str) -> pathlib.Path | None:
  if choice in ('', OFF):  # earlier versions recorded ''
    return None
  if choice == AUTO:
    return cache.folder()
  return expand(choice).absolute()


def _mended(folder: pathlib.Path, unreadable: Collection[str] = ()) -> bool:
  """Removes bad entries; returns whether the folder can be used.

  JAX writes an entry, and then the time of its use: an entry without that time is torn.

  Args:
    folder: the folder of JAX's cache.
    unreadable: names of programs whose entries are bad.
  """
  try:
    with filelock.FileLock(folder / '.lockfile', timeout=_LOCK_SECONDS):  # JAX's own
      for entry in folder.glob('*-cache'):
        used = entry.with_name(entry.name.removesuffix('-cache') + '-atime')
        name = entry.name.rpartition('-')[0].rpartition('-')[0]
        if name in unreadable or not used.exists():
          entry.unlink(missing_ok=True)
          used.unlink(missing_ok=True)
  except (OSError, NotImplementedError) as error:  # NotImplementedError: no locks
    reason = getattr(error, 'strerror', None) or error
    cache.warn_once(f'nothing is kept in {folder}: {reason}')
    return False
  return True


@contextlib.contextmanager
def _enabled(folder: pathlib.Path) -> Iterator[None]:
  """Inside, JAX uses the folder."""
  settings = _SETTINGS | {'jax_compilation_cache_dir': str(folder)}
  before = {name: getattr(jax.config, name) for name in settings}
  _set(settings)
  try:
    yield
  finally:
    _set(before)


def _set(settings: dict[str, object]) -> None:
  for name, value in settings.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()
