"""Keeps compiled programs in a private folder, for other starts: JAX's cache, verified.

JAX trusts what it finds: it runs what was swapped, and complains of a torn file in
every run but never replaces it. So only its owner may enter the folder, and beside each
entry stands its SHA-256, with which it is compared before JAX sees it. One process at a
time uses the folder; another one waits, often for the very program it needs.
"""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import config as config_lib
from moon_jax.errors import UsageError
from moon_jax.runner import files

_KNOB = 'config.execution.compile_cache'
_ENTRIES = 'jit_*-cache'  # as JAX names them; what else is in the folder is not ours


def check(folder: str) -> None:
  """Looks whether the folder is private, if it is there; writes nothing.

  Args:
    folder: '' for no cache.

  Raises:
    UsageError: it is no folder, or others may enter it.
  """
  path = config_lib.expand(_KNOB, folder)
  if not folder or not path.exists():
    return
  about = path.stat()
  if not path.is_dir() or about.st_uid != os.getuid() or about.st_mode & 0o077:
    raise UsageError(
      f'--{_KNOB}={folder!r} must be a folder that only you can enter (chmod 700), '
      'or a new one: what is in it is run.'
    )


@contextlib.contextmanager
def using(folder: str, say: Callable[[str], None]) -> Iterator[None]:
  """What is compiled inside is looked up in the folder, and added to it.

  Of what cannot be kept, on a full disk say, JAX warns; it is only compiled.

  Args:
    folder: '' for no cache.
    say: told about bad entries, which are removed.

  Raises:
    UsageError: the folder cannot be made or written to.
  """
  if not folder:
    yield
    return
  path = config_lib.expand(_KNOB, folder).absolute()
  with _locked(path, folder, say):
    if bad := _without_digest(path):
      say(f'compile cache: {len(bad)} bad entries removed from {folder}')
    for entry in bad:
      entry.unlink()
      _digest_file(entry).unlink(missing_ok=True)
    with _enabled(path):
      yield
    with contextlib.suppress(OSError):  # a full disk: the next start removes them
      for entry in _without_digest(path):
        _digest_file(entry).write_text(files.sha256(entry))


@contextlib.contextmanager
def _locked(path: pathlib.Path, folder: str, say: Callable) -> Iterator[None]:
  """Makes the folder, if there is none; it is ours inside."""
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
    yield


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


def _without_digest(path: pathlib.Path) -> list[pathlib.Path]:
  """The entries that their digests do not fit, or that have none."""
  told = [(entry, _digest_file(entry)) for entry in path.glob(_ENTRIES)]
  return [e for e, d in told if not d.exists() or d.read_text() != files.sha256(e)]


def _digest_file(entry: pathlib.Path) -> pathlib.Path:
  """The file beside an entry that holds its digest."""
  return entry.with_name(entry.name + '.sha256')
