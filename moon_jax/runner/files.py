"""Writes files wholly or not at all, and reads the JSON of a run directory."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from moon_jax import untrusted
from moon_jax.errors import NoCheckpointError, RunError, UsageError

PARTIAL = '.partial'
# Not for good: with more space, or a larger quota, the same can be written.
FULL = (errno.ENOSPC, errno.EDQUOT)
Document = dict[str, Any]


def require_writable(workdir: pathlib.Path) -> None:
  """Writes a byte in the run directory, or where it is to be made; leaves nothing.

  Raises:
    UsageError: it is a file, or nothing can be written there.
    RunError: the disk is full.
  """
  try:
    nearest = _nearest(workdir)
    str(workdir).encode()
    for part in workdir.absolute().relative_to(nearest).parts:
      with contextlib.suppress(FileNotFoundError):
        os.stat(nearest / part)
    with tempfile.TemporaryFile(dir=nearest, buffering=0) as file:
      file.write(b'.')
  except UnicodeEncodeError:
    raise UsageError(f'--workdir={str(workdir)!r} must be a name in UTF-8.') from None
  except OSError as error:
    if error.errno in FULL:
      raise failure(workdir, error.strerror) from None
    problem = f'--workdir={str(workdir)!r} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None


def failure(path: pathlib.Path, reason: str) -> RunError:
  """The error that a path could not be written, for a reason as of `os.strerror`."""
  return RunError(
    f'{path} cannot be written: {reason}. What was saved before is kept, and the same '
    'command goes on from there.'
  )


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Makes an OSError while the path is written a RunError that names both."""
  try:
    yield
  except OSError as error:
    raise failure(path, error.strerror or str(error)) from error


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Yields a new file, which takes the place of the old one in one step, on disk.

  A failure leaves the old file, and nothing else. Nothing is written through a link.

  Raises:
    RunError: it cannot be written.
  """
  partial = path.with_name(path.name + PARTIAL)
  with writing(path):
    try:
      partial.unlink(missing_ok=True)
      with partial.open('xb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      os.replace(partial, path)
      flush(path.parent)
    finally:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def flush(path: pathlib.Path) -> None:
  """Waits until a file, or the names in a folder, are on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  os.fsync(descriptor)
  os.close(descriptor)


def make_folder(path: pathlib.Path) -> None:
  """Makes a folder, and those above it, unless it is there; on disk."""
  with writing(path):
    top, path = _nearest(path), path.absolute()
    path.mkdir(parents=True, exist_ok=True)
    while path != top:
      path = path.parent
      flush(path)


def replace(path: pathlib.Path, text: str) -> None:
  """Replaces a file by a text, wholly or not at all."""
  with replacing(path) as file:
    file.write(text.encode())


def write_json(path: pathlib.Path, content: Document) -> None:
  """Replaces a file by a JSON document, wholly or not at all."""
  replace(path, json.dumps(content, indent=2) + '\n')


def read_json(path: pathlib.Path) -> Document | None:
  """The object in a JSON file; None if there is no such file.

  Raises:
    NoCheckpointError: it cannot be read, or is not an object, or of another shape.
  """
  data = _read(path)
  return None if data is None else _parse(path, data)


def read_lines(path: pathlib.Path) -> list[Document]:
  """The objects of a .jsonl file; [] if there is none.

  A crash may leave the last line half written: without its end it does not count.

  Raises:
    NoCheckpointError: it cannot be read, or a line is not an object of its shape.
  """
  lines = (_read(path) or b'').splitlines(keepends=True)
  return [_parse(path, line) for line in lines if line.endswith(b'\n')]


def below(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """What is below a folder, in which another process may make and remove things."""
  for root, folders, names in os.walk(folder):
    yield from (pathlib.Path(root, name) for name in (*folders, *names))


def sha256(path: pathlib.Path) -> str:
  """The digest of a file's content, in hexadecimal."""
  with untrusted.opened(path) as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _read(path: pathlib.Path) -> bytes | None:
  try:
    with untrusted.opened(path) as file:
      return file.read()
  except (FileNotFoundError, NotADirectoryError):
    return None
  except OSError as error:
    raise NoCheckpointError(f'{path} cannot be read: {error.strerror}.') from None


def _parse(path: pathlib.Path, data: bytes) -> Document:
  try:
    return untrusted.document(path, data)
  except ValueError as error:
    raise NoCheckpointError(f'{path} is damaged: {error}') from None


def _nearest(path: pathlib.Path) -> pathlib.Path:
  """The path itself, or the nearest folder above it that is there."""
  path = path.absolute()
  return next(place for place in (path, *path.parents) if place.exists())
