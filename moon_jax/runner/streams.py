"""Lets a run go on when nobody takes its output: `| head`, or a closed terminal."""

import contextlib
import io
import os
import sys

from moon_jax.core.errors import printable

_STDERR = 2
# The progress bar hides it.
_SHOW_CURSOR = '\r\x1b[?25h\n'


def outlive() -> None:
  """From now on output that cannot be written is lost; to be called first of all.

  What goes to standard error commands no terminal, whatever names and files hold.
  """
  # Pictures are files: no display is asked for, so that no name of one can be wrong.
  os.environ.pop('MPLBACKEND', None)
  if sys.stdout:
    sys.stdout = _text(sys.stdout, 'Standard output')
  if sys.stderr:
    sys.stderr = _text(sys.stderr, 'Standard error', _Plain)


def tell(text: str) -> None:
  """Writes a line to standard error at once, whatever locks other threads hold."""
  start = _SHOW_CURSOR if os.isatty(_STDERR) else ''
  with contextlib.suppress(OSError):
    os.write(_STDERR, f'{start}{text}\n'.encode())


class _Patient(io.FileIO):
  """A standard stream's descriptor; drops what cannot be written, and says so once."""

  def __init__(self, descriptor: int, title: str):
    super().__init__(descriptor, 'w', closefd=False)
    self._title = title
    self._told = False

  def write(self, data) -> int:
    try:
      return super().write(data)
    except OSError as error:
      if not self._told:
        self._told = True
        tell(f'{self._title} cannot be written ({error.strerror}); going on.')
      return len(data)


class _Plain(io.TextIOWrapper):
  """Writes lines without what would command a terminal."""

  def write(self, text: str) -> int:
    return super().write('\n'.join(map(printable, text.split('\n'))))


def _text(stream: io.TextIOWrapper, title: str, kind=io.TextIOWrapper):
  """A stream as Python opened it, on a patient descriptor."""
  return kind(
    io.BufferedWriter(_Patient(stream.fileno(), title)),
    encoding=stream.encoding,
    # A folder's name may have characters that the terminal has not.
    errors='backslashreplace',
    line_buffering=stream.line_buffering,
    write_through=stream.write_through,
  )
