"""Draws the test examples of data that have no test split."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import KnobError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import share_of

_DRAW = 8  # of Purpose.SUBSET: smaller numbers are for limits and made-up users


class TestDraw(NamedTuple):
  """The knobs that say how the test examples are drawn.

  Attributes:
    test_fraction: fraction of the examples of each kind, such as a class or a user; 0
      if the data are divided already.
    test_seed: seed of the draw.
  """

  test_fraction: float = 0.0
  test_seed: int = 0


def is_test(kinds: Sequence[Hashable], draw: TestDraw) -> np.ndarray:
  """[M] bool, which examples are drawn: a fraction of each kind.

  At least one example of each kind is drawn, and at least one is not; a single one is
  not.

  Args:
    kinds: [M] the kind of each example, such as its class.
    draw: its fraction is above 0.

  Raises:
    KnobError: every kind has a single example, so none is drawn.
  """
  rng = host_rng(draw.test_seed, Purpose.SUBSET, _DRAW)
  rows_by_kind = {}
  for row, kind in enumerate(kinds):
    rows_by_kind.setdefault(kind, []).append(row)
  drawn = np.zeros(len(kinds), bool)
  for rows in rows_by_kind.values():
    num_test = min(max(share_of(len(rows), draw.test_fraction), 1), len(rows) - 1)
    drawn[rng.permutation(rows)[:num_test]] = True
  if not drawn.any():
    raise KnobError(
      'data.test_fraction',
      draw.test_fraction,
      f'draws nothing: each of the {len(rows_by_kind)} classes, or users, has a single '
      'example, which trains.',
    )
  return drawn
