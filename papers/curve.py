"""The curve: an algorithm's differences to FedAvg, by pairs of runs, over the skew.

docs/experiments.md says which rules were fixed before the first result. Accuracies are
in per cent. The endpoint of a run at a round is the mean of the tests of the five
rounds that end with it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax.report.results import first_reaching
from moon_jax.report.statistics import estimate
from papers import differences
from papers.differences import Comparison, GroupTest, Judgement, KeptRuns, Slope
from papers.estimates import NOT_RUN, endpoints
from papers.kept_runs import KeptRun
from papers.markdown import signed, table


class Column(NamedTuple):
  """A partition of the curve.

  Attributes:
    choice: 'FILE:VARIANT' of its runs; `{}` stands for the algorithm.
    beta: its Dirichlet parameter; None of shards.
  """

  choice: str
  beta: float | None


COLUMNS = {
  'beta 0.05': Column('curve:beta_0.05_{}', 0.05),
  'beta 0.1': Column('curve:beta_0.1_{}', 0.1),
  'beta 0.3': Column('curve:beta_0.3_{}', 0.3),
  'beta 0.5': Column('moon_cvpr21:{}', 0.5),
  'beta 5': Column('curve:beta_5_{}', 5.0),
  'shards of 2': Column('curve:shards_2_{}', None),
}
# The algorithms that are compared with FedAvg, and their titles.
TITLES = {
  'moon': 'MOON, mu 5',
  'mu_1': 'MOON, mu 1',
  'fedprox': 'FedProx',
  'scaffold': 'SCAFFOLD',
}
_PLANNED_SEEDS = (0, 1, 2)


def endpoint(run: KeptRun, end: int) -> float | None:
  """The endpoint of a run at a round; None if it has none there."""
  return endpoints(run.accuracy()).get(end)


def rounds_to(level: float, run: KeptRun, end: int) -> float | None:
  """The first round, up to `end`, whose endpoint is at least a level; None of none."""
  return first_reaching(endpoints(run.accuracy()).loc[:end], level)


class Curve:
  """The pairs of an algorithm and FedAvg over the skew, up to a round.

  Attributes:
    algorithm: the algorithm, as the variants name it.
    end: the round.
    pairs: name of a column -> its pairs, as `differences.paired` returns them.
    diverged: name of a column -> how many runs of the algorithm have diverged there.
  """

  def __init__(
    self,
    algorithm: str,
    end: int,
    kept_runs: KeptRuns,
    diverged_names: Sequence[str] = (),
  ):
    self.algorithm = algorithm
    self.end = end
    self.pairs: dict[str, pd.DataFrame] = {}
    self.diverged: dict[str, int] = {}
    self._kept_runs = kept_runs
    for name, column in COLUMNS.items():
      choice = column.choice.format(algorithm)
      self.pairs[name] = differences.paired(
        choice,
        column.choice.format('fedavg'),
        kept_runs,
        lambda run: endpoint(run, end),
      )
      stem = choice.replace(':', '_') + '_seed'
      self.diverged[name] = sum(run.startswith(stem) for run in diverged_names)

  def comparison(self, column: str) -> Comparison:
    """The comparison with FedAvg in a column."""
    return differences.compare(self.pairs[column]['difference'])

  def differences(self) -> dict[str, list[float]]:
    """Column -> the differences of its pairs."""
    return {name: pairs['difference'].tolist() for name, pairs in self.pairs.items()}

  def deviations(self) -> list[float]:
    """The standard deviations of the columns' differences."""
    return [estimate(group).std for group in self.differences().values()]

  def judgements(self) -> dict[str, Judgement]:
    """Column -> the judgement of its differences, for the columns that have pairs."""
    groups = self.differences()
    pooled = differences.pooled_deviation([*groups.values()])
    return {
      name: differences.judge(group, pooled) for name, group in groups.items() if group
    }

  def divergence_words(self, column: str) -> str:
    """'2 of 3 diverged', if runs of the column did; otherwise ''."""
    num_diverged = self.diverged[column]
    num_runs = num_diverged + len(self.pairs[column])
    return f'{num_diverged} of {num_runs} diverged' if num_diverged else ''

  # --- the line over beta ---------------------------------------------------------

  def _planned_points(self) -> pd.DataFrame:
    """The planned pairs that have a beta: columns 'beta', 'seed' and 'difference'."""
    tables = [
      pairs.assign(beta=COLUMNS[name].beta)
      for name, pairs in self.pairs.items()
      if COLUMNS[name].beta is not None
    ]
    points = pd.concat(tables, ignore_index=True)
    return points[points['seed'].isin(_PLANNED_SEEDS)]

  def slope(self) -> Slope | None:
    """The slope over the 15 planned pairs; None before all of them have run."""
    points = self._planned_points()
    num_betas = sum(column.beta is not None for column in COLUMNS.values())
    if len(points) < num_betas * len(_PLANNED_SEEDS):
      return None
    return _fit(points)

  def slopes_by_seed(self) -> list[float]:
    """The slopes of the planned seeds, each by itself."""
    points = self._planned_points()
    return [_fit(points[points['seed'] == seed]).slope for seed in _PLANNED_SEEDS]

  def betas_differ(self) -> GroupTest:
    """Whether the means of the columns with a beta are equal, by an F test."""
    groups = self._planned_points().groupby('beta')['difference']
    return differences.f_test([group.tolist() for _, group in groups])

  # --- the table ------------------------------------------------------------------

  def table(self) -> list[str]:
    """A table of all pairs, with both intervals."""
    title = TITLES[self.algorithm]
    judgements = self.judgements()
    head = (
      'skew',
      'FedAvg, by seed',
      f'{title}, by seed',
      'difference, by seed',
      'mean, own 95 %',
      'pooled 95 %',
      'verdict',
      f'rounds, FedAvg / {title}',
    )
    rows = [
      [name, *self._cells(name, judgements[name])]
      for name in COLUMNS
      if name in judgements
    ]
    pooled = differences.pooled_deviation([*self.differences().values()])
    return [
      *table(head, rows),
      '',
      f'Pooled standard deviation of a difference: {pooled.std:.2f} points '
      f'({pooled.freedom} degrees of freedom).',
    ]

  def _cells(self, column: str, judgement: Judgement) -> list[str]:
    pairs = self.pairs[column]
    diverged = self.divergence_words(column)
    mean = '' if diverged else f'{judgement.mean:+.2f}'
    return [
      _listed(pairs['second'], '.1f'),
      _listed(pairs['first'], '.1f'),
      ', '.join(map(signed, pairs['difference'])),
      f'{mean}{_plus_minus(judgement.own_half_width)}',
      '' if diverged else _plus_minus(judgement.pooled_half_width).strip(),
      diverged or _verdict(judgement),
      self._rounds(column),
    ]

  def _rounds(self, column: str) -> str:
    """Rounds to FedAvg's endpoint, of FedAvg and of the algorithm, by seed."""
    choice = COLUMNS[column].choice
    fedavg_runs, runs = (
      differences.runs_of(choice.format(name), self._kept_runs)
      for name in ('fedavg', self.algorithm)
    )
    pairs = []
    for sample in sorted(fedavg_runs.keys() & runs.keys()):
      level = endpoint(fedavg_runs[sample], self.end)
      if level is not None:
        both = [
          rounds_to(level, runs_of_one[sample], self.end)
          for runs_of_one in (fedavg_runs, runs)
        ]
        pairs.append(' / '.join(str(rounds or 'never') for rounds in both))
    return ', '.join(pairs)


def _fit(points: pd.DataFrame) -> Slope:
  return differences.fit_slope(points['beta'].tolist(), points['difference'].tolist())


def _listed(numbers: pd.Series, form: str) -> str:
  return ', '.join(f'{number:{form}}' for number in numbers)


def _plus_minus(half_width: float) -> str:
  return '' if math.isnan(half_width) else f' +- {half_width:.2f}'


def _verdict(judgement: Judgement) -> str:
  if judgement.other_verdict:
    return f'{judgement.verdict} ({judgement.other_verdict})'
  return judgement.verdict


def mean_table(curves: Mapping[str, Curve]) -> list[str]:
  """The mean differences of all algorithms: bold where both intervals exclude 0."""
  rows = []
  for algorithm, curve in curves.items():
    judgements = curve.judgements()
    cells = [
      curve.divergence_words(name) or _mean_cell(judgements.get(name))
      for name in COLUMNS
    ]
    rows.append([TITLES[algorithm], *cells])
  return table(['minus FedAvg', *COLUMNS], rows)


def _mean_cell(judgement: Judgement | None) -> str:
  if judgement is None:
    return NOT_RUN
  mean = signed(judgement.mean)
  return f'**{mean}**' if judgement.both_decide else mean
