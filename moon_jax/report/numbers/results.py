"""The numbers of each run, and of each series over its finished runs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from moon_jax.report.numbers import groups, naming, statistics, traces
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.naming import Key
from moon_jax.report.numbers.statistics import Comparison, Estimate
from moon_jax.report.numbers.traces import ACCURACY
from moon_jax.report.read.runs import Ending, Run

BASELINE = 'fedavg'
# The device trains, tests, or waits for the host, which saves and packs meanwhile.
_SECONDS = ('train_seconds', 'evaluate_seconds', 'idle_seconds')
_BYTES = ('bytes_down', 'bytes_up')
_MOST_NAMES = 3  # of series in a note
WHICH = {'last': statistics.last, 'best': statistics.best}


class Target(NamedTuple):
  """An accuracy to reach.

  Attributes:
    value: in [0, 1]; None: it follows from the runs of an algorithm.
    algorithm: the mean over its runs in the same setting is the target.
    which: of its accuracies, the last or the best.
  """

  value: float | None
  algorithm: str = BASELINE
  which: str = 'last'

  def describe(self) -> str:
    """'FedAvg's mean last accuracy'."""
    if self.value is not None:
      return f'accuracy {self.value:g}'
    name = naming.describe(((naming.ALGORITHM, self.algorithm),))
    return f"{name}'s mean {self.which} accuracy"


class RunNumbers(NamedTuple):
  """The numbers of one run, finished or not; None where there is nothing.

  Attributes:
    run: whose.
    rounds: completed.
    last_test: round of the last test.
    final: accuracy of the last test.
    best: the highest accuracy.
    tail: mean over the last five tests.
    std_over_clients: of the last test, where each client has a model.
    worst_client: of the last test, where each client has a model.
    seconds: of the device, compiling not included.
    samples_per_second: of training, over the whole run.
    target: accuracy to reach, in [0, 1].
    rounds_to_target: the first round at the target or above.
    megabytes_to_target: moved until then, in 10^6 bytes, up and down, all clients.
    seconds_to_target: until then, compiling not included.
  """

  run: Run
  rounds: int
  last_test: int | None
  final: float | None
  best: float | None
  tail: float | None
  std_over_clients: float | None
  worst_client: float | None
  seconds: float | None
  samples_per_second: float | None
  target: float | None
  rounds_to_target: int | None
  megabytes_to_target: float | None
  seconds_to_target: float | None


def numbers(run: Run, target: float | None = None) -> RunNumbers:
  """The numbers of one run."""
  tested, seconds = run.column(ACCURACY), _sum(run.timing, _SECONDS)
  number = None if target is None else statistics.first_reaching(tested, target)
  moved = number and statistics.total(_sum(run.column, _BYTES), number)

  def last(name: str) -> float | None:
    column = run.column(name)
    return statistics.last(column) if column else None

  return RunNumbers(
    run=run,
    rounds=run.rounds[-1]['round'] if run.rounds else 0,
    last_test=max(tested, default=None),
    final=last(ACCURACY),
    best=statistics.best(tested) if tested else None,
    tail=statistics.tail_mean(tested) if tested else None,
    std_over_clients=last('test_accuracy_std'),
    worst_client=last('test_accuracy_worst'),
    seconds=sum(seconds.values()) if seconds else None,
    samples_per_second=_samples_per_second(run),
    target=target,
    rounds_to_target=number,
    megabytes_to_target=None if moved is None else moved / 1e6,
    seconds_to_target=number and statistics.total(seconds, number),
  )


def _sum(column_of: Callable, names: Sequence[str]) -> dict[int, float]:
  """round -> sum over columns, where all have a value."""
  columns = [column_of(name) for name in names]
  common = set.intersection(*map(set, columns))
  return {number: sum(column[number] for column in columns) for number in common}


def _samples_per_second(run: Run) -> float | None:
  examples, train = run.column('num_examples'), run.timing('train_seconds')
  common = examples.keys() & train.keys()
  spent = sum(train[number] for number in common)
  return sum(examples[number] for number in common) / spent if spent else None


@dataclasses.dataclass(frozen=True)
class Result:
  """The numbers of one series, over its finished runs.

  Attributes:
    setting: of the series.
    series: whose.
    each: sample -> numbers of its run.
    comparison: of the final accuracy with FedAvg's, paired by sample and rounds.
    target: accuracy to reach, in [0, 1]; None if the setting gives none.
    mean_round: the first round in which the mean over runs is there.
    saved: fraction of FedAvg's rounds, both by `mean_round`.
  """

  setting: Setting
  series: Series
  each: dict[Key, RunNumbers]
  comparison: Comparison | None
  target: float | None
  mean_round: int | None
  saved: float | None

  def all(self, name: str) -> list:
    """A number of every run that has it."""
    values = [getattr(each, name) for each in self.each.values()]
    return [value for value in values if value is not None]

  def mean(self, name: str) -> Estimate | None:
    """Mean and deviation over the runs that have the number; None if none has."""
    return statistics.estimate(self.all(name))

  @property
  def reached_by(self) -> str:
    """'2 of 3' runs reach the target."""
    return f'{len(self.all("rounds_to_target"))} of {len(self.each)}'


def results(setting: Setting, target: Target) -> list[Result]:
  """One result for each series with a finished run."""
  return [_result(setting, s, target) for s in setting.series if s.finished]


def _result(setting: Setting, series: Series, target: Target) -> Result:
  value = target_of(setting, series, target)
  baseline = groups.matching(setting, series, BASELINE)
  own, theirs = (_mean_round(one, value) for one in (series, baseline))
  comparison = None
  if baseline and baseline is not series:
    comparison = statistics.compare(_finals(series), _finals(baseline))
  return Result(
    setting=setting,
    series=series,
    each={sample: numbers(run, value) for sample, run in series.finished.items()},
    comparison=comparison,
    target=value,
    mean_round=own,
    saved=1 - own / theirs if own and theirs else None,
  )


def _finals(series: Series) -> dict[tuple[Key, int], float]:
  """(sample, last test) -> accuracy then: runs of unequal lengths are no pair."""
  tested = {sample: run.column(ACCURACY) for sample, run in series.finished.items()}
  return {(sample, max(c)): statistics.last(c) for sample, c in tested.items()}


def target_of(setting: Setting, series: Series, target: Target) -> float | None:
  """The accuracy that a series has to reach; None if its setting does not give it."""
  if target.value is not None:
    return target.value
  giving = groups.matching(setting, series, target.algorithm)
  if giving is None:
    return None
  columns = [run.column(ACCURACY) for run in giving.finished.values()]
  return statistics.estimate(map(WHICH[target.which], columns)).mean


def _mean_round(series: Series | None, value: float | None) -> int | None:
  if series is None or value is None:
    return None
  mean = statistics.curve([run.column(ACCURACY) for run in series.finished.values()])
  return statistics.first_reaching({r: e.mean for r, e in mean.items()}, value)


def notes_on(setting: Setting, found: Sequence[Result], target: Target) -> list[str]:
  """What a reader of the setting's numbers has to know, a line each."""
  notes, where = [], f'{setting.title}: ' if setting.title else ''
  if len({number for result in found for number in result.all('last_test')}) > 1:
    notes.append(
      f'{where}unequal numbers of rounds ({_told_rounds(found)}): final accuracies are '
      'of the last round of each run, mean curves end with the shortest, and only runs '
      'of equal length are paired; --where=num_rounds=N chooses'
    )
  for series in setting.series:
    runs = series.finished.values()
    for name in traces.followed(runs):
      lacking = [run.name for run in runs if not traces.column(run, name)]
      if 0 < len(lacking) < len(runs):
        notes.append(
          f'{where}{", ".join(lacking)} without {name}, which others of '
          f'{series.label} have: not drawn'
        )
  if without := [result.series.label for result in found if result.target is None]:
    notes.append(
      f'{where}no target for {_few(without)}: {target.describe()} is not among '
      'the finished runs of this setting'
    )
  return notes


def _told_rounds(found: Sequence[Result]) -> str:
  """'10: FedAvg, MOON; 10 to 20: SOLO'; of many series, the first three."""
  by_rounds: dict[int | str, list[str]] = {}
  for result in found:
    rounds = statistics.ranges(result.all('last_test'))
    by_rounds.setdefault(rounds, []).append(result.series.label)
  return '; '.join(f'{rounds}: {_few(names)}' for rounds, names in by_rounds.items())


def _few(names: Sequence[str]) -> str:
  """'FedAvg, MOON, SOLO and 2 more'."""
  more = f' and {len(names) - _MOST_NAMES} more' if len(names) > _MOST_NAMES else ''
  return ', '.join(names[:_MOST_NAMES]) + more


def note_on(run: Run) -> str | None:
  """What a reader has to know about one run; None if it is as it should be."""
  if run.ending is not Ending.FINISHED:
    there = f' after round {run.rounds[-1]["round"]}' if run.rounds else ''
    return f'{run.name} is {run.ending}{there}: in no average and no figure'
  missing = [n for n in (*_BYTES, 'num_examples') if not run.column(n)]
  missing += [name for name in _SECONDS if not run.timing(name)]
  if missing:
    return f'{run.name} has no column {", ".join(missing)}: left out where it counts'
  return None
