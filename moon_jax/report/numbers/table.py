"""A table: columns that know their cells, and the cells as a reader sees them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from moon_jax.report.numbers.statistics import Estimate

Cell = str | int | float | Estimate | None


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    key: its name in the CSV, which holds the values as recorded: accuracies in [0, 1].
    heading: elsewhere, with the unit.
    value: what a row is about -> its cell.
    digits: after the point.
    scale: from the recorded unit to that of the heading.
    is_estimate: whether its cells are estimates.
    sign: whether positive numbers have one.
  """

  key: str
  heading: str
  value: Callable[[Any], Cell]
  digits: int = 0
  scale: float = 1.0
  is_estimate: bool = False
  sign: bool = False

  def text(self, cell: Cell) -> str:
    """A cell as a reader sees it: '83.12 ± 0.41'."""
    if cell is None:
      return '-'
    if isinstance(cell, Estimate):
      spread = '' if cell.std is None else f' ± {self._number(cell.std, "")}'
      return self._number(cell.mean, '+' if self.sign else '') + spread
    if isinstance(cell, str | int):
      return str(cell)
    if self.key == 'p_value' and cell < 1e-4:
      return '<0.0001'
    if not self.digits and self.scale == 1.0:
      return f'{cell:g}' if abs(cell) < 1000 else f'{cell:,.0f}'
    return self._number(cell, '+' if self.sign else '')

  def _number(self, value: float, sign: str) -> str:
    return f'{value * self.scale:{sign}.{self.digits}f}'


class Table(NamedTuple):
  """A table.

  Attributes:
    name: of the files, without their ending.
    title: what it holds.
    caption: how its numbers were made.
    columns: from the left.
    about: what each row is about.
  """

  name: str
  title: str
  caption: str
  columns: Sequence[Column]
  about: Sequence[Any]

  @property
  def rows(self) -> list[list[Cell]]:
    """A cell for each column."""
    return [[column.value(one) for column in self.columns] for one in self.about]

  def texts(self) -> list[list[str]]:
    """Every cell as a reader sees it."""
    return [
      [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
      for row in self.rows
    ]

  def numeric(self) -> list[bool]:
    """For each column, whether it has numbers."""
    return [
      any(isinstance(cell, int | float | Estimate) for cell in cells)
      for cells in zip(*self.rows, strict=True)
    ]
