"""The error of unusable data: one line that says what to do."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from moon_jax.core.errors import UsageError, printable


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
  return ', '.join(printable(str(name)) for name in [*names][:20]) or 'nothing'
