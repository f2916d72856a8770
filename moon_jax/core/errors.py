"""The errors that end a run, their exit codes, and hints at misspellings."""

import contextlib
import difflib
import enum
import functools
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from moon_jax.core.flags import flag


class ExitCode(enum.IntEnum):
  """The exit codes of `python launch.py`."""

  DONE = 0
  FAILED = 1
  USAGE = 2
  NO_CHECKPOINT = 3
  DIVERGED = 4
  PREEMPTED = 75
  INTERRUPTED = 130


class RunError(Exception):
  """Ends a run with one clear message; subclasses choose the exit code."""

  exit_code = ExitCode.FAILED
  everywhere = False  # whether every process raises it, or already knows of it


class UsageError(RunError, ValueError):
  """The configuration, the data or the command line is wrong."""

  exit_code = ExitCode.USAGE


class KnobError(UsageError):
  """The value of a knob cannot be used.

  Attributes:
    knob: dotted name of the knob, such as 'execution.lanes'.
    value: its value.
    problem: the rest of the sentence: 'must be at most 8 here.'
  """

  def __init__(self, knob: str, value: Any, problem: str):
    self.knob, self.value, self.problem = knob, value, problem
    super().__init__(f'{flag(knob, value)} {problem}')


class NoCheckpointError(RunError):
  """The run directory holds no checkpoint that can be used."""

  exit_code = ExitCode.NO_CHECKPOINT


class DivergedError(RunError):
  """A result of a round became NaN or infinite."""

  exit_code = ExitCode.DIVERGED


class _Stream:
  """A standard stream that never fails.

  Once it cannot be written, as after `| head`, what is written is dropped; so it is
  from the start if there is no stream, as after `>&-`.
  """

  def __init__(self, stream: TextIO | None, shown: Callable[[str], str] = str):
    self._stream, self._shown = stream or io.StringIO(), shown
    self._encoding = self._stream.encoding or 'utf-8'

  def __getattr__(self, name):
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    # The name of a folder may have characters that the terminal cannot show.
    known = self._shown(text).encode(self._encoding, 'backslashreplace')
    try:
      self._stream.write(known.decode(self._encoding))
      self._stream.flush()
    except OSError:
      os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
    return len(text)


def exit_code_of(program: Callable[[], int]) -> int:
  """Runs a program; returns its exit code. An error of the user is one clear line.

  A reader that quits, or a log on a full disk, does not end the program. Escape
  sequences in names and files are shown as text, so they cannot command the terminal.
  """
  shown = functools.partial(printable, kept='\n')
  with (
    contextlib.redirect_stdout(_Stream(sys.stdout)),
    contextlib.redirect_stderr(_Stream(sys.stderr, shown)),
  ):
    try:
      return program()
    except RunError as error:
      print(error, file=sys.stderr)
      return error.exit_code
    except MemoryError as error:
      print(f'Not enough memory. {error}', file=sys.stderr)
      return ExitCode.FAILED
    except KeyboardInterrupt:
      print('Interrupted.', file=sys.stderr)
      return ExitCode.INTERRUPTED


def print_or_help(argv: Sequence[str], page: str, text: Callable[[], str]) -> int:
  """Prints a program's page if the words ask for help, otherwise a text.

  Returns:
    The exit code; an error of the user is one clear line.
  """
  asked = {'-h', '--help'} & set(argv)
  told = page.strip if asked else text
  return exit_code_of(lambda: print(told()) or ExitCode.DONE)


def printable(text: str, kept: str = '') -> str:
  """The text with characters that command a terminal escaped: \\x1b.

  Args:
    text: any text.
    kept: control characters that stay, such as the end of a line.
  """
  shown = (c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)
  return ''.join(shown)


def did_you_mean(word: str, names: Iterable[str]) -> str:
  """' Did you mean X?' for the nearest name, '' if none is near.

  >>> did_you_mean('mon', ['moon', 'fedavg'])
  " Did you mean 'moon'?"
  """
  nearest = difflib.get_close_matches(word.lower(), names, n=1)
  return f' Did you mean {nearest[0]!r}?' if nearest else ''
