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
import re
import stat
import warnings
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from moon_jax import config as config_lib
from moon_jax.errors import UsageError
from moon_jax.runner import storage

_KNOB = 'config.execution.compile_cache'
_DIGESTS = 'digests.json'
# As JAX names them; whatever else is in the folder is none of ours.
_ENTRY = re.compile(r'\w+-[0-9a-f]{64}-cache')
# JAX's complaint: a program, and the reason.
_UNWRITTEN = re.compile(
  r"Error writing persistent compilation cache entry for '(\w+)': "
  r'(?:\w+: (?:\[Errno \d+\] )?)?([^:\n]*)'
)


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

  A program that cannot be kept, on a full disk say, is only compiled.

  Args:
    folder: '' for no cache.
    say: told about bad entries, which are removed, and about what was not kept.

  Raises:
    UsageError: the folder is not private, or cannot be made or written to.
  """
  with contextlib.ExitStack() as stack:
    path = _locked(folder, say, stack) if folder else None
    known = _sound_entries(path, folder, say) if path else None
    if known is None:
      yield
      return
    unwritten = {}
    try:
      with _enabled(path), _noting(unwritten):
        yield
    finally:
      unwritten |= _keep(path, known, unwritten)
      if unwritten:
        reasons = ', '.join(dict.fromkeys(unwritten.values()))
        say(f'compile cache: {", ".join(unwritten)} not kept in {folder}: {reasons}')


def _locked(
  folder: str, say: Callable[[str], None], stack: contextlib.ExitStack
) -> pathlib.Path | None:
  """The folder, ours until the stack is closed; None, which is said, if it is not."""
  check(folder)
  path = config_lib.expand(_KNOB, folder).absolute()
  try:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = stack.enter_context((path / '.lock').open('a'))
  except OSError as error:
    if error.errno in storage.FULL:
      say(f'compile cache: not used, {folder} cannot be written: {error.strerror}')
      return None
    problem = f'--{_KNOB}={folder!r} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    say(f'compile cache: waiting for the process that fills {folder}')
    fcntl.flock(lock, fcntl.LOCK_EX)
  except OSError as error:  # some network file systems have no locks
    say(f'compile cache: not used, {folder} cannot be locked: {error.strerror}')
    return None
  return path


def _sound_entries(
  path: pathlib.Path, folder: str, say: Callable[[str], None]
) -> dict[str, str] | None:
  """Removes the others; name -> digest, or None, which is said, if it cannot."""
  try:
    known, num_bad = _remove_bad(path)
  except OSError as error:
    say(f'compile cache: not used, a bad entry of {folder} stays: {error.strerror}')
    return None
  if num_bad:
    say(f'compile cache: {num_bad} bad entries removed from {folder}')
  return known


@contextlib.contextmanager
def _enabled(path: pathlib.Path) -> Iterator[None]:
  """JAX uses the folder."""
  jax.config.update('jax_compilation_cache_dir', str(path))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  # Nothing but entries in the folder.
  jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
  try:
    yield
  finally:
    jax.config.update('jax_compilation_cache_dir', None)
    compilation_cache.reset_cache()


@contextlib.contextmanager
def _noting(unwritten: dict[str, str]) -> Iterator[None]:
  """Adds the programs that JAX warns it cannot write: program -> reason."""
  told = []
  try:
    with warnings.catch_warnings(record=True) as told:
      warnings.filterwarnings('always', _UNWRITTEN.pattern)
      yield
  finally:
    for one in told:
      if match := _UNWRITTEN.match(str(one.message)):
        unwritten[match[1]] = match[2]
      else:
        warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def _entries(path: pathlib.Path) -> list[pathlib.Path]:
  return [file for file in path.iterdir() if _ENTRY.fullmatch(file.name)]


def _digest(file: pathlib.Path) -> str:
  return hashlib.sha256(file.read_bytes()).hexdigest()


def _remove_bad(path: pathlib.Path) -> tuple[dict[str, str], int]:
  """Removes what is no file, or not as it was written.

  Returns:
    name -> digest of what is left, and how many were removed.

  Raises:
    OSError: one cannot be removed, such as a folder.
  """
  files = [*_entries(path), path / _DIGESTS]
  strange = [file for file in files if os.path.lexists(file) and not _is_file(file)]
  for thing in strange:
    thing.unlink()  # not a folder, with who knows what in it: that raises
  known, found = _read_digests(path), {f: _digest(f) for f in _entries(path)}
  bad = [file for file, digest in found.items() if known.get(file.name) != digest]
  for file in bad:
    file.unlink()
  whole = {file.name: digest for file, digest in found.items() if file not in bad}
  return whole, len(strange) + len(bad)


def _is_file(path: pathlib.Path) -> bool:
  """Whether it is one itself: a link may lead anywhere, a pipe is waited for."""
  return stat.S_ISREG(path.lstat().st_mode)


def _read_digests(path: pathlib.Path) -> dict[str, str]:
  try:
    known = json.loads((path / _DIGESTS).read_text())
  except (FileNotFoundError, ValueError):
    return {}
  return known if isinstance(known, dict) else {}


def _keep(
  path: pathlib.Path, known: dict[str, str], unwritten: dict[str, str]
) -> dict[str, str]:
  """Writes the digests of what is new, or else removes it; removes what is torn.

  To be called while the folder is locked, so that no entry is half written.

  Returns:
    program -> why its digest could not be written.
  """
  new = []
  try:
    for file in _entries(path):
      if _program(file) in unwritten and file.name not in known:
        file.unlink()
      elif file.name not in known:
        new.append(file)
    if new:
      digests = known | {file.name: _digest(file) for file in new}
      with storage.whole(path / _DIGESTS) as partial:
        partial.write_text(json.dumps(digests, indent=2) + '\n')
  except OSError as error:
    for file in new:
      with contextlib.suppress(OSError):
        file.unlink()
    return {_program(file): error.strerror for file in new}
  return {}


def _program(file: pathlib.Path) -> str:
  """'jit_evaluate' of 'jit_evaluate-<key>-cache'."""
  return file.name.partition('-')[0]
