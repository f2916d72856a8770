"""Shows lines, and what takes long: on a terminal below a bar, otherwise as lines.

What takes long is shown with its seconds: on a terminal at the bottom, in a file by a
line whenever nothing was printed for SILENT_SECONDS. It does not load JAX: whoever
loads data shows it here.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from rich import progress
from rich.console import Console as Terminal
from rich.console import Group
from rich.live import Live

from moon_jax.core import activity
from moon_jax.core.errors import printable
from moon_jax.platform import hosts

SILENT_SECONDS = 30.0  # in a file; then a line says what the run is doing
_BRIEF_SECONDS = 2.0  # what takes less is not shown on a terminal


class Screen:
  """Standard output, or another terminal or file.

  Attributes:
    bar: the bar of the rounds; a terminal shows it once it has a task.
    is_terminal: whether it is a terminal, which shows the bar.
    is_notebook: whether it is a notebook.
  """

  def __init__(
    self,
    terminal: Terminal | None = None,
    lines_of_sweep: dict[str, str] | None = None,
  ):
    """Prints nothing yet.

    Args:
      terminal: where it prints; None: standard output.
      lines_of_sweep: see `start.run`.
    """
    self._lines_of_sweep = {} if lines_of_sweep is None else lines_of_sweep
    self._terminal = terminal or Terminal(
      highlight=False,
      soft_wrap=True,
      markup=False,
      emoji=False,
      quiet=not hosts.is_first(),
    )
    self.is_notebook = self._terminal.is_jupyter
    self.is_terminal = (
      self._terminal.is_terminal and not self.is_notebook and not self._terminal.quiet
    )
    self.bar = progress.Progress(
      '{task.description}',
      progress.MofNCompleteColumn(),
      progress.BarColumn(14),
      progress.TimeElapsedColumn(),
      progress.TimeRemainingColumn(),
      '{task.fields[news]}',
      console=self._terminal,
    )
    self._live = None
    if self.is_terminal:
      self._live = Live(
        get_renderable=self._bar_and_activity,
        console=self._terminal,
        refresh_per_second=2,
      )
    self._line_begun = ''  # on a terminal, until its end is known
    self._is_in_line = False  # in a file
    self._spoken_at = time.monotonic()
    self._printing = threading.RLock()
    self._ended = threading.Event()

  def say_once(self, line: str) -> None:
    """Prints a line, unless the sweep's last line of its kind says the same.

    Args:
      line: its kind is what stands before the first colon, as in 'model: ...'.
    """
    kind = line.partition(':')[0]
    if self._lines_of_sweep.get(kind) != line:
      self._lines_of_sweep[kind] = line
      self.say(line)

  def say(self, text: str, end: str = '\n') -> None:
    """Prints one line, or the beginning of one."""
    with self._printing:
      if self._live and not end:
        self._line_begun = text
        return
      self._terminal.print(printable(self._line_begun + text), end=end)
      self._line_begun = ''
      self._is_in_line = not end
      self._spoken_at = time.monotonic()

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Inside, whatever takes long is shown with its seconds."""
    if self._live:
      self._live.start()
      watcher = None
    else:
      watcher = threading.Thread(target=self._watch, name='console', daemon=True)
      watcher.start()
    try:
      yield
    finally:
      self.close()
      if watcher:
        watcher.join()

  def _watch(self):
    """Says what the run is doing whenever nothing was said for a while."""
    while True:
      seconds_left = self._spoken_at + SILENT_SECONDS - time.monotonic()
      if self._ended.wait(max(seconds_left, 0.01)):
        return
      with self._printing:
        is_silent = time.monotonic() - self._spoken_at >= SILENT_SECONDS
        doing = activity.current()
        if not is_silent or doing is None or self._ended.is_set():
          continue
        if self._is_in_line:
          # The line goes on: 'compiling one round and one test ... 30 s ... 60 s ... '
          self.say(f'{time.monotonic() - doing.begun_at:.0f} s ... ', end='')
        else:
          self.say(doing.describe())

  def _bar_and_activity(self):
    """What is at the bottom of a terminal."""
    lines = [self.bar.get_renderable()] if self.bar.tasks else []
    doing = activity.current()
    if doing and time.monotonic() - doing.begun_at >= _BRIEF_SECONDS:
      lines.append(printable(doing.describe()))
    return Group(*lines)

  def close(self) -> None:
    """Ends the bar."""
    self._ended.set()
    if self._live:
      self._live.stop()
