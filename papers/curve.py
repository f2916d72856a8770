"""The curve: an algorithm's differences to FedAvg, by pairs of runs, over the skew.

docs/experiments.md says which rules were fixed before the first result. Accuracies are
in per cent. The endpoint of a run at a round is the mean of the tests of the five
rounds that end with it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax.report.results import first_reaching
from papers import draw
from papers.differences import (
  UNDECIDED,
  Judgement,
  PooledDeviation,
  Slope,
  fit_slope,
  judge,
  pooled_deviation,
)
from papers.estimates import NOT_RUN, endpoints
from papers.kept_runs import KeptRun
from papers.markdown import Section, table
from papers.rows import rows_of

KeptRuns = Mapping[str, KeptRun]


class Column(NamedTuple):
  """A partition of the curve.

  Attributes:
    file: its config file, without folder and suffix.
    variant: the name of its variants; `{}` stands for the algorithm.
    beta: its Dirichlet parameter; None of shards.
  """

  file: str
  variant: str
  beta: float | None


COLUMNS = {
  'beta 0.05': Column('curve', 'beta_0.05_{}', 0.05),
  'beta 0.1': Column('curve', 'beta_0.1_{}', 0.1),
  'beta 0.3': Column('curve', 'beta_0.3_{}', 0.3),
  'beta 0.5': Column('moon_cvpr21', '{}', 0.5),
  'beta 5': Column('curve', 'beta_5_{}', 5.0),
  'shards of 2': Column('curve', 'shards_2_{}', None),
}
_PLANNED_SEEDS = (0, 1, 2)
_TESTED_ALGORITHM = 'moon'
_TESTED_ROUND = 100
_ALGORITHMS_OF_MEANS = ('moon', 'mu_1', 'fedprox', 'scaffold')


class Pair(NamedTuple):
  """Runs of FedAvg and of another algorithm with the same seed.

  They share the partition, the first weights and the batches.

  Attributes:
    seed: the seed of both runs.
    fedavg: round -> endpoint of FedAvg.
    other: round -> endpoint of the other algorithm.
  """

  seed: int
  fedavg: pd.Series
  other: pd.Series

  def difference(self, end: int) -> float:
    """The other algorithm's endpoint minus FedAvg's, in percentage points."""
    return float(self.other[end] - self.fedavg[end])


class Pairs(NamedTuple):
  """All pairs of an algorithm that have a round.

  Attributes:
    title: title of the algorithm.
    end: the round.
    by_column: name of a column -> its pairs, by seed.
    run_names: names of the algorithm's and FedAvg's runs, also of those without a pair.
  """

  title: str
  end: int
  by_column: Mapping[str, Sequence[Pair]]
  run_names: set[str]

  def exist(self) -> bool:
    """Whether there is a pair."""
    return any(self.by_column.values())

  def differences(self) -> dict[str, list[float]]:
    """Column -> the differences of its pairs."""
    return {
      name: [pair.difference(self.end) for pair in pairs]
      for name, pairs in self.by_column.items()
    }


class SampleRuns(NamedTuple):
  """The runs of a variant as it is.

  Attributes:
    by_sample: (seed, digest of the data) -> run.
    setting: the variant's setting, in words.
  """

  by_sample: Mapping[tuple[int, str], KeptRun]
  setting: str

  @property
  def names(self) -> set[str]:
    """The names of the runs."""
    return {run.name for run in self.by_sample.values()}


def runs_of(file: str, variant: str, kept_runs: KeptRuns) -> SampleRuns:
  """The runs of a variant as it is, of any seed and data."""
  rows = rows_of(file, [variant], kept_runs)
  unchanged = [row for row in rows if not row.changes()]
  runs = {(run.seed, run.data_digest): run for row in unchanged for run in row.runs}
  return SampleRuns(runs, rows[0].variant.setting)


def pairs_of(algorithm: str, end: int, kept_runs: KeptRuns) -> Pairs:
  """The pairs of an algorithm with FedAvg.

  Raises:
    UsageError: there is no such algorithm.
  """
  by_column = {}
  run_names = set()
  title = algorithm
  for name, column in COLUMNS.items():
    fedavg = runs_of(column.file, column.variant.format('fedavg'), kept_runs)
    other = runs_of(column.file, column.variant.format(algorithm), kept_runs)
    title = other.setting.partition(', beta')[0].partition(', shards')[0]
    run_names |= fedavg.names | other.names
    by_column[name] = _pair_up(fedavg, other, end)
  return Pairs(title, end, by_column, run_names)


def _pair_up(fedavg: SampleRuns, other: SampleRuns, end: int) -> list[Pair]:
  pairs = []
  for sample in sorted(fedavg.by_sample.keys() & other.by_sample.keys()):
    seed, _ = sample
    pair = Pair(
      seed=seed,
      fedavg=endpoints(fedavg.by_sample[sample].accuracy()),
      other=endpoints(other.by_sample[sample].accuracy()),
    )
    if end in pair.fedavg and end in pair.other:
      pairs.append(pair)
  return pairs


# --- @curve ---------------------------------------------------------------------------


def curve_table(algorithm: str, end: int, kept_runs: KeptRuns) -> Section:
  """'@curve ALGORITHM ROUND': a table of all pairs, and the slope.

  Raises:
    UsageError: there is no such algorithm.
  """
  pairs = pairs_of(algorithm, end, kept_runs)
  if not pairs.exist():
    return Section([f'{pairs.title}, at round {end}: {NOT_RUN}.'], pairs.run_names)
  is_tested = algorithm == _TESTED_ALGORITHM and end == _TESTED_ROUND
  lines = [*_table(pairs), '', *_slopes(pairs, is_tested)]
  return Section(lines, pairs.run_names)


def _table(pairs: Pairs) -> list[str]:
  head = (
    'column',
    'seeds',
    'FedAvg',
    pairs.title,
    'difference',
    'mean',
    '95 %, own deviation',
    '95 %, pooled deviation',
    'verdict',
    "rounds to FedAvg's endpoint: FedAvg",
    pairs.title,
  )
  pooled = pooled_deviation([*pairs.differences().values()])
  rows = []
  for name, pairs_of_column in pairs.by_column.items():
    if pairs_of_column:
      rows.append([name, *_cells(pairs_of_column, pairs.end, pooled)])
    else:
      rows.append([name, 'no pair', *[''] * (len(head) - 2)])
  lines = table(head, rows)
  if pooled.freedom:
    plural = 's' if pooled.freedom > 1 else ''
    lines += [
      '',
      'Pooled over the columns, the differences have a standard deviation of '
      f'{pooled.std:.2f} points ({pooled.freedom} degree{plural} of freedom).',
    ]
  return lines


def _cells(pairs: Sequence[Pair], end: int, pooled: PooledDeviation) -> list[str]:
  differences = [pair.difference(end) for pair in pairs]
  judgement = judge(differences, pooled)
  return [
    ', '.join(str(pair.seed) for pair in pairs),
    ', '.join(f'{pair.fedavg[end]:.1f}' for pair in pairs),
    ', '.join(f'{pair.other[end]:.1f}' for pair in pairs),
    ', '.join(f'{difference:+.1f}' for difference in differences),
    f'{judgement.mean:+.2f}',
    _interval(judgement.own_half_width),
    _interval(judgement.pooled_half_width),
    _verdict(judgement),
    ', '.join(_rounds_to(pair.fedavg[end], pair.fedavg, end) for pair in pairs),
    ', '.join(_rounds_to(pair.fedavg[end], pair.other, end) for pair in pairs),
  ]


def _interval(half_width: float) -> str:
  return '' if math.isnan(half_width) else f'+- {half_width:.2f}'


def _verdict(judgement: Judgement) -> str:
  if judgement.other_verdict:
    return f'{judgement.verdict} ({judgement.other_verdict})'
  return judgement.verdict


def _rounds_to(level: float, run_endpoints: pd.Series, end: int) -> str:
  """The first round, up to `end`, whose endpoint is at least the level."""
  return str(first_reaching(run_endpoints.loc[:end], level) or 'never')


def _slopes(pairs: Pairs, is_tested: bool) -> list[str]:
  """The slope over the planned seeds, and over all seeds if there are more."""
  every_seed = [
    (COLUMNS[name].beta, pair.seed, pair.difference(pairs.end))
    for name, pairs_of_column in pairs.by_column.items()
    if COLUMNS[name].beta is not None
    for pair in pairs_of_column
  ]
  points = pd.DataFrame(every_seed, columns=['beta', 'seed', 'difference'])
  planned = points[points['seed'].isin(_PLANNED_SEEDS)]
  betas = [column.beta for column in COLUMNS.values() if column.beta is not None]
  num_planned = len(_PLANNED_SEEDS) * len(betas)
  if len(planned) < num_planned:
    return [
      f'Slope on log beta: reported when {num_planned} pairs are run; '
      f'{len(planned)} are.'
    ]
  slopes_by_seed = [_slope(planned[planned['seed'] == s]) for s in _PLANNED_SEEDS]
  by_seed = ', '.join(f'{slope.slope:+.2f}' for slope in slopes_by_seed)
  slope = _slope(planned)
  test = f', p = {slope.p_value:.2g}: {slope.verdict}' if is_tested else ''
  lines = [f'{_slope_words(slope, "of seeds 0, 1, 2")}{test}. By seed: {by_seed}.']
  if len(points) > len(planned):
    lines.append(f'{_slope_words(_slope(points), "of all seeds")}.')
  return lines


def _slope(points: pd.DataFrame) -> Slope:
  return fit_slope(points['beta'].tolist(), points['difference'].tolist())


def _slope_words(slope: Slope, which_pairs: str) -> str:
  return (
    f'Slope on log beta, {slope.count} pairs {which_pairs}: {slope.slope:+.2f} points '
    f'for ten times the beta, 95 % from {slope.lower:+.2f} to {slope.upper:+.2f}'
  )


# --- @means and @differences ----------------------------------------------------------


def mean_table(end: int, kept_runs: KeptRuns) -> Section:
  """'@means ROUND': the mean differences of all algorithms, and the numbers of pairs.

  A mean is bold unless its verdict is that it is undecided.
  """
  rows = []
  run_names = set()
  for algorithm in _ALGORITHMS_OF_MEANS:
    pairs = pairs_of(algorithm, end, kept_runs)
    differences = pairs.differences()
    pooled = pooled_deviation([*differences.values()])
    cells = [_mean(numbers, pooled) for numbers in differences.values()]
    rows.append([pairs.title, *cells])
    run_names |= pairs.run_names
  return Section(table(['less FedAvg', *COLUMNS], rows), run_names)


def _mean(differences: Sequence[float], pooled: PooledDeviation) -> str:
  if not differences:
    return NOT_RUN
  judgement = judge(differences, pooled)
  mean = f'{judgement.mean:+.1f}'
  if judgement.verdict != UNDECIDED:
    mean = f'**{mean}**'
  return f'{mean} ({len(differences)})'


def difference_picture(
  name: str,
  algorithm: str,
  ends: Sequence[int],
  kept_runs: KeptRuns,
  picture: Callable[..., list[str]],
) -> Section:
  """'@differences NAME ALGORITHM ROUND ROUND': the differences over beta, as a picture.

  Args:
    name: name of the picture.
    algorithm: the algorithm.
    ends: the rounds.
    kept_runs: the kept runs.
    picture: draws a picture, and returns the lines that show it (`Pictures.picture`).

  Raises:
    UsageError: there is no such algorithm.
  """
  content = {}
  for end in ends:
    pairs = pairs_of(algorithm, end, kept_runs)
    if pairs.exist():
      content[f'round {end}'] = [
        (column, COLUMNS[column].beta, numbers)
        for column, numbers in pairs.differences().items()
      ]
  caption = f'{pairs.title} less FedAvg, each pair and the means'
  return Section(picture(name, content, draw.over_beta, caption), pairs.run_names)
