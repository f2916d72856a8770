"""The numbers of each run, and of each series over its finished runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from moon_jax import catalog
from moon_jax.core.flags import option
from moon_jax.report import groups, naming, statistics
from moon_jax.report.groups import Series, Setting
from moon_jax.report.request import BASELINE, Target
from moon_jax.report.runs import Algorithm, Ending, Run
from moon_jax.report.statistics import ROUNDING, Estimate
from moon_jax.report.traces import (
  ACCURACY,
  CLIENT_MEAN,
  best_accuracy,
  best_by_words,
  last,
  last_accuracy,
  last_client_mean,
  last_numbers,
  test_metrics_of,
)

# The device trains, tests, or waits for the host, which saves and packs in that time.
_SECONDS = ('train_seconds', 'evaluate_seconds', 'idle_seconds')
_BYTES = ('bytes_down', 'bytes_up')
# The numbers of runs that a series averages, where a cell says if some runs lack it.
_AVERAGED = (
  'final_accuracy',
  CLIENT_MEAN,
  'best_accuracy',
  'mean_of_last_5',
  'std_over_models',
  'lowest_model',
)
# Those that it averages over the runs that reach the target; a column counts these.
_TO_TARGET = ('rounds_to_target', 'megabytes_to_target', 'seconds_to_target')
# The averages of which the clearly best is marked.
_RANKED = ('final_accuracy', CLIENT_MEAN, 'best_accuracy', 'mean_of_last_5')
# Those of them that depend on which rounds were tested.
_OF_SEVERAL_TESTS = ('best_accuracy', 'mean_of_last_5')
_ABOVE_CHANCE = 0.01  # an accuracy up to so far above chance is at chance
# Key of a column -> cell.
Row = Mapping[str, Any]
# The words after the @ of a target -> the accuracy of a run that they stand for.
ACCURACY_AT = {'last': last_accuracy, 'best': best_accuracy}


# --- the target -----------------------------------------------------------------------


def with_known_algorithm(target: Target, runs: Iterable[Run]) -> Target:
  """The target, after checking that its algorithm is in the catalog or in a run.

  Raises:
    UsageError: there is no such algorithm.
  """
  algorithms = {run.algorithm: run.algorithm for run in runs}
  algorithm = algorithms.get(target.algorithm)
  if algorithm is None:
    algorithm = Algorithm(catalog.part(naming.ALGORITHM, target.algorithm))
  return target._replace(algorithm=algorithm)


def target_accuracy(setting: Setting, series: Series, target: Target) -> float | None:
  """The accuracy that a series has to reach; None if its setting does not give it."""
  if target.accuracy is not None:
    return target.accuracy
  target_series = groups.matching(setting, series, target.algorithm)
  if target_series is None:
    return None
  accuracies = map(ACCURACY_AT[target.round], target_series.finished.values())
  return float(pd.Series(accuracies, dtype=float).mean())


def first_reaching(accuracies: pd.Series, target: float | None) -> int | None:
  """The first round whose accuracy is the target or more; None if there is none."""
  if target is None:
    return None
  rounds = accuracies.index[accuracies >= target - ROUNDING]
  return int(rounds[0]) if len(rounds) else None


# --- one run --------------------------------------------------------------------------


def run_row(run: Run, target: float | None = None) -> Row:
  """A row of one run, finished or not: how it ended, its knobs, its numbers.

  Args:
    run: the run.
    target: accuracy to reach, in [0, 1].

  Returns:
    Accuracies are in [0, 1]. Seconds are those of the device, without compiling, for
    the whole run and until the target; megabytes are 10^6 bytes, up and down, of all
    clients. None or NaN for a missing number.
  """
  accuracies = run.metric(ACCURACY)
  seconds = _sum(map(run.timing, _SECONDS))
  num_bytes = _sum(map(run.metric, _BYTES))
  rounds_to_target = first_reaching(accuracies, target)
  provenance = run.provenance
  return (
    run.identity
    | last_numbers(run, test_metrics_of([run]))
    | {
      'run': run.name,
      'state': _state(run),
      'rounds': run.rounds[-1]['round'] if run.rounds else 0,
      'last_test': int(accuracies.index[-1]) if len(accuracies) else None,
      'final_accuracy': last_accuracy(run),
      CLIENT_MEAN: last_client_mean(run),
      'best_accuracy': best_accuracy(run),
      'best_by': best_by_words(run),
      'mean_of_last_5': accuracies.tail(5).mean() if len(accuracies) >= 5 else None,
      'std_over_models': last(run.metric('test_accuracy_std')),
      'lowest_model': last(run.metric('test_accuracy_worst')),
      'seconds': seconds.sum() or None,
      'samples_per_second': _samples_per_second(run),
      'target': target,
      'rounds_to_target': rounds_to_target,
      'megabytes_to_target': _total(num_bytes, rounds_to_target) / 1e6,
      'seconds_to_target': _total(seconds, rounds_to_target),
      'devices': _counted(provenance.get('devices') or []),
      'jax': provenance.get('versions', {}).get('jax'),
      'git_commit': (provenance.get('git_commit') or '')[:10] or None,
      'command': provenance.get('command'),
    }
  )


def _sum(columns: Iterable[pd.Series]) -> pd.Series:
  """The sum by rounds, where all columns have a number."""
  return sum(columns).dropna()


def _total(column: pd.Series, last_round: int | None) -> float:
  """The sum over rounds 1 to `last_round`; NaN if one of them has no number."""
  rounds = range(1, (last_round or 0) + 1)
  return column.reindex(rounds).sum(skipna=False, min_count=1)


def _samples_per_second(run: Run) -> float | None:
  """Training examples in a second, over the rounds in which both are recorded."""
  columns = [run.metric('num_examples'), run.timing('train_seconds')]
  examples, seconds = pd.concat(columns, axis=1).dropna().sum()
  return examples / seconds if seconds else None


def _counted(devices: Sequence[str]) -> str:
  """'2 x cpu: cpu'."""
  counts = {device: devices.count(device) for device in devices}
  return ', '.join(f'{count} x {device}' for device, count in counts.items())


def run_note(run: Run) -> str | None:
  """What a reader must know about one run; None if it is finished."""
  if run.ending is Ending.FINISHED:
    return None
  after_round = f' after round {run.rounds[-1]["round"]}' if run.rounds else ''
  return f'{run.name} is {run.ending}{after_round}: in no average and no figure'


# --- one series -----------------------------------------------------------------------


class Result(NamedTuple):
  """The numbers of one series, over its finished runs.

  Attributes:
    series: the series.
    runs: a row of each run.
    row: row of the series: estimates over its runs; the differences to FedAvg of the
      final accuracy and of the mean over clients' own tests, paired by sample and
      rounds; the first round in which the
      mean over runs reaches the target, and the fraction of FedAvg's rounds that this
      saves.
  """

  series: Series
  runs: pd.DataFrame
  row: Row


def results(setting: Setting, target: Target) -> list[Result]:
  """One result for each series with a finished run."""
  return _with_best(
    [_result(setting, series, target) for series in setting.series if series.finished]
  )


def _result(setting: Setting, series: Series, target: Target) -> Result:
  accuracy = target_accuracy(setting, series, target)
  run_rows = [run_row(run, accuracy) for run in series.finished.values()]
  runs = pd.DataFrame(run_rows, dtype=object)
  row = {
    'setting': setting.title or None,
    'series': series.label,
    'n': len(runs),
    'rounds': _range(runs['last_test'].dropna().tolist()),
    'best_by': ', '.join(runs['best_by'].unique()),
    'target': accuracy,
    'reached': f'{runs["rounds_to_target"].count()} of {len(runs)}',
  }
  metrics = test_metrics_of(list(series.finished.values()))
  for name in (*_AVERAGED, *metrics):
    row.update(cells_over_runs(name, statistics.estimate(runs[name]), len(runs)))
  for name in _TO_TARGET:
    row.update(cells_of(name, statistics.estimate(runs[name])))
  row.update(cells_of('mean_accuracy', statistics.estimate(runs['final_accuracy'])))
  baseline = groups.matching(setting, series, BASELINE)
  row.update(_rounds_against(series, baseline, accuracy))
  if baseline and baseline is not series:
    row.update(_difference_to(series, baseline))
  return Result(series, runs, row)


def cells_of(name: str, estimate: Estimate) -> Row:
  """The three cells of an estimate in a row; None in each if it is over nothing."""
  is_there = estimate.n > 0
  return {
    f'{name}_mean': estimate.mean if is_there else None,
    f'{name}_std': estimate.std if is_there else None,
    f'{name}_n': estimate.n if is_there else None,
  }


def cells_over_runs(name: str, estimate: Estimate, num_runs: int) -> Row:
  """`cells_of`, with a note in the cell if only some of the runs have the number."""
  cells = dict(cells_of(name, estimate))
  if 0 < estimate.n < num_runs:
    cells[note_key(name)] = f'{estimate.n} of {num_runs}'
  return cells


def _range(numbers: Sequence[int]) -> int | str | None:
  """10, or '10 to 20' if they differ; None if there are none."""
  if not numbers:
    return None
  lowest = min(numbers)
  highest = max(numbers)
  return lowest if lowest == highest else f'{lowest} to {highest}'


def _rounds_against(
  series: Series, baseline: Series | None, target: float | None
) -> Row:
  """The round in which the mean curve reaches the target, and the share it saves."""
  rounds = _round_of_the_mean(series, target)
  baseline_rounds = _round_of_the_mean(baseline, target) if baseline else None
  saved = 1 - rounds / baseline_rounds if rounds and baseline_rounds else None
  return {'round_of_the_mean': rounds, 'rounds_saved': saved}


def _round_of_the_mean(series: Series, target: float | None) -> int | None:
  curves = (run.metric(ACCURACY) for run in series.finished.values())
  return first_reaching(statistics.mean_curve(curves)['mean'], target)


def _difference_to(series: Series, baseline: Series) -> Row:
  """The paired differences of the final accuracies and of clients' own tests.

  The keys of the second difference begin with 'client_'.
  """
  row: dict[str, Any] = {}
  for beginning, accuracy in (('', last_accuracy), ('client_', last_client_mean)):
    difference = statistics.paired_difference(
      _by_sample(series, accuracy), _by_sample(baseline, accuracy)
    )
    row.update(cells_of(f'{beginning}difference_to_fedavg', difference.estimate))
    row[f'{beginning}pairs'] = difference.estimate.n or None
    row[f'{beginning}p_value'] = difference.p_value
  return row


def _by_sample(series: Series, accuracy: Callable[[Run], float | None]) -> pd.Series:
  """An accuracy by sample and last test, of the runs that have it."""
  accuracies = map(accuracy, series.finished.values())
  return pd.Series(list(accuracies), sample_names(series), dtype=float).dropna()


def sample_names(series: Series) -> list[str]:
  """The sample and the last test of each run: runs of unequal lengths make no pair."""
  return [
    f'{sample} {run.metric(ACCURACY).index.max()}'
    for sample, run in series.finished.items()
  ]


def _with_best(setting_results: Sequence[Result]) -> list[Result]:
  """The results of a setting, with the clearly best accuracies and metrics marked."""
  rows = [dict(result.row) for result in setting_results]
  is_higher_better = dict.fromkeys(_RANKED, True)
  if _have_unequal_tests(setting_results):
    for name in _OF_SEVERAL_TESTS:
      del is_higher_better[name]
  for result in setting_results:
    metrics = test_metrics_of(list(result.series.finished.values()))
    for column, test_metric in metrics.items():
      is_higher_better[column] = not test_metric.is_lower_better
  for name in is_higher_better:
    samples = {
      str(position): pd.Series(
        result.runs[name].tolist(), sample_names(result.series), dtype=float
      )
      for position, result in enumerate(setting_results)
      if name in result.runs and result.runs[name].notna().any()
    }
    best = statistics.clear_best(samples, is_higher_better=is_higher_better[name])
    if best is not None:
      rows[int(best)][best_key(name)] = True
  return [
    result._replace(row=row) for result, row in zip(setting_results, rows, strict=True)
  ]


def best_key(name: str) -> str:
  """The key of a row that says that its number in a column is clearly the best."""
  return f'{name}_is_best'


def note_key(name: str) -> str:
  """The key of a row for what a cell says after its number, such as '1 of 3'."""
  return f'{name}_note'


def _state(run: Run) -> str:
  """How the run ended: 'finished', or 'finished, at chance'."""
  is_useless = run.ending is Ending.FINISHED and at_chance(run)
  return f'{run.ending}, at chance' if is_useless else str(run.ending)


def at_chance(run: Run) -> bool:
  """Whether the run's last accuracy is that of a model that has learned nothing.

  It is at most a point above the share of the most frequent class among the test
  examples, which a constant prediction reaches. Of a run that does not record this
  share it is not known, and not said.
  """
  class_counts = run.test_class_counts()
  accuracy = last_accuracy(run)
  if class_counts is None or accuracy is None or not class_counts.sum():
    return False
  return accuracy <= class_counts.max() / class_counts.sum() + _ABOVE_CHANCE


# --- what a reader must know ----------------------------------------------------------


def notes_on(
  setting: Setting, setting_results: Sequence[Result], target: Target
) -> list[str]:
  """What a reader of the setting's numbers must know, a line each."""
  notes = []
  prefix = f'{setting.title}: ' if setting.title else ''
  if _have_unequal_lengths(setting_results):
    choice = _choice_by(setting_results, 'num_rounds')
    notes.append(
      f'{prefix}unequal numbers of rounds: means are over runs of all lengths, mean '
      'curves end with the shortest, and only runs of equal length are paired'
      f'{choice or "; callbacks ended them in different rounds"}'
    )
  if _have_unequal_tests(setting_results):
    notes.append(
      f'{prefix}tests in different rounds: the best round and the mean of the last 5 '
      'tests are of different tests, so neither is marked as the best, and the target '
      'may be reached between two tests'
      f'{_choice_by(setting_results, "eval_every_rounds")}'
    )
  for result in setting_results:
    runs = result.series.finished.values()
    num_at_chance = sum(map(at_chance, runs))
    if num_at_chance:
      notes.append(
        f'{prefix}{result.series.label}: {num_at_chance} of {len(runs)} runs at '
        'chance: their last test accuracy is at most a point above the share of the '
        'most frequent class among the test examples'
      )
    incomplete_metrics = [
      f'"{test_metric.metric.title}" ({result.row[note_key(column)]})'
      for column, test_metric in test_metrics_of(list(runs)).items()
      if note_key(column) in result.row
    ]
    if incomplete_metrics:
      notes.append(
        f'{prefix}{result.series.label}: only some runs have a number of '
        f'{", ".join(incomplete_metrics)}: means are over these runs, and there is no '
        'curve over the rounds'
      )
    for part in _edited_parts(result.series.runs):
      notes.append(
        f'{prefix}{result.series.label}: the file of the {part} was changed between '
        'these runs, or during one'
      )
  labels_without_target = [
    result.series.label for result in setting_results if result.row['target'] is None
  ]
  if labels_without_target:
    notes.append(
      f'{prefix}no target for {", ".join(labels_without_target)}: {target.describe()} '
      'is not among the finished runs of this setting'
    )
  return notes


def _have_unequal_lengths(setting_results: Sequence[Result]) -> bool:
  if not setting_results:
    return False
  run_rows = pd.concat([result.runs for result in setting_results])
  return run_rows['last_test'].nunique() > 1


def _have_unequal_tests(setting_results: Sequence[Result]) -> bool:
  """Whether some runs were tested in rounds in which others were not.

  Rounds count up to the end of the shortest run, in which that run is always tested.
  """
  tested_rounds = [
    run.metric(ACCURACY).index
    for result in setting_results
    for run in result.series.finished.values()
  ]
  last_tests = [rounds.max() for rounds in tested_rounds if len(rounds)]
  earlier_tests = {
    tuple(rounds[rounds < min(last_tests)]) for rounds in tested_rounds if len(rounds)
  }
  return len(earlier_tests) > 1


def _choice_by(setting_results: Sequence[Result], knob: str) -> str:
  """'; --where=KNOB=N chooses', if the runs differ in the knob; '' if they do not."""
  numbers = {
    run.knobs[knob]
    for result in setting_results
    for run in result.series.finished.values()
  }
  return f'; {option("where")}={knob}=N chooses' if len(numbers) > 1 else ''


def _edited_parts(runs: Iterable[Run]) -> list[str]:
  """The registered parts whose file was another one at some starts of the runs."""
  versions: dict[str, set[str]] = {}
  for run in runs:
    for start in (run.provenance, *run.provenance.get('earlier', ())):
      for part in start.get('registered', ()):
        name = f'{part["kind"]} {part["name"]!r}'
        versions.setdefault(name, set()).add(part['sha256'])
  return [name for name, digests in versions.items() if len(digests) > 1]
