"""The numbers of each run, and of each series over its finished runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from moon_jax import catalog
from moon_jax.report import groups, naming, statistics
from moon_jax.report.groups import Series, Setting
from moon_jax.report.runs import Algorithm, Ending, Run
from moon_jax.report.statistics import ROUNDING, Estimate
from moon_jax.report.traces import ACCURACY, best, chosen_by

BASELINE = 'fedavg'
Row = Mapping[str, Any]
# The device trains, tests, or waits for the host, which saves and packs in that time.
_SECONDS = ('train_seconds', 'evaluate_seconds', 'idle_seconds')
_BYTES = ('bytes_down', 'bytes_up')
_AVERAGED = (
  *('final_accuracy', 'best_accuracy', 'mean_of_last_5'),
  *('std_over_clients', 'worst_client'),
  *('rounds_to_target', 'megabytes_to_target', 'seconds_to_target'),
)


def _last(column: pd.Series) -> float | None:
  return column.iloc[-1] if len(column) else None


WHICH = {'last': lambda run: _last(run.column(ACCURACY)), 'best': best}


class Target(NamedTuple):
  """An accuracy to reach.

  Attributes:
    value: in [0, 1]; None if it follows from the runs of an algorithm.
    algorithm: algorithm whose mean over its runs in the same setting is the target.
    which: 'last' or 'best', which of its accuracies.
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
  """The target, after checking that its algorithm is in the catalog or in a run.

  Raises:
    UsageError: there is no such algorithm.
  """
  told = {run.algorithm: run.algorithm for run in runs}
  name = target.algorithm
  found = told.get(name) or Algorithm(catalog.part(naming.ALGORITHM, name))
  return target._replace(algorithm=found)


def numbers(run: Run, target: float | None = None) -> Row:
  """A row of one run, finished or not: how it ended, its knobs, its numbers.

  Args:
    run: the run.
    target: accuracy to reach, in [0, 1].

  Returns:
    Accuracies are in [0, 1]. Seconds are those of the device, without compiling, for
    the whole run and until the target; megabytes are 10^6 bytes, up and down, of all
    clients. None or NaN for a missing number.
  """
  tested, devices = run.column(ACCURACY), run.about.get('devices') or []
  seconds, moved = _sum(map(run.timing, _SECONDS)), _sum(map(run.column, _BYTES))
  reached = first_reaching(tested, target)
  trained = pd.concat([run.column('num_examples'), run.timing('train_seconds')], axis=1)
  examples, spent = trained.dropna().sum()
  return run.identity | {
    'run': run.name,
    'state': str(run.ending),
    'rounds': run.rounds[-1]['round'] if run.rounds else 0,
    'last_test': int(tested.index[-1]) if len(tested) else None,
    'final_accuracy': _last(tested),
    'best_accuracy': best(run),
    'best_by': chosen_by([run]).partition('_')[0],
    'mean_of_last_5': tested.tail(5).mean(),
    'std_over_clients': _last(run.column('test_accuracy_std')),
    'worst_client': _last(run.column('test_accuracy_worst')),
    'seconds': seconds.sum() or None,
    'samples_per_second': examples / spent if spent else None,
    'target': target,
    'rounds_to_target': reached,
    'megabytes_to_target': _total(moved, reached) / 1e6,
    'seconds_to_target': _total(seconds, reached),
    # '2 x cpu: cpu'
    'devices': ', '.join(f'{devices.count(d)} x {d}' for d in dict.fromkeys(devices)),
    'jax': run.about.get('versions', {}).get('jax'),
    'git_commit': (run.about.get('git_commit') or '')[:10] or None,
    'command': run.about.get('command'),
  }


def _sum(columns: Iterable[pd.Series]) -> pd.Series:
  """The sum by rounds, where all columns have a value."""
  return sum(columns).dropna()


def _total(column: pd.Series, up_to: int | None) -> float:
  """The sum over rounds 1 to `up_to`; NaN if one of them has no value."""
  return column.reindex(range(1, (up_to or 0) + 1)).sum(skipna=False, min_count=1)


def first_reaching(column: pd.Series, target: float | None) -> int | None:
  """The first round whose value is the target or more."""
  reached = column.index[column >= (math.inf if target is None else target) - ROUNDING]
  return int(reached[0]) if len(reached) else None


class Result(NamedTuple):
  """The numbers of one series, over its finished runs.

  Attributes:
    series: the series.
    runs: a row of each run.
    row: row of the series: estimates over its runs; the difference of the final
      accuracy to FedAvg's, paired by sample and rounds; the first round in which the
      mean over runs reaches the target, and the fraction of FedAvg's rounds that this
      saves.
  """

  series: Series
  runs: pd.DataFrame
  row: Row


def results(setting: Setting, target: Target) -> list[Result]:
  """One result for each series with a finished run."""
  return [_result(setting, s, target) for s in setting.series if s.finished]


def _result(setting: Setting, series: Series, target: Target) -> Result:
  value = target_of(setting, series, target)
  baseline = groups.matching(setting, series, BASELINE)
  own, theirs = (_mean_round(one, value) for one in (series, baseline))
  rows = [numbers(run, value) for run in series.finished.values()]
  runs = pd.DataFrame(rows, dtype=object)
  row = {}
  for name in _AVERAGED:
    row |= cells_of(name, statistics.estimate(runs[name].astype(float)))
  row |= cells_of('mean_accuracy', statistics.estimate(runs['final_accuracy']))
  if baseline and baseline is not series:
    difference = statistics.paired_difference(_finals(series), _finals(baseline))
    row |= cells_of('difference_to_fedavg', difference.estimate)
    row |= {'pairs': difference.estimate.n or None, 'p_value': difference.p_value}
  row |= {
    'setting': setting.title or None,
    'series': series.label,
    'n': len(runs),
    'rounds': _range(runs['last_test'].dropna().tolist()),
    'best_by': ', '.join(runs['best_by'].unique()),
    'target': value,
    'reached': f'{runs["rounds_to_target"].count()} of {len(runs)}',
    'round_of_the_mean': own,
    'rounds_saved': 1 - own / theirs if own and theirs else None,
  }
  return Result(series, runs, row)


def cells_of(name: str, estimate: Estimate) -> dict[str, Any]:
  """The three cells of an estimate in a row; None in each if it is over nothing."""
  is_there = estimate.n > 0
  return {
    f'{name}_mean': estimate.mean if is_there else None,
    f'{name}_std': estimate.std if is_there else None,
    f'{name}_n': estimate.n if is_there else None,
  }


def _range(numbers: Sequence[int]) -> int | str | None:
  """10, or '10 to 20' if they differ."""
  low, high = min(numbers, default=None), max(numbers, default=None)
  return low if low == high else f'{low} to {high}'


def _finals(series: Series) -> pd.Series:
  """Last accuracy by sample and last test: runs of unequal lengths make no pair."""
  tested = {sample: run.column(ACCURACY) for sample, run in series.finished.items()}
  finals = {f'{sample} {c.index.max()}': _last(c) for sample, c in tested.items()}
  return pd.Series(finals, dtype=float)


def target_of(setting: Setting, series: Series, target: Target) -> float | None:
  """The accuracy that a series has to reach; None if its setting does not give it."""
  if target.value is not None:
    return target.value
  giving = groups.matching(setting, series, target.algorithm)
  if giving is None:
    return None
  found = map(WHICH[target.which], giving.finished.values())
  return float(pd.Series(found, dtype=float).mean())


def _mean_round(series: Series | None, value: float | None) -> int | None:
  if series is None:
    return None
  columns = (run.column(ACCURACY) for run in series.finished.values())
  return first_reaching(statistics.mean_curve(columns)['mean'], value)


def notes_on(setting: Setting, found: Sequence[Result], target: Target) -> list[str]:
  """What a reader of the setting's numbers must know, a line each."""
  notes, where = [], f'{setting.title}: ' if setting.title else ''
  if found and pd.concat([result.runs for result in found])['last_test'].nunique() > 1:
    notes.append(
      f'{where}unequal numbers of rounds: means are over runs of all lengths, mean '
      'curves end with the shortest, and only runs of equal length are paired; '
      '--where=num_rounds=N chooses'
    )
  for one in found:
    for part in _edited(one.series.runs):
      notes.append(
        f'{where}{one.series.label}: the file of the {part} was changed between these '
        'runs, or during one'
      )
  if without := [one.series.label for one in found if one.row['target'] is None]:
    notes.append(
      f'{where}no target for {", ".join(without)}: {target.describe()} is not among '
      'the finished runs of this setting'
    )
  return notes


def _edited(runs: Iterable[Run]) -> list[str]:
  """The registered parts whose file was another one at some starts of the runs."""
  versions = {}
  for start in (s for run in runs for s in (run.about, *run.about.get('earlier', ()))):
    for part in start.get('registered', ()):
      name = f'{part["kind"]} {part["name"]!r}'
      versions.setdefault(name, set()).add(part['sha256'])
  return [name for name, found in versions.items() if len(found) > 1]


def note_on(run: Run) -> str | None:
  """What a reader must know about one run; None if it is finished."""
  if run.ending is Ending.FINISHED:
    return None
  there = f' after round {run.rounds[-1]["round"]}' if run.rounds else ''
  return f'{run.name} is {run.ending}{there}: in no average and no figure'
