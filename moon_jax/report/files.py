"""The files of a report: the page, figures, and tables as CSV, Markdown and LaTeX.

The page is one file with its data, its script and plotly inside.
"""

import html
import json
import os
import pathlib
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
from plotly import offline
from plotly.io.json import to_json_plotly
from tabulate import tabulate

from moon_jax.core.errors import UsageError
from moon_jax.core.flags import option
from moon_jax.report import figures, interactive, latex
from moon_jax.report.charts import Chart, Matrix, Scatter, Spread, Style
from moon_jax.report.sections import Section
from moon_jax.report.tables import Table

PAGE, MANIFEST = 'index.html', 'report.json'
_TEMPLATES = pathlib.Path(__file__).parent / 'templates'


class Report(NamedTuple):
  """The content of a report's files.

  Attributes:
    summary: one sentence.
    common: knob -> the value that all runs have.
    notes: what a reader must know.
    command: command that made the report.
    sections: sections from the top.
    styles: label -> style of every series.
  """

  summary: str
  common: Mapping[str, Any]
  notes: Sequence[str]
  command: str
  sections: Sequence[Section]
  styles: Mapping[str, Style]

  @property
  def charts(self) -> list[Chart]:
    """The charts of all sections."""
    return [chart for section in self.sections for chart in section.charts]


def write(out: pathlib.Path, report: Report) -> None:
  """Writes every file into a folder, in place of the last report's files.

  Raises:
    UsageError: the folder cannot be written, or its manifest is of another program.
  """
  try:
    _remove_last_report(out)
    names = [PAGE, *_write_figures(out, report), *_write_tables(out, report)]
    (out / PAGE).write_text(_page(out, report), encoding='utf-8')
    manifest = {'command': report.command, 'notes': report.notes, 'files': names}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + '\n')
  except OSError as error:
    problem = f'{option("out", str(out))} cannot be written: {error.strerror}.'
    raise UsageError(problem) from None


def _remove_last_report(out: pathlib.Path) -> None:
  """Removes the files of the last report, so that none is left of other runs."""
  if not (out / MANIFEST).exists():
    return
  try:
    names = [*json.loads((out / MANIFEST).read_text())['files']]
  except (KeyError, TypeError, ValueError):
    raise UsageError(
      f'{option("out", str(out))}: its {MANIFEST} is of another program; give another '
      'folder.'
    ) from None
  for name in names:
    # Nothing outside the folder is removed, whatever the manifest says.
    if (out / name).resolve().is_relative_to(out.resolve()):
      (out / name).unlink(missing_ok=True)


def _write_figures(out: pathlib.Path, report: Report) -> list[str]:
  """Writes the figures as PNG and PDF; returns the names of the files."""
  folder = out / 'figures'
  folder.mkdir(parents=True, exist_ok=True)
  names = []
  for chart in report.charts:
    figure = figures.draw(chart, report.styles)
    names.extend(figures.save(figure, folder, chart.name))
  scatters = [chart for chart in report.charts if isinstance(chart, Scatter)]
  if scatters:
    names.extend(figures.save(figures.tiled(scatters), folder, 'tsne'))
  return [f'figures/{name}' for name in names]


def _write_tables(out: pathlib.Path, report: Report) -> list[str]:
  """Writes the tables as CSV, Markdown and LaTeX; returns the names of the files."""
  (out / 'tables').mkdir(parents=True, exist_ok=True)
  tables = [table for section in report.sections for table in section.tables]
  names = []
  for table in tables:
    texts = {'csv': table.csv(), 'md': markdown(table), 'tex': latex.text(table)}
    for ending, text in texts.items():
      name = f'tables/{table.name}.{ending}'
      (out / name).write_text(text, encoding='utf-8', newline='')
      names.append(name)
  return names


def markdown(table: Table) -> str:
  """The table in GitHub's Markdown, and its caption below."""
  headings = [_escaped(column.heading) for column in table.columns]
  rows = [[_escaped(cell) for cell in row] for row in table.texts()]
  grid = tabulate(rows, headings, 'github', disable_numparse=True)
  return f'{grid}\n\n{_escaped(table.caption)}\n'


def _escaped(text: str) -> str:
  """The text, with characters escaped that begin HTML, code, a link or another cell."""
  return re.sub(r'([\\|`\[])', r'\\\1', html.escape(text, quote=False))


def _page(out: pathlib.Path, report: Report) -> str:
  """index.html; its links are relative to the folder."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters['anchor'] = _anchor
  environment.filters['height'] = _height
  environment.filters['link'] = lambda run: _link(pathlib.Path(run), out)
  return environment.get_template('index.html.jinja').render(
    report=report,
    stylesheet=(_TEMPLATES / 'page.css').read_text('utf-8'),
    script=(_TEMPLATES / 'page.js').read_text('utf-8'),
    plotly=offline.get_plotlyjs(),
    figures=_json(report),
  )


def _anchor(title: str) -> str:
  """'Over rounds' -> 'over-rounds'."""
  return '-'.join(title.lower().split())


def _link(run: pathlib.Path, out: pathlib.Path) -> str:
  """The link from the page to the folder of a run."""
  return urllib.parse.quote(os.path.relpath(run.resolve(), out.resolve()))


def _json(report: Report) -> str:
  """{name: figure}; no text inside can end the script that holds it."""
  drawings = {
    chart.name: interactive.figure(chart, report.styles) for chart in report.charts
  }
  return to_json_plotly(drawings).replace('<', '\\u003c')


def _height(chart: Chart) -> float:
  """The height of a chart, in rem."""
  if isinstance(chart, Spread):
    num_lines = max(len(interactive.name_lines(label)) for label in chart.groups)
    return max(21.5, 5 + (num_lines + 1) * len(chart.groups))
  return 27.5 if isinstance(chart, Matrix | Scatter) else 21.5
