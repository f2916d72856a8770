"""Who is there in a round, how much each one works, who attacks. Plain numpy.

An availability is (client sizes [N], its knobs) -> what `Available` tells. All draws
are functions of seed, round and client.
"""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset
from moon_jax.data.partition import Partition


class Available(NamedTuple):
  """Who can be drawn in each round.

  Attributes:
    of_round: round, from 0 -> [N] float64, of each client the probability that a single
      draw gives it; they sum to 1, and are 0 of who is absent. None: all alike.
    period: after so many rounds it begins again.
  """

  of_round: Callable[[int], np.ndarray | None]
  period: int


def uniform(sizes: np.ndarray) -> Available:
  """Every client, each with the same probability."""
  return Available(lambda index: None, 1)


def cyclic(sizes: np.ndarray, *, groups: int) -> Available:
  """Of G groups of clients one after the other; client i is in group i mod G.

  (Eichner et al. 2019, arXiv:1904.10120: block-cyclic, as day and night are.)
  """
  group = np.arange(len(sizes)) % groups
  return Available(lambda index: _alike(group == index % groups), groups)


def by_data(sizes: np.ndarray) -> Available:
  """Every client, in proportion to the examples that it owns.

  (Li et al. 2020, arXiv:1907.02189, scheme I, but without replacement.)
  """
  return Available(lambda index: sizes / np.sum(sizes), 1)


def trace(sizes: np.ndarray, *, path: str) -> Available:
  """Who is there by a file; after its last round it begins again.

  Args:
    sizes: [N].
    path: of a text: the line `client,first,last`, then lines of three whole numbers:
      the client, counted from 0, is there from the first of these rounds, counted from
      1, to the last one. It may have several lines.

  Raises:
    UsageError: the file is another.
  """
  flag = f'--config.availability.path={path!r}'
  try:
    head, *lines = pathlib.Path(path).expanduser().read_text().split()
    spans = np.array([[int(word) for word in line.split(',')] for line in lines])
    client, first, last = spans.T
    valid = (client >= 0) & (client < len(sizes)) & (first >= 1) & (first <= last)
    if head != 'client,first,last' or not valid.all():
      raise ValueError
  except (OSError, ValueError):
    raise UsageError(
      f'{flag} must be a text: client,first,last, then lines of three numbers: '
      f'a client from 0 to {len(sizes) - 1}, its first round, from 1, and its last one.'
    ) from None
  period = int(last.max())

  def of_round(index):
    number = index % period + 1
    present = np.zeros(len(sizes), bool)
    present[client[(first <= number) & (number <= last)]] = True
    return _alike(present)

  return Available(of_round, period)


def _alike(present: np.ndarray) -> np.ndarray:
  return present / max(present.sum(), 1)


def require_enough(available: Available, size: int, num_rounds: int) -> None:
  """Raises UsageError unless every round of a run has as many clients as it needs."""
  for index in range(min(available.period, num_rounds)):
    chances = available.of_round(index)
    if chances is not None and (there := np.count_nonzero(chances)) < size:
      raise UsageError(
        f'In round {index + 1} {there} clients are available, and a round needs '
        f'{size}: lower --config.participation, or change --config.availability.name.'
      )


def choose(
  *,
  seed: int,
  round_index: int,
  num_clients: int,
  size: int,
  chances: np.ndarray | None = None,
) -> np.ndarray:
  """[size] int32 ids, ascending: a draw without replacement; see `Available`."""
  rng = host_rng(seed, Purpose.COHORT, round_index)
  drawn = rng.choice(num_clients, size, replace=False, p=chances)
  return np.sort(drawn).astype(np.int32)


def stragglers(
  *, seed: int, round_index: int, cohort: np.ndarray, count: int
) -> np.ndarray:
  """[count] int32 ids of a cohort [K], ascending: who is too slow in the round."""
  rng = host_rng(seed, Purpose.STRAGGLERS, round_index)
  return np.sort(rng.choice(cohort, count, replace=False))


def steps_of_round(
  *,
  seed: int,
  round_index: int,
  clients: np.ndarray,
  steps: np.ndarray,
  epochs: tuple[int, int],
  late: np.ndarray,
) -> np.ndarray:
  """How many steps each client trains.

  Args:
    seed: of the run.
    round_index: from 0.
    clients: [K] ids.
    steps: [K] of each one in all its epochs.
    epochs: a client's number of these is uniform from the first to the second, which is
      their number in `steps`; no draw if the first is 0.
    late: ids of those that send what they have at the deadline: of their steps a number
      that is uniform from 1 to all but one; 1 of 1.

  Returns:
    [K] int.
  """
  steps, (low, high) = steps.copy(), epochs
  for slot, client in enumerate(clients if low else ()):
    rng = host_rng(seed, Purpose.EPOCHS, round_index, int(client))
    steps[slot] = steps[slot] // high * rng.integers(low, high, endpoint=True)
  for slot in np.flatnonzero(np.isin(clients, late)):
    rng = host_rng(seed, Purpose.STRAGGLERS, round_index, int(clients[slot]))
    steps[slot] = rng.integers(1, max(steps[slot], 2))
  return steps


def flipping(attack: str, attacking: np.ndarray | None) -> np.ndarray:
  """Ids of the attackers [F] or None who flip labels."""
  flips = attacking is not None and attack == 'label_flip'
  return attacking if flips else np.zeros(0, int)


def known_of(
  needs: frozenset[str], class_counts: np.ndarray, flipping: np.ndarray
) -> dict[str, np.ndarray] | None:
  """What clients are told of their data, name -> [N, ...]; see `Algorithm.needs`.

  Args:
    needs: which names.
    class_counts: [N, Y] training examples of each client and class, as labelled.
    flipping: ids of those who flip labels: theirs are counts of what they train on.
  """
  sizes, counts = class_counts.sum(1), class_counts.copy()
  counts[flipping] = class_counts[flipping, ::-1]
  every = {'class_counts': counts, 'relative_size': sizes / sizes.mean()}
  return {name: every[name] for name in sorted(needs)} or None


def taught(data: Dataset, split: Partition, flipping: np.ndarray) -> np.ndarray:
  """[M] the labels that clients train on: y, of one that flips labels Y - 1 - y."""
  rows = np.concatenate([np.zeros(0, int), *split.rows(flipping)])
  labels = data.train_labels.copy()
  labels[rows] = data.num_classes - 1 - labels[rows]
  return labels


def attackers(seed: int, num_clients: int, fraction: float) -> np.ndarray:
  """Ids, ascending, of the clients that attack in all rounds; halves rounded up."""
  rng = host_rng(seed, Purpose.ATTACK)
  count = int(num_clients * fraction + 0.5)
  return np.sort(rng.choice(num_clients, count, replace=False)).astype(np.int32)


def attack_draws(
  seed: int, round_index: int, clients: np.ndarray, attacking: np.ndarray
) -> np.ndarray:
  """[K] int32 of a cohort: -1 of who is honest, else a number for draws of its own."""
  draws = np.full(len(clients), -1, np.int32)
  for slot in np.flatnonzero(np.isin(clients, attacking)):
    rng = host_rng(seed, Purpose.ATTACK, round_index, int(clients[slot]))
    draws[slot] = rng.integers(2**31)
  return draws
