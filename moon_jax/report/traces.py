"""The numbers of a run that are followed over the rounds."""

from collections.abc import Iterable

import pandas as pd

from moon_jax.catalog import Metric
from moon_jax.report.runs import Run

ACCURACY, VALIDATION = 'test_accuracy', 'validation_accuracy'
GENERAL = {
  ACCURACY: Metric('Test accuracy', 'test accuracy, %', 100.0),
  'train_accuracy': Metric('Training accuracy', 'training accuracy, %', 100.0),
  'train_loss': Metric('Training loss', 'training loss, nats'),
  # The first term of the loss, which algorithms with other terms share.
  'supervised_loss': Metric('Supervised training loss', 'cross entropy, nats'),
  VALIDATION: Metric('Validation accuracy', 'validation accuracy, %', 100.0),
  'test_loss': Metric('Test loss', 'test loss, nats'),
  'drift': Metric('Client drift ||w - w_received||', 'norm, mean of clients'),
  'test_accuracy_worst': Metric('Worst client', 'test accuracy, %', 100.0),
  'local_accuracy_weighted_mean': Metric(
    "Global model on clients' own tests", 'test accuracy, %', 100.0
  ),
  'tuned_accuracy_weighted_mean': Metric(
    "Global model, fine-tuned, on clients' own tests", 'test accuracy, %', 100.0
  ),
  'personal_accuracy_weighted_mean': Metric(
    "Clients' own models on their own tests", 'test accuracy, %', 100.0
  ),
  'user_accuracy_worst_tenth': Metric(
    'Worst tenth of users', 'test accuracy, %', 100.0
  ),
}


def followed(runs: Iterable[Run]) -> dict[str, Metric]:
  """The catalog's Metric of each number that these runs may have."""
  every = GENERAL.copy()
  for run in runs:
    every |= run.algorithm.part.metrics
  return every


def chosen_by(runs: Iterable[Run]) -> str:
  """The column that chooses rounds and knobs: validation accuracy, if all runs have it.

  Without a validation split it is the accuracy on the test set.
  """
  validated = [len(run.column(VALIDATION)) > 0 for run in runs]
  return VALIDATION if validated and all(validated) else ACCURACY


def best(run: Run) -> float | None:
  """The test accuracy in the round that `chosen_by` chooses; None without a test."""
  by, tested = run.column(chosen_by([run])), run.column(ACCURACY)
  return tested[by.idxmax()] if len(by) else None


def column(run: Run, name: str) -> pd.Series:
  """A number by rounds, in its unit; empty if the algorithm does not have it."""
  part = run.algorithm.part
  metric: Metric | None = followed([run]).get(name)
  if metric is None:
    return pd.Series(dtype=float)
  if metric.value is None:
    return metric.factor * run.column(name)
  prefix = f'{part.group or part.name}.'
  own = {k[len(prefix) :]: v for k, v in run.knobs.items() if k.startswith(prefix)}
  found = {record['round']: metric.value(own, record) for record in run.rounds}
  return metric.factor * pd.Series(found, dtype=float).dropna()
