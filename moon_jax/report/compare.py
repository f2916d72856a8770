"""Prints a table of a few runs in the terminal."""

import pathlib
import sys
from collections.abc import Sequence

from tabulate import tabulate

from moon_jax.report.command import Request
from moon_jax.report.numbers import groups, results, tables
from moon_jax.report.read.runs import Run, find

_NAME = 40  # letters in a line


def show(request: Request) -> None:
  """Prints a line for each run, however it ended.

  Raises:
    UsageError: no run is left.
  """

  def note(line: str) -> None:
    print(line, file=sys.stderr)

  runs = find(request.folders, note)
  request.target.require_known()
  targets = _targets(runs, request)
  found = [results.numbers(run, targets[run.path]) for run in runs]
  table = tables.compared(found, request.target.describe())
  print(
    tabulate(
      table.texts(),
      [column.heading for column in table.columns],
      'rounded_outline',
      disable_numparse=True,
      colalign=['right' if is_number else 'left' for is_number in table.numeric()],
      maxcolwidths=[_NAME] + [None] * (len(table.columns) - 1),
    )
  )
  print(table.caption)
  if lost := [run.name for run in runs if targets[run.path] is None]:
    note(f'no finished run gives a target for {", ".join(lost)}')


def _targets(runs: Sequence[Run], request: Request) -> dict[pathlib.Path, float | None]:
  """path -> the accuracy to reach; a target by an algorithm needs one of its runs."""
  found = {}
  for setting in groups.settings(runs, request.choice):
    for series in setting.series:
      value = results.target_of(setting, series, request.target)
      for run in series.runs:
        found.setdefault(run.path, value)
  return found
