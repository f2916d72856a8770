"""Statistics over seeds: means, sample deviations, intervals and paired differences.

Every function is pure. The tables of a report and of the papers are made with these.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

ROUNDING = 1e-12  # numbers closer than this are equal


class Estimate(NamedTuple):
  """The mean of some numbers.

  Attributes:
    mean: their mean; NaN if there are none.
    std: their sample standard deviation (n - 1); NaN if there are fewer than two.
    n: how many there are.
  """

  mean: float
  std: float
  n: int

  @property
  def half_width(self) -> float:
    """Half the width of the 95 % interval of the mean; NaN if n < 2."""
    return half_width(self.std, self.n, self.n - 1) if self.n > 1 else math.nan


def estimate(numbers: Iterable[float]) -> Estimate:
  """The mean and the deviation of some numbers, such as one of each seed.

  >>> estimate([1.0, 2.0, 3.0])
  Estimate(mean=2.0, std=1.0, n=3)
  """
  table = estimates(pd.DataFrame([list(numbers)], dtype=float))
  return Estimate(
    mean=float(table['mean'].iloc[0]),
    std=float(table['std'].iloc[0]),
    n=int(table['n'].iloc[0]),
  )


def estimates(table: pd.DataFrame) -> pd.DataFrame:
  """The mean, the sample standard deviation (n - 1) and the count of each row.

  A missing number is not counted; the deviation of a single number is NaN.

  Returns:
    The columns 'mean', 'std' and 'n', with the index of the table.
  """
  mean = table.mean(axis=1)
  std = table.std(axis=1)
  return pd.DataFrame({'mean': mean, 'std': std, 'n': table.count(axis=1)})


def mean_curve(curves: Iterable[pd.Series]) -> pd.DataFrame:
  """`estimates` over runs, in each round in which all runs have a number.

  Args:
    curves: round -> number, for each run.
  """
  curves = list(curves)
  if not curves:
    return estimates(pd.DataFrame())
  return estimates(pd.concat(curves, axis=1, join='inner').sort_index())


def half_width(std: float, n: int, degrees_of_freedom: int) -> float:
  """Half the width of Student's 95 % interval of a mean of n numbers.

  Args:
    std: standard deviation of a single number.
    n: how many numbers the mean is over.
    degrees_of_freedom: those of the deviation; n - 1 if it is from the same numbers.
  """
  from scipy import stats  # here, because it takes a second

  return float(stats.t.ppf(0.975, degrees_of_freedom)) * std / math.sqrt(n)


def clear_best(
  samples: Mapping[str, pd.Series], *, is_higher_better: bool
) -> str | None:
  """The name of the best numbers, if they are clearly better than the second.

  They are if the 95 % interval of the mean paired difference (Student's t) is beyond 0.

  >>> ours, theirs = pd.Series([0.8, 0.91]), pd.Series([0.5, 0.6])
  >>> clear_best({'ours': ours, 'theirs': theirs}, is_higher_better=True)
  'ours'

  Args:
    samples: name -> sample -> number; samples that two of them share make pairs.
    is_higher_better: whether higher numbers are better.

  Returns:
    The name; None if there are fewer than two, or fewer than two pairs of the best and
    the second, or if all differences of these pairs are equal, which say nothing of
    their deviation, or if the interval reaches 0, or if another is as good in the
    samples that it shares with the best: their other samples made the difference.
  """
  sign = 1.0 if is_higher_better else -1.0
  ranking = sorted(samples, key=lambda name: sign * samples[name].mean(), reverse=True)
  if len(ranking) < 2:
    return None
  best, second = ranking[:2]
  difference, p_value = paired_difference(samples[best], samples[second])
  is_clear = p_value is not None and (
    sign * difference.mean - difference.half_width > ROUNDING
  )
  leads = [
    sign * paired_difference(samples[best], samples[other]).estimate.mean
    for other in ranking[1:]
  ]
  is_led = any(lead <= 0 for lead in leads)  # NaN, without a pair, is not
  return best if is_clear and not is_led else None


class PairedDifference(NamedTuple):
  """The difference of two series over the samples that both have, such as seeds.

  Attributes:
    estimate: mean, deviation and number of the differences.
    p_value: of the two-sided paired t-test; None with fewer than two pairs, or if all
      differences are equal.
  """

  estimate: Estimate
  p_value: float | None


def paired_difference(ours: pd.Series, theirs: pd.Series) -> PairedDifference:
  """`ours` minus `theirs`, paired by the index.

  Args:
    ours: sample -> number.
    theirs: sample -> number; samples that only one of the two has are left out.
  """
  pairs = pd.concat([ours, theirs], axis=1, join='inner', keys=['ours', 'theirs'])
  differences = pairs['ours'] - pairs['theirs']
  p_value = None
  if len(pairs) and differences.max() - differences.min() >= ROUNDING:
    from scipy import stats  # here, because it takes a second

    p_value = float(stats.ttest_rel(pairs['ours'], pairs['theirs']).pvalue)
  return PairedDifference(estimate(differences), p_value)
