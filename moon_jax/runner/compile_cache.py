"""Keeps compiled programs in a private folder, for other starts: JAX's cache, verified.

JAX trusts what it finds: it runs what was swapped, and complains of a torn file in
every run but never replaces it. So only its owner may enter the folder, and beside each
entry stands its SHA-256, with which it is compared before JAX sees it.
"""

import contextlib
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import config as config_lib
from moon_jax.errors import UsageError
from moon_jax.models import fused_cpu
from moon_jax.runner import files

AUTO, OFF = 'auto', 'off'
_KNOB = 'config.execution.compile_cache'
# As JAX names what it compiled, and as we name what was traced. What else is in the
# folder is not looked after here: kernels that models.fused_cpu keeps, or not ours.
_ENTRIES = ('jit_*-cache', 'jit_*-traced')
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
  return config_lib.cache_folder()


def check(choice: str) -> None:
  """Looks whether a folder that the user named is private; writes nothing.

  What the C++ compiler builds for the networks from now on is kept there, too.

  Raises:
    UsageError: it is no folder, or others may enter it.
  """
  path = folder_of(choice)
  if path is not None and choice != AUTO and (fault := _fault(path)):
    raise UsageError(f'--{_KNOB}={choice!r} {fault}.')

  def usable():
    fault = _made(path)
    return None if fault else path

  fused_cpu.keep_in(usable)


def _made(path: pathlib.Path | None) -> str:
  """Makes the folder, if there is to be one; why it cannot be used, '' if it can."""
  if path is None:
    return ''
  try:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _fault(path)
  except OSError as error:
    return f'cannot be written: {error.strerror}'


def _fault(path: pathlib.Path) -> str:
  """Why the folder cannot be used; '' if it can, or is not there yet."""
  if not path.exists():
    return ''
  about = path.stat()
  if path.is_dir() and about.st_uid == os.getuid() and not about.st_mode & 0o077:
    return ''
  return (
    'must be a folder that only you can enter (chmod 700), or a new one: what is in it '
    'is run'
  )


@contextlib.contextmanager
def using(choice: str, say: Callable[[str], None]) -> Iterator[pathlib.Path | None]:
  """What is compiled inside is looked up in the folder, and added to it.

  Of what cannot be kept, on a full disk say, JAX warns; it is only compiled. The oldest
  entries go when there are more than 256 MiB.

  Args:
    choice: 'auto', 'off', or a folder.
    say: told about bad entries, which are removed, and of 'auto' why there is none.

  Yields:
    The folder; None if there is none.

  Raises:
    UsageError: a folder that the user named is not private, or cannot be made.
  """
  path = folder_of(choice)
  fault = _made(path)
  if fault and choice != AUTO:
    raise UsageError(f'--{_KNOB}={choice!r} {fault}.')
  if fault:
    say(f'no compile cache: {path} {fault}')
  if path is None or fault:
    yield None
    return
  if bad := _without_digest(path):
    say(f'compile cache: {len(bad)} bad entries removed from {path}')
  _remove(bad)
  with _enabled(path):
    yield path
  with contextlib.suppress(OSError):  # a full disk: the next start removes them
    for entry in _without_digest(path):
      _digest_file(entry).write_text(files.sha256(entry))
  _remove(_too_many(path))


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


def add(entry: pathlib.Path, content: bytes) -> None:
  """Adds an entry that JAX does not know, unless the disk is full."""

  def write(file):
    file.write(content)
    file.flush()  # on a full disk there is no digest either
    _digest_file(entry).write_text(hashlib.sha256(content).hexdigest())

  config_lib.cache(entry, write)


def _entries(path: pathlib.Path) -> list[pathlib.Path]:
  return [entry for pattern in _ENTRIES for entry in path.glob(pattern)]


def _without_digest(path: pathlib.Path) -> list[pathlib.Path]:
  """The entries that their digests do not fit, or that have none."""
  told = [(entry, _digest_file(entry)) for entry in _entries(path)]
  return [e for e, d in told if not d.exists() or d.read_text() != files.sha256(e)]


def _too_many(path: pathlib.Path) -> list[pathlib.Path]:
  """The oldest entries, traced ones first, if there are more bytes than may be kept."""
  last_to_go = sorted(
    _entries(path),
    key=lambda entry: (entry.name.endswith('-traced'), -entry.stat().st_mtime_ns),
  )
  sizes = itertools.accumulate(entry.stat().st_size for entry in last_to_go)
  return [e for e, size in zip(last_to_go, sizes, strict=True) if size > _MOST_BYTES]


def _remove(entries: list[pathlib.Path]) -> None:
  """Removes entries and their digests; another process may have been faster."""
  for entry in entries:
    entry.unlink(missing_ok=True)
    _digest_file(entry).unlink(missing_ok=True)


def _digest_file(entry: pathlib.Path) -> pathlib.Path:
  """The file beside an entry that holds its digest."""
  return entry.with_name(entry.name + '.sha256')
