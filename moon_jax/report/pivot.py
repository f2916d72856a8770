"""A table of final accuracies: a row and a column for each value of two knobs."""

from collections.abc import Sequence

import pandas as pd

from moon_jax.core.errors import UsageError
from moon_jax.report import groups, naming, statistics
from moon_jax.report.naming import Value
from moon_jax.report.request import Choice
from moon_jax.report.results import best_key, cells_of
from moon_jax.report.runs import Run
from moon_jax.report.tables import Column, Table, percent_estimate
from moon_jax.report.traces import last_accuracy

# Value of the rows' knob, value of the columns' knob -> the runs that have both.
RunsByCell = dict[tuple[Value, Value], list[Run]]


def table(
  runs: Sequence[Run], row_knob: str, column_knob: str, choice: Choice
) -> Table:
  """The table.

  Args:
    runs: the finished runs.
    row_knob: a knob; each of its values makes a row.
    column_knob: another knob; each of its values makes a column.
    choice: what is averaged over.

  Raises:
    UsageError: a run has no such knob, or runs of one cell differ in more.
  """
  runs_by_cell = _runs_by_cell(runs, row_knob, column_knob)
  for (row_value, column_value), cell_runs in runs_by_cell.items():
    other_knobs = groups.varying(cell_runs, choice.over)
    if other_knobs:
      raise UsageError(
        f'--rows and --columns: the runs with {row_knob}={row_value} and '
        f'{column_knob}={column_value} differ in {", ".join(other_knobs)}; '
        'choose some by --where, or average by --over.'
      )
  row_values = groups.in_order(row_knob, (value for value, _ in runs_by_cell))
  column_values = groups.in_order(column_knob, (value for _, value in runs_by_cell))
  rows = []
  for row_value in row_values:
    row = {'row': naming.describe(((row_knob, row_value),))}
    for column_value in column_values:
      cell_runs = runs_by_cell.get((row_value, column_value), ())
      accuracies = map(last_accuracy, cell_runs)
      row.update(cells_of(_key(column_value), statistics.estimate(accuracies)))
    rows.append(row)
  num_rounds = sorted({run.rounds[-1]['round'] for run in runs})
  # Only algorithms on equal terms are ranked.
  if row_knob == naming.ALGORITHM and len(num_rounds) == 1:
    for column_value in column_values:
      samples = {
        str(position): _samples(runs_by_cell[row_value, column_value], choice)
        for position, row_value in enumerate(row_values)
        if (row_value, column_value) in runs_by_cell
      }
      best = statistics.clear_best(samples, is_higher_better=True)
      if best is not None:
        rows[int(best)][best_key(_key(column_value))] = True
  row_name = naming.short_name(row_knob)
  column_name = naming.short_name(column_knob)
  averaged = f' ({", ".join(choice.over)})' if choice.over else ''
  return Table(
    name='pivot',
    title=f'Final accuracy by {row_name} and {column_name}',
    caption=f'Test accuracy in % after {_range(num_rounds)} rounds, mean ± sample '
    f'standard deviation over the finished runs of a cell{averaged}.',
    columns=[
      Column('row', row_name),
      *(
        percent_estimate(_key(value), naming.describe(((column_knob, value),)))
        for value in column_values
      ),
    ],
    rows=rows,
  )


def _samples(runs: Sequence[Run], choice: Choice) -> pd.Series:
  """What is averaged over -> last accuracy."""
  names = [str([run.identity.get(knob) for knob in choice.over]) for run in runs]
  return pd.Series(list(map(last_accuracy, runs)), names, dtype=float)


def _runs_by_cell(runs: Sequence[Run], row_knob: str, column_knob: str) -> RunsByCell:
  runs_by_cell: RunsByCell = {}
  for run in runs:
    for flag, knob in (('rows', row_knob), ('columns', column_knob)):
      if knob not in run.identity:
        raise UsageError(f'--{flag}: {run.name} has no setting {knob!r}.')
    cell = run.identity[row_knob], run.identity[column_knob]
    runs_by_cell.setdefault(cell, []).append(run)
  return runs_by_cell


def _key(column_value: Value) -> str:
  """The key of a column."""
  return f'of {column_value}'


def _range(num_rounds: Sequence[int]) -> str:
  """'10', or '10 to 20' if they differ."""
  first = num_rounds[0]
  return f'{first} to {num_rounds[-1]}' if len(num_rounds) > 1 else str(first)
