"""The errors that end a run, their exit codes, and hints at misspellings."""

import contextlib
import difflib
import enum
import functools
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
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
  # Whether every process of the run raises it, or has been told of it.
  is_everywhere = False


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


class ConfigError(UsageError):
  """Everything wrong with a configuration.

  Attributes:
    problems: one line for each mistake.
  """

  def __init__(self, problems: Iterable[str]):
    # A name or a config file's own message may hold line breaks.
    self.problems = tuple(' '.join(problem.splitlines()) for problem in problems)
    super().__init__('\n'.join(self.problems))


class NoCheckpointError(RunError):
  """The run directory holds no checkpoint that can be used."""

  exit_code = ExitCode.NO_CHECKPOINT


class DivergedError(RunError):
  """A result of a round became NaN or infinite."""

  exit_code = ExitCode.DIVERGED


class _UnfailingStream:
  """A standard stream to which writing never fails.

  Once the stream cannot be written, as after `| head`, the text is dropped. It is
  dropped from the start if there is no stream, as after `>&-`.
  """

  def __init__(self, stream: TextIO | None, escape: Callable[[str], str] = str):
    """escape: replaces what must not reach the terminal."""
    self._stream = io.StringIO() if stream is None else stream
    self._escape = escape
    self._encoding = self._stream.encoding or 'utf-8'

  def __getattr__(self, name):
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    # The name of a folder may have characters that the terminal cannot show.
    encoded = self._escape(text).encode(self._encoding, 'backslashreplace')
    try:
      self._stream.write(encoded.decode(self._encoding))
      self._stream.flush()
    except OSError:
      os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
    return len(text)


def exit_code_of(program: Callable[[], int]) -> int:
  """Runs a program; returns its exit code. An error of the user is one clear line.

  A reader that quits, or a log on a full disk, does not end the program. Escape
  sequences in names and files are shown as text, so they cannot command the terminal.
  """
  escape = functools.partial(printable, allowed='\n')
  with (
    contextlib.redirect_stdout(_UnfailingStream(sys.stdout)),
    contextlib.redirect_stderr(_UnfailingStream(sys.stderr, escape)),
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

  A UserWarning of the program is a line; see `warnings_as_lines`.

  Args:
    argv: the words after the program's name.
    page: the page of help.
    text: function that does the program's work and returns a line to print.

  Returns:
    The exit code; an error of the user is one clear line.
  """

  def program() -> int:
    asks_for_help = not {'-h', '--help'}.isdisjoint(argv)
    with warnings_as_lines():
      print(page.strip() if asks_for_help else printable(text()))
    return ExitCode.DONE

  return exit_code_of(program)


@contextlib.contextmanager
def warnings_as_lines(prefix: str = '') -> Iterator[None]:
  """Inside, a UserWarning is printed to standard error without its place in the code.

  A message that comes from one place again and again is printed once.

  Args:
    prefix: text that is printed before a message.
  """
  with warnings.catch_warnings():
    warnings.simplefilter('default', UserWarning)
    show_with_place = warnings.showwarning

    def show(message, category, filename, lineno, file=None, line=None):
      if issubclass(category, UserWarning):
        print(f'{prefix}{message}', file=sys.stderr)
      else:
        show_with_place(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    yield


def printable(text: str, allowed: str = '') -> str:
  """The text with characters that command a terminal escaped: \\x1b.

  Args:
    text: any text.
    allowed: control characters that stay, such as the end of a line.
  """
  return ''.join(
    letter if letter.isprintable() or letter in allowed else ascii(letter)[1:-1]
    for letter in text
  )


def nearest_name_hint(word: str, names: Iterable[str]) -> str:
  """' Did you mean X?' for the nearest name, '' if none is near.

  >>> nearest_name_hint('mon', ['moon', 'fedavg'])
  " Did you mean 'moon'?"
  """
  nearest = difflib.get_close_matches(word.lower(), names, n=1)
  return f' Did you mean {nearest[0]!r}?' if nearest else ''
