"""A table of a few runs in the terminal."""

import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from moon_jax.errors import UsageError
from moon_jax.report.command import Request
from moon_jax.report.numbers import groups, results, statistics
from moon_jax.report.numbers import table as table_lib
from moon_jax.report.numbers.table import Cell, Column
from moon_jax.report.read.runs import Run, find

_COLUMNS = (
  Column('run', 'run'),
  Column('state', 'state'),
  Column('rounds', 'rounds'),
  Column('final', 'final, %', 2, 100.0),
  Column('best', 'best, %', 2, 100.0),
  Column('mean_of_last_5', 'last 5, %', 2, 100.0),
  Column('target', 'target, %', 2, 100.0),
  Column('rounds_to_target', 'rounds to it'),
  Column('megabytes_to_target', 'MB to it', 1),
  Column('seconds', 'seconds', 1),
  Column('samples_per_second', 'samples/s'),
)
_WIDTH = 160  # where the output is no terminal


def show(request: Request) -> None:
  """Prints a line for each run, however it ended.

  Raises:
    UsageError: no run is left.
  """

  def note(line: str) -> None:
    print(line, file=sys.stderr)

  runs = find(request.folders, note)
  if not runs:
    raise UsageError(f'No run was found in {", ".join(map(str, request.folders))}.')
  terminal = Console(highlight=False, markup=False, emoji=False)
  if not terminal.is_terminal:
    terminal.width = _WIDTH
  table = Table()
  for column in _COLUMNS:
    is_name = column.key in ('run', 'state')
    table.add_column(
      column.heading, justify='left' if is_name else 'right', overflow='fold'
    )
  targets = _targets(runs, request)
  for run in runs:
    row = zip(_row(run, targets[run.path]), _COLUMNS, strict=True)
    table.add_row(*(table_lib.text(*pair) for pair in row))
  terminal.print(table)
  terminal.print(f'target: {request.target.describe()}, in the same setting')
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


def _row(run: Run, target: float | None) -> list[Cell]:
  found, tested = results.summary(run), run.column(results.ACCURACY)
  number = None if target is None else statistics.first_reaching(tested, target)
  moved = number and statistics.total(results.num_bytes(run), number)
  return [
    run.name,
    str(run.ending),
    found.rounds,
    found.final,
    found.best,
    found.tail,
    target,
    number,
    moved / 1e6 if moved is not None else None,
    found.seconds,
    found.samples_per_second,
  ]
