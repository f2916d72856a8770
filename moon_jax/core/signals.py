"""Ends the process on SIGTERM, SIGHUP and Ctrl-C, whatever its main thread is doing.

A thread acts on signals, because Python calls a handler between two instructions of the
main thread, which may wait inside the compiler, a library that reads a file, or for a
whole round of the device. Libraries also swallow the KeyboardInterrupt of a handler.

Programs listen before they import anything slow, so this module imports nothing slow.
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from moon_jax.core.errors import ExitCode, printable


class Ending(NamedTuple):
  """How a signal ends the process.

  Attributes:
    name: name of the signal, for messages.
    exit_code: exit code of the process.
  """

  name: str
  exit_code: ExitCode


ENDINGS = {
  signal.SIGTERM: Ending('SIGTERM', ExitCode.PREEMPTED),
  signal.SIGHUP: Ending('SIGHUP', ExitCode.PREEMPTED),
  signal.SIGINT: Ending('Ctrl-C', ExitCode.INTERRUPTED),
}
_PR_SET_PDEATHSIG = 1  # a constant of Linux
_STDERR = 2
_SHOW_CURSOR = '\r\x1b[?25h\n'  # a progress bar hides the cursor

_unfinished: set[pathlib.Path] = set()
_unfinished_lock = threading.Lock()


class StopAtOnce:
  """Ends the process at once when it is asked to stop.

  Attributes:
    advice: what the user can do next, for the last line.
  """

  advice = 'the same command begins anew.'

  def __init__(self):
    self._lock = threading.Lock()

  def request(self, number: signal.Signals) -> None:
    """Acts on a signal; called by the thread of `listen`."""
    with self._lock:
      self.end(number)

  def end(self, number: signal.Signals) -> None:
    """Ends the process with a line; nothing is left that was half written."""
    ending = ENDINGS[number]
    write_line(f'Stopped at once by {ending.name}; {self.advice}')
    with _unfinished_lock:  # the main thread must not get past this point, either
      for path in _unfinished:
        _remove(path)
      os._exit(ending.exit_code)


AnyStop = TypeVar('AnyStop', bound=StopAtOnce)


def listen(stop: AnyStop) -> AnyStop:
  """From now on SIGTERM, SIGHUP and Ctrl-C are requests to stop.

  A signal that the parent told the process to ignore (nohup, a shell's background job)
  stays ignored. Call this once, in the main thread.

  Args:
    stop: what acts on the requests.

  Returns:
    The same object.
  """
  receiver, sender = os.pipe()
  os.set_blocking(sender, False)
  signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
  for number in ENDINGS:
    if signal.getsignal(number) is not signal.SIG_IGN:
      # The handler does nothing, but without one Python writes nothing to the pipe.
      signal.signal(number, lambda number, frame: None)
      # System calls of libraries go on instead of failing with EINTR.
      signal.siginterrupt(number, False)

  def wait():
    while True:
      number = os.read(receiver, 1)[0]
      if number in ENDINGS:
        stop.request(signal.Signals(number))

  threading.Thread(target=wait, name='signals', daemon=True).start()
  return stop


def end_with_parent(parent: int) -> None:
  """Lets this process get SIGTERM when its parent has ended, or if it has already.

  Args:
    parent: process id of the parent. Only Linux tells that it ends later.
  """
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  if os.getppid() != parent:
    signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def unfinished(path: pathlib.Path) -> Iterator[None]:
  """Inside, a path is half written: a signal that ends the process removes it.

  Args:
    path: path of the file or folder, which nobody but this process uses.
  """
  with _unfinished_lock:
    _unfinished.add(path)
  try:
    yield
  finally:
    with _unfinished_lock:
      _unfinished.discard(path)


def _remove(path: pathlib.Path) -> None:
  with contextlib.suppress(OSError):
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)
    else:
      path.unlink()


def write_line(text: str) -> None:
  """Writes a line to standard error at once, whatever locks other threads hold."""
  start = _SHOW_CURSOR if os.isatty(_STDERR) else ''
  with contextlib.suppress(OSError):
    os.write(_STDERR, f'{start}{printable(text)}\n'.encode())
