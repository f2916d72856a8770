"""Errors of the user's own parts, as one line that names the place."""

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from moon_jax.core.errors import RunError, UsageError

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), '')
_LIBRARIES = tuple(map(sysconfig.get_path, ('stdlib', 'purelib', 'platlib')))


@contextlib.contextmanager
def blamed(*parts: Any) -> Iterator[None]:
  """Turns an error into one line that names the registered ones of the parts, if any.

  Raises:
    UsageError: a function of a registered part failed; the line of its file, or of
      another one of the user's, is named, or the line here that uses what it returned.
  """
  try:
    yield
  except Exception as error:
    own = [one for one in parts if one.registered]
    if not own or isinstance(error, RunError):
      raise
    told = ' or the '.join(f'{one.kind} {one.name!r}' for one in own)
    origins = [one.registered.get('origin') for one in own]
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if os.path.realpath(f.filename) in origins]
    where = f', line {lines[-1]}' if lines else _place_of(frames)
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = ' '.join(said[: 2 if said and said[0].endswith(':') else 1])
    problem = f'The {told} failed{where}: {type(error).__name__}: {reason}'
    raise UsageError(problem) from error


def _place_of(frames: Sequence[traceback.FrameSummary]) -> str:
  """Where, below the libraries, an error arose."""
  inside = [f for f in frames if f.filename.startswith(_PACKAGE)]
  own = [f for f in frames if f in inside or not f.filename.startswith(_LIBRARIES)]
  last = own[-1]
  if last not in inside:
    return f' in {os.path.basename(last.filename)}, line {last.lineno}'
  return '' if last.line.startswith('raise ') else f' at `{last.line}`'
