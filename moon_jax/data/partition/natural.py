"""Clients that are the users whom the data name."""

import numpy as np

from moon_jax.data.arrays import DataError
from moon_jax.data.partition import base
from moon_jax.data.partition.base import Partition


def natural(
  labels: np.ndarray,
  *,
  clients: np.ndarray | None,
  num_clients: int,
  min_size: int,
  seed: int,
) -> Partition:
  """Gives every user the examples that are the user's.

  Args:
    labels: [M] int.
    clients: [M] int32, whose each example is; None if the data name no users.
    num_clients: N, as many as there are.
    min_size: every user owns so many: `users.without_small` has left out the others.
    seed: the run's seed; nothing is drawn.

  Raises:
    DataError: the data name no users.
  """
  if clients is None:
    raise DataError(
      '--config.partition.name=natural needs data that name their users: '
      'train_client in an .npz file, --config.data.client, or another source.'
    )
  return base.grouped(clients, num_clients)
