"""The clients that a run tests one by one, and their numbers in a tested round."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from moon_jax.building.experiment import Experiment
from moon_jax.runner.client_file import Columns
from moon_jax.runner.model_tests import Tested

_NONE = np.zeros(0, np.int64)
_NOTHING: Mapping[str, np.ndarray] = {}


class TestedClients(NamedTuple):
  """The clients that a run tests: those with a test, or a model, of their own; users.

  A user who does not train is listed after the clients. If the clients are not the
  users, because the examples were dealt out, all users are listed so, as 'user NAME'.

  Attributes:
    columns: their names and sizes, [V].
    of_models: [N] position of each client, if each has a model of its own; else [0].
    of_clients: [T] position of each client with tests of its own.
    of_users: [N'] position of each user with test examples.
  """

  columns: Columns
  of_models: np.ndarray = _NONE
  of_clients: np.ndarray = _NONE
  of_users: np.ndarray = _NONE

  def numbers(
    self,
    *,
    of_models: Mapping[str, np.ndarray] = _NOTHING,
    of_clients: Mapping[str, np.ndarray] = _NOTHING,
    of_users: Mapping[str, np.ndarray] = _NOTHING,
  ) -> dict[str, np.ndarray]:
    """The numbers of a tested round, as `ClientFile.add` takes them.

    Args:
      of_models: column -> [N] numbers of the clients' own models.
      of_clients: column -> [T] numbers of the clients with tests of their own.
      of_users: column -> [N'] numbers of the users.

    Returns:
      Column -> [V] float64; NaN where a client has no such number.
    """
    numbers = {}
    for positions, columns in (
      (self.of_models, of_models),
      (self.of_clients, of_clients),
      (self.of_users, of_users),
    ):
      for name, column in columns.items():
        numbers[name] = np.full(len(self.columns.names), math.nan)
        numbers[name][positions] = column
    return numbers


def tested_clients(experiment: Experiment) -> TestedClients | None:
  """The clients that a run tests one by one; None if it tests none."""
  data, tests = experiment.data, experiment.tests
  num_clients = len(data.partition.sizes)
  users_are_clients = data.user_ids is not None
  tests_users = len(tests.users.sizes) > 0 and not experiment.has_client_models
  users = tests.users.numbers if tests_users else _NONE
  with_tests = tests.of_clients.clients if tests.of_clients else _NONE
  # Users that are clients have the lowest numbers.
  users_who_train = users[users < num_clients] if users_are_clients else _NONE
  if experiment.has_client_models:
    clients = np.arange(num_clients)
  else:
    clients = np.union1d(with_tests, users_who_train).astype(np.int64)
  other_users = users[len(users_who_train) :]
  if not len(clients) + len(other_users):
    return None

  names = [data.client_name(client) for client in clients.tolist()]
  prefix = 'user ' if len(clients) and not users_are_clients else ''
  other_user_names = tests.users.names[len(users_who_train) :]
  names += [prefix + name for name in other_user_names] if tests_users else []
  training_examples = np.full(len(names), 0.0 if users_are_clients else math.nan)
  training_examples[: len(clients)] = data.partition.sizes[clients]

  of_clients = np.searchsorted(clients, with_tests)
  of_users = np.concatenate(
    [
      np.searchsorted(clients, users_who_train),
      len(clients) + np.arange(len(other_users)),
    ]
  )
  test_examples = np.zeros(len(names), np.int64)
  if tests_users:
    test_examples[of_users] = tests.users.sizes
  if tests.of_clients:
    test_examples[of_clients] = tests.of_clients.sizes
  return TestedClients(
    columns=Columns(
      names=names, training_examples=training_examples, test_examples=test_examples
    ),
    of_models=clients if experiment.has_client_models else _NONE,
    of_clients=of_clients,
    of_users=of_users,
  )


def accuracies(
  experiment: Experiment, clients: TestedClients, tested: Tested
) -> dict[str, np.ndarray]:
  """Column -> [V] float64: the accuracies in [0, 1], and the metrics, of a test.

  Args:
    experiment: the experiment.
    clients: its tested clients.
    tested: results of the test, on the host.
  """
  tests, score = experiment.tests, tested.score
  model_columns, client_columns, user_columns = {}, {}, {}
  if len(clients.of_models):
    model_columns['test_accuracy'] = score.num_correct / len(tests.examples.labels)
  if score.num_correct_of_users is not None:
    num_correct = score.num_correct_of_users[0]
    user_columns['user_accuracy'] = num_correct / tests.users.sizes
  for column, num_correct in (tested.num_correct or {}).items():
    client_columns[column] = num_correct / tests.of_clients.sizes
  if tested.measured:
    if len(clients.of_models):
      for name, numbers in tested.measured.test.items():
        model_columns[f'test_{name}'] = numbers
    for kind, numbers_by_name in tested.measured.of_clients.items():
      columns = user_columns if kind == 'user' else client_columns
      for name, numbers in numbers_by_name.items():
        columns[f'{kind}_{name}'] = numbers
  return clients.numbers(
    of_models=model_columns, of_clients=client_columns, of_users=user_columns
  )
