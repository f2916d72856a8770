"""Draws the test examples of data that have no test split."""

from collections.abc import Hashable, Sequence

import numpy as np

from moon_jax.core.errors import KnobError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import share_of

_DRAW = 8  # of Purpose.SUBSET: smaller numbers are for limits and made-up users


def is_test(kinds: Sequence[Hashable], fraction: float, seed: int) -> np.ndarray:
  """[M] bool, which examples are drawn: a fraction of each kind.

  At least one example of each kind is drawn, and at least one is not; a single one is
  not.

  Args:
    kinds: [M] the kind of each example, such as its class.
    fraction: fraction of the examples of each kind, above 0.
    seed: seed of the draw.

  Raises:
    KnobError: every kind has a single example, so none is drawn.
  """
  rng = host_rng(seed, Purpose.SUBSET, _DRAW)
  rows_by_kind = {}
  for row, kind in enumerate(kinds):
    rows_by_kind.setdefault(kind, []).append(row)
  drawn = np.zeros(len(kinds), bool)
  for rows in rows_by_kind.values():
    num_test = min(max(share_of(len(rows), fraction), 1), len(rows) - 1)
    drawn[rng.permutation(rows)[:num_test]] = True
  if not drawn.any():
    raise KnobError(
      'data.test_fraction',
      fraction,
      f'draws nothing: each of the {len(rows_by_kind)} classes, or users, has a single '
      'example, which trains.',
    )
  return drawn
