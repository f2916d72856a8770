"""The numbers of each run, and of each series over its finished runs."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from moon_jax import catalog
from moon_jax.report.numbers import groups, naming, statistics
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.naming import Key
from moon_jax.report.numbers.table import Row
from moon_jax.report.numbers.traces import ACCURACY
from moon_jax.report.read.runs import Algorithm, Ending, Run

BASELINE = 'fedavg'
# The device trains, tests, or waits for the host, which saves and packs meanwhile.
_SECONDS = ('train_seconds', 'evaluate_seconds', 'idle_seconds')
_BYTES = ('bytes_down', 'bytes_up')
_AVERAGED = (
  *('final_accuracy', 'best_accuracy', 'mean_of_last_5'),
  *('std_over_clients', 'worst_client'),
  *('rounds_to_target', 'megabytes_to_target', 'seconds_to_target'),
)
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


def named(target: Target, runs: Iterable[Run]) -> Target:
  """The target, whose algorithm is one of the catalog or of a run.

  Raises:
    UsageError: there is none.
  """
  told = {run.algorithm: run.algorithm for run in runs}
  name = target.algorithm
  found = told.get(name) or Algorithm(catalog.part(naming.ALGORITHM, name))
  return target._replace(algorithm=found)


def numbers(run: Run, target: float | None = None) -> Row:
  """A row of one run, finished or not: what it is, its knobs, its numbers.

  Args:
    run: whose.
    target: accuracy to reach, in [0, 1].

  Returns:
    Accuracies are in [0, 1]. Seconds are of the device, compiling not included, of the
    whole run and until the target; megabytes are 10^6 bytes, up and down, of all
    clients. None where there is nothing.
  """
  tested, seconds = run.column(ACCURACY), _sum(run.timing, _SECONDS)
  reached = None if target is None else statistics.first_reaching(tested, target)
  moved = reached and statistics.total(_sum(run.column, _BYTES), reached)
  return run.identity | {
    'run': run.name,
    'state': str(run.ending),
    'rounds': run.rounds[-1]['round'] if run.rounds else 0,
    'last_test': max(tested, default=None),
    'final_accuracy': statistics.last(tested),
    'best_accuracy': statistics.best(tested),
    'mean_of_last_5': statistics.tail_mean(tested),
    'std_over_clients': statistics.last(run.column('test_accuracy_std')),
    'worst_client': statistics.last(run.column('test_accuracy_worst')),
    'seconds': sum(seconds.values()) or None,
    'samples_per_second': _samples_per_second(run),
    'target': target,
    'rounds_to_target': reached,
    'megabytes_to_target': moved and moved / 1e6,
    'seconds_to_target': reached and statistics.total(seconds, reached),
    'devices': _counted(run.about.get('devices') or []),
    'jax': run.about.get('versions', {}).get('jax'),
    'git_commit': (run.about.get('git_commit') or '')[:10] or None,
    'command': run.about.get('command'),
  }


def _counted(devices: Sequence[str]) -> str:
  """'2 x cpu: cpu'."""
  return ', '.join(f'{devices.count(kind)} x {kind}' for kind in dict.fromkeys(devices))


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


class Result(NamedTuple):
  """The numbers of one series, over its finished runs.

  Attributes:
    series: whose.
    runs: a row of each run.
    row: of the series: estimates over its runs; the difference of the final accuracy to
      FedAvg's, paired by sample and rounds; the first round in which the mean over runs
      is at the target, and the fraction of FedAvg's rounds that this saves.
  """

  series: Series
  runs: list[Row]
  row: Row

  def all(self, name: str) -> list:
    """A number of every run that has it."""
    return [run[name] for run in self.runs if run[name] is not None]


def results(setting: Setting, target: Target) -> list[Result]:
  """One result for each series with a finished run."""
  return [_result(setting, s, target) for s in setting.series if s.finished]


def _result(setting: Setting, series: Series, target: Target) -> Result:
  value = target_of(setting, series, target)
  baseline = groups.matching(setting, series, BASELINE)
  own, theirs = (_mean_round(one, value) for one in (series, baseline))
  found = None
  if baseline and baseline is not series:
    found = statistics.compare(_finals(series), _finals(baseline))
  of_runs = Result(series, [numbers(r, value) for r in series.finished.values()], {})
  means = {name: statistics.estimate(of_runs.all(name)) for name in _AVERAGED}
  row = means | {
    'setting': setting.title or None,
    'series': series.label,
    'n': len(of_runs.runs),
    'rounds': statistics.ranges(of_runs.all('last_test')),
    'mean_accuracy': means['final_accuracy'],
    'difference_to_fedavg': found and found.difference,
    'pairs': found and found.difference.n,
    'p_value': found and found.p_value,
    'target': value,
    'reached': f'{len(of_runs.all("rounds_to_target"))} of {len(of_runs.runs)}',
    'round_of_the_mean': own,
    'rounds_saved': 1 - own / theirs if own and theirs else None,
  }
  return of_runs._replace(row=row)


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
      f'{where}unequal numbers of rounds: mean curves end with the shortest, and only '
      'runs of equal length are paired; --where=num_rounds=N chooses'
    )
  if without := [one.series.label for one in found if one.row['target'] is None]:
    notes.append(
      f'{where}no target for {", ".join(without)}: {target.describe()} is not among '
      'the finished runs of this setting'
    )
  return notes


def note_on(run: Run) -> str | None:
  """What a reader has to know about one run; None if it is as it should be."""
  if run.ending is Ending.FINISHED:
    return None
  there = f' after round {run.rounds[-1]["round"]}' if run.rounds else ''
  return f'{run.name} is {run.ending}{there}: in no average and no figure'
