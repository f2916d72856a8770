"""Ends a run on SIGTERM, SIGHUP and Ctrl-C: after a round that is saved, or at once.

A thread acts on signals, because Python calls a handler between two instructions of the
main thread, which may wait inside the compiler or for a whole round of the device.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from moon_jax.core.errors import ExitCode, RunError, printable
from moon_jax.platform import hosts

# Number -> its name, and the exit code.
_ENDINGS = {
  signal.SIGTERM: ('SIGTERM', ExitCode.PREEMPTED),
  signal.SIGHUP: ('SIGHUP', ExitCode.PREEMPTED),
  signal.SIGINT: ('Ctrl-C', ExitCode.INTERRUPTED),
}


_STDERR = 2
_SHOW_CURSOR = '\r\x1b[?25h\n'  # the progress bar hides the cursor


class StoppedError(RunError):
  """The run was asked to stop, and has saved its finished rounds."""

  def __init__(self, message: str, exit_code: ExitCode):
    super().__init__(message)
    self.exit_code = exit_code


class Stop:
  """Whether the process was asked to stop.

  Outside `deferred` the process ends at once: files on disk are valid at every instant.
  Inside, the first request waits for `check`; a second one does not, unless it is
  SIGHUP, because the shell and the kernel of a closed terminal may send several.

  Attributes:
    command: command that continues the run.
  """

  def __init__(self):
    self.command = 'the same command'
    self._signal = None
    self._may_wait = False
    self._lock = threading.Lock()

  def requested(self) -> bool:
    """Whether a request waits for `check`, in any process; all processes must ask."""
    signals = [number for number in hosts.gather(self._signal) if number]
    if signals:
      self._signal = signal.Signals(signals[0])
    return bool(signals)

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """A request that arrives inside waits for `check`."""
    with self._lock:
      self._may_wait = True
    try:
      yield
    finally:
      with self._lock:
        self._may_wait = False

  def check(self, num_rounds: int) -> None:
    """Ends the run if a request waits; all processes call it when all is saved.

    Args:
      num_rounds: number of completed rounds.

    Raises:
      StoppedError: a request waits.
    """
    if self.requested():
      name, exit_code = _ENDINGS[self._signal]
      message = f'Stopped by {name} after round {num_rounds}, which is saved. '
      raise StoppedError(f'{message}To go on: {self.command}', exit_code)

  def request(self, number: signal.Signals) -> None:
    """Acts on a signal; called by the thread of `listen`."""
    name, exit_code = _ENDINGS[number]
    with self._lock:
      # If there are several processes, one stops all others: they learn it within a
      # round.
      if (self._may_wait or hosts.count() > 1) and not self._signal:
        self._signal = number
        _write_line(
          f'{name}: saving after this round; SIGTERM or Ctrl-C now stops at once.'
        )
        return
      if self._signal and number == signal.SIGHUP:
        return
      # Under the lock: the main thread must not get past this point.
      _write_line(
        f'Stopped at once by {name}; what was saved stays. To go on: {self.command}'
      )
      os._exit(exit_code)


def _write_line(text: str) -> None:
  """Writes a line to standard error at once, whatever locks other threads hold."""
  start = _SHOW_CURSOR if os.isatty(_STDERR) else ''
  with contextlib.suppress(OSError):
    os.write(_STDERR, f'{start}{printable(text)}\n'.encode())


def listen() -> Stop:
  """From now on SIGTERM, SIGHUP and Ctrl-C are requests to stop.

  A signal that the parent told the process to ignore (nohup, a shell's background job)
  stays ignored. Call this once, in the main thread.
  """
  stop = Stop()
  receiver, sender = os.pipe()
  os.set_blocking(sender, False)
  signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
  for number in _ENDINGS:
    if signal.getsignal(number) is not signal.SIG_IGN:
      # The handler does nothing, but without one Python writes nothing to the pipe.
      signal.signal(number, lambda number, frame: None)
      # System calls of libraries go on instead of failing with EINTR.
      signal.siginterrupt(number, False)

  def wait():
    while True:
      number = os.read(receiver, 1)[0]
      if number in _ENDINGS:
        stop.request(signal.Signals(number))

  threading.Thread(target=wait, name='signals', daemon=True).start()
  return stop
