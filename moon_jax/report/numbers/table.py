"""What is a table? Columns and rows, as text and as CSV, Markdown and LaTeX."""

import csv
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from tabulate import tabulate

from moon_jax.report.numbers.statistics import Estimate

Cell = str | int | float | Estimate | None
_NOTHING = '-'


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    key: its name in the CSV, which holds the values as recorded: accuracies in [0, 1].
    heading: elsewhere, with the unit.
    digits: after the point.
    scale: from the recorded unit to that of the heading.
    is_estimate: whether its cells are estimates.
    sign: whether positive numbers have one.
  """

  key: str
  heading: str
  digits: int = 0
  scale: float = 1.0
  is_estimate: bool = False
  sign: bool = False


class Table(NamedTuple):
  """A table.

  Attributes:
    name: of the files, without their ending.
    title: what it holds.
    caption: how its numbers were made.
    columns: from the left.
    rows: a cell for each column.
  """

  name: str
  title: str
  caption: str
  columns: Sequence[Column]
  rows: Sequence[Sequence[Cell]]


def text(value: Cell, column: Column) -> str:
  """A cell as a reader sees it: '83.12 ± 0.41'."""
  if value is None:
    return _NOTHING
  if isinstance(value, Estimate):
    mean = _number(value.mean, column)
    if value.std is None:
      return mean
    return f'{mean} ± {_number(value.std, column._replace(sign=False))}'
  if isinstance(value, str | bool):
    return str(value)
  if column.key == 'p_value' and value < 1e-4:
    return '<0.0001'
  if isinstance(value, float) and not column.digits and column.scale == 1.0:
    return f'{value:g}' if abs(value) < 1000 else f'{value:,.0f}'
  return str(value) if isinstance(value, int) else _number(value, column)


def _number(value: float, column: Column) -> str:
  sign = '+' if column.sign else ''
  return f'{value * column.scale:{sign}.{column.digits}f}'


def write(table: Table, folder: pathlib.Path) -> list[str]:
  """Writes a table as CSV, Markdown and LaTeX; the names of the files.

  Args:
    table: what is written.
    folder: exists.
  """
  headings = [column.heading for column in table.columns]
  cells = [
    [text(v, c) for v, c in zip(row, table.columns, strict=True)] for row in table.rows
  ]
  markdown = tabulate(
    [[cell.replace('|', '\\|') for cell in row] for row in cells],
    headings,
    tablefmt='github',
    disable_numparse=True,
  )
  latex = tabulate(cells, headings, tablefmt='latex_booktabs', disable_numparse=True)
  contents = {
    f'{table.name}.md': f'{markdown}\n\n{table.caption}\n',
    f'{table.name}.tex': latex.replace('±', '$\\pm$') + '\n',
  }
  for name, content in contents.items():
    (folder / name).write_text(content)
  _write_csv(table, folder / f'{table.name}.csv')
  return [f'{table.name}.csv', *contents]


def _write_csv(table: Table, path: pathlib.Path) -> None:
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow([name for column in table.columns for name in _csv_names(column)])
    for row in table.rows:
      pairs = zip(row, table.columns, strict=True)
      writer.writerow([cell for value, column in pairs for cell in _csv(value, column)])


def _csv_names(column: Column) -> tuple[str, ...]:
  if not column.is_estimate:
    return (column.key,)
  return tuple(f'{column.key}_{part}' for part in Estimate._fields)


def _csv(value: Cell, column: Column) -> tuple[Cell, ...]:
  if not column.is_estimate:
    return (value,)
  return tuple(value) if value is not None else (None,) * len(Estimate._fields)
