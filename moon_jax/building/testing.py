"""The examples that test the models of an experiment."""

from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from moon_jax.algorithms.base import Algorithm
from moon_jax.building.data import Divided, partition_seed, users_are_clients
from moon_jax.config import Config, used_value
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset
from moon_jax.data import own_tests
from moon_jax.data.device import DeviceSplit
from moon_jax.data.federated import users
from moon_jax.data.own_tests import OwnTests
from moon_jax.data.partition import Partition
from moon_jax.platform import devices


class Tests(NamedTuple):
  """The examples that test the models.

  Attributes:
    examples: the test split on the devices.
    validation: examples that the server keeps, on the devices; None if there are none.
    of_clients: the examples that test one client each; None if there are no such tests.
    user_sizes: [N'] test examples of each user; [0] if these have no user ids.
    num_users_without_training_data: how many of these N' users are no clients.
  """

  examples: DeviceSplit
  validation: DeviceSplit | None
  of_clients: OwnTests | None
  user_sizes: np.ndarray
  num_users_without_training_data: int


class HeldOut(NamedTuple):
  """The training examples without those that test the clients.

  Attributes:
    training: the owner of each example on which a client trains.
    client_tests: the examples that test one client each; None if there are no such
      tests.
  """

  training: Partition
  client_tests: OwnTests | None


def hold_out_client_tests(
  divided: Divided, algorithm: Algorithm, has_client_models: bool
) -> HeldOut:
  """Takes the examples that test single clients, from training or the test split.

  Raises:
    UsageError: the share cannot be taken, or tests are needed and there are none.
  """
  config = divided.config
  dataset = divided.dataset
  share = config.data.local_test
  required_by = _flag_that_needs_client_tests(config, algorithm, has_client_models)
  user_tests = None
  if users_are_clients(config):
    user_tests = own_tests.of_users(dataset, config.num_clients)
  if required_by and not share and not user_tests:
    raise UsageError(
      f'{required_by} needs tests of each client: add {flag("data.local_test", 0.25)}, '
      f'or use {flag("partition.name")}=natural with test examples that have user '
      'ids.'
    )
  if not share:
    is_tested = has_client_models or required_by
    return HeldOut(divided.partition, user_tests if is_tested else None)
  if dataset.stored:
    raise KnobError(
      'data.local_test',
      share,
      'is not for data that stay on disk: write them with test examples that have '
      'user ids.',
    )
  if user_tests:
    raise KnobError(
      'data.local_test',
      share,
      'must be 0.0: the test examples have user ids, and are the tests of the clients.',
    )
  return HeldOut(*own_tests.held_out(divided.partition, share, partition_seed(config)))


def _flag_that_needs_client_tests(
  config: Config, algorithm: Algorithm, has_client_models: bool
) -> str:
  """The flag for which clients need tests of their own; '' if there is none."""
  epochs = used_value(config, 'fine_tune_epochs')
  if epochs and has_client_models:
    raise KnobError(
      'fine_tune_epochs',
      epochs,
      'needs a global model, and here each client has a model of its own: leave it '
      f'out, or choose another {flag("algorithm")} or {flag("batch_norm")}.',
    )
  if algorithm.personal:
    return f'{flag("algorithm")}={config.algorithm}'
  return flag('fine_tune_epochs', epochs) if epochs else ''


def tests_on_devices(
  divided: Divided, client_tests: OwnTests | None, mesh: Mesh
) -> Tests:
  """The tests of the server, of the users and of the clients, on the devices."""
  config = divided.config
  dataset = divided.dataset
  owner, user_sizes, num_others = users.tested(dataset, config.num_clients)
  examples = dataset.test_images, dataset.test_labels
  validation = None
  if divided.validation:
    validation = _on_devices(dataset, divided.validation, None, mesh)
  return Tests(
    examples=_on_devices(dataset, examples, owner, mesh),
    validation=validation,
    of_clients=client_tests,
    user_sizes=user_sizes,
    num_users_without_training_data=num_others if users_are_clients(config) else 0,
  )


def _on_devices(
  dataset: Dataset,
  examples: tuple[np.ndarray, np.ndarray],
  owner: np.ndarray | None,
  mesh: Mesh,
) -> DeviceSplit:
  """Images and labels on the devices, normalised as the data set is."""
  images, labels = examples
  split = DeviceSplit(images, labels, dataset.mean, dataset.std, clients=owner)
  return devices.replicate(split, mesh)
