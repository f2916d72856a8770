"""Which clients are present in a round, how much they work, which attack. Plain NumPy.

An availability is (client sizes [N], its knobs) -> `Available`. All draws are functions
of seed, round and client.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data.partition import Partition


class Available(NamedTuple):
  """The clients that can be drawn in each round.

  Attributes:
    of_round: round, from 0 -> [N] float64, the probability of each client in a single
      draw; they sum to 1, and are 0 for absent clients. None: all are equal.
    period: number of rounds after which it repeats.
  """

  of_round: Callable[[int], np.ndarray | None]
  period: int


def uniform(sizes: np.ndarray) -> Available:
  """Draws from all clients, each with the same probability."""
  return Available(lambda index: None, 1)


def cyclic(sizes: np.ndarray, *, groups: int) -> Available:
  """Draws from one of G groups in turn; client i is in group i mod G.

  (Eichner et al. 2019, arXiv:1904.10120: block-cyclic, as day and night are.)
  """
  group = np.arange(len(sizes)) % groups
  return Available(lambda index: _alike(group == index % groups), groups)


def by_data(sizes: np.ndarray) -> Available:
  """Draws from all clients, in proportion to the examples that they own.

  (Li et al. 2020, arXiv:1907.02189, scheme I, but without replacement.)
  """
  return Available(lambda index: sizes / np.sum(sizes), 1)


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
  flag = f'--config.availability.path={path!r}'
  try:
    head, *lines = expand(path).read_text(encoding='utf-8-sig').split()
    spans = np.array([line.split(',') for line in lines]).astype(np.int64)
    client, first, last = spans.T
    valid = (client >= 0) & (client < len(sizes)) & (first >= 1) & (first <= last)
    if head != 'client,first,last' or not valid.all():
      raise ValueError
  except (OSError, ValueError, OverflowError):
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


def label_flippers(attack: str, attackers: np.ndarray | None) -> np.ndarray:
  """[F] ids of the attackers that flip labels; none unless that is the attack."""
  if attackers is None or attack != 'label_flip':
    return np.zeros(0, int)
  return attackers


def client_facts(
  needs: frozenset[str], class_counts: np.ndarray, label_flippers: np.ndarray
) -> dict[str, np.ndarray]:
  """What clients know about their data, name -> [N, ...]; see `Algorithm.needs`.

  Args:
    needs: the names.
    class_counts: [N, Y] training examples of each client and class, with true labels.
    label_flippers: ids of clients that flip labels: they count the flipped labels.
  """
  counts_in_training = class_counts.copy()
  counts_in_training[label_flippers] = class_counts[label_flippers, ::-1]
  sizes = class_counts.sum(axis=1)
  facts = {
    'class_counts': counts_in_training,
    'relative_size': sizes / sizes.mean(),
  }
  return {name: facts[name] for name in sorted(needs)}


def labels_in_training(
  data: Dataset, split: Partition, label_flippers: np.ndarray
) -> np.ndarray:
  """[M] the labels that clients train on: y, or Y - 1 - y for a client that flips."""
  labels = data.train_labels.copy()
  for rows in split.rows(label_flippers):
    labels[rows] = data.num_classes - 1 - labels[rows]
  return labels


def attackers(seed: int, num_clients: int, fraction: float) -> np.ndarray:
  """Ids, ascending, of the clients that attack in every round; halves round up."""
  rng = host_rng(seed, Purpose.ATTACK)
  count = int(num_clients * fraction + 0.5)
  return np.sort(rng.choice(num_clients, count, replace=False)).astype(np.int32)


def attack_draws(
  seed: int, round_index: int, clients: np.ndarray, attacking: np.ndarray | None
) -> np.ndarray | None:
  """[K] int32 of a cohort: -1 for an honest client, else a seed of its own draws.

  None without an attack.
  """
  if attacking is None:
    return None
  draws = np.full(len(clients), -1, np.int32)
  for slot in np.flatnonzero(np.isin(clients, attacking)):
    rng = host_rng(seed, Purpose.ATTACK_DRAWS, round_index, int(clients[slot]))
    draws[slot] = rng.integers(2**31)
  return draws
