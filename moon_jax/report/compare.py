"""Prints a table of a few runs in the terminal."""

import functools
import pathlib
import sys
from collections.abc import Sequence

from rich import table as rich_table
from rich.console import Console

from moon_jax.report import clients, groups, results, tables
from moon_jax.report.request import Choice, Request, Target
from moon_jax.report.results import Row
from moon_jax.report.runs import Note, Run, find
from moon_jax.report.tables import Table

_WIDTH = 160  # characters in a line, if the output is no terminal


def print_table(request: Request) -> None:
  """Prints a line for each run, however it ended.

  Raises:
    UsageError: no run is left.
  """
  _print(table(request, functools.partial(print, file=sys.stderr)))


def table(request: Request, note: Note) -> Table:
  """The table with a line for each run.

  Args:
    request: what is asked for.
    note: called with a line for what cannot be read, or has no target.

  Raises:
    UsageError: no run is left.
  """
  runs = find(request.folders, note)
  target = results.with_known_algorithm(request.target, runs)
  accuracies = _target_accuracies(runs, target, request.choice)
  rows = [
    {**results.run_row(run, accuracies[run.path]), **_difference(run, runs[0], note)}
    for run in runs
  ]
  without_target = [run.name for run in runs if accuracies[run.path] is None]
  if without_target:
    note(f'no finished run gives a target for {", ".join(without_target)}')
  return tables.compared(rows, target.describe())


def _difference(run: Run, first: Run, note: Note) -> Row:
  """The cells of a run's difference to the first one on clients' own tests."""
  if run is first:
    return {}
  difference = clients.difference_over_clients(run, first, note)
  if difference is None:
    return {}
  return results.cells_of(tables.DIFFERENCE_TO_FIRST.key, difference.estimate)


def _target_accuracies(
  runs: Sequence[Run], target: Target, choice: Choice
) -> dict[pathlib.Path, float | None]:
  """Path of a run -> the accuracy that it has to reach in its first setting."""
  accuracies: dict[pathlib.Path, float | None] = {}
  for setting in groups.settings(runs, choice):
    for series in setting.series:
      accuracy = results.target_accuracy(setting, series, target)
      for run in series.runs:
        accuracies.setdefault(run.path, accuracy)
  return accuracies


def _print(compared: Table) -> None:
  grid = rich_table.Table()
  for column, is_number in zip(compared.columns, compared.numeric(), strict=True):
    side = 'right' if is_number else 'left'
    grid.add_column(column.heading, justify=side, overflow='fold')
  for row in compared.texts():
    grid.add_row(*row)
  width = None if sys.stdout.isatty() else _WIDTH
  terminal = Console(highlight=False, markup=False, emoji=False, width=width)
  terminal.print(grid, compared.caption, sep='\n')
