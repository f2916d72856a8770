"""What if nothing can be printed? The run goes on: only what it says is lost.

A full disk, a reader that quits, a terminal that is gone, a stream that was never open.
"""

import contextlib
import errno
import io
import os
import select
import sys
from typing import TextIO

_STDOUT, _STDERR = 1, 2


def outlive() -> None:
  """From now on no standard stream can end the program; to be called first of all."""
  for descriptor in (0, _STDOUT, _STDERR):
    try:
      os.fstat(descriptor)
    except OSError:
      # Takes the lowest free number, which a file of the run must not get.
      os.open(os.devnull, os.O_RDWR)
  sys.stdout = _text(_Patient(_STDOUT, 'Standard output'), sys.stdout)
  sys.stderr = _text(_Patient(_STDERR, 'Standard error'), sys.stderr)


def tell(text: str) -> None:
  """Writes a line to standard error at once, whatever locks other threads hold.

  Not if that would have to wait for its reader.
  """
  with contextlib.suppress(OSError):
    if select.select([], [_STDERR], [], 0)[1]:
      os.write(_STDERR, f'{text}\n'.encode())


class _Patient(io.FileIO):
  """A standard stream's descriptor; drops what cannot be written, and says so once."""

  def __init__(self, descriptor: int, title: str):
    super().__init__(descriptor, 'w', closefd=False)
    self._title = title
    self._told = False

  def write(self, data) -> int:
    try:
      written = super().write(data)
    except OSError as error:
      return self._drop(data, error.errno)
    # None: the other side has set it non-blocking and does not read.
    return self._drop(data, errno.EAGAIN) if written is None else written

  def _drop(self, data, number):
    if not self._told:
      self._told = True
      tell(f'{self._title} cannot be written ({os.strerror(number)}); going on.')
    return len(data)


def _text(raw: io.FileIO, stream: TextIO | None) -> TextIO:
  """A stream as Python opened it, None if it was closed, on another descriptor."""
  return io.TextIOWrapper(
    io.BufferedWriter(raw),
    encoding=stream.encoding if stream else 'utf-8',
    # A folder's name may have characters that the terminal has not.
    errors='backslashreplace',
    line_buffering=bool(stream and stream.line_buffering),
    write_through=bool(stream and stream.write_through),
  )
