"""Refuses what cannot fit in the machine's memory, before it is allocated."""

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
