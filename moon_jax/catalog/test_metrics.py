"""The metrics of tests, besides accuracy and loss: `metrics` names those of a run.

Traits:
  lower            lower numbers are better
  of_many_classes  it means something only with more than five classes
"""

from moon_jax.catalog.entries import Metric, Part

LOWER = 'lower'


def _metric(name: str, metric: Metric, traits: frozenset[str] = frozenset()) -> Part:
  """The entry of a metric whose function has its name."""
  return Part(
    kind='metric',
    name=name,
    make=f'moon_jax.metrics.functions:{name}',
    title=metric.title,
    traits=traits,
    metrics={name: metric},
  )


TEST_METRICS = (
  _metric('macro_f1', Metric('Macro F1', 'macro F1, %', 100.0)),
  _metric('balanced_accuracy', Metric('Balanced accuracy', 'accuracy, %', 100.0)),
  _metric('auc', Metric('AUC, one class against the rest', 'macro AUC, %', 100.0)),
  _metric(
    'ece', Metric('Expected calibration error', 'error, %', 100.0), frozenset({LOWER})
  ),
  _metric(
    'top5',
    Metric('Top-5 accuracy', 'accuracy, %', 100.0),
    frozenset({'of_many_classes'}),
  ),
  _metric('nll', Metric('Negative log-likelihood', 'nats'), frozenset({LOWER})),
  _metric('worst_class', Metric('Worst class', 'accuracy, %', 100.0)),
)
