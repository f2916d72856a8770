"""The numbers followed over the rounds: general ones, and those of the algorithms."""

from collections.abc import Iterable, Mapping

from moon_jax.catalog import Metric
from moon_jax.report.read.runs import Run

ACCURACY = 'test_accuracy'
GENERAL = {
  ACCURACY: Metric('Test accuracy', 'test accuracy, %', 100.0),
  'train_accuracy': Metric('Training accuracy', 'training accuracy, %', 100.0),
  'train_loss': Metric('Training loss', 'training loss, nats'),
  # Its first term, which algorithms with other terms have in common.
  'supervised_loss': Metric('Supervised training loss', 'cross entropy, nats'),
  'test_loss': Metric('Test loss', 'test loss, nats'),
  'drift': Metric('Client drift ||w - w_received||', 'norm, mean of clients'),
  'test_accuracy_worst': Metric('Worst client', 'test accuracy, %', 100.0),
  'user_accuracy_worst_tenth': Metric(
    'Worst tenth of users', 'test accuracy, %', 100.0
  ),
}


def followed(runs: Iterable[Run]) -> dict[str, Metric]:
  """What the catalog says of each number that these runs may have."""
  every = GENERAL.copy()
  for run in runs:
    every |= run.algorithm.part.metrics
  return every


def column(run: Run, name: str) -> dict[int, float]:
  """round -> value of a number, in its unit; empty where it is not the algorithm's."""
  part = run.algorithm.part
  metric: Metric | None = (GENERAL | dict(part.metrics)).get(name)
  if metric is None:
    return {}
  found: Mapping[int, float | None] = run.column(name)
  if metric.value is not None:
    prefix = f'{part.group or part.name}.'
    own = {k[len(prefix) :]: v for k, v in run.knobs.items() if k.startswith(prefix)}
    found = {record['round']: metric.value(own, record) for record in run.rounds}
  return {r: metric.factor * v for r, v in found.items() if v is not None}
