"""Prints a table of a few runs in the terminal."""

import functools
import sys

from rich.console import Console
from rich.table import Table

from moon_jax.report import groups, results, tables
from moon_jax.report.command import Request
from moon_jax.report.runs import find

_WIDTH = 160  # characters in a line, if the output is no terminal


def show(request: Request) -> None:
  """Prints a line for each run, however it ended.

  Raises:
    UsageError: no run is left.
  """
  note = functools.partial(print, file=sys.stderr)
  runs = find(request.folders, note)
  target = results.named(request.target, runs)
  targets = {}
  for setting in groups.settings(runs, request.choice):
    for series in setting.series:
      value = results.target_of(setting, series, target)
      for run in series.runs:
        targets.setdefault(run.path, value)
  found = [results.numbers(run, targets[run.path]) for run in runs]
  table = tables.compared(found, target.describe())
  shown = Table()
  for column, is_number in zip(table.columns, table.numeric(), strict=True):
    side = 'right' if is_number else 'left'
    shown.add_column(column.heading, justify=side, overflow='fold')
  for row in table.texts():
    shown.add_row(*row)
  width = None if sys.stdout.isatty() else _WIDTH
  terminal = Console(highlight=False, markup=False, emoji=False, width=width)
  terminal.print(shown, table.caption, sep='\n')
  if lost := [run.name for run in runs if targets[run.path] is None]:
    note(f'no finished run gives a target for {", ".join(lost)}')
