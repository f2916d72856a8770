"""Keeps compiled programs in a private folder, for other starts: JAX's cache.

JAX runs what it finds, if the checksum of its compression fits. So only its owner may
enter the folder.
"""

import contextlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import config as config_lib
from moon_jax.errors import UsageError

AUTO, OFF = 'auto', 'off'
_KNOB = 'config.execution.compile_cache'
_ENTRIES = 'jit_*-cache'  # as JAX names them; what else is in the folder is not ours
_MOST_BYTES = 2**28


def folder_of(choice: str) -> pathlib.Path | None:
  """The folder that the knob names; None for none.

  'auto' is the user's cache folder, unless JAX has been given a cache of its own, as by
  JAX_COMPILATION_CACHE_DIR.
  """
  if choice in ('', OFF):  # as earlier versions wrote it
    return None
  if choice != AUTO:
    return config_lib.expand(_KNOB, choice).absolute()
  if jax.config.jax_compilation_cache_dir:
    return None
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(home, 'moon_jax').absolute()


def check(choice: str) -> None:
  """Raises UsageError unless the folder that the user named is private, or new."""
  path = folder_of(choice)
  if path is not None and choice != AUTO:
    _require_private(path)


def _require_private(path: pathlib.Path) -> None:
  if not path.exists():
    return
  about = path.stat()
  if not path.is_dir() or about.st_uid != os.getuid() or about.st_mode & 0o077:
    raise UsageError(
      f'--{_KNOB}={str(path)!r} must be a folder that only you can enter (chmod 700), '
      'or a new one: what is in it is run.'
    )


@contextlib.contextmanager
def using(choice: str, say: Callable[[str], None]) -> Iterator[None]:
  """What is compiled inside is looked up in the folder, and added to it.

  Of what cannot be kept, on a full disk say, or is torn, JAX warns; it is only
  compiled. The oldest entries go when there are more than 256 MiB.

  Args:
    choice: 'auto', 'off', or a folder.
    say: told why there is no cache.
  """
  path = folder_of(choice)
  try:
    if path is not None:
      _require_private(path)
      path.mkdir(mode=0o700, parents=True, exist_ok=True)
  except (UsageError, OSError) as error:
    say(f'no compile cache: {error}')
    path = None
  if path is None:
    yield
    return
  with _enabled(path):
    yield
  _remove_oldest(path)


@contextlib.contextmanager
def _enabled(path: pathlib.Path) -> Iterator[None]:
  """JAX uses the folder; of what it cannot write there it warns."""
  jax.config.update('jax_compilation_cache_dir', str(path))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  # Nothing but entries in the folder.
  jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
  try:
    yield
  finally:
    jax.config.update('jax_compilation_cache_dir', None)
    compilation_cache.reset_cache()


def _remove_oldest(path: pathlib.Path) -> None:
  """Removes the oldest entries, if there are more bytes than may be kept."""
  newest_first = sorted(path.glob(_ENTRIES), key=lambda e: -e.stat().st_mtime_ns)
  sizes = itertools.accumulate(entry.stat().st_size for entry in newest_first)
  for entry, size in zip(newest_first, list(sizes), strict=True):
    if size > _MOST_BYTES:
      entry.unlink(missing_ok=True)  # another process may have been faster
