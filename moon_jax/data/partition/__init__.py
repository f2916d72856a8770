"""Partitions: every training example belongs to exactly one client."""

# ruff: noqa: F401
from typing import Any

import numpy as np

from moon_jax import catalog
from moon_jax.core.errors import UsageError
from moon_jax.data.partition.base import Partition, Skewed, class_counts, grouped


def make(name: str, labels: np.ndarray, *, num_clients: int, **options: Any) -> Skewed:
  """Partitions the examples by a rule of the catalog.

  Args:
    name: the rule.
    labels: [M] int.
    num_clients: N.
    **options: `min_size`, the fewest examples a client may own; `seed`, the run's seed;
      and the rule's own knobs.

  Returns:
    The partition, and how the clients see their images.

  Raises:
    UsageError: the rule cannot be met; see its function.
  """
  part = catalog.part('partition', name)
  made = part.build((Partition, Skewed), labels, num_clients=num_clients, **options)
  skewed = made if isinstance(made, Skewed) else Skewed(made)
  split = skewed.split
  fits = np.array_equal(np.sort(split.indices), np.arange(len(labels)))
  ends = len(split.sizes), *split.offsets[[0, -1]]
  if not fits or ends != (num_clients, 0, len(labels)):
    raise UsageError(
      f'--config.partition.name={name!r} must give each of {len(labels)} examples to '
      f'one of {num_clients} clients.'
    )
  # The package's own rules respect min_size, which may be 0 here.
  if part.registered and (few := np.flatnonzero(split.sizes < 1)).size:
    raise UsageError(
      f'--config.partition.name={name!r} must give each client an example, and client '
      f'{few[0]} owns none.'
    )
  return skewed
