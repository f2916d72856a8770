"""The examples that test the models of an experiment."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from moon_jax.algorithms.base import Algorithm
from moon_jax.building.data import Divided, partition_seed
from moon_jax.config import Config, used_value
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import PyTree
from moon_jax.data.client_tests import ClientTestRows, hold_out, tests_of_users
from moon_jax.data.device_split import DeviceSplit, split_of
from moon_jax.data.federated import users
from moon_jax.data.federated.users import TestUsers
from moon_jax.data.partition import Partition


class Tests(NamedTuple):
  """The examples that test the models.

  Attributes:
    examples: the test split on the devices.
    validation: examples that the server keeps, on the devices; None if there are none.
    of_clients: the examples that test one client each; None if there are no such tests.
    users: the users of the test examples, of which there are N'.
    num_users_without_training_data: how many of these N' users own no training
      examples, the last ones; 0 if the users of the training examples are unknown.
  """

  examples: DeviceSplit
  validation: DeviceSplit | None
  of_clients: ClientTestRows | None
  users: TestUsers
  num_users_without_training_data: int


class ClientExamples(NamedTuple):
  """On which examples the clients train, and which examples test them.

  Attributes:
    training_partition: the owner of each example on which a client trains.
    client_tests: the examples that test one client each; None if there are no such
      tests.
  """

  training_partition: Partition
  client_tests: ClientTestRows | None


class ClientTestOptions:
  """What a configuration says about tests of single clients.

  Attributes:
    local_test: fraction of each client's examples that test this client.
    seed: seed of the draw of these examples.
    fine_tune_epochs: epochs of fine-tuning before a client's test; 0 for none.
    algorithm: name of the algorithm.
  """

  def __init__(self, config: Config):
    self.local_test = config.data.local_test
    self.seed = partition_seed(config)
    self.fine_tune_epochs = used_value(config, 'fine_tune_epochs')
    self.algorithm = config.algorithm


def hold_out_client_tests(
  divided: Divided,
  options: ClientTestOptions,
  algorithm: Algorithm,
  has_client_models: bool,
) -> ClientExamples:
  """Takes the examples that test single clients, from training or the test split.

  Raises:
    UsageError: the fraction cannot be taken, or tests are needed and there are none.
  """
  fraction = options.local_test
  required_by = _flag_that_needs_client_tests(options, algorithm, has_client_models)
  user_tests = None
  if divided.user_ids is not None:
    user_tests = tests_of_users(divided.dataset, divided.num_clients)
  if required_by and not user_tests and divided.dataset.stored:
    raise UsageError(
      f'{required_by} needs tests of each client, and these data stay on disk: write '
      'them with test examples that have user ids.'
    )
  if required_by and not fraction and not user_tests:
    raise UsageError(
      f'{required_by} needs tests of each client: add {flag("data.local_test", 0.25)}, '
      f'or use {flag("partition.name", "natural")} with test examples that have user '
      'ids.'
    )
  if not fraction:
    is_tested = has_client_models or required_by
    return ClientExamples(
      training_partition=divided.partition,
      client_tests=user_tests if is_tested else None,
    )
  if divided.dataset.stored:
    raise KnobError(
      'data.local_test',
      fraction,
      'is not for data that stay on disk: write them with test examples that have '
      'user ids.',
    )
  if user_tests:
    raise KnobError(
      'data.local_test',
      fraction,
      'must be 0.0: the test examples have user ids, and are the tests of the clients.',
    )
  training_partition, client_tests = hold_out(
    divided.partition, fraction, options.seed, divided.client_name
  )
  return ClientExamples(
    training_partition=training_partition, client_tests=client_tests
  )


def _flag_that_needs_client_tests(
  options: ClientTestOptions, algorithm: Algorithm, has_client_models: bool
) -> str:
  """The flag for which clients need tests of their own; '' if there is none."""
  epochs = options.fine_tune_epochs
  if epochs and has_client_models:
    raise KnobError(
      'fine_tune_epochs',
      epochs,
      'needs a global model, and here each client has a model of its own: leave it '
      f'out, or choose another {flag("algorithm")} or {flag("batch_norm")}.',
    )
  if algorithm.adapted and has_client_models:
    raise KnobError(
      'algorithm',
      options.algorithm,
      'adapts a global model (`adapted`), and here each client has a model of its own '
      '(`evaluated`).',
    )
  if algorithm.personal or algorithm.adapted:
    return flag('algorithm', options.algorithm)
  return flag('fine_tune_epochs', epochs) if epochs else ''


def tests_on_devices(
  divided: Divided,
  client_tests: ClientTestRows | None,
  mesh: Mesh,
  put: Callable[[PyTree, Mesh], PyTree],
) -> Tests:
  """The tests of the server, of the users and of the clients, on the devices.

  Args:
    divided: the data.
    client_tests: the tests of the clients.
    mesh: the devices.
    put: puts arrays on the devices, or makes shapes of them.
  """
  dataset = divided.dataset
  test_users = users.test_users(dataset)
  training_sizes = users.sizes_of(dataset)
  num_without_training_data = 0
  if training_sizes is not None:
    never_trains = test_users.numbers >= len(training_sizes)
    num_without_training_data = int(np.count_nonzero(never_trains))
  examples = split_of(
    dataset, dataset.test_images, dataset.test_labels, clients=test_users.owner
  )
  validation = None
  if divided.validation:
    images, labels = divided.validation
    validation = put(split_of(dataset, images, labels), mesh)
  return Tests(
    examples=put(examples, mesh),
    validation=validation,
    of_clients=client_tests,
    users=test_users,
    num_users_without_training_data=num_without_training_data,
  )
