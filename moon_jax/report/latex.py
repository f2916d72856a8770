r"""Tables for a paper, in LaTeX with the package booktabs.

Numbers are aligned by their decimal point: a mean is set to the right and its deviation
to the left of the sign between them. Of the comparable numbers, those of one column in
one setting, the best is bold and the second is underlined.
"""

import re
from collections.abc import Sequence

from moon_jax.report.results import Row
from moon_jax.report.tables import Column, Table

_ESCAPED = {char: f'\\{char}' for char in '&%$#_{}'}
_ESCAPED |= {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '[': '{[}'}
_ESCAPED |= {'^': r'\textasciicircum{}', '<': '$<$', '>': '$>$', '±': r'$\pm$'}
_MARKS = (r'\textbf', r'\underline')
_NOT_PRINTED = ('command',)


def text(table: Table) -> str:
  """The tabular of a table."""
  numeric = zip(table.columns, table.numeric(), strict=True)
  columns = [
    _column(column, table.rows, 'lr'[is_number])
    for column, is_number in numeric
    if column.key not in _NOT_PRINTED
  ]
  kinds, *lines = zip(*columns, strict=True)
  heads, *body = [f'{" & ".join(cells)} \\\\\n' for cells in lines]
  return (
    f'\\begin{{tabular}}{{{"".join(kinds)}}}\n\\toprule\n{heads}\\midrule\n'
    f'{"".join(body)}\\bottomrule\n\\end{{tabular}}\n'
  )


def _column(column: Column, rows: Sequence[Row], kind: str) -> list[str]:
  """The alignment of a column, its heading, and its cells.

  A column with deviations takes two columns of the tabular. Digits behind the ones have
  the room of the longest number.
  """
  told = [column.text(row).partition(' ± ') for row in rows]
  is_split = any(std for *_, std in told)
  head = _escaped(column.heading)
  marks = _marks(column, rows)
  tails = [m.lstrip('-+0123456789,') if _is_number(m) else '' for m, *_ in told]
  longest, cells = max(tails, key=len), []
  for (mean, _, std), tail, mark in zip(told, tails, marks, strict=True):
    # The sign of a negative number is a minus.
    shown = re.sub('^[-+]', r'$\g<0>$', mean) if _is_number(mean) else _escaped(mean)
    shown = f'{mark}{{{shown}}}' if mark else shown
    if _is_number(mean) and len(tail) < len(longest):
      shown += rf'\phantom{{{longest[len(tail) :]}}}'
    if is_split and std:
      shown = f'{shown} & {std}'
    elif is_split:  # a mean without a deviation
      shown = rf'\multicolumn{{1}}{{r@{{\phantom{{\,$\pm$\,}}}}}}{{{shown}}} &'
    cells.append(shown)
  if is_split:
    return [r'r@{\,$\pm$\,}l', rf'\multicolumn{{2}}{{c}}{{{head}}}', *cells]
  return [kind, head, *cells]


def _marks(column: Column, rows: Sequence[Row]) -> list[str]:
  """The mark of each row: for the best in its setting, for the second, or none.

  Nothing is best among runs of unequal lengths.
  """
  found: dict[object, dict[str, float]] = {}
  lengths = {(row.get('setting'), row.get('rounds')) for row in rows}
  # By the printed numbers, so that equal numbers have equal marks.
  printed = [column.text(row).partition(' ± ')[0] for row in rows]
  for row, word in zip(rows, printed, strict=True):
    if column.better and isinstance(cell := column.cell(row), int | float):
      found.setdefault(row.get('setting'), {})[word] = column.better * cell
  marks = []
  for row, word in zip(rows, printed, strict=True):
    values = found.get(row.get('setting'), {})
    ranked = sorted(values, key=values.get, reverse=True)[: len(_MARKS)]
    alike = sum(setting == row.get('setting') for setting, _ in lengths) == 1
    alike = alike and not isinstance(row.get('rounds'), str)  # '2 to 4'
    told = alike and word in ranked and len(values) > 1
    marks.append(_MARKS[ranked.index(word)] if told else '')
  return marks


def _is_number(word: str) -> bool:
  return bool(re.fullmatch(r'[-+]?[\d,]*\.?\d+(e[-+]\d+)?', word))


def _escaped(word: str) -> str:
  return ''.join(_ESCAPED.get(char, char) for char in word)
