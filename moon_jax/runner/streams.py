"""Lets a run go on when nobody takes its output: `| head`, or a closed terminal."""

import contextlib
import io
import os
import sys

_STDERR = 2
# The progress bar hides it.
_SHOW_CURSOR = '\r\x1b[?25h\n'


def outlive() -> None:
  """From now on output that cannot be written is lost; to be called first of all."""
  if sys.stdout:
    sys.stdout = _text(sys.stdout, 'Standard output')
  if sys.stderr:
    sys.stderr = _text(sys.stderr, 'Standard error')


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


def _text(stream: io.TextIOWrapper, title: str) -> io.TextIOWrapper:
  """A stream as Python opened it, on a patient descriptor."""
  return io.TextIOWrapper(
    io.BufferedWriter(_Patient(stream.fileno(), title)),
    encoding=stream.encoding,
    # A folder's name may have characters that the terminal has not.
    errors='backslashreplace',
    line_buffering=stream.line_buffering,
    write_through=stream.write_through,
  )
