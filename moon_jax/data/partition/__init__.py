"""Who owns which sample? Every training example belongs to exactly one client."""

import numpy as np

from moon_jax.data.partition.base import Partition, PartitionError, class_counts
from moon_jax.data.partition.feature_skew import add_noise
from moon_jax.data.partition.label_skew import dirichlet, shards
from moon_jax.data.partition.quantity_skew import iid, quantity

__all__ = [
  'PARTITIONERS',
  'Partition',
  'PartitionError',
  'add_noise',
  'class_counts',
  'dirichlet',
  'iid',
  'make',
  'quantity',
  'seen_images',
  'shards',
]

# Config name -> function, and those of the other knobs that it takes.
PARTITIONERS = {
  'iid': (iid, ()),
  'dirichlet': (dirichlet, ('beta',)),
  'shards': (shards, ('classes_per_client',)),
  'quantity': (quantity, ('beta',)),
  'noise': (iid, ()),  # what differs is what the clients see: seen_images
}


def make(
  name: str,
  labels: np.ndarray,
  *,
  num_clients: int,
  min_size: int,
  seed: int,
  **skews: float,
) -> Partition:
  """Partitions the examples by the rule called `name`, a key of PARTITIONERS.

  Args:
    name: the rule.
    labels: [M] int.
    num_clients: N.
    min_size: fewest examples a client may own.
    seed: the run's seed.
    **skews: the other knobs of the config group; a rule takes those that it needs.

  Raises:
    PartitionError: the rule cannot be met; see its function.
  """
  if name not in PARTITIONERS:
    names = list(PARTITIONERS)
    raise PartitionError(f'--config.partition.name={name!r} must be one of {names}.')
  rule, wanted = PARTITIONERS[name]
  options = {knob: skews[knob] for knob in wanted}
  return rule(labels, num_clients=num_clients, min_size=min_size, seed=seed, **options)


def seen_images(
  name: str, images: np.ndarray, split: Partition, *, noise_sigma: float, seed: int
) -> np.ndarray:
  """[M, H, W, C] uint8 training images as their owners see them.

  Those of add_noise for the rule 'noise', else the given array itself.
  """
  if name != 'noise':
    return images
  return add_noise(images, split, noise_sigma=noise_sigma, seed=seed)
