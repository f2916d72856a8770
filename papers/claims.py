"""What the papers claim, what was measured here, and what follows from it.

A verdict compares the 95 % interval of the paired difference with the paper's. It was
chosen after the runs, so it is description. With fewer than two pairs a claim is
untested, whatever the single pair says.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy import stats

from moon_jax.core.errors import UsageError
from moon_jax.report.statistics import estimate
from papers import curve, differences
from papers.differences import (
  UNDECIDED,
  Comparison,
  KeptRuns,
  Measure,
  late_accuracy,
)
from papers.kept_runs import KeptRun
from papers.markdown import signed, table
from papers.rows import reported_by

REPRODUCED = 'reproduced'
REFUTED = 'refuted in this setting'
NOT_REPRODUCED = 'not reproduced'
UNTESTED = 'untested'
# The papers round accuracies to 0.1, so their differences are known to 0.1. Counts of
# rounds are exact, and a tenth of a round decides nothing.
_ROUNDING = 0.1
_READ_FROM_A_FIGURE = 1.0  # in points
# The runs behind a mean and deviation of MOON's table 1, and of MOONFlower's tables.
_TRIALS = 3


class Claim(NamedTuple):
  """A claim about the difference of two variants.

  Attributes:
    words: the claim.
    paper: the paper, and where it says so.
    first: 'FILE:VARIANT'.
    second: 'FILE:VARIANT' that the first is compared with.
    reported: the difference that the paper has; None: that of the accuracies that the
      variants say it reports.
    measure: the number of a run that is compared.
    unit: of the difference; '' for percentage points.
    tolerance: how far from the paper's value its print may be, in the unit.
    can_refute: whether a run here has the paper's setting and its value is a number; a
      figure, or knobs that the paper leaves open, can only be missed.
  """

  words: str
  paper: str
  first: str
  second: str
  reported: float | None = None
  measure: Measure = late_accuracy
  unit: str = ''
  tolerance: float = _ROUNDING
  can_refute: bool = True

  def reported_difference(self) -> float:
    """The paper's difference, first minus second."""
    if self.reported is not None:
      return self.reported
    return reported_by(self.first).mean - reported_by(self.second).mean

  def reported_deviations(self) -> tuple[float, float] | None:
    """The paper's deviations over trials of the two accuracies, if it has both."""
    if self.reported is not None:
      return None
    first, second = reported_by(self.first).std, reported_by(self.second).std
    return None if first is None or second is None else (first, second)

  def comparison(self, kept_runs: KeptRuns) -> Comparison:
    """What was measured here."""
    pairs = differences.paired(self.first, self.second, kept_runs, self.measure)
    return differences.compare(pairs['difference'])


def early_accuracy(run: KeptRun) -> float:
  """The mean of the test accuracies of rounds 2 to 5, in per cent."""
  return float(run.accuracy().loc[2:5].mean())


def rounds_to_fedavg(kept_runs: KeptRuns) -> Measure:
  """Rounds of a run to the last endpoint of FedAvg with its seed, in table 1.

  FedAvg itself takes all its rounds, as in the paper's table 2, though it gets there
  before.
  """
  fedavg_runs = differences.runs_of('moon_cvpr21:fedavg', kept_runs)

  def measure(run: KeptRun) -> float | None:
    if run.knobs['algorithm'] == 'fedavg':
      return run.knobs['num_rounds']
    fedavg = fedavg_runs.get((run.seed, run.data_digest))
    if fedavg is None:
      return None
    rounds = curve.rounds_to(curve.endpoint(fedavg, end=100), run, end=100)
    if rounds is None:
      raise UsageError(
        f"{run.name} never reaches FedAvg's accuracy: the page must say how it counts."
      )
    return rounds

  return measure


def _table_1(words: str, first: str, second: str) -> Claim:
  return Claim(words, 'MOON, table 1', f'moon_cvpr21:{first}', f'moon_cvpr21:{second}')


def _l2(words: str, first: str, second: str) -> Claim:
  """A claim about the l2 term, whose weight the paper leaves open."""
  return Claim(
    words,
    paper='MOON, table 5',
    first=f'moon_cvpr21:{first}',
    second=f'moon_cvpr21:{second}',
    can_refute=False,
  )


def _rounds(other: str, variant: str, reported: int, rounds: Measure) -> Claim:
  """MOON's rounds to FedAvg's accuracy minus those of another algorithm."""
  return Claim(
    f'rounds, MOON - {other}',
    paper='MOON, table 2',
    first='moon_cvpr21:moon',
    second=f'moon_cvpr21:{variant}',
    reported=reported,
    measure=rounds,
    unit='rounds',
  )


def _moonflower(setting: str, variant: str, where: str) -> Claim:
  return Claim(
    f'MOON - FedAvg, {setting}',
    paper=f'MOONFlower, {where}',
    first=f'moonflower:{variant}',
    second=f'moonflower:{variant}_fedavg',
    can_refute=False,
  )


def _dco_moon(other: str, variant: str) -> Claim:
  return Claim(
    f'DCO-MOON - {other}, Fashion-MNIST',
    paper='DCO-MOON, table 2',
    first='dco_moon:fashion_mnist_dco_moon',
    second=f'dco_moon:fashion_mnist_{variant}',
    can_refute=False,
  )


_TABLE_1 = (
  _table_1('MOON - FedAvg', 'moon', 'fedavg'),
  _table_1('MOON - FedProx', 'moon', 'fedprox'),
  _table_1('MOON - SCAFFOLD', 'moon', 'scaffold'),
  _table_1('FedProx - FedAvg', 'fedprox', 'fedavg'),
  _table_1('SCAFFOLD - FedAvg', 'scaffold', 'fedavg'),
)


def corrected_p_of_table_1(kept_runs: KeptRuns) -> dict[str, float]:
  """Words of a claim -> the p-value of the paper's difference in its table 1.

  Two-sided, by a t-test of the paired differences, with Holm's correction over the five
  claims.
  """
  p_values = [
    differences.p_of_mean(
      claim.comparison(kept_runs).differences, claim.reported_difference()
    )
    for claim in _TABLE_1
  ]
  adjusted = differences.holm(p_values)
  return {claim.words: p for claim, p in zip(_TABLE_1, adjusted, strict=True)}


def claims(kept_runs: KeptRuns) -> list[Claim]:
  """The claims whose difference has runs, or will have."""
  rounds = rounds_to_fedavg(kept_runs)
  return [
    *_TABLE_1,
    _l2('l2 term - FedAvg', 'l2', 'fedavg'),
    _l2('MOON - l2 term', 'moon', 'l2'),
    Claim(
      'MOON - FedAvg, rounds 2 to 5',
      'MOON, figure 6',
      'moon_cvpr21:moon',
      'moon_cvpr21:fedavg',
      reported=0.0,
      measure=early_accuracy,
      tolerance=_READ_FROM_A_FIGURE,
      can_refute=False,
    ),
    _rounds('FedAvg', 'fedavg', 27 - 100, rounds),
    _rounds('FedProx', 'fedprox', 27 - 52, rounds),
    _rounds('SCAFFOLD', 'scaffold', 27 - 80, rounds),
    Claim(
      'MOON - FedAvg, 20 clients',
      'review, figure 1',
      'review:moon',
      'review:fedavg',
      reported=0.0,
      tolerance=_READ_FROM_A_FIGURE,
      can_refute=False,
    ),
    _moonflower('beta 0.5', 'default', 'table 1'),
    _moonflower('beta 0.1', 'beta_0.1', 'table 2'),
    _moonflower('beta 5', 'beta_5', 'table 2'),
    _moonflower('5 of 100 clients', 'sparse_0.05', 'table 3'),
    _dco_moon('FedAvg', 'fedavg'),
    _dco_moon('MOON', 'moon'),
    Claim(
      'SA-MOON - MOON, T_0 = tau = 1',
      'SA-MOON, table 2',
      'sa_moon:initial_temperature_1',
      'sa_moon:tau_1',
      can_refute=False,
    ),
  ]


def verdict(claim: Claim, measured: Comparison) -> str:
  """What an interval says about a reported difference.

  It is refuted, or not reproduced, if the interval excludes it, and so does that of the
  gap between both where the paper gives deviations. An interval that misses it by less
  than its tolerance includes it. Otherwise it is reproduced, unless the interval also
  includes 0: then more seeds might say either. That two are alike is never shown.
  """
  if measured.count < 2:
    return UNTESTED
  reported = claim.reported_difference()
  low, high = measured.low - claim.tolerance, measured.high + claim.tolerance
  if not low <= reported <= high and _gap_excludes_zero(claim, measured):
    return REFUTED if claim.can_refute else NOT_REPRODUCED
  includes_zero = measured.low <= 0 <= measured.high
  return UNDECIDED if includes_zero or reported == 0 else REPRODUCED


def _gap_excludes_zero(claim: Claim, measured: Comparison) -> bool:
  """Whether Welch's 95 % interval of ours minus the paper's difference excludes 0.

  The paper's trials share no seeds as far as it says, so its variances add up. Without
  deviations of the paper, its difference counts as exact.
  """
  deviations = claim.reported_deviations()
  if deviations is None:
    return True
  gap = stats.ttest_ind_from_stats(
    mean1=measured.mean,
    std1=estimate(measured.differences).std,
    nobs1=measured.count,
    mean2=claim.reported_difference(),
    std2=math.hypot(*deviations),
    nobs2=_TRIALS,
    equal_var=False,
  )
  return gap.pvalue < 0.05


def claims_table(kept_runs: KeptRuns, unmeasured: Sequence[Sequence[str]]) -> list[str]:
  """The table of claims.

  Args:
    kept_runs: the kept runs.
    unmeasured: the first two cells of claims that have no comparison of two variants.
  """
  rows = [_cells(claim, kept_runs) for claim in claims(kept_runs)]
  rows += [[words, paper, 'not run', UNTESTED] for words, paper in unmeasured]
  return table(('claim', 'paper', 'here, 95 % interval', 'verdict'), rows)


def _cells(claim: Claim, kept_runs: KeptRuns) -> list[str]:
  measured = claim.comparison(kept_runs)
  reported = claim.reported_difference()
  decimals = 0 if claim.unit else 1
  paper_words = f'{round(reported, 2):+g}' if reported else 'alike'
  paper = f'{claim.paper}: {paper_words}'
  if measured.count == 0:
    here = 'not run'
  elif measured.count == 1:
    here = f'{signed(measured.mean, decimals)} (1 seed)'
  else:
    mean = signed(measured.mean, decimals)
    here = f'{mean} ({measured.interval(decimals)}; {measured.count} seeds)'
  return [claim.words, paper, here, verdict(claim, measured)]
