"""Tables and foldable blocks of a Markdown page."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Section(NamedTuple):
  """What replaces a line of the template.

  Attributes:
    lines: the lines of the page.
    run_names: names of the kept runs that the lines show.
  """

  lines: list[str]
  run_names: set[str]


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
