"""What pairs of runs say: their deviation, intervals, verdicts, and slope over beta.

All differences are in percentage points.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

from moon_jax.report.statistics import estimate, half_width

UNDECIDED = 'undecided'
# The fewest degrees of freedom with which the pooled deviation decides.
_MIN_FREEDOM = 12


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


class Slope(NamedTuple):
  """A line fitted by least squares, in points for a beta that is ten times as large.

  Attributes:
    slope: slope of the line.
    half_width: half the width of its 95 % interval.
    p_value: two-sided p-value of slope 0.
    count: number of pairs.
  """

  slope: float
  half_width: float
  p_value: float
  count: int

  @property
  def lower(self) -> float:
    """The lower end of the interval."""
    return self.slope - self.half_width

  @property
  def upper(self) -> float:
    """The upper end of the interval."""
    return self.slope + self.half_width

  @property
  def verdict(self) -> str:
    """Whether the interval excludes 0."""
    if self.lower <= 0 <= self.upper:
      return UNDECIDED
    return 'rising' if self.lower > 0 else 'falling'


def fit_slope(betas: Sequence[float], differences: Sequence[float]) -> Slope:
  """The slope of the difference over log10 beta, from three pairs or more."""
  line = stats.linregress([math.log10(beta) for beta in betas], differences)
  # The error of the slope is no deviation of single numbers: it counts as of one.
  return Slope(
    slope=float(line.slope),
    half_width=half_width(float(line.stderr), 1, len(betas) - 2),
    p_value=float(line.pvalue),
    count=len(betas),
  )
