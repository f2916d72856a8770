"""Which clients attack, with which labels and draws. Plain NumPy."""

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import share_of
from moon_jax.core.types import Dataset
from moon_jax.data.partition import Partition


def label_flippers(attack: str, attackers: np.ndarray | None) -> np.ndarray:
  """[F] ids of the attackers that flip labels; none unless that is the attack."""
  if attackers is None or attack != 'label_flip':
    return np.zeros(0, int)
  return attackers


def labels_in_training(
  data: Dataset, training_partition: Partition, label_flippers: np.ndarray
) -> np.ndarray:
  """[M] the labels that clients train on: y, or Y - 1 - y for a client that flips."""
  labels = data.train_labels.copy()
  for rows in training_partition.rows(label_flippers):
    labels[rows] = data.num_classes - 1 - labels[rows]
  return labels


def draw_attackers(seed: int, num_clients: int, fraction: float) -> np.ndarray:
  """Ids, ascending, of the clients that attack in every round; see `share_of`."""
  rng = host_rng(seed, Purpose.ATTACK)
  num_attackers = share_of(num_clients, fraction)
  return np.sort(rng.choice(num_clients, num_attackers, replace=False)).astype(np.int32)


def attack_seeds(
  seed: int, round_index: int, clients: np.ndarray, attackers: np.ndarray | None
) -> np.ndarray | None:
  """[K] int32 of a cohort: -1 for an honest client, else a seed of its own draws.

  None without an attack.
  """
  if attackers is None:
    return None
  seeds = np.full(len(clients), -1, np.int32)
  for slot in np.flatnonzero(np.isin(clients, attackers)):
    rng = host_rng(seed, Purpose.ATTACK_DRAWS, round_index, int(clients[slot]))
    seeds[slot] = rng.integers(2**31)
  return seeds
