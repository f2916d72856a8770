"""The numbers of a run that are followed over the rounds."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from moon_jax.catalog import Metric, Part
from moon_jax.core.errors import RunError
from moon_jax.report.runs import Run
from moon_jax.runner import client_file
from moon_jax.runner.client_file import Clients

ACCURACY, VALIDATION = 'test_accuracy', 'validation_accuracy'
# The mean over clients' own tests of the model that a client would use; see
# `model_of_clients`.
CLIENT_MEAN = 'client_accuracy_mean'
# The global model's mean over the users who train, if there are others.
_MEAN_OF_USERS_WHO_TRAIN = 'user_accuracy_seen_mean'
CLIENT_MEAN_METRIC = Metric("Mean over clients' own tests", 'accuracy, %', 100.0)
_TESTED_BY_CLIENTS = (
  'personal',
  'tuned',
  'local',
  'user',
)
GENERAL = {
  ACCURACY: Metric('Test accuracy', 'test accuracy, %', 100.0),
  'train_accuracy': Metric('Training accuracy', 'training accuracy, %', 100.0),
  'train_loss': Metric('Training loss', 'training loss, nats'),
  # The first term of the loss, which algorithms with other terms share.
  'supervised_loss': Metric('Supervised training loss', 'cross entropy, nats'),
  VALIDATION: Metric('Validation accuracy', 'validation accuracy, %', 100.0),
  'test_loss': Metric('Test loss', 'test loss, nats'),
  'drift': Metric('Client drift ||w - w_received||', 'norm, mean of clients'),
  'test_accuracy_worst': Metric(
    "Lowest of the clients' own models, on the whole test set",
    'test accuracy, %',
    100.0,
  ),
  'user_accuracy_min': Metric('Worst user, on its own tests', 'accuracy, %', 100.0),
  'local_accuracy_min': Metric(
    'Worst client, global model on its own tests', 'accuracy, %', 100.0
  ),
  'tuned_accuracy_min': Metric(
    'Worst client, fine-tuned model on its own tests', 'accuracy, %', 100.0
  ),
  'personal_accuracy_min': Metric(
    'Worst client, own model on its own tests', 'accuracy, %', 100.0
  ),
  'local_accuracy_weighted_mean': Metric(
    "Global model on all clients' own tests together", 'accuracy, %', 100.0
  ),
  'tuned_accuracy_weighted_mean': Metric(
    "Fine-tuned models on all clients' own tests together", 'accuracy, %', 100.0
  ),
  'personal_accuracy_weighted_mean': Metric(
    "Clients' own models on all their own tests together", 'accuracy, %', 100.0
  ),
  'user_accuracy_worst_tenth': Metric(
    'Worst tenth of users', 'test accuracy, %', 100.0
  ),
  'user_accuracy_unseen_mean': Metric(
    'Mean over users without training examples', 'test accuracy, %', 100.0
  ),
}


# Begins the columns of clients' own tests of the model that a client would use; see
# `recorded_as`.
_OF_CLIENTS = 'client_'
# Beginning and end of a column of a metric of tests -> what it is of.
_TESTS = {
  ('test_', ''): 'test set',
  ('validation_', ''): 'validation set',
  (_OF_CLIENTS, '_mean'): "mean over clients' own tests",
  ('user_', '_mean'): 'global model, mean over users',
  ('local_', '_mean'): 'global model, mean over clients',
  ('tuned_', '_mean'): 'fine-tuned models, mean over clients',
  ('personal_', '_mean'): 'own models, mean over clients',
}


class TestMetric(NamedTuple):
  """A column of a metric of tests.

  Attributes:
    name: name of the metric, 'auc'.
    metric: its title, with what it is of; its unit and its factor.
    is_lower_better: whether lower numbers are better.
    is_of_clients: whether its numbers are means over clients' own tests.
  """

  name: str
  metric: Metric
  is_lower_better: bool
  is_of_clients: bool


def test_metrics_of(runs: Sequence[Run]) -> dict[str, TestMetric]:
  """The columns that the `metrics` of runs have in their records; see `recorded_as`.

  They are ordered by the metric, and then by what it is of.
  """
  parts = {part.name: part for run in runs for part in run.test_metrics}
  columns = {}
  for part in parts.values():
    (metric,) = part.metrics.values()
    for (beginning, end), tested_on in _TESTS.items():
      column = f'{beginning}{part.name}{end}'
      if any(_has_metric(run, part.name, column) for run in runs):
        columns[column] = TestMetric(
          name=part.name,
          metric=metric._replace(title=f'{metric.title}, {tested_on}'),
          is_lower_better=part.has('lower'),
          is_of_clients=end == '_mean',
        )
  return columns


def _has_metric(run: Run, name: str, column: str) -> bool:
  """Whether a run has a metric, and its column in a record."""
  recorded_column = recorded_as(run, column)
  return any(part.name == name for part in run.test_metrics) and any(
    recorded_column in record for record in run.rounds
  )


def test_metric_of(run: Run, column: str) -> Part | None:
  """The entry of the metric of tests that a column is of, such as `user_ece_max`.

  None if it is of no metric of this run. Of two metrics, `auc` and `auc_min`, it is the
  one with the longer name.
  """
  beginnings = {beginning for beginning, _ in _TESTS}
  named = [
    part
    for part in run.test_metrics
    for beginning in beginnings
    if f'{column}_'.startswith(f'{beginning}{part.name}_')
  ]
  return max(named, key=lambda part: len(part.name), default=None)


def metrics_of(runs: Iterable[Run]) -> dict[str, Metric]:
  """Name -> the catalog's Metric of each number that these runs may have."""
  metrics = dict(GENERAL)
  for run in runs:
    metrics.update(run.algorithm.part.metrics)
    for column, test_metric in test_metrics_of([run]).items():
      if not column.startswith(_OF_CLIENTS):  # a curve under its recorded name
        metrics[column] = test_metric.metric
  return metrics


def chosen_by(runs: Iterable[Run]) -> str:
  """The accuracy that chooses the values of knobs.

  It is the validation accuracy if all runs have one, otherwise the test accuracy.
  """
  has_validation = [len(run.metric(VALIDATION)) > 0 for run in runs]
  return VALIDATION if has_validation and all(has_validation) else ACCURACY


def last_accuracy(run: Run) -> float | None:
  """The test accuracy in the last test; None without a test."""
  return last(run.metric(ACCURACY))


def model_of_clients(run: Run) -> str | None:
  """The model that a client would use: the first one that clients' own tests are of.

  Returns:
    The beginning of its columns: 'personal' for the client's own model, 'tuned' for the
    fine-tuned one, 'local' or 'user' for the global one; None if clients have no tests
    of their own.
  """
  for model in _TESTED_BY_CLIENTS:
    column = f'{model}_accuracy_mean'
    if any(column in record for record in run.rounds):
      return model
  return None


def leaves_users_out(run: Run) -> bool:
  """Whether means over clients' own tests leave out users, who do not train.

  A client's own model and the fine-tuned one are of clients that train. So the means of
  the global model are over the same clients, though all users test it. If the examples
  were dealt out, no user is a client, and the means are over all users. The centralized
  bound has no partition, and is compared with algorithms whose clients are the users.
  """
  users_are_clients = run.identity.get('partition.name', 'natural') == 'natural'
  return (
    users_are_clients
    and model_of_clients(run) == 'user'
    and any(_MEAN_OF_USERS_WHO_TRAIN in record for record in run.rounds)
  )


def counted_clients(run: Run, clients: Clients) -> np.ndarray | None:
  """Which clients the means over clients' own tests are over; see `leaves_users_out`.

  Args:
    run: the run.
    clients: content of its clients.csv.gz.

  Returns:
    [V] whether each client counts; None if the file does not say which users train, as
    that of the centralized bound.
  """
  if not leaves_users_out(run):
    return np.ones(len(clients.names), bool)
  if np.isnan(clients.training_examples).any():
    return None
  return clients.training_examples > 0


def recorded_as(run: Run, column: str) -> str:
  """The column of metrics.jsonl whose numbers a column of a report has.

  'client_auc_mean' is 'personal_auc_mean' if the run tests each client's own model on
  the client's own tests, else that of the next model; see `model_of_clients`. Others
  have the same name.
  """
  if column == CLIENT_MEAN and leaves_users_out(run):
    return _MEAN_OF_USERS_WHO_TRAIN
  if column.startswith(_OF_CLIENTS):
    return f'{model_of_clients(run)}_{column.removeprefix(_OF_CLIENTS)}'
  return column


def last_numbers(run: Run, columns: Iterable[str]) -> dict[str, float | None]:
  """Column -> its number in the last test that has it; None if there is none.

  See `recorded_as`. If users who do not train are left out, metrics.jsonl has no means
  of metrics over the others: these are taken over the clients of clients.csv.gz.
  """
  numbers = {column: last(run.metric(recorded_as(run, column))) for column in columns}
  metric_columns = [
    column
    for column in numbers
    if column.startswith(_OF_CLIENTS) and column != CLIENT_MEAN
  ]
  if metric_columns and leaves_users_out(run):
    means = _means_of_users_who_train(run)
    numbers |= {
      column: means.get(recorded_as(run, column)) for column in metric_columns
    }
  return numbers


def _means_of_users_who_train(run: Run) -> dict[str, float | None]:
  """'user_auc_mean' -> the mean over the users who train, in the last test with one.

  Empty if the run has no numbers of single clients, or does not say who trains.
  """
  try:
    clients = client_file.read(run.path)
  except RunError:
    return {}
  if clients is None:
    return {}
  counted = counted_clients(run, clients)
  if counted is None:
    return {}
  means = {}
  for column, numbers in clients.numbers.items():
    user_numbers = pd.DataFrame(numbers[:, counted], clients.rounds)
    means[f'{column}_mean'] = last(user_numbers.mean(axis=1).dropna())
  return means


def last_number(run: Run, column: str) -> float | None:
  """`last_numbers` of one column."""
  return last_numbers(run, [column])[column]


def last_client_mean(run: Run) -> float | None:
  """`CLIENT_MEAN` in the last test; None if clients have no tests of their own."""
  return last_number(run, CLIENT_MEAN)


def has_global_model(run: Run) -> bool:
  """Whether the test accuracy is that of one model, not a mean over clients' models."""
  return not len(run.metric('test_accuracy_worst'))


def best_column(run: Run) -> str:
  """The column that chooses the best round of a run, as in its summary.json.

  `best_by` names the number; that of the validation set chooses, if there is one. If
  the metric is not defined in any round, the accuracy chooses.
  """
  best_by = run.knobs.get('best_by', 'accuracy')
  accuracy = chosen_by([run])
  column = accuracy.removesuffix('accuracy') + best_by
  return column if len(run.metric(column)) else accuracy


def best_accuracy(run: Run) -> float | None:
  """The test accuracy in the round that `best_column` chooses; None without a test."""
  column = best_column(run)
  choosing = run.metric(column)
  if not len(choosing):
    return None
  lower = {part.name for part in run.test_metrics if part.has('lower')} | {'loss'}
  is_lower_better = column.partition('_')[2] in lower
  best_round = choosing.idxmin() if is_lower_better else choosing.idxmax()
  return run.metric(ACCURACY)[best_round]


def best_by_words(run: Run) -> str:
  """'validation', or 'validation macro f1' if another number than accuracy chooses."""
  return best_column(run).removesuffix('_accuracy').replace('_', ' ')


def last(numbers: pd.Series) -> float | None:
  """The number of the last round; None if there is none."""
  return numbers.iloc[-1] if len(numbers) else None


def trace(run: Run, name: str) -> pd.Series:
  """Round -> a number in its unit; empty if the algorithm does not have it."""
  metric: Metric | None = metrics_of([run]).get(name)
  if metric is None:
    return pd.Series(dtype=float)
  if metric.value is None:
    return metric.factor * run.metric(name)
  part = run.algorithm.part
  prefix = f'{part.group or part.name}.'
  algorithm_knobs = {
    knob.removeprefix(prefix): value
    for knob, value in run.knobs.items()
    if knob.startswith(prefix)
  }
  numbers = {
    record['round']: metric.value(algorithm_knobs, record) for record in run.rounds
  }
  return metric.factor * pd.Series(numbers, dtype=float).dropna()
