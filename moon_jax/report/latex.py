r"""Tables for a paper, in LaTeX with the package booktabs.

Numbers stand below each other by their decimal point: a mean is set to the right and
its deviation to the left of the sign between them. Of the numbers that can be compared,
those of one column in one setting, the best is bold and the second underlined.
"""

import re
from collections.abc import Sequence

from moon_jax.report.results import Row
from moon_jax.report.tables import Column, Table

_ESCAPED = {char: f'\\{char}' for char in '&%$#_{}'}
_ESCAPED |= {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}'}
_ESCAPED |= {'^': r'\textasciicircum{}', '<': '$<$', '>': '$>$', '±': r'$\pm$'}
_MARKS = (r'\textbf', r'\underline')
_NOT_PRINTED = ('command',)


def text(table: Table) -> str:
  """The tabular of a table."""
  columns = [column for column in table.columns if column.key not in _NOT_PRINTED]
  numeric = dict(zip(table.columns, table.numeric(), strict=True))
  split = [_is_split(column, table.rows) for column in columns]
  kinds = [
    r'r@{\,$\pm$\,}l' if two else 'lr'[numeric[column]]
    for column, two in zip(columns, split, strict=True)
  ]
  heads = [_head(column, two) for column, two in zip(columns, split, strict=True)]
  marks = {column: _marks(column, table.rows) for column in columns}
  tails = {column: max(_tails(column, table.rows), key=len) for column in columns}
  lines = [
    ' & '.join(
      _cell(column, row, two, marks[column][number], tails[column])
      for column, two in zip(columns, split, strict=True)
    )
    for number, row in enumerate(table.rows)
  ]
  body = ''.join(f'{line} \\\\\n' for line in lines)
  return (
    f'\\begin{{tabular}}{{{"".join(kinds)}}}\n\\toprule\n{" & ".join(heads)} \\\\\n'
    f'\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n'
  )


def _head(column: Column, two: bool) -> str:
  told = _escaped(column.heading)
  return rf'\multicolumn{{2}}{{c}}{{{told}}}' if two else told


def _is_split(column: Column, rows: Sequence[Row]) -> bool:
  """Whether a column has deviations, which take a column of their own."""
  return any('±' in column.text(row) for row in rows)


def _tails(column: Column, rows: Sequence[Row]) -> list[str]:
  """What stands behind the numbers' ones: '.5', or '' of what is no number."""
  means = [column.text(row).partition(' ± ')[0] for row in rows]
  return [mean.lstrip('-+0123456789,') if _is_number(mean) else '' for mean in means]


def _cell(column: Column, row: Row, two: bool, mark: str, tail: str) -> str:
  """A cell, with room for the longest tail; of a column of two, both."""
  told = column.text(row)
  mean, _, std = told.partition(' ± ')
  shown = _number(mean) if _is_number(mean) else _escaped(mean)
  shown = f'{mark}{{{shown}}}' if mark else shown
  if missing := tail[len(_tails(column, [row])[0]) :] if _is_number(mean) else '':
    shown += rf'\phantom{{{missing}}}'
  if not two:
    return shown
  if std:
    return f'{shown} & {std}'
  # Without the sign between the two, where a mean stands.
  return rf'\multicolumn{{1}}{{r@{{\phantom{{\,$\pm$\,}}}}}}{{{shown}}} &'


def _marks(column: Column, rows: Sequence[Row]) -> list[str]:
  """The mark of each row: of the best in its setting, of the second, or none."""
  if not column.better:
    return [''] * len(rows)
  found: dict[object, dict[str, float]] = {}
  for row in rows:
    if isinstance(cell := column.cell(row), int | float):
      # As they are printed: what looks alike is marked alike.
      printed = column.text(row).partition(' ± ')[0]
      found.setdefault(row.get('setting'), {})[printed] = column.better * cell
  marks = []
  for row in rows:
    values = found.get(row.get('setting'), {})
    ranked = sorted(values, key=values.get, reverse=True)[: len(_MARKS)]
    printed = column.text(row).partition(' ± ')[0]
    told = printed in ranked and len(values) > 1
    marks.append(_MARKS[ranked.index(printed)] if told else '')
  return marks


def _is_number(word: str) -> bool:
  return bool(re.fullmatch(r'[-+]?[\d,]*\.?\d+(e[-+]\d+)?', word))


def _number(word: str) -> str:
  """A number, with a minus that is one."""
  return re.sub(r'^[-+]', r'$\g<0>$', word)


def _escaped(word: str) -> str:
  return ''.join(_ESCAPED.get(char, char) for char in word)
