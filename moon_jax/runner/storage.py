"""What if a file cannot be written? Whole files or none, and one line that says why."""

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from rich import filesize

from moon_jax.errors import RunError, UsageError

PARTIAL = '.partial'
# Not for good: with more space, or a larger quota, the same can be written.
FULL = (errno.ENOSPC, errno.EDQUOT)
_FEW_FILES = 1000


def require_writable(workdir: pathlib.Path) -> None:
  """Writes a byte in the run directory, or where it is to be made; leaves nothing.

  Raises:
    UsageError: it is a file, or nothing can be written there.
    RunError: the disk is full.
  """
  flag = f'--workdir={str(workdir)!r}'
  try:
    if workdir.exists() and not workdir.is_dir():
      raise UsageError(f'{flag} is a file.')
    with tempfile.TemporaryFile(dir=_nearest(workdir), buffering=0) as file:
      file.write(b'.')
  except OSError as error:
    if error.errno in FULL:
      raise failure(workdir, error.strerror) from None
    raise UsageError(f'{flag} cannot be written: {error.strerror}.') from None


def require_space(path: pathlib.Path, num_bytes: int) -> None:
  """Raises RunError unless so much is free: better than to fail half way."""
  if _free(path) < num_bytes:
    raise failure(path, os.strerror(errno.ENOSPC), num_bytes)


@contextlib.contextmanager
def writing(path: pathlib.Path, num_bytes: int | None = None) -> Iterator[None]:
  """Makes an OSError a RunError that names the path and the reason.

  Args:
    path: what is written inside the `with`.
    num_bytes: how much it needs, if that is known.
  """
  try:
    yield
  except OSError as error:
    raise failure(path, error.strerror or str(error), num_bytes) from error


def failure(path: pathlib.Path, reason: str, num_bytes: int | None = None) -> RunError:
  """The error that a path could not be written.

  Args:
    path: of the file or folder.
    reason: in the words of `os.strerror`; that the disk is full is explained.
    num_bytes: how much it needs, if that is known.
  """
  kept = 'What was saved before is kept'
  if reason not in [os.strerror(number) for number in FULL]:
    return RunError(f'{path} cannot be written: {reason}. {kept}.')
  lack = _lack(path, num_bytes)
  return RunError(
    f'{path} cannot be written: {reason} ({lack}). {kept}, and the same command goes '
    'on from there.'
  )


def _lack(path: pathlib.Path, num_bytes: int | None) -> str:
  """What a full file system has too little of: files, or bytes and how many."""
  free, about = _free(path), os.statvfs(_nearest(path))
  # Some count no files.
  if about.f_files and not about.f_favail and free >= (num_bytes or 1):
    return 'the file system has no room for more files'
  if num_bytes is None:
    return f'{filesize.decimal(free)} free'
  sizes = (num_bytes, free)
  # As many digits as it takes to tell one from the other.
  shown = [
    [filesize.decimal(size, precision=digits) for size in sizes]
    for digits in range(1, 16)
  ]
  need, room = next((two for two in shown if two[0] != two[1]), shown[0])
  if num_bytes > free:
    return f'{need} needed, {room} free'
  # The file system and orbax write more than these bytes, or a checkpoint, removed by
  # now, has more files.
  files = f' and {about.f_favail} files' if 0 < about.f_favail < _FEW_FILES else ''
  return f'more than {need} needed, {room}{files} free'


@contextlib.contextmanager
def replacing(
  path: pathlib.Path, num_bytes: int | None = None
) -> Iterator[pathlib.Path]:
  """Yields the path to write to; it takes the place of the old file in one step.

  A failure leaves the old file, and nothing else.

  Raises:
    RunError: it cannot be written.
  """
  with writing(path, num_bytes), whole(path) as partial:
    yield partial


@contextlib.contextmanager
def whole(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """As `replacing`, for those who can do without the file: an OSError stays one."""
  partial = path.with_name(path.name + PARTIAL)
  try:
    yield partial
    os.replace(partial, path)
  except BaseException:
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)
    raise


def replace(path: pathlib.Path, text: str) -> None:
  """Replaces a file by a text, wholly or not at all."""
  content = text.encode()
  with replacing(path, len(content)) as partial:
    partial.write_bytes(content)


def _free(path):
  """Bytes that this user may still write there."""
  return shutil.disk_usage(_nearest(path)).free


def _nearest(path: pathlib.Path) -> pathlib.Path:
  """The path itself, or the nearest folder above it that is there."""
  path = path.absolute()
  return next(place for place in (path, *path.parents) if place.exists())
