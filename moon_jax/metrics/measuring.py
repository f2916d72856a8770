"""Computes the chosen metrics."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from moon_jax import catalog
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.metrics.classified import Classified

_FEW_CLASSES = 5  # of which every one is among the five likeliest


def require_classes(names: Sequence[str], num_classes: int) -> None:
  """Refuses a metric that means nothing with so few classes.

  Raises:
    KnobError: the metric is named.
  """
  for name in names:
    part = catalog.part('metric', name)
    if part.has('of_many_classes') and num_classes <= _FEW_CLASSES:
      raise KnobError(
        'metrics',
        ','.join(names),
        f'has {name}, which is 1 for every model of {num_classes} classes: leave it '
        'out.',
      )


def measure(names: Iterable[str], classified: Classified) -> dict[str, float]:
  """Name of a metric -> its number; NaN if it is not defined for these examples.

  Raises:
    UsageError: the function of a registered metric fails, or returns no number.
  """
  return {name: _number(name, classified) for name in names}


def _number(name: str, classified: Classified) -> float:
  part = catalog.part('metric', name)
  with explaining_errors_of(part):
    number = part.function(classified)
  if hasattr(number, 'item') and not getattr(number, 'shape', ()):
    number = number.item()  # of NumPy or JAX
  if type(number) not in (int, float):
    raise UsageError(
      f'The metric {name!r} must return a number, not {type(number).__name__}.'
    )
  return float(number) if math.isfinite(number) else math.nan


def measure_models(
  names: Sequence[str], labels: np.ndarray, logits: np.ndarray
) -> dict[str, np.ndarray]:
  """The metrics of several models on the same examples.

  Args:
    names: names of metrics.
    labels: [n] int.
    logits: [M, n, Y] float.

  Returns:
    Name -> [M] float64; NaN for a model whose metric is not defined, or whose logits
    are not finite.
  """
  numbers = {name: np.full(len(logits), math.nan) for name in names}
  for model, logits_of_model in enumerate(logits):
    if np.isfinite(logits_of_model).all():
      measured = measure(names, Classified(labels, logits_of_model))
      for name, number in measured.items():
        numbers[name][model] = number
  return numbers
