"""Clients that are the users that the data name."""

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
  """Gives every user its own examples.

  Args:
    labels: [M] int.
    clients: [M] int32, the user of each example; None if the data name no users.
    num_clients: N, the number of users.
    min_size: fewest examples of a user: `users.without_small` has left out the others.
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
