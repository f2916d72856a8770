"""The files of a report: figures, tables as CSV, Markdown and LaTeX, and the page."""

import csv
import json
import pathlib
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from moon_jax.core.errors import UsageError
from moon_jax.report.draw import figures
from moon_jax.report.draw.charts import Scatter
from moon_jax.report.draw.styles import Style
from moon_jax.report.numbers.statistics import Estimate
from moon_jax.report.numbers.table import Table
from moon_jax.report.page import html
from moon_jax.report.page.sections import Section

PAGE, MANIFEST = 'index.html', 'report.json'
_NO_ESTIMATE = (None,) * len(Estimate._fields)


def write(
  out: pathlib.Path,
  head: html.Head,
  sections: Sequence[Section],
  looks: Mapping[str, Style],
) -> None:
  """Writes every file of a report, in place of those of the report before.

  Args:
    out: the folder.
    head: what stands above and below everything.
    sections: from the top.
    looks: label -> style of every series.

  Raises:
    UsageError: the folder cannot be written.
  """
  try:
    _remove_last(out)
    written = _write_all(out, sections, looks)
    html.write(out / PAGE, head, sections, looks)
    content = {'command': head.command, 'notes': head.notes, 'files': [PAGE, *written]}
    (out / MANIFEST).write_text(json.dumps(content, indent=2) + '\n')
  except OSError as error:
    problem = f'--out={str(out)!r} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None


def _write_all(
  out: pathlib.Path, sections: Sequence[Section], looks: Mapping[str, Style]
) -> list[str]:
  drawn = [chart for section in sections for chart in section.charts]
  tables = [table for section in sections for table in section.tables]
  for name in ('figures', 'tables'):
    (out / name).mkdir(parents=True, exist_ok=True)
  names = []
  for chart in drawn:
    names += figures.save(figures.draw(chart, looks), out / 'figures', chart.name)
  if scatters := [chart for chart in drawn if isinstance(chart, Scatter)]:
    names += figures.save(figures.tiled(scatters), out / 'figures', 'tsne')
  written = [f'figures/{name}' for name in names]
  return written + [f'tables/{n}' for t in tables for n in _write(t, out / 'tables')]


def _remove_last(out: pathlib.Path) -> None:
  """Removes the files of the report before, so that none is left of other runs."""
  if not (out / MANIFEST).exists():
    return
  for name in json.loads((out / MANIFEST).read_text())['files']:
    # Nothing outside the folder, whatever the manifest says.
    if (out / name).resolve().is_relative_to(out.resolve()):
      (out / name).unlink(missing_ok=True)


def _write(table: Table, folder: pathlib.Path) -> list[str]:
  """Writes a table as CSV, Markdown and LaTeX; the names of the files."""
  headings, cells = [column.heading for column in table.columns], table.texts()
  escaped = [[cell.replace('|', '\\|') for cell in row] for row in cells]
  markdown = tabulate(escaped, headings, 'github', disable_numparse=True)
  latex = tabulate(cells, headings, 'latex_booktabs', disable_numparse=True)
  names = [f'{table.name}.{ending}' for ending in ('csv', 'md', 'tex')]
  with (folder / names[0]).open('w', newline='') as file:
    csv.writer(file).writerows(csv_rows(table))
  (folder / names[1]).write_text(f'{markdown}\n\n{table.caption}\n')
  (folder / names[2]).write_text(latex.replace('±', '$\\pm$') + '\n')
  return names


def csv_rows(table: Table) -> list[list]:
  """The keys and the plain values; an estimate takes three columns."""
  rows = [[] for _ in range(1 + len(table.rows))]
  for column, *cells in zip(table.columns, *table.cells(), strict=True):
    parts = [(column.key,), *((cell,) for cell in cells)]
    if column.is_estimate:
      names = tuple(f'{column.key}_{part}' for part in Estimate._fields)
      parts = [names, *(cell or _NO_ESTIMATE for cell in cells)]
    for row, part in zip(rows, parts, strict=True):
      row += part
  return rows
