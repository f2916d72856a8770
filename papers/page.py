"""Makes the text of docs/experiments.md from its template and the kept runs.

The template is Markdown with expressions of Jinja. `Evidence` has what they may name.
"""

import functools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jinja2
import numpy as np

from moon_jax.core.errors import UsageError
from papers import (
  ablation,
  claims,
  differences,
  kept_runs,
  numerics,
  partitions,
  planned,
  tables,
)
from papers.curve import COLUMNS, TITLES, Curve, endpoint, mean_table
from papers.differences import Comparison
from papers.estimates import endpoints, late_mean
from papers.kept_runs import KeptRun
from papers.markdown import signed
from papers.pictures import Pictures
from papers.rows import Row, rows_of


class Paths(NamedTuple):
  """The files and folders of a page, all below the root of the repository."""

  template: pathlib.Path
  runs: pathlib.Path
  diverged: pathlib.Path
  repeated: pathlib.Path
  frozen: pathlib.Path
  frozen_diverged: pathlib.Path
  partitions: pathlib.Path
  pictures: pathlib.Path
  page: pathlib.Path

  @classmethod
  def below(cls, root: pathlib.Path) -> 'Paths':
    """The paths below a root."""
    papers = root / 'papers'
    return cls(
      template=papers / 'experiments.in.md',
      runs=papers / 'runs',
      diverged=papers / 'runs' / kept_runs.DIVERGED,
      repeated=papers / 'repeated',
      frozen=papers / 'frozen',
      frozen_diverged=papers / 'frozen' / kept_runs.DIVERGED,
      partitions=papers / 'partitions.jsonl',
      pictures=root / 'docs/images/experiments',
      page=root / 'docs/experiments.md',
    )


class Divergence(NamedTuple):
  """How a run of SA-MOON ended.

  Attributes:
    round: the last round.
    median: the lowest median of the clients' temperatures, of any round.
  """

  round: int
  median: float

  @property
  def is_at_floor(self) -> bool:
    """Whether the median reached the floor of 0.001."""
    return self.median < 0.00105


class Evidence:
  """What the expressions of the template may name: numbers, tables and pictures.

  Attributes:
    runs: name -> finished run.
    diverged: name -> run that ended with a number that is not finite.
    repeated: name -> run that was repeated on another machine.
    frozen: name -> finished run of the next plan, whose runs are all of one commit.
    frozen_diverged: name -> run of the next plan that diverged.
  """

  def __init__(self, paths: Paths, redraw: bool):
    self.runs = kept_runs.read_all(paths.runs)
    self.diverged = kept_runs.read_all(paths.diverged, finished=False)
    self.repeated = kept_runs.read_all(paths.repeated)
    self.frozen = kept_runs.read_all(paths.frozen)
    self.frozen_diverged = kept_runs.read_all(paths.frozen_diverged, finished=False)
    self._paths = paths
    link = paths.pictures.relative_to(paths.page.parent).as_posix()
    self._pictures = Pictures(paths.pictures, link, redraw)

  # --- numbers --------------------------------------------------------------------

  def run(self, name: str) -> KeptRun:
    """A finished run.

    Raises:
      UsageError: there is none of this name.
    """
    if name not in self.runs:
      raise UsageError(f'experiments.in.md: there is no kept run {name!r}.')
    return self.runs[name]

  def late(self, name: str) -> float:
    """The mean of a run's last five test accuracies, in per cent."""
    return late_mean(self.run(name).accuracy())

  def late_by_seed(self, choice: str) -> list[float]:
    """`late` of the runs of 'FILE:VARIANT', by seed."""
    runs = differences.runs_of(choice, self.runs)
    return [late_mean(runs[sample].accuracy()) for sample in sorted(runs)]

  def ends(self, choice: str, end: int) -> list[float]:
    """The endpoints of the runs of 'FILE:VARIANT' at a round, by seed."""
    runs = differences.runs_of(choice, self.runs)
    return [endpoint(runs[sample], end) for sample in sorted(runs)]

  def rounds(self, choice: str) -> list[float]:
    """Rounds to FedAvg's endpoint of table 1, of the runs of 'FILE:VARIANT'."""
    runs = differences.runs_of(choice, self.runs)
    measure = claims.rounds_to_fedavg(self.runs)
    return [measure(runs[sample]) for sample in sorted(runs)]

  def by_seed(self, column: str, choice: str, end: int) -> str:
    """Means of a column over the five rounds to `end`, by seed, in three digits."""
    runs = differences.runs_of(choice, self.runs)
    means = [endpoints(runs[sample].column(column))[end] for sample in sorted(runs)]
    return ', '.join(f'{mean:#.3g}' for mean in means)

  def gap(self, first: str, second: str, end: int = 0) -> Comparison:
    """The comparison of two variants, by the last five tests or those to `end`."""

    def measure(run: KeptRun) -> float | None:
      return endpoint(run, end) if end else differences.late_accuracy(run)

    pairs = differences.paired(first, second, self.runs, measure)
    return differences.compare(pairs['difference'])

  @functools.cached_property
  def class_counts(self) -> Mapping[str, np.ndarray]:
    """Name of a run -> [N, Y] training examples of each client and class."""
    return partitions.read(self._paths.partitions)

  def classes(self, choice: str) -> list[float]:
    """Effective classes of a client, of the runs of 'FILE:VARIANT', by seed."""
    runs = differences.runs_of(choice, self.runs)
    return [
      partitions.effective_classes(self.class_counts[runs[sample].name])
      for sample in sorted(runs)
    ]

  def curve(self, algorithm: str, end: int) -> Curve:
    """An algorithm's differences to FedAvg over the skew.

    Raises:
      UsageError: there is no such algorithm.
    """
    return Curve(algorithm, end, self.runs, [*self.diverged])

  def p_of_mean(self, numbers: Sequence[float]) -> float:
    """The two-sided p-value of a mean of 0, by a t-test."""
    return differences.p_of_mean(numbers)

  def rounding(self, name: str, end: int) -> float:
    """How far a repeated run's endpoint is from that of the kept run, in points."""
    kept, repeated = (endpoint(runs[name], end) for runs in (self.runs, self.repeated))
    return abs(kept - repeated)

  def best(self, name: str) -> float:
    """The highest test accuracy of a run in any round, in per cent."""
    return float(self.run(name).accuracy().max())

  def falls(self, choices: str) -> float:
    """The most that the mean of five tests falls from its highest, over all runs."""
    series = [
      endpoints(run.accuracy())
      for choice in choices.split()
      for run in differences.runs_of(choice, self.runs).values()
    ]
    return max(float(ends.max() - ends.iloc[-1]) for ends in series)

  def spread_of(self, choices: str) -> float:
    """The highest less the lowest of the means of the last five tests."""
    means = [mean for choice in choices.split() for mean in self.late_by_seed(choice)]
    return max(means) - min(means)

  def sa_moon_diverged(self) -> list[Divergence]:
    """The runs of SA-MOON that diverged."""
    return [
      Divergence(
        round=run.rounds[-1]['round'],
        median=float(run.column('temperature_median').min()),
      )
      for name, run in self.diverged.items()
      if name.startswith('sa_moon')
    ]

  def corrected_p(self, claim: str) -> float:
    """The p-value of a claim of MOON's table 1, by Holm's correction over its five."""
    return claims.corrected_p_of_table_1(self.runs)[claim]

  def commits(self) -> int:
    """How many commits the starts of the kept runs come from."""
    starts = [start for run in self.runs.values() for start in run.starts()]
    return len({commit[:7] for start in starts if (commit := start.get('git_commit'))})

  def numerics(self) -> str:
    """The fingerprint of the numerics."""
    return numerics.recorded().fingerprint

  # --- tables ---------------------------------------------------------------------

  def rows(self, file: str, variants: str) -> list[Row]:
    """The rows of variants of a config file, whose names stand in one text."""
    return rows_of(file, variants.split(), self.runs)

  def accuracies(self, file: str, variants: str) -> str:
    """The paper's accuracies and those here, of the variants that have run."""
    return _text(tables.accuracies(self.rows(file, variants)))

  def claims(self, *unmeasured: Sequence[str]) -> str:
    """The table of claims, and those that have no comparison, as (claim, paper)."""
    return _text(claims.claims_table(self.runs, unmeasured))

  def curve_table(self, algorithm: str, end: int) -> str:
    """All pairs of an algorithm and FedAvg."""
    return _text(self.curve(algorithm, end).table())

  def mean_table(self, end: int) -> str:
    """The mean differences of all algorithms to FedAvg."""
    curves = {name: self.curve(name, end) for name in TITLES}
    return _text(mean_table(curves))

  def partition_table(self, end: int) -> str:
    """Deviations over partitions, and within one partition."""
    return _text(ablation.partition_table(end, self.runs))

  def ablation_table(self, end: int) -> str:
    """Accuracies with one change of the setting each."""
    return _text(ablation.ablation_table(end, self.runs))

  def personal(self, file: str, variants: str) -> str:
    """Accuracies of the shared and of the clients' own models."""
    return _text(tables.personal(self.rows(file, variants)))

  def unseen(self, file: str, variants: str) -> str:
    """Accuracies of users who train and of users who do not, and those minus FedAvg."""
    rows = self.rows(file, variants)
    return _text(tables.unseen(rows, self.diverged.values()))

  def attack_table(self) -> str:
    """Accuracies of the server's rules under attack."""
    return _text(tables.attacks(self.runs))

  def skew_table(self) -> str:
    """Effective classes of a client beside the accuracies."""
    return _text(tables.skew_table(self.curve('moon', 100), self.class_counts))

  def planned_table(self) -> str:
    """The planned comparisons on one commit, or how many runs are left."""
    return _text(planned.planned_table(self.frozen, self.frozen_diverged))

  def described_table(self) -> str:
    """The next plan's differences that are description, when all its runs are there."""
    return _text(planned.described_table(self.frozen, self.frozen_diverged))

  def crossed_table(self) -> str:
    """Partitions and first weights crossed, when the next plan's runs are there."""
    return _text(planned.crossed_table(self.frozen, self.frozen_diverged))

  def num_planned_left(self) -> int:
    """The number of planned runs that are not there."""
    return planned.num_left(self.frozen, self.frozen_diverged)

  def repeated_table(self) -> str:
    """Endpoints, machines and commits of the runs that were repeated."""
    return _text(tables.repeated(self.runs, self.repeated))

  def costs(self) -> str:
    """Seeds, cost, machine and commits of all kept runs."""
    return _text(tables.costs(self.runs))

  def frozen_costs(self) -> str:
    """The same of the finished runs of the next plan, and the names of the others."""
    lines = tables.costs(self.frozen) + planned.divergences(self.frozen_diverged)
    return _text(lines)

  def not_run(self) -> str:
    """The variants without a run that changes nothing of them."""
    return _text(tables.not_run(self.runs | self.diverged))

  # --- pictures -------------------------------------------------------------------

  def figure(self, name: str, file: str, variants: str, alt: str) -> str:
    """Training curves side by side."""
    return _text(self._pictures.progress(name, self.rows(file, variants), alt))

  def forest(self, name: str, algorithms: str, end: int, alt: str) -> str:
    """Differences to FedAvg over the skew, a panel for each algorithm."""
    curves = {algorithm: self.curve(algorithm, end) for algorithm in algorithms.split()}
    return _text(self._pictures.differences(name, curves, alt))

  def skew_figure(self, name: str, alt: str) -> str:
    """Accuracies over the effective classes of a client."""
    moon = self.curve('moon', 100)
    return _text(self._pictures.skew(name, moon, self.class_counts, alt))

  def attack_figure(self, name: str, file: str, variants: str, alt: str) -> str:
    """Accuracies over the fraction of attackers."""
    return _text(self._pictures.attacks(name, self.rows(file, variants), alt))


def _text(lines: Sequence[str]) -> str:
  return '\n'.join(lines)


def _listed(numbers: Sequence[float], decimals: int = 1) -> str:
  """'68.2, 63.3 and 68.5'."""
  *first, last = [f'{number:.{decimals}f}' for number in numbers]
  return f'{", ".join(first)} and {last}' if first else last


def _interval(comparison: Comparison) -> str:
  """'+0.9 (95 % interval -1.0 to +2.8)'."""
  return f'{signed(comparison.mean)} (95 % interval {comparison.interval()})'


def page(paths: Paths, redraw: bool = False) -> str:
  """The text of the page.

  Args:
    paths: where the template, the runs and the pictures are.
    redraw: whether pictures of several runs are drawn; otherwise they are checked.

  Raises:
    UsageError: a run is damaged, or the template asks for what is not there.
  """
  if not paths.template.is_file():
    raise UsageError(f'{paths.template} is missing.')
  evidence = Evidence(paths, redraw)
  environment = jinja2.Environment(
    undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
  )
  environment.filters |= {
    'signed': signed,
    'listed': _listed,
    'interval': _interval,
    'fixed': lambda number, decimals=1: f'{number:.{decimals}f}',
  }
  names = [name for name in dir(evidence) if not name.startswith('_')]
  methods = {name: getattr(evidence, name) for name in names}
  try:
    template = environment.from_string(paths.template.read_text())
    text = template.render(methods, columns=[*COLUMNS])
  except jinja2.TemplateError as error:
    raise UsageError(f'experiments.in.md: {error.message}.') from None
  return re.sub('\n{3,}', '\n\n', text).rstrip() + '\n'
