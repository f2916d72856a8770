"""Which clients can be drawn in a round. Plain NumPy.

An availability is a function (client sizes [N], its knobs) -> `Available`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand


class Available(NamedTuple):
  """The clients that can be drawn in each round.

  Attributes:
    of_round: round, from 0 -> [N] float64, the probability of each client in a single
      draw; they sum to 1, and are 0 for absent clients. None: all are equal.
    period: number of rounds after which it repeats.
  """

  of_round: Callable[[int], np.ndarray | None]
  period: int


EVERYONE = Available(of_round=lambda round_index: None, period=1)


def uniform(sizes: np.ndarray) -> Available:
  """Draws from all clients, each with the same probability."""
  return EVERYONE


def cyclic(sizes: np.ndarray, *, groups: int) -> Available:
  """Draws from one of G groups in turn; client i is in group i mod G.

  (Eichner et al. 2019, arXiv:1904.10120: block-cyclic, as day and night are.)
  """
  group_of_client = np.arange(len(sizes)) % groups

  def of_round(round_index):
    return _equal_probabilities(group_of_client == round_index % groups)

  return Available(of_round, period=groups)


def by_data(sizes: np.ndarray) -> Available:
  """Draws from all clients, in proportion to the examples that they own.

  (Li et al. 2020, arXiv:1907.02189, scheme I, but without replacement.)
  """
  return Available(of_round=lambda round_index: sizes / np.sum(sizes), period=1)


def trace(sizes: np.ndarray, *, path: str) -> Available:
  """Draws from the clients that a file lists for each round; then the file repeats.

  Args:
    sizes: [N].
    path: path of a text: the line `client,first,last`, then lines of three whole
      numbers. The client, counted from 0, is present from the first to the last of
      these rounds, counted from 1. A client may have several lines.

  Raises:
    UsageError: the file has another form.
  """
  try:
    header, *lines = files.text(expand(path), encoding='utf-8-sig').split()
    spans = np.array([line.split(',') for line in lines]).astype(np.int64)
    client, first, last = spans.T
    valid = (client >= 0) & (client < len(sizes)) & (first >= 1) & (first <= last)
    if header != 'client,first,last' or not valid.all():
      raise ValueError
  except (OSError, ValueError, OverflowError):
    raise KnobError(
      'availability.path',
      path,
      'must be a text: client,first,last, then lines of three numbers: a client from 0 '
      f'to {len(sizes) - 1}, its first round, from 1, and its last one.',
    ) from None
  period = int(last.max())

  def of_round(round_index):
    round_number = round_index % period + 1
    is_present = np.zeros(len(sizes), bool)
    is_present[client[(first <= round_number) & (round_number <= last)]] = True
    return _equal_probabilities(is_present)

  return Available(of_round, period)


def _equal_probabilities(is_present: np.ndarray) -> np.ndarray:
  """[N] bool -> [N] float64; zeros if no client is present."""
  return is_present / max(is_present.sum(), 1)


def require_enough(available: Available, num_drawn: int, num_rounds: int) -> None:
  """Raises UsageError unless every round of a run has as many clients as it draws."""
  for round_index in range(min(available.period, num_rounds)):
    probabilities = available.of_round(round_index)
    if probabilities is None:
      continue
    num_available = np.count_nonzero(probabilities)
    if num_available < num_drawn:
      raise UsageError(
        f'In round {round_index + 1} {num_available} clients are available, and a '
        f'round needs {num_drawn}: lower {flag("participation")}, or change '
        f'{flag("availability.name")}.'
      )
