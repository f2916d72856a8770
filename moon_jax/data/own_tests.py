"""The examples that test one client: some of its own, or the user's test examples."""

from typing import NamedTuple

import numpy as np

from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset
from moon_jax.data.partition import Partition, grouped


class OwnTests(NamedTuple):
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


def held_out(split: Partition, share: float, seed: int) -> tuple[Partition, OwnTests]:
  """Takes a share of each client's examples from training, to test that client.

  share * n of n examples are taken, halves rounded up. The choice is a function of the
  seed and the client. A client that gives no example is not tested.

  Args:
    split: the owner of each example.
    share: above 0, below 1.
    seed: seed of the draw.

  Returns:
    The training examples of each client, and the tests.

  Raises:
    UsageError: a client would have no training example left, or no client has a test.
  """
  counts = np.floor(share * split.sizes + 0.5).astype(np.int64)
  if (empty := np.flatnonzero(counts >= split.sizes)).size:
    client = empty[0]
    raise UsageError(
      f'--config.data.local_test={share} leaves client {client} nothing to train on: '
      f'it owns {split.sizes[client]} of the examples. Lower it, or raise '
      '--config.partition.min_size.'
    )
  if not counts.any():
    raise UsageError(
      f'--config.data.local_test={share} gives no client an example that tests it: the '
      f'largest owns {split.sizes.max()}. Raise it, or lower --config.num_clients.'
    )
  tested = np.zeros(len(split.indices), bool)
  for client, count in enumerate(counts):
    own = split.offsets[client], split.sizes[client]
    rng = host_rng(seed, Purpose.LOCAL_TEST, client)
    tested[own[0] + rng.permutation(own[1])[:count]] = True
  ends = np.concatenate([[0], np.cumsum(split.sizes - counts)])
  left = Partition(split.indices[~tested], ends)
  return left, _of_clients(split.indices[tested], counts, of_training=True)


def of_users(data: Dataset, num_clients: int) -> OwnTests | None:
  """The test examples of the clients; None if no client has any."""
  if data.test_clients is None or not (data.test_clients < num_clients).any():
    return None
  own = grouped(data.test_clients, len(data.clients))
  counts = own.sizes[:num_clients]
  return _of_clients(own.indices[: counts.sum()], counts, of_training=False)


def _of_clients(rows, counts, *, of_training):
  """OwnTests of rows that are sorted by client, with [N] the number of each client."""
  clients = np.flatnonzero(counts).astype(np.int32)
  ends = np.concatenate([[0], np.cumsum(counts[clients])]).astype(np.int32)
  return OwnTests(clients, rows.astype(np.int32), ends, of_training)
