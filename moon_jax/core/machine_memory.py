"""Refuses what cannot fit in the machine's memory, before it is allocated."""

import errno
import os
from typing import Any

from moon_jax.core.errors import KnobError


def total_bytes() -> int:
  """Bytes of the machine's memory."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def require_room(knob: str, value: Any, num_bytes: int, purpose: str) -> None:
  """Checks a lower bound of what a knob's value will take.

  Args:
    knob: dotted name of the knob that decides.
    value: its value.
    num_bytes: how many bytes there will be at least.
    purpose: what they are: 'the weights of the network'.

  Raises:
    KnobError: the machine does not have as much.
  """
  total = total_bytes()
  if num_bytes > total:
    raise KnobError(
      knob,
      value,
      f'needs {num_bytes / 2**30:,.0f} GiB for {purpose}, and the machine has '
      f'{total / 2**30:,.0f}: lower it.',
    )


def compared(num_bytes: int) -> str:
  """So many bytes beside those of the machine, for a message."""
  total = total_bytes() / 2**30
  return f'{num_bytes / 2**30:,.0f} GiB, and the machine has {total:,.0f}'


def require_file_fits(path: str | os.PathLike, num_bytes: int) -> None:
  """Checks a lower bound of what the content of a file takes, before it is read.

  A small file may declare, or be compressed from, any number of bytes; a file of holes
  takes no space on the disk.

  Args:
    path: the file.
    num_bytes: how many bytes its content has at least.

  Raises:
    OSError: the machine does not have as much.
  """
  if num_bytes > total_bytes():
    problem = f'Its content takes {compared(num_bytes)}'
    raise OSError(errno.EFBIG, problem, os.fspath(path))
