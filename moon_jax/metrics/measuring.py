"""Computes the chosen metrics."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from moon_jax import catalog
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.metrics.classified import Classified, ClassifiedTests

# Name of a metric -> [T] numbers, one of each test; NaN where it is not defined.
Numbers = Mapping[str, np.ndarray]

_FEW_CLASSES = 5  # of which every one is among the five likeliest
_MOST_LOGITS = 2**18  # of the tests that are measured together


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
  num_examples = np.array([len(classified.labels)])
  numbers = _measure_group(names, ClassifiedTests(classified, num_examples))
  return {name: float(number) for name, (number,) in numbers.items()}


def measure_tests(
  names: Sequence[str],
  labels: Sequence[np.ndarray],
  logits: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
  """The metrics of T tests, of one model each.

  The tests are measured in groups, because each call of NumPy takes its time, however
  few examples a test has. A number does not depend on its group.

  Args:
    names: names of metrics.
    labels: [T] arrays [n] int, the classes of each test's examples.
    logits: [T] arrays [n, Y] float.

  Returns:
    Name -> [T] float64; NaN for a test where the metric is not defined, or that has no
    example, or whose logits are not finite.
  """
  numbers = {name: np.full(len(labels), math.nan) for name in names}
  for group in _groups([test_logits.size for test_logits in logits]):
    logits_of_group = np.concatenate([logits[test] for test in group])
    if not np.isfinite(logits_of_group).all():
      group = [test for test in group if np.isfinite(logits[test]).all()]
      if not group:
        continue
      logits_of_group = np.concatenate([logits[test] for test in group])
    labels_of_group = np.concatenate([labels[test] for test in group])
    sizes = np.array([len(labels[test]) for test in group])
    classified = Classified(labels_of_group, logits_of_group)
    group_numbers = _measure_group(names, ClassifiedTests(classified, sizes))
    for name, test_numbers in group_numbers.items():
      numbers[name][group] = test_numbers
  return numbers


def _groups(sizes: Sequence[int]) -> Iterator[list[int]]:
  """Divides the tests that have examples; a large one is a group of its own.

  The tests of a group are in the order of their sizes. They are of about one size,
  because AUC makes room in several for as many examples as the largest has.

  Args:
    sizes: number of logits of each test.
  """
  ascending = sorted(range(len(sizes)), key=sizes.__getitem__)
  group: list[int] = []
  for test in ascending:
    if group and (len(group) + 1) * sizes[test] > _MOST_LOGITS:
      yield group
      group = []
    if sizes[test]:
      group.append(test)
  if group:
    yield group


def _measure_group(names: Iterable[str], tests: ClassifiedTests) -> Numbers:
  """Name of a metric -> [T] float64, NaN where it is not defined; logits are finite."""
  numbers = {}
  for name in names:
    part = catalog.part('metric', name)
    if part.registered is not None:
      numbers[name] = _numbers_of_registered(part, tests)
    else:
      numbers[name] = part.function(tests)
  return numbers


def _numbers_of_registered(part: catalog.Part, tests: ClassifiedTests) -> np.ndarray:
  """[T] numbers of a registered metric, whose function takes one test at a time."""
  ends = np.cumsum(tests.sizes)[:-1]
  labels = np.split(tests.examples.labels, ends)
  logits = np.split(tests.examples.logits, ends)
  numbers = [
    _number(part, Classified(test_labels, test_logits))
    for test_labels, test_logits in zip(labels, logits, strict=True)
  ]
  return np.array(numbers)


def _number(part: catalog.Part, classified: Classified) -> float:
  with explaining_errors_of(part):
    number = part.function(classified)
  if hasattr(number, 'item') and not getattr(number, 'shape', ()):
    number = number.item()  # of NumPy or JAX
  if type(number) not in (int, float):
    raise UsageError(
      f'The metric {part.name!r} must return a number, not {type(number).__name__}.'
    )
  return float(number) if math.isfinite(number) else math.nan
