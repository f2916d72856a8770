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
from moon_jax.report.numbers.statistics import Estimate
from moon_jax.report.numbers.table import Cell
from moon_jax.report.page.sections import Section

_TEMPLATES = pathlib.Path(__file__).parent / 'templates'


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
  looks: Mapping[str, Style],
) -> None:
  """Writes the page; its links are relative to its folder.

  Args:
    path: of the file.
    head: what stands above and below everything.
    sections: from the top.
    looks: label -> style of every series.
  """
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters |= {
    'anchor': lambda title: '-'.join(title.lower().split()),
    'height': _height,
    'link': lambda run: urllib.parse.quote(
      os.path.relpath(pathlib.Path(run).resolve(), path.parent.resolve())
    ),
    'plain': _plain,
  }
  text = environment.get_template('index.html.jinja').render(
    **head._asdict(),
    sections=sections,
    looks=looks,
    style=(_TEMPLATES / 'page.css').read_text(),
    script=(_TEMPLATES / 'page.js').read_text(),
    plotly=offline.get_plotlyjs(),
    figures=_json([c for section in sections for c in section.charts], looks),
  )
  path.write_text(text)


def _json(charts: Sequence[Chart], looks: Mapping[str, Style]) -> str:
  """{name: figure}; no text inside can end the script that holds it."""
  # charts.safe leaves no character in a name to escape.
  items = [f'"{c.name}": {interactive.figure(c, looks).to_json()}' for c in charts]
  return ('{' + ', '.join(items) + '}').replace('<', '\\u003c')


def _height(chart: Chart) -> float:
  """In rem."""
  if isinstance(chart, Spread):
    tallest = max(len(interactive.name_lines(label)) for label in chart.groups)
    return max(21.5, 5 + (tallest + 1) * len(chart.groups))
  return 27.5 if isinstance(chart, Matrix | Scatter) else 21.5


def _plain(value: Cell) -> str | int | float:
  """What a table is sorted by."""
  if isinstance(value, Estimate):
    return value.mean
  return '' if value is None else value
