"""Was this program compiled before? JAX's cache, made private, whole and crash-proof.

JAX trusts what it finds: it runs what was swapped, and complains of a torn file in
every run but never replaces it. So only its owner may enter the folder, and each entry
is compared with its SHA-256 before JAX sees it. One process at a time uses the folder;
another one waits, often for the very program it needs.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import stat
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import config as config_lib
from moon_jax import storage
from moon_jax.errors import UsageError

_KNOB = 'config.execution.compile_cache'
_DIGESTS = 'digests.json'


def check(folder: str) -> None:
  """Looks whether the folder is private, if it is there; writes nothing.

  Args:
    folder: '' for no cache.

  Raises:
    UsageError: it is no folder, or others may enter it.
  """
  path = config_lib.expand(_KNOB, folder)
  try:
    about = path.stat() if folder else None
  except FileNotFoundError:
    return
  except OSError as error:
    raise UsageError(f'--{_KNOB}={folder!r}: {error.strerror}.') from None
  if about and not stat.S_ISDIR(about.st_mode):
    raise UsageError(f'--{_KNOB}={folder!r} must be a folder.')
  if about and (about.st_uid != os.getuid() or about.st_mode & 0o077):
    raise UsageError(
      f'--{_KNOB}={folder!r} must be a folder that only you can enter (chmod 700), or '
      'a new one: what is in it is run.'
    )


@contextlib.contextmanager
def using(folder: str, say: Callable[[str], None]) -> Iterator[None]:
  """What is compiled inside is looked up in the folder, and added to it.

  Args:
    folder: '' for no cache.
    say: told about bad entries, which are removed.

  Raises:
    UsageError: the folder is not private, or cannot be made or written to.
  """
  if not folder:
    yield
    return
  check(folder)
  path = config_lib.expand(_KNOB, folder)
  try:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = (path / '.lock').open('a')
  except OSError as error:
    problem = f'--{_KNOB}={folder!r} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      say(f'compile cache: waiting for the process that fills {folder}')
      fcntl.flock(lock, fcntl.LOCK_EX)
    if num_bad := _remove_bad(path):
      say(f'compile cache: {num_bad} bad entries removed from {folder}')
    jax.config.update('jax_compilation_cache_dir', str(path.absolute()))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    # Nothing but entries in the folder.
    jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
    try:
      yield
    finally:
      jax.config.update('jax_compilation_cache_dir', None)
      compilation_cache.reset_cache()
      _write_digests(path)


def _entries(path: pathlib.Path) -> list[pathlib.Path]:
  return [file for file in path.iterdir() if file.name.endswith('-cache')]


def _digest(file: pathlib.Path) -> str:
  return hashlib.sha256(file.read_bytes()).hexdigest()


def _remove_bad(path: pathlib.Path) -> int:
  """Removes entries that are not as they were written; returns how many."""
  try:
    known = json.loads((path / _DIGESTS).read_text())
  except (FileNotFoundError, ValueError):
    known = {}
  bad = [file for file in _entries(path) if known.get(file.name) != _digest(file)]
  for file in bad:
    file.unlink()
  return len(bad)


def _write_digests(path: pathlib.Path) -> None:
  """To be called while the folder is locked, so that no entry is half written."""
  digests = {file.name: _digest(file) for file in _entries(path)}
  storage.replace(path / _DIGESTS, json.dumps(digests, indent=2) + '\n')
