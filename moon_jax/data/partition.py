"""Who owns which sample? Every training example belongs to exactly one client."""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from moon_jax.errors import UsageError
from moon_jax.keys import Purpose, host_rng

MAX_ATTEMPTS = 1000  # a second or two on 50,000 examples
# Shares are equal to six digits here; numpy's gamma draws overflow near 1e308.
LARGEST_BETA = 1e12


class PartitionError(UsageError):
  """No such partition exists or was found. The message is one line."""


class Partition(NamedTuple):
  """The training examples of every client.

  Attributes:
    indices: [M] int32, all training indices, client by client, ascending in a client.
    offsets: [N + 1] int64, client i owns indices[offsets[i]:offsets[i + 1]].
  """

  indices: np.ndarray
  offsets: np.ndarray

  @property
  def sizes(self) -> np.ndarray:
    """[N] int64 examples of each client."""
    return np.diff(self.offsets)

  def client(self, i: int) -> np.ndarray:
    """[n_i] int32 indices of client i."""
    return self.indices[self.offsets[i] : self.offsets[i + 1]]


def make(
  name: str,
  labels: np.ndarray,
  *,
  num_clients: int,
  beta: float,
  min_size: int,
  seed: int,
) -> Partition:
  """Partitions the examples by the rule called `name`, a key of PARTITIONERS.

  Args and errors are those of `dirichlet`; `iid` ignores beta.
  """
  if name not in PARTITIONERS:
    names = list(PARTITIONERS)
    raise PartitionError(f'--config.partition.name={name!r} must be one of {names}.')
  return PARTITIONERS[name](
    labels, num_clients=num_clients, beta=beta, min_size=min_size, seed=seed
  )


def iid(
  labels: np.ndarray, *, num_clients: int, min_size: int = 0, seed: int
) -> Partition:
  """Deals the examples at random; sizes differ by at most one.

  Args:
    labels: [M] int.
    num_clients: N.
    min_size: fewest examples a client may own.
    seed: the run's seed.

  Raises:
    PartitionError: there are fewer than num_clients * min_size examples.
  """
  _require_enough(labels, num_clients, min_size)
  owners = np.arange(len(labels)) % num_clients
  return _grouped(host_rng(seed, Purpose.PARTITION).permutation(owners), num_clients)


def dirichlet(
  labels: np.ndarray, *, num_clients: int, beta: float, min_size: int, seed: int
) -> Partition:
  """Deals each class by shares from a symmetric Dirichlet distribution.

  Li et al. 2021 (MOON), section 4.1 and public code: a client that holds M / N
  examples or more gets none of the next class, and the shares of the others are
  scaled to sum to one. Everything is drawn anew until each client has min_size.

  Args:
    labels: [M] int.
    num_clients: N.
    beta: concentration, above 0; small is skewed.
    min_size: fewest examples a client may own.
    seed: the run's seed.

  Raises:
    PartitionError: beta is not above 0, there are fewer than num_clients * min_size
      examples, or MAX_ATTEMPTS draws left some client below min_size.
  """
  if not beta > 0:
    raise PartitionError(f'--config.partition.beta={beta} must be above 0.')
  _require_enough(labels, num_clients, min_size)
  classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
  best = 0
  for attempt in range(MAX_ATTEMPTS):
    rng = host_rng(seed, Purpose.PARTITION, attempt)
    partition = _grouped(
      _dirichlet_owners(rng, classes, num_clients, beta), num_clients
    )
    smallest = int(partition.sizes.min())
    if smallest >= min_size:
      return partition
    best = max(best, smallest)
  raise PartitionError(
    f'Dirichlet({beta}) gave one of {num_clients} clients fewer than {min_size} of '
    f'{len(labels)} examples in each of {MAX_ATTEMPTS} draws (at best {best}): raise '
    '--config.partition.beta, or lower --config.partition.min_size or '
    '--config.num_clients.'
  )


def _dirichlet_owners(rng, classes, num_clients, beta):
  """classes: indices of the examples of each class. Returns [M] int owner of each."""
  owners = np.empty(sum(map(len, classes)), np.int64)
  held = np.zeros(num_clients, np.int64)
  for members in classes:
    # Never empty: until the last class is dealt, the mean client holds less than M / N.
    takers = np.flatnonzero(held * num_clients < len(owners))
    # Part of a Dirichlet vector, scaled to sum to one, is again Dirichlet: drawing just
    # the takers' shares is the same in law, and they cannot all round to zero.
    shares = rng.dirichlet(np.full(len(takers), min(beta, LARGEST_BETA)))
    cuts = (np.cumsum(shares[:-1]) * len(members)).astype(np.int64)
    counts = np.diff(cuts, prepend=0, append=len(members))
    owners[rng.permutation(members)] = np.repeat(takers, counts)
    held[takers] += counts
  return owners


def _require_enough(labels, num_clients, min_size):
  if num_clients * min_size > len(labels):
    raise PartitionError(
      f'{num_clients} clients with at least {min_size} examples need '
      f'{num_clients * min_size}, and there are {len(labels)}: lower '
      '--config.num_clients or --config.partition.min_size.'
    )


def _grouped(owners, num_clients):
  """[M] owner of each example -> Partition."""
  sizes = np.bincount(owners, minlength=num_clients)
  return Partition(
    indices=np.argsort(owners, kind='stable').astype(np.int32),
    offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
  )


# Config name -> function.
PARTITIONERS = {
  'iid': lambda labels, *, beta, **common: iid(labels, **common),
  'dirichlet': dirichlet,
}


def class_counts(
  partition: Partition, labels: np.ndarray, num_classes: int
) -> np.ndarray:
  """[N, Y] int64 examples of each class that each client owns; labels: [M] int."""
  num_clients = len(partition.sizes)
  owners = np.repeat(np.arange(num_clients), partition.sizes)
  cells = owners * num_classes + labels[partition.indices]
  counts = np.bincount(cells, minlength=num_clients * num_classes)
  return counts.reshape(num_clients, num_classes)


def save(path: str | os.PathLike, partition: Partition, counts: np.ndarray) -> None:
  """Writes indices, offsets and class_counts to a .npz file, all of it or nothing."""
  path = pathlib.Path(path)
  partial = path.with_name(path.name + '.partial')
  with partial.open('wb') as file:
    np.savez(file, **partition._asdict(), class_counts=counts)
  os.replace(partial, path)
