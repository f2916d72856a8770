"""The error of unusable data: one line that says what to do."""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from moon_jax.core.errors import UsageError, printable

_MOST_LETTERS = 200  # of a name in a message


class DataError(UsageError):
  """The data cannot be used. The message is one line and says what to do."""


@contextlib.contextmanager
def one_line(problem: str) -> Iterator[None]:
  """Makes any error a DataError: TFDS raises a dozen kinds, some of them pages long.

  Args:
    problem: what is wrong; the error's class and its first line follow.
  """
  try:
    yield
  except (UsageError, MemoryError):
    raise
  except Exception as error:
    first_line = re.sub(' at 0x[0-9a-f]+', '', str(error).strip().partition('\n')[0])
    raise DataError(f'{problem}: {type(error).__name__}: {first_line}') from error


def listed(names: Iterable[Any]) -> str:
  """The first names that some data have, for a message."""
  shortened = [str(name)[:_MOST_LETTERS] for name in itertools.islice(names, 20)]
  return ', '.join(map(printable, shortened)) or 'nothing'
