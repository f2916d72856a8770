"""index.html: one file with its data, its script and plotly inside."""

import os
import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
from plotly import offline

from moon_jax.report.draw import interactive
from moon_jax.report.draw.charts import Chart, Matrix, Scatter, Spread
from moon_jax.report.draw.styles import Style
from moon_jax.report.numbers import table as table_lib
from moon_jax.report.numbers.statistics import Estimate
from moon_jax.report.numbers.table import Cell, Column, Table
from moon_jax.report.page.sections import Section

_PARTS = pathlib.Path(__file__).parent / 'page_files'
_DASHES = {'solid': 'none', 'dash': '8 4', 'dot': '2 3', 'dashdot': '8 3 2 3'}
_MARKERS = {
  'circle': '●',
  'square': '■',
  'triangle-up': '▲',
  'diamond': '◆',
  'triangle-down': '▼',
  'x': '✖',
  'cross': '✚',
}


class Head(NamedTuple):
  """What stands above and below everything.

  Attributes:
    summary: one sentence.
    common: knob -> the value that all runs have.
    notes: what a reader must know.
    command: that made the report.
  """

  summary: str
  common: Mapping[str, Any]
  notes: Sequence[str]
  command: str


def write(
  path: pathlib.Path,
  head: Head,
  sections: Sequence[Section],
  styles: Mapping[str, Style],
  figures: Mapping[str, Sequence[str]],
  tables: Mapping[str, Sequence[str]],
) -> None:
  """Writes the page; links to runs are relative to its folder.

  Args:
    path: of the file.
    head: what stands above and below everything.
    sections: from the top.
    styles: label -> style of every series.
    figures: name of a chart -> names of its files.
    tables: name of a table -> names of its files.
  """
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_PARTS),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  charts = [chart for section in sections for chart in section.charts]
  text = environment.get_template('index.html.jinja').render(
    **head._asdict(),
    sections=[_section(section, path.parent, figures, tables) for section in sections],
    swatches=[_swatch(label, look) for label, look in styles.items()],
    style=(_PARTS / 'page.css').read_text(),
    script=(_PARTS / 'page.js').read_text(),
    plotly=offline.get_plotlyjs(),
    figures=_json(charts, styles),
  )
  path.write_text(text)


def _json(charts: Sequence[Chart], styles: Mapping[str, Style]) -> str:
  """{name: figure}; no text inside can end the script that holds it."""
  items = [
    f'{_quoted(chart.name)}: {interactive.figure(chart, styles).to_json()}'
    for chart in charts
  ]
  return ('{' + ', '.join(items) + '}').replace('<', '\\u003c')


def _quoted(word: str) -> str:
  return '"' + word + '"'  # charts.file_name leaves no character to escape


def _section(section: Section, folder: pathlib.Path, figures, tables) -> dict[str, Any]:
  return {
    'title': section.title,
    'anchor': '-'.join(section.title.lower().split()),
    'text': section.text,
    'tables': [_table(table, tables, folder) for table in section.tables],
    'charts': [
      {
        'title': chart.title,
        'name': chart.name,
        'files': figures[chart.name],
        'height': _height(chart),
      }
      for chart in section.charts
    ],
  }


def _height(chart: Chart) -> float:
  """In rem."""
  if isinstance(chart, Matrix | Scatter):
    return 27.5
  if isinstance(chart, Spread):
    tallest = max(len(interactive.name_lines(label)) for label in chart.groups)
    return max(21.5, 5 + (tallest + 1) * len(chart.groups))
  return 21.5


def _table(table: Table, files, folder: pathlib.Path) -> dict[str, Any]:
  by_column = list(zip(*table.rows, strict=True))
  keys = [column.key for column in table.columns]
  series = by_column[keys.index('series')] if 'series' in keys else by_column[0]
  numeric = [any(map(_is_number, map(_plain, cells))) for cells in by_column]
  return {
    'name': table.name,
    'title': table.title,
    'caption': table.caption,
    'headings': [
      {'text': column.heading, 'is_number': is_number}
      for column, is_number in zip(table.columns, numeric, strict=True)
    ],
    'rows': [
      {
        'series': label if 'series' in keys else None,
        'cells': [
          _cell(value, column, folder) | {'is_number': is_number}
          for value, column, is_number in zip(row, table.columns, numeric, strict=True)
        ],
      }
      for label, row in zip(series, table.rows, strict=True)
    ],
    'files': files[table.name],
  }


def _cell(value: Cell, column: Column, folder: pathlib.Path) -> dict[str, Any]:
  plain = _plain(value)
  return {
    'text': table_lib.text(value, column),
    'sort': '' if plain is None else str(plain),
    'is_setting': column.key == 'setting',
    'href': _link(value, folder) if column.key == 'run' else None,
  }


def _plain(value: Cell) -> str | int | float | None:
  return value.mean if isinstance(value, Estimate) else value


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool)


def _link(run: str, folder: pathlib.Path) -> str:
  relative = os.path.relpath(pathlib.Path(run).resolve(), folder.resolve())
  return urllib.parse.quote(relative) + '/'


def _swatch(label: str, look: Style) -> dict[str, str]:
  return {
    'label': label,
    'colour': look.colour,
    'dashes': _DASHES[look.dash[1]],
    'marker': _MARKERS[look.marker[1]],
  }
