"""The examples that test one client: some of its own, or the user's test examples.

The programs that test clients on them are in `building.client_test_programs`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import share_of
from moon_jax.core.types import Dataset
from moon_jax.data.partition import Partition, grouped


class ClientTestRows(NamedTuple):
  """The examples that test one client each, for T clients that have such examples.

  Attributes:
    clients: [T] int32 ids, ascending.
    rows: [M] int32 rows of a split, client by client.
    offsets: [T + 1] int32; client i has rows[offsets[i]:offsets[i + 1]].
    of_training: whether they are rows of the training split; otherwise of the test
      split.
  """

  clients: np.ndarray
  rows: np.ndarray
  offsets: np.ndarray
  of_training: bool

  @property
  def sizes(self) -> np.ndarray:
    """[T] number of examples of each of these clients, at least 1."""
    return np.diff(self.offsets)


def hold_out(
  partition: Partition,
  fraction: float,
  seed: int,
  client_name: Callable[[int], str] = str,
) -> tuple[Partition, ClientTestRows]:
  """Takes a fraction of each client's examples from training, to test that client.

  fraction * n of n examples are taken, halves rounded up. The choice is a function of
  the seed and the client. A client that gives no example is not tested.

  Args:
    partition: the owner of each example.
    fraction: above 0, below 1.
    seed: seed of the draw.
    client_name: number of a client -> its name, for messages.

  Returns:
    The training examples of each client, and the tests.

  Raises:
    UsageError: a client would have no training example left, or no client has a test.
  """
  sizes = partition.sizes
  distinct_sizes, size_of_client = np.unique(sizes, return_inverse=True)
  shares = [share_of(size, fraction) for size in distinct_sizes]
  test_sizes = np.array(shares, np.int64)[size_of_client]
  without_training = np.flatnonzero(test_sizes >= sizes)
  if without_training.size:
    client = without_training[0]
    raise KnobError(
      'data.local_test',
      fraction,
      f'leaves client {client_name(client)} nothing to train on: it owns '
      f'{sizes[client]} of the examples. Lower it, or raise '
      f'{flag("partition.min_size")}.',
    )
  if not test_sizes.any():
    raise KnobError(
      'data.local_test',
      fraction,
      'gives no client an example that tests it: the largest owns '
      f'{sizes.max()}. Raise it, or lower {flag("num_clients")}.',
    )
  is_test = np.zeros(len(partition.indices), bool)
  for client, test_size in enumerate(test_sizes):
    rng = host_rng(seed, Purpose.LOCAL_TEST, client)
    drawn = rng.permutation(sizes[client])[:test_size]
    is_test[partition.offsets[client] + drawn] = True
  training_partition = Partition(
    indices=partition.indices[~is_test], offsets=_offsets(sizes - test_sizes)
  )
  tests = _tests_of(partition.indices[is_test], test_sizes, of_training=True)
  return training_partition, tests


def tests_of_users(dataset: Dataset, num_clients: int) -> ClientTestRows | None:
  """The test examples of the users that are clients; None if no client has any."""
  users = dataset.test_clients
  if users is None or not (users < num_clients).any():
    return None
  rows_by_user = grouped(users, len(dataset.clients))
  test_sizes = rows_by_user.sizes[:num_clients]
  rows = rows_by_user.indices[: test_sizes.sum()]
  return _tests_of(rows, test_sizes, of_training=False)


def _tests_of(rows, test_sizes, *, of_training):
  """The tests: rows that are sorted by client, and [N] the number of each client."""
  clients = np.flatnonzero(test_sizes).astype(np.int32)
  return ClientTestRows(
    clients=clients,
    rows=rows.astype(np.int32),
    offsets=_offsets(test_sizes[clients]).astype(np.int32),
    of_training=of_training,
  )


def _offsets(sizes):
  return np.concatenate([[0], np.cumsum(sizes)])
