"""A table: columns that know how their cells are written, and rows of cells."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moon_jax.report.numbers.statistics import Estimate

Cell = str | int | float | Estimate | None
Row = Mapping[str, Cell]


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    key: its name in the CSV, which holds the values as recorded: accuracies in [0, 1].
    heading: elsewhere, with the unit.
    spec: how numbers that are no counts are written, as of `format`.
    scale: from the recorded unit to that of the heading.
    is_estimate: whether its cells are estimates.
  """

  key: str
  heading: str
  spec: str = 'g'
  scale: float = 1.0
  is_estimate: bool = False

  def text(self, cell: Cell) -> str:
    """A cell as a reader sees it: '83.12 ± 0.41'."""
    if cell is None:
      return '-'
    if isinstance(cell, str | int):
      return str(cell)
    if self.key == 'p_value' and cell < 1e-4:
      return '<0.0001'
    mean, std, _ = cell if isinstance(cell, Estimate) else (cell, None, 1)
    spread = '' if std is None else f' ± {std * self.scale:{self.spec.lstrip("+")}}'
    return f'{mean * self.scale:{self.spec}}{spread}'


class Table(NamedTuple):
  """A table.

  Attributes:
    name: of the files, without their ending.
    title: what it holds.
    caption: how its numbers were made.
    columns: from the left.
    rows: key of a column -> cell; None of one that is not there.
  """

  name: str
  title: str
  caption: str
  columns: Sequence[Column]
  rows: Sequence[Row]

  def cells(self) -> list[list[Cell]]:
    """A cell for each column of each row."""
    return [[row.get(column.key) for column in self.columns] for row in self.rows]

  def texts(self) -> list[list[str]]:
    """Every cell as a reader sees it."""
    return [[c.text(row.get(c.key)) for c in self.columns] for row in self.rows]

  def numeric(self) -> list[bool]:
    """For each column, whether it has numbers."""
    numbers = int | float | Estimate
    return [
      any(isinstance(cell, numbers) for cell in column)
      for column in zip(*self.cells(), strict=True)
    ]
