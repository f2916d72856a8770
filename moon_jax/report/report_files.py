"""The files of a report: the page, figures, and tables as CSV, Markdown and LaTeX.

The page is one file with its data, its script and plotly inside.
"""

import contextlib
import html
import json
import os
import pathlib
import re
import stat
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
from plotly import offline
from plotly.io.json import to_json_plotly
from tabulate import tabulate

from moon_jax.core import files as core_files
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import option
from moon_jax.report import figures, interactive, latex
from moon_jax.report.charts import Chart, Matrix, Scatter, Spread, Style
from moon_jax.report.sections import Section
from moon_jax.report.tables import Table

PAGE, MANIFEST = 'index.html', 'report.json'
FOLDERS = ('figures', 'tables')
COMMAND = 'python -m moon_jax.report'  # the first words of what the manifest records
# The names of a report's files; see `paths.file_name`.
_NAME = re.compile(
  r'index\.html|figures/[\w.=+-]+\.(png|pdf|svg)|tables/[\w.=+-]+\.(csv|md|tex)'
)
_ALL_SCATTERS = 'tsne'  # the figure of all scatters
_TEMPLATES = pathlib.Path(__file__).parent / 'templates'


class Report(NamedTuple):
  """The content of a report's files.

  Attributes:
    summary: one sentence.
    common: knob -> its value, the same in all runs that have the knob.
    notes: what a reader must know.
    command: command that made the report.
    sections: sections from the top.
    styles: label -> style of every series.
    formats: formats of the figures' files.
  """

  summary: str
  common: Mapping[str, Any]
  notes: Sequence[str]
  command: str
  sections: Sequence[Section]
  styles: Mapping[str, Style]
  formats: Sequence[str]

  @property
  def charts(self) -> list[Chart]:
    """The charts of all sections."""
    return [chart for section in self.sections for chart in section.charts]

  @property
  def scatters(self) -> list[Scatter]:
    """The scatters among the charts."""
    return [chart for chart in self.charts if isinstance(chart, Scatter)]

  @property
  def tables(self) -> list[Table]:
    """The tables of all sections."""
    return [table for section in self.sections for table in section.tables]


def write(out: pathlib.Path, report: Report) -> None:
  """Writes every file into a folder, in place of the last report's files.

  A file takes the place of an old one, and nothing is written through a link.

  Raises:
    UsageError: see `files_of_last_report`, or the folder cannot be written.
  """
  old_names = files_of_last_report(out)
  try:
    for folder in FOLDERS:
      (out / folder).mkdir(parents=True, exist_ok=True)
    # First, because it marks the folder: what a killed report leaves is of a report.
    table_texts = _table_texts(report)
    names = [PAGE, *_figure_names(report), *table_texts]
    manifest = {'command': report.command, 'notes': report.notes, 'files': names}
    _write_text(out / MANIFEST, json.dumps(manifest, indent=2) + '\n')
    for name in old_names:
      _remove_file(out / name)
    _write_figures(out / 'figures', report)
    for name, text in table_texts.items():
      _write_text(out / name, text)
    _write_text(out / PAGE, _page(out, report))
  except OSError as error:
    path = error.filename2 or error.filename
    place = f': {path}' if path else ''
    raise UsageError(
      f'{option("out", str(out))} cannot be written: {error.strerror}{place}.'
    ) from None


def files_of_last_report(out: pathlib.Path) -> list[str]:
  """The names of the files of the report that is in a folder; [] if there is none.

  Names that no report gives a file are left out, whatever the manifest says.

  Args:
    out: the folder of the report; it need not be there.

  Raises:
    UsageError: the folder holds something else than a report, or links in its place.
  """
  out_flag = option('out', str(out))
  try:
    names = {*os.listdir(out)} - {MANIFEST + core_files.PARTIAL}
  except FileNotFoundError:
    return []
  except OSError as error:
    raise UsageError(f'{out_flag} cannot be read: {error.strerror}.') from None
  if not names:
    return []
  if MANIFEST not in names:
    raise UsageError(
      f'{out_flag} has files that are not of a report; give a new or an empty folder.'
    )
  for name in (MANIFEST, *FOLDERS):
    core_files.require_no_link(out / name)
  try:
    manifest = json.loads(core_files.contents(out / MANIFEST))
    is_of_report = manifest['command'].startswith(COMMAND)
    last_names = [name for name in manifest['files'] if _NAME.fullmatch(name)]
  except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError):
    is_of_report = False
  if not is_of_report:
    raise UsageError(
      f'{out_flag}: its {MANIFEST} is of another program; give another folder.'
    )
  return last_names


def _figure_names(report: Report) -> list[str]:
  """The names of the files of figures."""
  figure_names = [chart.name for chart in report.charts]
  if report.scatters:
    figure_names.append(_ALL_SCATTERS)
  return [
    f'figures/{name}.{ending}' for name in figure_names for ending in report.formats
  ]


def _table_texts(report: Report) -> dict[str, str]:
  """Name of a table's file -> its text: CSV, Markdown and LaTeX."""
  texts = {}
  for table in report.tables:
    path = f'tables/{table.name}'
    texts[f'{path}.csv'] = table.csv()
    texts[f'{path}.md'] = markdown(table)
    texts[f'{path}.tex'] = latex.text(table)
  return texts


def _remove_file(path: pathlib.Path) -> None:
  """Removes a regular file, if there is one: a report writes nothing else."""
  with contextlib.suppress(FileNotFoundError):
    if stat.S_ISREG(path.lstat().st_mode):
      path.unlink()


def _write_text(path: pathlib.Path, text: str) -> None:
  with core_files.new_file(path) as file:
    # A name of a folder may be no UTF-8.
    file.write(text.encode(errors='backslashreplace'))


def _write_figures(folder: pathlib.Path, report: Report) -> None:
  """Writes the figures in each format of the report."""
  for chart in report.charts:
    figure = figures.draw(chart, report.styles)
    figures.save(figure, folder, chart.name, report.formats)
  if report.scatters:
    figure = figures.tiled(report.scatters)
    figures.save(figure, folder, _ALL_SCATTERS, report.formats)


def markdown(table: Table) -> str:
  """The table in GitHub's Markdown, and its caption below."""
  headings = [_escaped(column.heading) for column in table.columns]
  rows = [
    [
      f'**{_escaped(text)}**' if column.is_best(row) else _escaped(text)
      for column, text in zip(table.columns, texts, strict=True)
    ]
    for row, texts in zip(table.shown_rows, table.texts(), strict=True)
  ]
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
