"""A share of each client's examples tests that client alone."""

import numpy as np
import pytest

from moon_jax.core.errors import UsageError
from moon_jax.core.types import Dataset
from moon_jax.data import client_tests
from moon_jax.data.partition import Partition

# Clients with 4, 1, 10 and 2 of 17 examples, in no order.
INDICES = np.random.default_rng(0).permutation(17).astype(np.int32)
SPLIT = Partition(INDICES, np.array([0, 4, 5, 15, 17]))


def rows_of(tests):
  """Client -> the rows that test it, as a set."""
  parts = np.split(tests.rows, tests.offsets[1:-1])
  return {int(c): set(p.tolist()) for c, p in zip(tests.clients, parts, strict=True)}


def test_sizes_of_client_tests_by_hand():
  # 0.25 of 4, 1, 10 and 2 are 1, 0.25, 2.5 and 0.5: 1, 0, 3 and 1, halves up.
  left, tests = client_tests.hold_out(SPLIT, 0.25, seed=0)
  assert left.sizes.tolist() == [3, 1, 7, 1]
  assert (tests.clients.tolist(), tests.sizes.tolist()) == ([0, 2, 3], [1, 3, 1])
  assert tests.of_training
  for client, tested in rows_of(tests).items():
    trained = set(left.client(client).tolist())
    assert tested | trained == set(SPLIT.client(client).tolist())
    assert not tested & trained
  # In the order in which the client owned them.
  assert left.client(1).tolist() == SPLIT.client(1).tolist()


def test_the_tests_are_a_function_of_seed_and_client():
  first = rows_of(client_tests.hold_out(SPLIT, 0.3, seed=0)[1])
  assert first == rows_of(client_tests.hold_out(SPLIT, 0.3, seed=0)[1])
  assert first[2] != rows_of(client_tests.hold_out(SPLIT, 0.3, seed=1)[1])[2]
  # A client's draw depends on its number alone: other clients behind it do not change
  # it.
  fewer = Partition(INDICES[:15], SPLIT.offsets[:4])
  assert first[2] == rows_of(client_tests.hold_out(fewer, 0.3, seed=0)[1])[2]


def test_nothing_left_to_train_on():
  # Half of the only example of client 1 is 0.5, and so all of it.
  with pytest.raises(UsageError, match=r'local_test=0\.5 leaves client 1 nothing'):
    client_tests.hold_out(SPLIT, 0.5, seed=0)
  with pytest.raises(UsageError, match=r'0\.04 gives no client an example'):
    client_tests.hold_out(SPLIT, 0.04, seed=0)


def test_test_examples_with_user_ids_test_their_users():
  owner = np.array([2, 0, 3, 2, 0, 2], np.int32)
  names = np.array(['a', 'b', 'c', 'd'])
  data = Dataset(
    name='x',
    train_images=np.zeros((0, 1, 1, 1), np.uint8),
    train_labels=np.zeros(0, np.int32),
    test_images=np.zeros((6, 1, 1, 1), np.uint8),
    test_labels=np.zeros(6, np.int32),
    num_classes=2,
    mean=np.ones(1),
    std=np.ones(1),
    test_clients=owner,
    clients=names,
  )
  # User 3 trains on nothing, and is no client; client 1 has no test.
  tests = client_tests.tests_of_users(data, 3)
  assert rows_of(tests) == {0: {1, 4}, 2: {0, 3, 5}}
  assert not tests.of_training
  assert client_tests.tests_of_users(data._replace(test_clients=None), 3) is None
  assert (
    client_tests.tests_of_users(data._replace(test_clients=np.full(6, 3)), 3) is None
  )
