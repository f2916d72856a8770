"""The planned comparisons of papers/frozen.txt: MOON minus FedAvg, on eight new seeds.

docs/experiments.md has the plan, and what was made clear after the first runs had
begun. papers/frozen/ keeps the runs; those that end with a number that is not finite,
in its folder diverged/.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from moon_jax.core.errors import UsageError
from papers import differences, kept_runs
from papers.curve import COLUMNS, endpoint
from papers.differences import KeptRuns
from papers.estimates import NOT_RUN
from papers.markdown import signed, table

COMMIT = 'f2054011'
SEEDS = range(4, 12)
SKEWS = ('beta 0.05', 'beta 0.3', 'beta 0.5')
_END = 100
# A comparison is decided by a smaller p-value than this, after Holm's correction.
_LEVEL = 0.05
# What is not planned, but described: words -> the two variants at beta 0.5.
_DESCRIBED = {
  'MOON - FedProx': ('moon', 'fedprox'),
  'MOON - SCAFFOLD': ('moon', 'scaffold'),
  'FedProx - FedAvg': ('fedprox', 'fedavg'),
  'SCAFFOLD - FedAvg': ('scaffold', 'fedavg'),
}
_CROSSED_SEEDS = (4, 5)  # of the run, and of the partition
# Five tests of 10,000 images make differences that are multiples of 0.002 points.
_DECIMALS = 6


class Planned(NamedTuple):
  """A planned comparison.

  Attributes:
    differences: seed -> MOON minus FedAvg in points; infinite if one run diverged, and
      without a seed of which both diverged.
    p_value: two-sided, see `signed_rank_p`.
    adjusted: the p-value by Holm's correction over the three.
  """

  differences: Mapping[int, float]
  p_value: float
  adjusted: float

  @property
  def verdict(self) -> str:
    """'higher', 'lower' or 'undecided': MOON's side if the test is below the level."""
    if self.adjusted >= _LEVEL:
      return differences.UNDECIDED
    return 'higher' if signed_ranks([*self.differences.values()]).sum() > 0 else 'lower'


def signed_ranks(paired_differences: Sequence[float]) -> np.ndarray:
  """The ranks of the sizes, with the signs of the differences; see `signed_rank_p`."""
  rounded = np.round(paired_differences, _DECIMALS)
  return np.sign(rounded) * stats.rankdata(np.abs(rounded))


def signed_rank_p(paired_differences: Sequence[float]) -> float:
  """The two-sided p-value of Wilcoxon's signed-rank test, over all signs of the ranks.

  Equal sizes share their mean rank, and a difference of 0 has none. An infinite one has
  the largest rank. Equal numbers of right answers make equal sizes: what differs by
  rounding alone is equal. With fewer than two ranks it is 1, whatever their signs.
  """
  ranks = signed_ranks(paired_differences)
  if np.count_nonzero(ranks) < 2:
    return 1.0
  exact = stats.PermutationMethod(n_resamples=math.inf)
  return float(stats.wilcoxon(ranks, method=exact).pvalue)


def compare(runs: KeptRuns, diverged: KeptRuns) -> dict[str, Planned]:
  """Skew -> its comparison; all planned runs must be there.

  Args:
    runs: the finished runs.
    diverged: those that ended with a number that is not finite.
  """
  differences_of_skews = {skew: _differences(skew, runs, diverged) for skew in SKEWS}
  p_values = [
    signed_rank_p([*numbers.values()]) for numbers in differences_of_skews.values()
  ]
  return {
    skew: Planned(numbers, p_value, adjusted)
    for (skew, numbers), p_value, adjusted in zip(
      differences_of_skews.items(), p_values, differences.holm(p_values), strict=True
    )
  }


def num_left(runs: KeptRuns, diverged: KeptRuns) -> int:
  """The number of planned runs that are not there."""
  count = 0
  for skew in SKEWS:
    for choice in _choices(skew):
      seeds_there = _seeds(choice, runs) | _seeds(choice, diverged)
      count += len(set(SEEDS) - seeds_there)
  return count


def planned_table(runs: KeptRuns, diverged: KeptRuns) -> list[str]:
  """The table of the comparisons, or the number of runs that are left.

  Raises:
    UsageError: the runs are not those of the plan.
  """
  _require_planned(runs, diverged)
  if left := num_left(runs, diverged):
    num_planned = len(SKEWS) * 2 * len(SEEDS)
    return [
      f'Runs of the plan that are left: {left} of {num_planned}. Nothing is computed '
      'before all are there.'
    ]
  head = (
    'MOON - FedAvg',
    'by seed',
    'median',
    'mean, 95 %',
    'p (planned)',
    "by Holm's correction",
    'MOON is',
  )
  comparisons = compare(runs, diverged)
  return table(head, [_cells(skew, planned) for skew, planned in comparisons.items()])


def described_table(runs: KeptRuns, diverged: KeptRuns) -> list[str]:
  """The differences at beta 0.5 that are description; nothing before all are there."""
  if num_left(runs, diverged):
    return []
  rows = []
  for words, variants in _DESCRIBED.items():
    first, second = (f'moon_cvpr21:{variant}' for variant in variants)
    by_seed = _finished_pairs(first, second, runs)
    words_of_seeds = {seed: signed(difference) for seed, difference in by_seed.items()}
    lost_seeds = _seeds(first, diverged) | _seeds(second, diverged)
    words_of_seeds |= dict.fromkeys(lost_seeds, 'diverged')
    cells = [words_of_seeds.get(seed, NOT_RUN) for seed in SEEDS]
    is_whole = len(by_seed) == len(SEEDS)
    mean = _mean_and_interval(by_seed.values()) if is_whole else ''
    rows.append([words, ', '.join(cells), mean])
  return table(('beta 0.5', 'by seed', 'mean, 95 %'), rows)


def crossed_table(runs: KeptRuns, diverged: KeptRuns) -> list[str]:
  """The partition of one seed with the first weights and batches of another.

  Description; nothing before all planned runs are there.
  """
  if num_left(runs, diverged):
    return []
  ends = {}
  for run in [*runs.values(), *diverged.values()]:
    partition_seed = run.knobs['partition.seed']
    if partition_seed == 'auto':
      partition_seed = run.seed
    end = None if run.has_diverged else endpoint(run, _END)
    ends[run.config_choice, run.seed, partition_seed] = end
  rows = []
  for seed in _CROSSED_SEEDS:
    for partition_seed in _CROSSED_SEEDS:
      keys = [
        (f'configs/moon_cvpr21.py:{variant}', seed, partition_seed)
        for variant in ('fedavg', 'moon')
      ]
      cells = [_end_in_words(key, ends) for key in keys]
      fedavg, moon = map(ends.get, keys)
      is_pair = fedavg is not None and moon is not None
      difference = signed(moon - fedavg) if is_pair else ''
      rows.append([seed, partition_seed, *cells, difference])
  head = ('seed of the run', 'of the partition', 'FedAvg', 'MOON', 'difference')
  return table(head, rows)


def _end_in_words(key: tuple, ends: Mapping[tuple, float | None]) -> str:
  """An endpoint; None: the run diverged."""
  if key not in ends:
    return NOT_RUN
  return 'diverged' if ends[key] is None else f'{ends[key]:.1f}'


def divergences(diverged: KeptRuns) -> list[str]:
  """A line that names the runs that diverged, with their last rounds."""
  words = [
    f'`{name}` in round {run.rounds[-1]["round"]}' for name, run in diverged.items()
  ]
  return [f'Diverged: {", ".join(words)}.'] if words else []


def _require_planned(runs: KeptRuns, diverged: KeptRuns) -> None:
  """Raises UsageError unless all runs are of one commit, on CPUs, of the same data."""
  if in_both := sorted(runs.keys() & diverged.keys()):
    raise UsageError(f'{in_both[0]} is kept as finished and as diverged.')
  for name, run in diverged.items():
    if not run.has_diverged:
      raise UsageError(f'{name} has not diverged: all numbers of its end are finite.')
  all_runs = [*runs.items(), *diverged.items()]
  for name, run in all_runs:
    for start in run.starts():
      commit = str(start.get('git_commit'))
      if not commit.startswith(COMMIT) or '+' in commit:  # '+changes'
        raise UsageError(f'{name} must be of commit {COMMIT}, as all runs of the plan.')
    for device in kept_runs.devices(run.provenance):
      if not device.startswith('cpu'):
        raise UsageError(f'{name} must be of a CPU, as all runs of the plan: {device}.')
  digests = {run.data_digest: name for name, run in all_runs}
  if len(digests) > 1:
    raise UsageError(
      f'Runs of the plan have other data: {", ".join(digests.values())}.'
    )


def _cells(skew: str, planned: Planned) -> list[str]:
  numbers = [planned.differences.get(seed, math.nan) for seed in SEEDS]
  return [
    skew,
    ', '.join(map(_words, numbers)),
    _median(planned.differences.values()),
    _mean_and_interval(numbers) if all(map(math.isfinite, numbers)) else '',
    f'{planned.p_value:.3f}',
    f'{planned.adjusted:.3f}',
    planned.verdict,
  ]


def _mean_and_interval(numbers: Iterable[float]) -> str:
  """'+0.9 (-1.0 to +2.8)'."""
  comparison = differences.compare(numbers)
  return f'{signed(comparison.mean)} ({comparison.interval()})'


def _median(known_differences: Iterable[float]) -> str:
  """The median, to which a run that diverged is the lowest; '' if it is no number."""
  numbers = [*known_differences]
  median = statistics.median(numbers) if numbers else math.nan
  return signed(median) if math.isfinite(median) else ''


def _words(difference: float) -> str:
  """The difference of a seed, or what diverged; NaN: both runs."""
  if math.isnan(difference):
    return 'both diverged'
  if math.isinf(difference):
    return 'MOON diverged' if difference < 0 else 'FedAvg diverged'
  return signed(difference)


def _choices(skew: str) -> tuple[str, str]:
  """'FILE:VARIANT' of MOON and of FedAvg."""
  choice = COLUMNS[skew].choice
  return choice.format('moon'), choice.format('fedavg')


def _seeds(choice: str, runs: KeptRuns) -> set[int]:
  """The seeds of the runs of 'FILE:VARIANT' that are there."""
  return {seed for seed, _ in differences.runs_of(choice, runs)}


def _finished_pairs(first: str, second: str, runs: KeptRuns) -> dict[int, float]:
  """Seed -> difference of the endpoints, of the pairs of which both runs are there."""
  pairs = differences.paired(first, second, runs, lambda run: endpoint(run, _END))
  return dict(zip(pairs['seed'], pairs['difference'], strict=True))


def _differences(skew: str, runs: KeptRuns, diverged: KeptRuns) -> dict[int, float]:
  moon, fedavg = _choices(skew)
  finished = _finished_pairs(moon, fedavg, runs)
  lost_moon, lost_fedavg = _seeds(moon, diverged), _seeds(fedavg, diverged)
  numbers = {}
  for seed in SEEDS:
    if seed in lost_moon and seed in lost_fedavg:
      continue
    if seed in lost_moon:
      numbers[seed] = -math.inf
    elif seed in lost_fedavg:
      numbers[seed] = math.inf
    else:
      numbers[seed] = finished[seed]
  return numbers
