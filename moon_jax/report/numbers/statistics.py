"""Mean, deviation, paired test, rounds to a target. Plain numbers in, plain out."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

_ROUNDING = 1e-12  # differences closer than this are equal


class Estimate(NamedTuple):
  """A mean over samples.

  Attributes:
    mean: of the samples.
    std: sample standard deviation, with n - 1; None for a single sample.
    n: how many samples.
  """

  mean: float
  std: float | None
  n: int


def estimate(values: Iterable[float]) -> Estimate | None:
  """Mean and sample standard deviation; None without a value."""
  values = np.asarray(list(values), np.float64)
  if not len(values):
    return None
  std = float(values.std(ddof=1)) if len(values) > 1 else None
  return Estimate(float(values.mean()), std, len(values))


def curve(columns: Sequence[Mapping[int, float]]) -> dict[int, Estimate]:
  """Averages the columns of several runs in the rounds in which all have a value.

  Args:
    columns: for each run, round -> value.
  """
  common = sorted(set.intersection(*map(set, columns))) if columns else []
  return {number: estimate(column[number] for column in columns) for number in common}


class Comparison(NamedTuple):
  """A paired difference.

  Attributes:
    difference: over the pairs.
    p_value: of the two-sided paired t-test; None with fewer than two pairs, or where
      all differences are equal.
  """

  difference: Estimate
  p_value: float | None


def compare(
  ours: Mapping[Hashable, float], theirs: Mapping[Hashable, float]
) -> Comparison | None:
  """Compares values of common samples, by `scipy.stats.ttest_rel`.

  Args:
    ours: sample, such as a seed -> value.
    theirs: the same of what is compared with.

  Returns:
    ours - theirs; None without a common sample.
  """
  common = [sample for sample in ours if sample in theirs]
  if not common:
    return None
  pairs = [(ours[sample], theirs[sample]) for sample in common]
  differences = [a - b for a, b in pairs]
  if np.ptp(differences) < _ROUNDING:
    return Comparison(estimate(differences), None)
  from scipy import stats  # only now: it takes a second

  p_value = stats.ttest_rel(*zip(*pairs, strict=True)).pvalue
  return Comparison(estimate(differences), float(p_value))


def first_reaching(column: Mapping[int, float], target: float) -> int | None:
  """The first round whose value is the target or more."""
  return next((r for r in sorted(column) if column[r] >= target), None)


def last(column: Mapping[int, float]) -> float | None:
  """The value of the last round that has one; None if none has."""
  return column[max(column)] if column else None


def best(column: Mapping[int, float]) -> float | None:
  """The highest value; None if there is none."""
  return max(column.values(), default=None)


def tail_mean(column: Mapping[int, float], count: int = 5) -> float | None:
  """The mean of the last values, so many or as many as there are; None if none is."""
  values = [column[r] for r in sorted(column)[-count:]]
  return float(np.mean(values)) if values else None


def total(column: Mapping[int, float], up_to: int) -> float | None:
  """The sum over rounds 1 to `up_to`; None if one of them has no value."""
  rounds = range(1, up_to + 1)
  return sum(column[r] for r in rounds) if set(rounds) <= set(column) else None


def ranges(numbers: Sequence[int]) -> int | str:
  """10, or '10 to 20' if they differ."""
  low, high = min(numbers), max(numbers)
  return low if low == high else f'{low} to {high}'
