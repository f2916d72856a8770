"""Ends a run on SIGTERM, SIGHUP and Ctrl-C: after a round that is saved, or at once."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator

from moon_jax.core import signals
from moon_jax.core.errors import ExitCode, RunError
from moon_jax.platform import hosts


class StoppedError(RunError):
  """The run was asked to stop, and has saved its finished rounds."""

  def __init__(self, message: str, exit_code: ExitCode):
    super().__init__(message)
    self.exit_code = exit_code


class Stop(signals.StopAtOnce):
  """Whether the process was asked to stop.

  Outside `deferred` the process ends at once: files on disk are valid at every instant.
  Inside, the first request waits for `check`; a second one does not, unless it is
  SIGHUP, because the shell and the kernel of a closed terminal may send several.

  Attributes:
    command: command that continues the run.
  """

  def __init__(self):
    super().__init__()
    self.command = 'the same command'
    self._signal: signal.Signals | None = None
    self._may_wait = False
    self._workers: list[subprocess.Popen] = []

  @property
  def advice(self) -> str:
    """What the user can do next, for the last line."""
    return f'what was saved stays. To go on: {self.command}'

  @property
  def exit_code(self) -> ExitCode:
    """The exit code that a waiting request asks for; DONE if none waits here."""
    return signals.ENDINGS[self._signal].exit_code if self._signal else ExitCode.DONE

  def requested(self) -> bool:
    """Whether a request waits for `check`, in any process; all processes must ask."""
    numbers = [number for number in hosts.gather(self._signal) if number]
    if numbers:
      self._signal = signal.Signals(numbers[0])
    return bool(numbers)

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

  def pass_on_to(self, worker: subprocess.Popen) -> None:
    """From now on requests are sent to a worker, too; the first waits until it ends.

    Args:
      worker: a process that acts on signals as this one does, and does not get those of
        the terminal.
    """
    with self._lock:
      self._workers.append(worker)
      if self._signal:
        worker.send_signal(self._signal)

  def check(self, num_rounds: int) -> None:
    """Ends the run if a request waits; all processes call it when all is saved.

    Args:
      num_rounds: number of completed rounds.

    Raises:
      StoppedError: a request waits.
    """
    if self.requested():
      ending = signals.ENDINGS[self._signal]
      message = f'Stopped by {ending.name} after round {num_rounds}, which is saved. '
      raise StoppedError(f'{message}To go on: {self.command}', ending.exit_code)

  def request(self, number: signal.Signals) -> None:
    """Acts on a signal; called by the thread of `listen`."""
    with self._lock:
      if self._signal and number == signal.SIGHUP:
        return
      running_workers = [worker for worker in self._workers if worker.poll() is None]
      for worker in running_workers:
        worker.send_signal(number)
      # If there are several processes, one stops all others: they learn it within a
      # round.
      may_wait = self._may_wait or running_workers or hosts.count() > 1
      if may_wait and not self._signal:
        self._signal = number
        signals.write_line(
          f'{signals.ENDINGS[number].name}: saving after this round; SIGTERM or Ctrl-C '
          'now stops at once.'
        )
        return
      # Under the lock: the main thread must not get past this point.
      self.end(number)
