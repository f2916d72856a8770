"""The pytree of every partition, and the retries of its draws."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag
from moon_jax.core.keys import Purpose, host_rng

MAX_ATTEMPTS = 1000  # a second or two on 50,000 examples
# If this many clients of a draw are below min_size, other draws are hopeless: with
# independent shares, fewer than one draw in 10^20 would have no such client.
HOPELESS = 100
# Shares are equal to six digits at this beta; NumPy's gamma draws overflow near 1e308.
LARGEST_BETA = 1e12


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

  def rows(self, clients: np.ndarray) -> list[np.ndarray]:
    """[K] ids -> K arrays, the indices of each of these clients."""
    return [self.client(i) for i in clients]


def _unchanged(images, partition):
  return images


class Dealt(NamedTuple):
  """The examples as a rule has dealt them out.

  Attributes:
    partition: the owner of each example.
    image_view: (images [M, H, W, C] uint8, partition) -> the images as their owners see
      them; unchanged, unless the rule changes them.
  """

  partition: Partition
  image_view: Callable[[np.ndarray, Partition], np.ndarray] = _unchanged


# generator -> [N] examples of each client, and a function that returns the [M] owners.
Draw = Callable[[np.random.Generator], tuple[np.ndarray, Callable[[], np.ndarray]]]


def first_large_enough(
  rule: str,
  draw: Draw,
  num_examples: int,
  *,
  num_clients: int,
  min_size: int,
  seed: int,
  fallback: Draw | None = None,
) -> Partition:
  """The first of MAX_ATTEMPTS draws in which each client owns min_size examples.

  If more than HOPELESS clients are below it in a draw, no further draw is tried.

  Args:
    rule: the flag that may be changed, with its value, for the message.
    draw: one draw.
    num_examples: M.
    num_clients: N.
    min_size: fewest examples a client may own.
    seed: the run's seed; attempt a draws from the stream (seed, PARTITION, a).
    fallback: a draw from the stream (seed, PARTITION, MAX_ATTEMPTS), if no draw was
      good enough; None: there is no such draw.

  Raises:
    UsageError: there are fewer than num_clients * min_size examples, or no draw was
      good enough and there is no `fallback`.
  """
  require_enough(num_examples, num_clients, min_size)
  for attempt in range(MAX_ATTEMPTS):
    sizes, deal = draw(host_rng(seed, Purpose.PARTITION, attempt))
    num_too_small = int(np.count_nonzero(sizes < min_size))
    if num_too_small == 0:
      return grouped(deal(), num_clients)
    if num_too_small > HOPELESS:
      break
  if fallback:
    _, deal = fallback(host_rng(seed, Purpose.PARTITION, MAX_ATTEMPTS))
    return grouped(deal(), num_clients)
  raise UsageError(
    f'{rule} gave {num_too_small} of {num_clients} clients fewer than {min_size} of '
    f'{num_examples} examples in the last of {attempt + 1} draws: change it, or lower '
    f'{flag("partition.min_size")} or {flag("num_clients")}.'
  )


def dirichlet_counts(
  rng: np.random.Generator, num_parts: int, beta: float, total: int
) -> np.ndarray:
  """[num_parts] int64 that sum to total: Dirichlet(beta) shares, cuts rounded down."""
  shares = rng.dirichlet(np.full(num_parts, min(beta, LARGEST_BETA)))
  cuts = (np.cumsum(shares[:-1]) * total).astype(np.int64)
  return np.diff(cuts, prepend=0, append=total)


def require_enough(num_examples: int, num_clients: int, min_size: int) -> None:
  """Raises UsageError if there are fewer than num_clients * min_size examples."""
  if num_clients * min_size > num_examples:
    raise UsageError(
      f'{num_clients} clients with at least {min_size} examples need '
      f'{num_clients * min_size}, and there are {num_examples}: lower '
      f'{flag("num_clients")} or {flag("partition.min_size")}.'
    )


def grouped(owners: np.ndarray, num_clients: int) -> Partition:
  """[M] owner of each example -> Partition."""
  sizes = np.bincount(owners, minlength=num_clients)
  return Partition(
    indices=np.argsort(owners, kind='stable').astype(np.int32),
    offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
  )


def class_counts(
  partition: Partition, labels: np.ndarray, num_classes: int
) -> np.ndarray:
  """[N, Y] int32 examples of each class that each client owns; labels: [M] int."""
  num_clients = len(partition.sizes)
  owners = np.repeat(np.arange(num_clients), partition.sizes)
  cells = owners * num_classes + labels[partition.indices]
  counts = np.bincount(cells, minlength=num_clients * num_classes)
  return counts.reshape(num_clients, num_classes).astype(np.int32)
