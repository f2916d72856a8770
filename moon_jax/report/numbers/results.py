"""What are the numbers of a setting? One result for each of its series."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from moon_jax.report.numbers import groups, naming, statistics, traces
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.statistics import Comparison, Estimate
from moon_jax.report.read.runs import Ending, Run

ACCURACY = 'test_accuracy'
BASELINE = 'fedavg'
# The device trains, tests, or waits for the host, which saves and packs meanwhile.
_SECONDS = ('train_seconds', 'evaluate_seconds', 'idle_seconds')
_BYTES = ('bytes_down', 'bytes_up')
LAST, BEST = 'last', 'best'
_MOST_NAMES = 3  # of series in a note


class Target(NamedTuple):
  """An accuracy to reach.

  Attributes:
    value: in [0, 1]; None: it follows from the runs of an algorithm.
    algorithm: the mean over its runs in the same setting is the target.
    which: of its accuracies, the last or the best.
  """

  value: float | None
  algorithm: str = BASELINE
  which: str = LAST

  def describe(self) -> str:
    """'FedAvg's mean last accuracy'."""
    if self.value is not None:
      return f'accuracy {self.value:g}'
    name = naming.describe(((naming.ALGORITHM, self.algorithm),))
    return f"{name}'s mean {self.which} accuracy"


@dataclasses.dataclass(frozen=True)
class Reached:
  """What it took to reach a target.

  Attributes:
    target: accuracy in [0, 1].
    num_reached: how many runs came there; the estimates are over these.
    rounds: the first round at the target or above.
    megabytes: moved until then, in 10^6 bytes, up and down, all clients.
    seconds: until then, compiling not included.
    mean_round: the first round in which the mean over runs is there.
    saved: fraction of FedAvg's rounds, both by `mean_round`.
  """

  target: float
  num_reached: int
  rounds: Estimate | None
  megabytes: Estimate | None
  seconds: Estimate | None
  mean_round: int | None
  saved: float | None


@dataclasses.dataclass(frozen=True)
class Result:
  """The numbers of one series, over its finished runs.

  Attributes:
    series: whose.
    rounds: the last round of each run.
    final: accuracy of the last test.
    best: the highest accuracy of a run.
    tail: mean over a run's last five tests.
    std_over_clients: of the last test, where each client has a model.
    worst_client: of the last test, where each client has a model.
    comparison: of the final accuracy with FedAvg's, paired by sample and rounds.
    reached: the target; None if there is none.
  """

  series: Series
  rounds: list[int]
  final: Estimate
  best: Estimate
  tail: Estimate
  std_over_clients: Estimate | None
  worst_client: Estimate | None
  comparison: Comparison | None
  reached: Reached | None


class Summary(NamedTuple):
  """The numbers of one run, finished or not; None where there is nothing.

  Attributes:
    rounds: completed.
    final: accuracy of the last test.
    best: the highest accuracy.
    tail: mean over the last five tests.
    seconds: of the device, compiling not included.
    samples_per_second: of training.
  """

  rounds: int
  final: float | None
  best: float | None
  tail: float | None
  seconds: float | None
  samples_per_second: float | None


def summary(run: Run) -> Summary:
  """The numbers of one run."""
  tested, spent = run.column(ACCURACY), seconds(run)
  return Summary(
    rounds=run.rounds[-1]['round'] if run.rounds else 0,
    final=statistics.last(tested) if tested else None,
    best=statistics.best(tested) if tested else None,
    tail=statistics.tail_mean(tested) if tested else None,
    seconds=sum(spent.values()) if spent else None,
    samples_per_second=samples_per_second(run),
  )


def results(setting: Setting, target: Target) -> list[Result]:
  """One result for each series with a finished run."""
  return [_result(setting, s, target) for s in setting.series if s.finished]


def _result(setting: Setting, series: Series, target: Target) -> Result:
  runs = list(series.finished.values())
  baseline = groups.matching(setting, series, BASELINE)
  comparison = None
  if baseline and baseline is not series:
    comparison = statistics.compare(
      *(_by_rounds(_each(s, statistics.last), s) for s in (series, baseline))
    )
  return Result(
    series=series,
    rounds=[max(run.column(ACCURACY)) for run in runs],
    final=statistics.estimate(_each(series, statistics.last).values()),
    best=statistics.estimate(_each(series, statistics.best).values()),
    tail=statistics.estimate(_each(series, statistics.tail_mean).values()),
    std_over_clients=_last_of(runs, 'test_accuracy_std'),
    worst_client=_last_of(runs, 'test_accuracy_worst'),
    comparison=comparison,
    reached=_reached(setting, series, baseline, target),
  )


def _by_rounds(numbers, series: Series):
  """(sample, last round) -> number: runs of unequal lengths are no pair."""
  return {
    (sample, max(series.finished[sample].column(ACCURACY))): number
    for sample, number in numbers.items()
  }


def _each(series: Series, number: Callable[[Mapping[int, float]], float]):
  """sample -> a number of its column of accuracies."""
  return {
    sample: number(run.column(ACCURACY)) for sample, run in series.finished.items()
  }


def _last_of(runs: Sequence[Run], name: str) -> Estimate | None:
  columns = [run.column(name) for run in runs]
  return statistics.estimate(statistics.last(column) for column in columns if column)


def target_of(setting: Setting, series: Series, target: Target) -> float | None:
  """The accuracy that a series has to reach; None if its setting does not give it."""
  if target.value is not None:
    return target.value
  giving = groups.matching(setting, series, target.algorithm)
  if giving is None:
    return None
  number = {LAST: statistics.last, BEST: statistics.best}[target.which]
  return statistics.estimate(_each(giving, number).values()).mean


def _reached(setting, series, baseline, target) -> Reached | None:
  value = target_of(setting, series, target)
  if value is None:
    return None
  first = [
    (run, statistics.first_reaching(run.column(ACCURACY), value))
    for run in series.finished.values()
  ]
  there = [(run, number) for run, number in first if number is not None]
  own, theirs = (_mean_round(s, value) for s in (series, baseline))
  return Reached(
    target=value,
    num_reached=len(there),
    rounds=statistics.estimate(number for _, number in there),
    megabytes=_until(there, lambda run: _scaled(num_bytes(run), 1e-6)),
    seconds=_until(there, seconds),
    mean_round=own,
    saved=1 - own / theirs if own and theirs else None,
  )


def _mean_round(series: Series | None, value: float) -> int | None:
  if series is None:
    return None
  mean = statistics.curve([run.column(ACCURACY) for run in series.finished.values()])
  column = dict(zip(mean.rounds, (point.mean for point in mean.points), strict=True))
  return statistics.first_reaching(column, value)


def _until(there, column_of) -> Estimate | None:
  totals = [statistics.total(column_of(run), number) for run, number in there]
  return statistics.estimate(totals) if None not in totals else None


def seconds(run: Run) -> dict[int, float]:
  """round -> seconds of the device: training, testing, waiting."""
  return _sum(run.timing, _SECONDS)


def num_bytes(run: Run) -> dict[int, float]:
  """round -> bytes that all clients would receive and send."""
  return _sum(run.column, _BYTES)


def _sum(column_of, names) -> dict[int, float]:
  columns = [column_of(name) for name in names]
  return {
    number: sum(column[number] for column in columns)
    for number in columns[0]
    if all(number in column for column in columns)
  }


def _scaled(column: Mapping[int, float], factor: float) -> dict[int, float]:
  return {number: factor * value for number, value in column.items()}


def samples_per_second(run: Run) -> float | None:
  """Examples trained on in a second of training, over the whole run."""
  examples, train = run.column('num_examples'), run.timing('train_seconds')
  common = examples.keys() & train.keys()
  spent = sum(train[number] for number in common)
  return sum(examples[number] for number in common) / spent if spent else None


def notes_on(setting: Setting, found: Sequence[Result], target: Target) -> list[str]:
  """What a reader of the setting's numbers has to know, a line each."""
  notes, where = [], f'{setting.title}: ' if setting.title else ''
  numbers = [number for result in found for number in result.rounds]
  if len(set(numbers)) > 1:
    notes.append(
      f'{where}unequal numbers of rounds ({_told_rounds(found)}): final accuracies are '
      'of the last round of each run, mean curves end with the shortest, and only runs '
      'of equal length are paired; --where=num_rounds=N chooses'
    )
  for trace in (traces.ACCURACY, *traces.LOSSES, *traces.OTHERS):
    for series in setting.series:
      runs = series.finished.values()
      lacking = [run.name for run in runs if not trace.column(run)]
      if 0 < len(lacking) < len(runs):
        notes.append(
          f'{where}{", ".join(lacking)} without {trace.name}, which others of '
          f'{series.label} have: not drawn'
        )
  without = [result.series.label for result in found if result.reached is None]
  if without:
    notes.append(
      f'{where}no target for {_few(without)}: {target.describe()} is not among '
      'the finished runs of this setting'
    )
  return notes


def _told_rounds(found: Sequence[Result]) -> str:
  """'10: FedAvg, MOON; 10 to 20: SOLO'; of many series, the first three."""
  by_rounds: dict[int | str, list[str]] = {}
  for result in found:
    rounds = statistics.ranges(result.rounds)
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
  if missing := _missing_columns(run):
    return f'{run.name} has no column {", ".join(missing)}: left out where it counts'
  return None


def _missing_columns(run: Run) -> list[str]:
  needed = [(run.column, name) for name in (*_BYTES, 'num_examples')]
  needed += [(run.timing, name) for name in _SECONDS]
  return [name for column_of, name in needed if not column_of(name)]
