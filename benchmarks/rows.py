"""A line of the table, and what stands there when the minutes are over."""

import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
  """A line of the table.

  Attributes:
    measured: what was measured.
    value: the result, in words.
    bar: what was aimed at, in words; '' without an aim.
  """

  measured: str
  value: str
  bar: str


def until(end: float, name: str, measure: Callable) -> list[Row]:
  """The rows that measure(seconds=...) returns, or one that says why there are none.

  end: on time.monotonic's clock.
  """
  seconds_left = end - time.monotonic()
  if seconds_left <= 0:
    return [Row(name, 'not run: the minutes were over', '')]
  try:
    return list(measure(seconds=seconds_left))
  except subprocess.TimeoutExpired:
    return [Row(name, f'not run to its end in the {seconds_left:.0f} s left', '')]
  except subprocess.CalledProcessError as error:
    return [Row(name, f'failed with exit code {error.returncode}', '')]
