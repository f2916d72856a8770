"""The natural partition: each user of the data is a client."""

import numpy as np

from moon_jax.core.flags import flag
from moon_jax.data.data_errors import DataError
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
    clients: [M] int32, the user of each example; None if the data have no user ids.
    num_clients: N, the number of users.
    min_size: fewest examples of a user: `users.without_small` has left out the others.
    seed: the run's seed; nothing is drawn.

  Raises:
    DataError: the data have no user ids.
  """
  if clients is None:
    raise DataError(f'{flag("partition.name", "natural")} needs data with user ids.')
  return base.grouped(clients, num_clients)
