"""Errors in functions of the user's own parts, as one line that names the place."""

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from moon_jax.core.errors import RunError, UsageError

_PACKAGE_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), '')
_LIBRARY_FOLDERS = tuple(map(sysconfig.get_path, ('stdlib', 'purelib', 'platlib')))


@contextlib.contextmanager
def explaining_errors_of(*parts: Any) -> Iterator[None]:
  """Turns an error of the block into one line that names the parts that may cause it.

  Args:
    parts: parts whose functions the block calls, or whose results it uses. Only those
      that users registered are named; without such a part, the error stays as it is.

  Raises:
    UsageError: the block failed. It names the line of the part's file, or of another
      file of the user's, or the line of this package that uses what the part returned.
  """
  try:
    yield
  except Exception as error:
    user_parts = [part for part in parts if part.registered]
    if not user_parts or isinstance(error, RunError):
      raise
    names = ' or the '.join(f'{part.kind} {part.name!r}' for part in user_parts)
    source_files = [part.registered.get('origin') for part in user_parts]
    location = _location(traceback.extract_tb(error.__traceback__), source_files)
    kind = type(error).__name__
    problem = f'The {names} failed{location}: {kind}: {_reason(error)}'
    raise UsageError(problem) from error


def _reason(error: Exception) -> str:
  """The first line of a message; if it ends with a colon, the second one too."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  num_lines = 2 if lines and lines[0].endswith(':') else 1
  return ' '.join(lines[:num_lines])


def _location(
  frames: Sequence[traceback.FrameSummary], source_files: Sequence[str | None]
) -> str:
  """Where an error arose, as the end of 'The model ... failed'.

  Args:
    frames: the calls that led to the error, the innermost last.
    source_files: the files of the parts.
  """
  for frame in reversed(frames):
    if os.path.realpath(frame.filename) in source_files:
      return f', line {frame.lineno}'
  for frame in reversed(frames):
    if frame.filename.startswith(_PACKAGE_FOLDER):
      # A `raise` of this package has a message that says more than its line.
      return '' if frame.line.startswith('raise ') else f' at `{frame.line}`'
    if not frame.filename.startswith(_LIBRARY_FOLDERS):
      return f' in {os.path.basename(frame.filename)}, line {frame.lineno}'
  return ''
