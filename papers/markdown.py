"""Tables, numbers and foldable blocks of a Markdown page."""

from collections.abc import Iterable, Sequence


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> list[str]:
  """The lines of a table; a `|` in a cell is escaped."""
  head_cells = list(head)
  cells_of_lines = [head_cells, ['---'] * len(head_cells), *rows]
  return [f'| {" | ".join(map(_escaped, cells))} |' for cells in cells_of_lines]


def _escaped(cell: object) -> str:
  return str(cell).replace('|', r'\|')


def folded(summary: str, lines: Sequence[str]) -> list[str]:
  """A block that shows its lines after a click on the summary."""
  return [f'<details><summary>{summary}</summary>', '', *lines, '', '</details>']


def signed(number: float, decimals: int = 1) -> str:
  """'+0.9', '-1.0', and '0.0' without a sign.

  >>> signed(0.94), signed(-0.04)
  ('+0.9', '0.0')
  """
  text = f'{number:+.{decimals}f}'
  return text[1:] if float(text) == 0 else text
