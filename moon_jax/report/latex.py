r"""Tables for a paper, in LaTeX with the package booktabs.

Numbers are aligned by their decimal point: a mean is set to the right and its deviation
to the left of the sign between them. The best number of one column in one setting is
bold if its paired difference to the second is beyond its 95 % interval.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from moon_jax.report.results import Row
from moon_jax.report.tables import Column, Table

_ESCAPED = {
  **{char: f'\\{char}' for char in '&%$#_{}'},
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '[': '{[}',
  '^': r'\textasciicircum{}',
  '<': '$<$',
  '>': '$>$',
  '±': r'$\pm$',
}
_NOT_PRINTED = ('command',)


class _TexColumn(NamedTuple):
  """A column of a tabular.

  Attributes:
    alignment: its letter or letters in the argument of the tabular.
    heading: its heading.
    cells: a cell for each row.
  """

  alignment: str
  heading: str
  cells: Sequence[str]


def text(table: Table) -> str:
  """The tabular of a table."""
  columns = [
    _tex_column(column, table.shown_rows, is_number)
    for column, is_number in zip(table.columns, table.numeric(), strict=True)
    if column.key not in _NOT_PRINTED
  ]
  alignments = ''.join(column.alignment for column in columns)
  heading_line = _line([column.heading for column in columns])
  cells_by_row = zip(*(column.cells for column in columns), strict=True)
  lines = ''.join(_line(cells) for cells in cells_by_row)
  return (
    f'\\begin{{tabular}}{{{alignments}}}\n\\toprule\n{heading_line}\\midrule\n'
    f'{lines}\\bottomrule\n\\end{{tabular}}\n'
  )


def _line(cells: Sequence[str]) -> str:
  return f'{" & ".join(cells)} \\\\\n'


class _CellText(NamedTuple):
  """The two numbers of a cell.

  Attributes:
    mean: the number, or a word.
    std: its deviation; '' without one.
    note: what follows the numbers, '(1 of 3)'; '' for nothing.
  """

  mean: str
  std: str
  note: str

  @property
  def decimals(self) -> str:
    """What follows the digits before the decimal point; '' for a word."""
    return self.mean.lstrip('-+0123456789,') if _is_number(self.mean) else ''


def _cell_text(column: Column, row: Row) -> _CellText:
  mean, _, std = column.number(row).partition(' ± ')
  return _CellText(mean, std, column.note(row))


def _tex_column(column: Column, rows: Sequence[Row], is_number: bool) -> _TexColumn:
  """The column; one with deviations or notes takes two columns of the tabular.

  Each number leaves room for the decimals of the longest one.
  """
  cell_texts = [_cell_text(column, row) for row in rows]
  longest = max((cell.decimals for cell in cell_texts), key=len)
  has_two_columns = any(cell.std or cell.note for cell in cell_texts)
  cells = []
  for row, cell in zip(rows, cell_texts, strict=True):
    mean = _mean(cell, column.is_best(row), longest)
    after_mean = ' '.join(word for word in (cell.std, _escaped(cell.note)) if word)
    if not has_two_columns:
      cells.append(mean)
    elif cell.std:
      cells.append(f'{mean} & {after_mean}')
    else:
      mean_alone = rf'\multicolumn{{1}}{{r@{{\phantom{{\,$\pm$\,}}}}}}{{{mean}}}'
      cells.append(f'{mean_alone} & {after_mean}'.rstrip())
  heading = _escaped(column.heading)
  if has_two_columns:
    return _TexColumn(
      alignment=r'r@{\,$\pm$\,}l',
      heading=rf'\multicolumn{{2}}{{c}}{{{heading}}}',
      cells=cells,
    )
  return _TexColumn(alignment='r' if is_number else 'l', heading=heading, cells=cells)


def _mean(cell: _CellText, is_best: bool, longest_decimals: str) -> str:
  """The mean of a cell, bold if it is best, with room for the column's decimals."""
  if _is_number(cell.mean):
    # The sign of a negative number is a minus.
    mean = re.sub('^[-+]', r'$\g<0>$', cell.mean)
  else:
    mean = _escaped(cell.mean)
  if is_best:
    mean = rf'\textbf{{{mean}}}'
  num_decimals = len(cell.decimals)
  if _is_number(cell.mean) and num_decimals < len(longest_decimals):
    mean += rf'\phantom{{{longest_decimals[num_decimals:]}}}'
  return mean


def _is_number(word: str) -> bool:
  return bool(re.fullmatch(r'[-+]?[\d,]*\.?\d+(e[-+]\d+)?', word))


def _escaped(word: str) -> str:
  return ''.join(_ESCAPED.get(char, char) for char in word)
