"""The table for a paper: a row for each method, a column for each setting.

A cell is the mean and the sample deviation over the runs. The best one is bold only if
the 95 % interval of its paired difference to the second is beyond 0, and if it is known
which numbers of the column are better. A cell whose runs are all at chance says so.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax.catalog import Metric, did_you_mean
from moon_jax.core.errors import UsageError
from moon_jax.core.files import is_explained_column
from moon_jax.core.flags import option
from moon_jax.report import statistics, tables, traces
from moon_jax.report.groups import Series, Setting, labels
from moon_jax.report.results import (
  Row,
  at_chance,
  best_key,
  cells_over_runs,
  note_key,
  sample_names,
)
from moon_jax.report.runs import Run
from moon_jax.report.tables import Column, Table

# Words in the names of our own columns whose lower numbers are better. A metric of
# tests says itself which of its numbers are.
_COSTS = ('loss', 'drift', 'bytes', 'distance')
# Of any metric a smaller spread over clients is better, and fewer clients without it.
_COST_ENDS = ('_std', '_undefined')
# What a cell says whose runs are all at chance.
_AT_CHANCE = 'at chance'


class _PaperColumn(NamedTuple):
  """A column of the table.

  Attributes:
    setting: setting of its runs.
    name: column of metrics.jsonl.
    metric: title and factor of its numbers.
    column: the column of the table.
  """

  setting: Setting
  name: str
  metric: Metric
  column: Column


def table(settings: Sequence[Setting], names: Sequence[str]) -> Table | None:
  """The table; None if no run has finished.

  Args:
    settings: settings with their runs.
    names: columns of metrics.jsonl; their numbers in the last round that has them.
      (): the test accuracy, and the mean over clients' own tests if there are any.

  Raises:
    UsageError: no finished run has one of these columns.
  """
  settings = [setting for setting in settings if _runs(setting)]
  if not settings:
    return None
  all_runs = [run for setting in settings for run in _runs(setting)]
  _require_recorded(names, all_runs)
  names = names or _usual_names(all_runs)
  metrics = traces.metrics_of(all_runs)
  metrics[traces.CLIENT_MEAN] = traces.CLIENT_MEAN_METRIC
  columns = []
  for setting in settings:
    for name in names:
      metric = metrics.get(name) or _metric(name)
      columns.append(_column(setting, name, metric, names))
  rows: dict[str, Row] = {label: {'series': label} for label in labels(settings)}
  for paper_column in columns:
    _add_cells(rows, paper_column)
  counts = {
    row[f'{entry.column.key}_n']
    for row in rows.values()
    for entry in columns
    if f'{entry.column.key}_n' in row
  }
  num_runs = f'{min(counts)} to {max(counts)}' if len(counts) > 1 else str(min(counts))
  runs = 'finished run' if num_runs == '1' else 'finished runs'
  explanations = ''
  if traces.ACCURACY in names and not all(map(traces.has_global_model, all_runs)):
    explanations += f' {tables.OF_CLIENTS_MODELS}'
  if traces.CLIENT_MEAN in names:
    explanations += f' {tables.OF_CLIENT_MEAN}'
  cell_notes = {
    row[note_key(entry.column.key)]
    for row in rows.values()
    for entry in columns
    if note_key(entry.column.key) in row
  }
  if _AT_CHANCE in cell_notes:
    explanations += (
      f' ({_AT_CHANCE}): no run is more than a point above the share of the most '
      'frequent class among the test examples.'
    )
  if cell_notes - {_AT_CHANCE}:
    explanations += ' (2 of 3): so many of the finished runs have the number.'
  unranked = [name for name in names if _is_cost(name, all_runs) is None]
  if unranked:
    explanations += (
      f' Not ranked, because it is not known which numbers are better: '
      f'{", ".join(unranked)}.'
    )
  return Table(
    name='paper',
    title='For a paper',
    caption=f'In the last round: mean ± sample standard deviation over {num_runs} '
    f'{runs}. Bold: the best, if the 95 % interval of its paired difference to '
    f'the second is beyond 0.{explanations}',
    columns=[Column('series', 'method'), *(entry.column for entry in columns)],
    rows=[row for row in rows.values() if len(row) > 1],
  )


def _runs(setting: Setting) -> list[Run]:
  return [run for series in setting.series for run in series.finished.values()]


def _usual_names(runs: Sequence[Run]) -> tuple[str, ...]:
  """The columns of a table that is not asked for others."""
  have_client_tests = any(traces.last_client_mean(run) is not None for run in runs)
  return (traces.ACCURACY, traces.CLIENT_MEAN)[: 1 + have_client_tests]


def _require_recorded(names: Sequence[str], runs: Sequence[Run]) -> None:
  columns = {name for run in runs for line in run.rounds[-1:] for name in line}
  recorded = {name for name in columns if any(len(run.metric(name)) for run in runs)}
  for name in names:
    if not any(len(run.metric(name)) for run in runs):
      hint = did_you_mean(name, recorded)
      raise UsageError(
        f'{option("paper")}: no finished run has recorded {name!r}.{hint}'
      )


def _metric(name: str) -> Metric:
  """What a column is called that no chart follows."""
  words = name.replace('_', ' ')
  if 'accuracy' in name:
    return Metric(words, f'{words}, %', 100.0)
  return Metric(words, words)


def _column(
  setting: Setting, name: str, metric: Metric, names: Sequence[str]
) -> _PaperColumn:
  is_share = metric.factor == 100.0
  unit = ', %' if is_share else ''
  words = [setting.title] if setting.title else []
  if len(names) > 1 or not words:
    words.append(metric.title)
  column = Column(
    key=f'{name} {setting.title}'.strip(),
    heading=f'{": ".join(words)}{unit}',
    number_format='.2f' if is_share else '.4f',
    scale=metric.factor,
    suffixes=('_mean', '_std', '_n'),
  )
  return _PaperColumn(setting, name, metric, column)


def _add_cells(rows: dict[str, Row], paper_column: _PaperColumn) -> None:
  """Adds the cells of a column to the rows of its series."""
  name, column = paper_column.name, paper_column.column
  samples: dict[str, pd.Series] = {}
  for series in paper_column.setting.series:
    numbers = _last_numbers(series, name)
    if numbers.empty:
      continue
    row = rows[series.label]
    runs = series.finished.values()
    row.update(cells_over_runs(column.key, statistics.estimate(numbers), len(runs)))
    if name == traces.ACCURACY and all(map(at_chance, runs)):
      row[note_key(column.key)] = _AT_CHANCE
    samples[series.label] = numbers
  is_cost = _is_cost(name, _runs(paper_column.setting))
  if is_cost is None:
    return
  best = statistics.clear_best(samples, is_higher_better=not is_cost)
  if best is not None:
    rows[best][best_key(column.key)] = True


def _is_cost(name: str, runs: Sequence[Run]) -> bool | None:
  """Whether lower numbers of a column are better; None if that is not known.

  It is known of metrics of tests and, of our own columns, of accuracies and costs. A
  column of a callback may be called as it likes: 'perplexity', 'error_rate'.
  """
  is_spread = name.endswith(_COST_ENDS)
  for run in runs:
    test_metric = traces.test_metric_of(run, name)
    if test_metric:
      return is_spread or test_metric.has('lower')
  if name != traces.CLIENT_MEAN and not is_explained_column(name):
    return None
  words = name.split('_')
  if is_spread or any(word in words for word in _COSTS):
    return True
  return False if 'accuracy' in words else None


def _last_numbers(series: Series, name: str) -> pd.Series:
  """Sample -> the number of its run in the last round that has one."""
  numbers = {
    sample: traces.last_number(run, name)
    for sample, run in zip(sample_names(series), series.finished.values(), strict=True)
  }
  return pd.Series(numbers, dtype=float).dropna()
