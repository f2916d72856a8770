"""What pairs of runs say: their deviation, intervals, verdicts, and slope over beta.

All differences are in percentage points, unless a measure says otherwise.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from moon_jax.report.statistics import estimate, half_width
from papers.estimates import late_mean
from papers.kept_runs import KeptRun
from papers.markdown import signed
from papers.rows import rows_of

KeptRuns = Mapping[str, KeptRun]
# A number of a run; None if the run has no such number.
Measure = Callable[[KeptRun], float | None]

UNDECIDED = 'undecided'
# The fewest degrees of freedom with which the pooled deviation decides.
_MIN_FREEDOM = 12


# --- pairs ----------------------------------------------------------------------------


def late_accuracy(run: KeptRun) -> float:
  """The mean of a run's last five test accuracies, in per cent."""
  return late_mean(run.accuracy())


def runs_of(choice: str, kept_runs: KeptRuns) -> dict[tuple[int, str], KeptRun]:
  """(Seed, digest of the data) -> run, of the variant 'FILE:VARIANT' as it is."""
  file, _, variant = choice.partition(':')
  unchanged = [row for row in rows_of(file, [variant], kept_runs) if not row.changes()]
  return {(run.seed, run.data_digest): run for row in unchanged for run in row.runs}


def paired(
  first: str, second: str, kept_runs: KeptRuns, measure: Measure = late_accuracy
) -> pd.DataFrame:
  """The pairs of runs of two variants with the same seed and data.

  They share the partition, the first weights and the batches.

  Args:
    first: 'FILE:VARIANT'.
    second: 'FILE:VARIANT'.
    kept_runs: the kept runs.
    measure: the number of a run that is compared.

  Returns:
    The columns 'seed', 'first', 'second' and 'difference', a row for each pair.

  Raises:
    UsageError: there is no such file or variant.
  """
  runs_of_first, runs_of_second = (
    runs_of(choice, kept_runs) for choice in (first, second)
  )
  pairs = []
  for sample in sorted(runs_of_first.keys() & runs_of_second.keys()):
    numbers = measure(runs_of_first[sample]), measure(runs_of_second[sample])
    if None not in numbers:
      pairs.append((sample[0], *numbers))
  table = pd.DataFrame(pairs, columns=['seed', 'first', 'second'])
  return table.assign(difference=table['first'] - table['second'])


class Comparison(NamedTuple):
  """The mean of paired differences, and its 95 % interval by Student's t.

  Attributes:
    differences: those of the pairs, by seed.
    mean: their mean; NaN without a pair.
    low: lower end of the interval; NaN with fewer than two pairs.
    high: upper end of the interval.
  """

  differences: list[float]
  mean: float
  low: float
  high: float

  @property
  def count(self) -> int:
    """The number of pairs."""
    return len(self.differences)

  def interval(self, decimals: int = 1) -> str:
    """'-1.0 to +2.8'."""
    return f'{signed(self.low, decimals)} to {signed(self.high, decimals)}'


def compare(differences: Iterable[float]) -> Comparison:
  """The comparison of two variants, by the differences of their pairs."""
  differences = [*differences]
  mean, _, count = difference = estimate(differences)
  width = difference.half_width if count > 1 else math.nan
  return Comparison(differences, mean, mean - width, mean + width)


# --- one deviation for all columns ----------------------------------------------------


class PooledDeviation(NamedTuple):
  """The standard deviation that several groups of differences share.

  Attributes:
    std: the deviation; NaN without a degree of freedom.
    freedom: its degrees of freedom.
  """

  std: float
  freedom: int


def pooled_deviation(groups: Sequence[Sequence[float]]) -> PooledDeviation:
  """The deviation within the groups; a group of one says nothing about it."""
  estimates = [estimate(group) for group in groups if len(group) > 1]
  freedom = sum(group.n - 1 for group in estimates)
  if not freedom:
    return PooledDeviation(math.nan, 0)
  squares = math.fsum((group.n - 1) * group.std**2 for group in estimates)
  return PooledDeviation(math.sqrt(squares / freedom), freedom)


class Judgement(NamedTuple):
  """A mean difference, its two 95 % intervals, and whether 0 is outside.

  Attributes:
    mean: the mean of the differences.
    own_half_width: half the interval by the differences' own deviation; NaN of one.
    pooled_half_width: half the interval by the pooled deviation; NaN without one.
    verdict: 'higher', 'lower' or 'undecided', by the interval that decides.
    other_verdict: what the other interval says, if it says something else.
  """

  mean: float
  own_half_width: float
  pooled_half_width: float
  verdict: str
  other_verdict: str

  @property
  def both_decide(self) -> bool:
    """Whether both intervals exclude 0."""
    return self.verdict != UNDECIDED and not self.other_verdict


def judge(differences: Sequence[float], pooled: PooledDeviation) -> Judgement:
  """Judges differences; the pooled deviation decides if it has enough freedom."""
  own_estimate = estimate(differences)
  pooled_half_width = half_width(pooled.std, own_estimate.n, pooled.freedom)
  by_own = _verdict(own_estimate.mean, own_estimate.half_width)
  by_pooled = _verdict(own_estimate.mean, pooled_half_width)
  if pooled.freedom >= _MIN_FREEDOM:
    verdict, other_verdict = by_pooled, f'{by_own} by the own deviation'
  else:
    verdict, other_verdict = by_own, f'{by_pooled} by the pooled deviation'
  if by_own == by_pooled:
    other_verdict = ''
  return Judgement(
    mean=own_estimate.mean,
    own_half_width=own_estimate.half_width,
    pooled_half_width=pooled_half_width,
    verdict=verdict,
    other_verdict=other_verdict,
  )


def _verdict(mean: float, width: float) -> str:
  """Whether an interval, of half a width around the mean, excludes 0; NaN does not."""
  if mean > width:
    return 'higher'
  if mean < -width:
    return 'lower'
  return UNDECIDED


# --- a line over beta -----------------------------------------------------------------


class Slope(NamedTuple):
  """A line fitted by least squares, in points for a beta that is ten times as large.

  Attributes:
    slope: slope of the line.
    half_width: half the width of its 95 % interval.
    p_value: two-sided p-value of slope 0.
  """

  slope: float
  half_width: float
  p_value: float

  @property
  def lower(self) -> float:
    """The lower end of the interval."""
    return self.slope - self.half_width

  @property
  def upper(self) -> float:
    """The upper end of the interval."""
    return self.slope + self.half_width


def fit_slope(betas: Sequence[float], differences: Sequence[float]) -> Slope:
  """The slope of the difference over log10 beta, from three pairs or more."""
  line = stats.linregress([math.log10(beta) for beta in betas], differences)
  # The error of the slope is no deviation of single numbers: it counts as of one.
  return Slope(
    slope=float(line.slope),
    half_width=half_width(float(line.stderr), 1, len(betas) - 2),
    p_value=float(line.pvalue),
  )


class GroupTest(NamedTuple):
  """An F test of whether groups have one mean.

  Attributes:
    statistic: F.
    freedom: degrees of freedom between groups, and within them.
    p_value: its p-value.
  """

  statistic: float
  freedom: tuple[int, int]
  p_value: float


def f_test(groups: Sequence[Sequence[float]]) -> GroupTest:
  """The one-way analysis of variance of some groups."""
  outcome = stats.f_oneway(*groups)
  within = sum(len(group) - 1 for group in groups)
  return GroupTest(
    float(outcome.statistic), (len(groups) - 1, within), float(outcome.pvalue)
  )


def p_of_mean(numbers: Sequence[float], mean: float = 0.0) -> float:
  """The two-sided p-value of a mean, by a t-test."""
  return float(stats.ttest_1samp(numbers, mean).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
  """The p-values by Holm's correction (1979): step down from the smallest."""
  adjusted = [0.0] * len(p_values)
  largest_so_far = 0.0
  for step, index in enumerate(np.argsort(p_values)):
    largest_so_far = max(largest_so_far, (len(p_values) - step) * p_values[index])
    adjusted[index] = min(1.0, largest_so_far)
  return adjusted
