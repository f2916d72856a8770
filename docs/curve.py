"""Compares algorithms with FedAvg by pairs of runs with the same seed.

docs/experiments.md says which rules were fixed before the first result. Accuracies are
in per cent. `accuracy` maps a round to the accuracy of its test. The endpoint of a run
at a round is the mean of the tests of the five rounds that end with this one.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scipy import stats

from docs import draw
from docs.records import Kept
from docs.rows import NOT_RUN, rows
from moon_jax.core.errors import UsageError

# Column -> its variants, as 'FILE: VARIANT', and its beta; shards have no beta.
_COLUMNS = {
  'beta 0.05': ('curve: beta_0.05_{}', 0.05),
  'beta 0.1': ('curve: beta_0.1_{}', 0.1),
  'beta 0.3': ('curve: beta_0.3_{}', 0.3),
  'beta 0.5': ('moon_cvpr21: {}', 0.5),
  'beta 5': ('curve: beta_5_{}', 5.0),
  'shards of 2': ('curve: shards_2_{}', None),
}
# The seeds of the test that was planned, and the fewest degrees of freedom with which
# the pooled deviation decides.
_SEEDS, _FREEDOM = (0, 1, 2), 12
_TESTED = 'moon', 100  # the algorithm and the round of that test
_OPEN = 'undecided'
# Change of the setting -> its variants; the title of each algorithm.
_CHANGES = {
  'none': 'moon_cvpr21: {}',
  'no projection head': 'ablation: no_head_{}',
  'partition not balanced': 'ablation: no_balance_{}',
  'equal weights of clients': 'ablation: equal_weights_{}',
  'partial batches kept': 'ablation: all_batches_{}',
}
_ALGORITHMS = {
  'fedavg': 'FedAvg',
  'fedprox': 'FedProx, mu 0.01',
  'scaffold': 'SCAFFOLD',
  'moon': 'MOON, mu 5',
  'mu_1': 'MOON, mu 1',
}
_HEAD = (
  *('column', 'seeds', 'FedAvg', '{}', 'difference', 'mean', '95 %, own deviation'),
  *('95 %, pooled deviation', 'verdict', "rounds to FedAvg's endpoint: FedAvg", '{}'),
)


class Pair(NamedTuple):
  """Runs of FedAvg and of another algorithm with the same seed.

  They share the partition, the first weights and the batches.

  Attributes:
    seed: the seed of both runs.
    theirs: accuracy of FedAvg.
    ours: accuracy of the other algorithm.
  """

  seed: int
  theirs: Mapping[int, float]
  ours: Mapping[int, float]

  def difference(self, last: int) -> float:
    """The other algorithm's endpoint minus FedAvg's, in percentage points."""
    return endpoint(self.ours, last) - endpoint(self.theirs, last)


def endpoint(accuracy: Mapping[int, float], last: int) -> float | None:
  """The mean of the five values that end with round `last`; None if one is missing."""
  found = [accuracy.get(number) for number in range(last - 4, last + 1)]
  return None if None in found else math.fsum(found) / 5


def reached(accuracy: Mapping[int, float], level: float, last: int) -> int | None:
  """The first round, up to `last`, whose endpoint is at least the level."""
  ends = ((number, endpoint(accuracy, number)) for number in range(5, last + 1))
  return next((n for n, end in ends if end is not None and end >= level), None)


def pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
  """The standard deviation that the groups share, and its degrees of freedom."""
  several = [group for group in groups if len(group) > 1]
  freedom = sum(len(group) - 1 for group in several)
  if not freedom:
    return math.nan, 0
  squares = math.fsum((len(g) - 1) * statistics.variance(g) for g in several)
  return math.sqrt(squares / freedom), freedom


def half_width(std: float, count: int, freedom: int) -> float:
  """Half the width of Student's 95 % interval of a mean of `count` numbers."""
  return float(stats.t.ppf(0.975, freedom)) * std / math.sqrt(count)


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


def slope(betas: Sequence[float], differences: Sequence[float]) -> Slope:
  """The slope of the difference over log10 beta, from three pairs or more."""
  found = stats.linregress([math.log10(beta) for beta in betas], differences)
  width = float(stats.t.ppf(0.975, len(betas) - 2)) * found.stderr
  return Slope(float(found.slope), float(width), float(found.pvalue), len(betas))


def curve(words: Sequence[str], kept: Mapping[str, Kept]) -> tuple[list[str], set]:
  """The lines of '@curve ALGORITHM ROUND', and the names of the runs that are in it.

  Raises:
    UsageError: there is no such algorithm.
  """
  last = int(words[1])
  pairs, title, names = _pairs(words[0], last, kept)
  if not any(pairs.values()):
    return [f'{title}, at round {last}: {NOT_RUN}.'], names
  tested = (words[0], last) == _TESTED
  return [*_table(title, pairs, last), '', *_slopes(pairs, last, tested)], names


def means(words: Sequence[str], kept: Mapping[str, Kept]) -> tuple[list[str], set]:
  """The lines of '@means ROUND', and the names of their runs.

  A cell has the mean of an algorithm's differences to FedAvg, and the number of pairs;
  the mean is bold unless the verdict is that it is undecided.
  """
  last, names = int(words[0]), set()
  lines = [f'| less FedAvg | {" | ".join(_COLUMNS)} |', f'|{" --- |" * 7}']
  for algorithm in ('moon', 'mu_1', 'fedprox', 'scaffold'):
    pairs, title, own = _pairs(algorithm, last, kept)
    found = [[pair.difference(last) for pair in each] for each in pairs.values()]
    shared = pooled(found)
    cells = [_mean(each, *shared) if each else NOT_RUN for each in found]
    lines.append(f'| {" | ".join([title, *cells])} |')
    names |= own
  return lines, names


def _mean(found: Sequence[float], std: float, freedom: int) -> str:
  mean = f'{statistics.fmean(found):+.1f}'
  *_, verdict = _judged(found, std, freedom)
  return f'{mean if verdict.startswith(_OPEN) else f"**{mean}**"} ({len(found)})'


def differences(
  words: Sequence[str], kept: Mapping[str, Kept], picture: Callable
) -> tuple[list[str], set]:
  """The lines of '@differences NAME ALGORITHM ROUND ROUND', and the names of its runs.

  Args:
    words: the words of the line.
    kept: the kept runs.
    picture: draws a picture, and returns the lines that show it.

  Raises:
    UsageError: there is no such algorithm.
  """
  name, algorithm, *rounds = words
  shown = {}
  for last in map(int, rounds):
    pairs, title, names = _pairs(algorithm, last, kept)
    if any(pairs.values()):
      shown[f'round {last}'] = [
        (column, _COLUMNS[column][1], [pair.difference(last) for pair in each])
        for column, each in pairs.items()
      ]
  words = f'{title} less FedAvg, each pair and the means'
  return picture(name, shown, draw.over_beta, words), names


def _pairs(
  algorithm: str, last: int, kept: Mapping[str, Kept]
) -> tuple[dict[str, list[Pair]], str, set]:
  """Column -> its pairs that have the round; the algorithm's title; all runs' names."""
  names, pairs, title = set(), {}, algorithm
  for column, (called, _) in _COLUMNS.items():
    theirs, _ = _runs(called.format('fedavg'), kept)
    ours, setting = _runs(called.format(algorithm), kept)
    title = setting.partition(', beta')[0].partition(', shards')[0]
    names |= {run.name for run in (*theirs.values(), *ours.values())}
    both = [
      Pair(key[0], theirs[key].accuracy(), ours[key].accuracy())
      for key in sorted(theirs.keys() & ours.keys())
    ]
    pairs[column] = [
      pair for pair in both if None not in (endpoint(a, last) for a in pair[1:])
    ]
  return pairs, title, names


def _runs(words: str, kept: Mapping[str, Kept]) -> tuple[dict[tuple, Kept], str]:
  """(Seed, digest of the data) -> run of a variant as it is; the variant's setting."""
  found = rows(words, kept)
  own = {
    (run.seed, run.digest): run
    for row in found
    if not row.changed()
    for run in row.runs
  }
  return own, found[0].variant.setting


def _table(title: str, pairs: Mapping, last: int) -> Iterator[str]:
  head = [word.format(title) for word in _HEAD]
  yield f'| {" | ".join(head)} |'
  yield f'|{" --- |" * len(head)}'
  std, freedom = pooled([[p.difference(last) for p in each] for each in pairs.values()])
  for column, each in pairs.items():
    cells = _cells(each, last, std, freedom) if each else ['no pair']
    yield f'| {" | ".join([column, *cells])}{" |" * (len(head) - len(cells))}'
  if freedom:
    degrees = f'{freedom} degree{"s" if freedom > 1 else ""} of freedom'
    yield ''
    yield (
      'Pooled over the columns, the differences have a standard deviation of '
      f'{std:.2f} points ({degrees}).'
    )


def _cells(pairs: Sequence[Pair], last: int, std: float, freedom: int) -> list[str]:
  found = [pair.difference(last) for pair in pairs]
  *widths, verdict = _judged(found, std, freedom)
  levels = [endpoint(pair.theirs, last) for pair in pairs]
  runs = [[pair.theirs for pair in pairs], [pair.ours for pair in pairs]]
  return [
    ', '.join(str(pair.seed) for pair in pairs),
    *(', '.join(f'{endpoint(run, last):.1f}' for run in side) for side in runs),
    ', '.join(f'{one:+.1f}' for one in found),
    f'{statistics.fmean(found):+.2f}',
    *('' if width is None else f'+- {width:.2f}' for width in widths),
    verdict,
    *(
      ', '.join(
        str(reached(run, level, last) or 'never')
        for run, level in zip(side, levels, strict=True)
      )
      for side in runs
    ),
  ]


def _judged(
  found: Sequence[float], std: float, freedom: int
) -> tuple[float | None, float | None, str]:
  """Half the interval by the own and by the pooled deviation, and the verdict."""
  mean, count, own, shared = statistics.fmean(found), len(found), None, None
  if count > 1:
    own = half_width(statistics.stdev(found), count, count - 1)
  if freedom:
    shared = half_width(std, count, freedom)
  verdict, other, name = _verdict(mean, own), _verdict(mean, shared), 'pooled'
  if freedom >= _FREEDOM:
    verdict, other, name = other, verdict, 'own'
  if other != verdict:
    verdict += f' ({other} by the {name} deviation)'
  return own, shared, verdict


def _verdict(mean: float, width: float | None) -> str:
  """Whether an interval, of half a width around the mean, excludes 0."""
  if width is None or abs(mean) <= width:
    return _OPEN
  return 'higher' if mean > 0 else 'lower'


def _slopes(
  pairs: Mapping[str, Sequence[Pair]], last: int, tested: bool
) -> Iterator[str]:
  """The slope over the planned seeds, and over all seeds if there are more."""
  every = [
    (beta, pair)
    for column, (_, beta) in _COLUMNS.items()
    if beta is not None
    for pair in pairs[column]
  ]
  first = [(beta, pair) for beta, pair in every if pair.seed in _SEEDS]
  wanted = len(_SEEDS) * sum(beta is not None for _, beta in _COLUMNS.values())
  if len(first) < wanted:
    yield f'Slope on log beta: reported when {wanted} pairs are run; {len(first)} are.'
    return
  of_each = (_slope([one for one in first if one[1].seed == s], last) for s in _SEEDS)
  each = ', '.join(f'{found.slope:+.2f}' for found in of_each)
  yield _told(first, last, 'of seeds 0, 1, 2', tested) + f' By seed: {each}.'
  if len(every) > len(first):
    yield _told(every, last, 'of all seeds', False)


def _slope(given: Sequence[tuple[float, Pair]], last: int) -> Slope:
  return slope(*zip(*((b, p.difference(last)) for b, p in given), strict=True))


def _told(
  given: Sequence[tuple[float, Pair]], last: int, which: str, tested: bool
) -> str:
  found = _slope(given, last)
  low, high = (found.slope + sign * found.half_width for sign in (-1, 1))
  word = _OPEN if low <= 0 <= high else 'rising' if low > 0 else 'falling'
  verdict = f', p = {found.p_value:.2g}: {word}' if tested else ''
  return (
    f'Slope on log beta, {found.count} pairs {which}: {found.slope:+.2f} points for '
    f'ten times the beta, 95 % from {low:+.2f} to {high:+.2f}{verdict}.'
  )


def partitions(words: Sequence[str], kept: Mapping[str, Kept]) -> tuple[list[str], set]:
  """The lines of '@partitions ROUND', and the names of their runs.

  They compare the deviation over seeds that each have a partition of their own with the
  deviation over seeds that share one partition.
  """
  last, names = int(words[0]), set()
  lines = [
    '| beta 0.5 | seeds | FedAvg | MOON, mu 5 | difference |',
    f'|{" --- |" * 5}',
  ]
  for told, called in (
    ('each seed its own partition', 'moon_cvpr21: {}'),
    ('the partition of seed 0', 'curve: same_partition_{}'),
  ):
    runs = [_runs(called.format(name), kept)[0] for name in ('fedavg', 'moon')]
    names |= {run.name for side in runs for run in side.values()}
    ends = [{k: endpoint(r.accuracy(), last) for k, r in side.items()} for side in runs]
    keys = [k for k in sorted(ends[0]) if None not in (ends[0][k], ends[1].get(k))]
    sides = [[side[key] for key in keys] for side in ends]
    sides.append([b - a for a, b in zip(*sides, strict=True)])
    cells = [_spread(side) for side in sides] if keys else [NOT_RUN, '', '']
    seeds = ', '.join(str(seed) for seed, _ in keys)
    lines.append(f'| {told} | {seeds} | {" | ".join(cells)} |')
  return lines, names


def _spread(values: Sequence[float]) -> str:
  mean = f'{statistics.fmean(values):.2f}'
  return f'{mean} +- {statistics.stdev(values):.2f}' if len(values) > 1 else mean


def ablation(words: Sequence[str], kept: Mapping[str, Kept]) -> tuple[list[str], set]:
  """The lines of '@ablation ROUND', and the names of their runs.

  A cell has the endpoint of seed 0, and in brackets how much it is above FedAvg's.
  """
  last, names = int(words[0]), set()
  lines = [f'| change | {" | ".join(_ALGORITHMS.values())} |', f'|{" --- |" * 6}']
  for told, called in _CHANGES.items():
    found = [_runs(called.format(name), kept)[0] for name in _ALGORITHMS]
    keys = (key for side in found for key in sorted(side) if not key[0])
    first = next(keys, None)
    runs = [side.get(first) for side in found]
    names |= {run.name for run in runs if run}
    base, *ends = [endpoint(run.accuracy(), last) if run else None for run in runs]
    cells = [_ahead(base, None), *(_ahead(end, base) for end in ends)]
    lines.append(f'| {" | ".join([told, *cells])} |')
  return lines, names


def _ahead(end: float | None, base: float | None) -> str:
  if end is None:
    return NOT_RUN
  return f'{end:.1f}' if base is None else f'{end:.1f} ({end - base:+.1f})'


def section(
  line: str, kept: Mapping[str, Kept], picture: Callable
) -> tuple[list[str], set] | None:
  """The lines that replace a line of the template, and the names of their runs.

  Args:
    line: the line.
    kept: the kept runs.
    picture: see `differences`.

  Returns:
    None if this module does not make such lines.

  Raises:
    UsageError: the line has another form.
  """
  word, *own = line.removeprefix('@').split()
  drawn = functools.partial(differences, picture=picture)
  # Each with the number of its names, and of the rounds after them.
  made, names, rounds = {
    'curve': (curve, 1, 1),
    'differences': (drawn, 2, 2),
    'means': (means, 0, 1),
    'partitions': (partitions, 0, 1),
    'ablation': (ablation, 0, 1),
  }.get(word, (None, 0, 0))
  given = [number for number in own[names:] if number.isdigit()]
  if made and not len(own) - names == len(given) == rounds:
    raise UsageError(f'experiments.in.md: @{word} has another form than in {line!r}.')
  return made and made(own, kept)
