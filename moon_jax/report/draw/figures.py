"""The charts as PNG and PDF, for papers."""

import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moon_jax.report.draw.charts import Chart, LineChart, Matrix, Scatter, Spread
from moon_jax.report.draw.styles import Style
from moon_jax.runner import plots

_MOST_ANNOTATED = 20  # numbers of more rows do not fit
_MOST_LEVEL = 8  # words below an axis; more are upright
# Inches.
_PLOT = 3.9  # height of a plot with its axes' labels
_WIDTHS = (6.0, 8.0, 10.0)  # of a plot, by how much its legend holds
_PANEL = 3.4  # width of one of several
# Letters of size 1 in an inch, on the safe side, and lines.
_LETTERS, _LINES = 72 / 0.62, 72 / 1.4
_TITLE, _TEXT = 11, 9
_NAME = 30  # letters in a line beside a box
_MOST_ROWS = 8  # of a legend, before the figure becomes wider
_HANDLE = 8  # letters that a legend's line and the distance between columns take
_DPI = 200
_MOST_PIXELS = 2**16 - 1  # that matplotlib takes in a direction


def draw(chart: Chart, looks: Mapping[str, Style]) -> Figure:
  """A figure as large as what it has to hold, its texts included."""
  by_kind = {LineChart: _lines, Matrix: _matrix, Spread: _boxes, Scatter: _scatter}
  return by_kind[type(chart)](chart, looks)


def save(figure: Figure, folder: pathlib.Path, name: str) -> list[str]:
  """Writes a figure as PNG and PDF; the names of the files."""
  names = [f'{name}.{ending}' for ending in ('png', 'pdf')]
  # Fewer dots where matplotlib would refuse so large a picture.
  dpi = min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))
  with matplotlib.rc_context({'pdf.fonttype': 42}):  # text stays text
    for file in names:
      figure.savefig(folder / file, dpi=dpi)
      figure.set_layout_engine('none')  # the layout is the same in the second
  return names


def _wrapped(text: str, inches: float, size: float) -> str:
  """The text in lines that fit."""
  letters = max(1, int(inches * _LETTERS / size))
  return textwrap.fill(text, letters, break_on_hyphens=False)


def _height(text: str, size: float) -> float:
  """Inches that the lines of a text take."""
  return (text.count('\n') + 1) * size / _LINES


def _figure(title: str, width: float, height: float) -> Figure:
  """A figure of so many inches and, above them, its title in lines that fit."""
  text = _wrapped(title, width, _TITLE)
  figure = Figure((width, height + _height(text, _TITLE)), layout='constrained')
  # A name may hold $ signs.
  figure.suptitle(text, fontsize=_TITLE, parse_math=False)
  return figure


def _panel(figure: Figure, x_label: str, y_label: str):
  panel = figure.subplots()
  panel.set_xlabel(x_label, parse_math=False)
  panel.set_ylabel(y_label, parse_math=False)
  plots.open_frame(panel)
  return panel


def _lines(chart: LineChart, looks: Mapping[str, Style]) -> Figure:
  labels = [line.label for line in chart.lines]
  width, columns = _legend_size(labels)
  names = [_wrapped(name, width * 0.95 - 0.6, _TEXT) for name in labels]
  rows = -(-len(names) // columns)
  tallest = max(_height(name, _TEXT) + 0.06 for name in names)
  upright = len(chart.ticks) > _MOST_LEVEL
  below = 0.08 * max(map(len, chart.ticks)) if upright else 0.0
  figure = _figure(chart.title, width, _PLOT + below + rows * tallest)
  panel = _panel(figure, chart.x_label, chart.y_label)
  for line, name in zip(chart.lines, names, strict=True):
    x, look, (low, mean, high) = list(line.points), looks[line.label], line.band
    panel.plot(
      x,
      mean,
      linestyle=look.dash[0],
      color=look.colour,
      marker=look.marker[0],
      markevery=max(1, len(mean) // 10),
      markersize=5,
      label=name,
    )
    panel.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
  if chart.ticks:
    panel.set_xticks(range(len(chart.ticks)), chart.ticks, rotation=90 * upright)
  else:
    # A single round is a whole number too.
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
  legend = figure.legend(
    loc='outside lower center', ncols=columns, frameon=False, fontsize=_TEXT
  )
  for text in legend.get_texts():
    text.set_parse_math(False)
  return figure


def _legend_size(labels: Sequence[str]) -> tuple[float, int]:
  """Inches of the narrowest figure whose legend is not tall; columns of the legend."""
  longest = max(map(len, labels)) + _HANDLE
  for width in _WIDTHS:
    columns = int(width * _LETTERS / _TEXT / longest)
    columns = min(max(1, columns), len(labels))
    if len(labels) <= columns * _MOST_ROWS:
      break
  return width, columns


def _matrix(chart: Matrix, looks: Mapping[str, Style]) -> Figure:
  rows, columns = chart.values.shape
  width = float(np.clip(2.4 + 0.5 * columns, 5.0, 12.0))
  height = float(np.clip(1.6 + 0.35 * rows, 3.5, 10.0))
  figure = _figure(chart.title, width, height)
  panel = figure.subplots()
  panel.set(xlabel=chart.x_label, ylabel=chart.y_label)
  plots.matrix(panel, chart.values, chart.unit)
  return figure


def _boxes(chart: Spread, looks: Mapping[str, Style]) -> Figure:
  names = [textwrap.fill(name, _NAME, break_on_hyphens=False) for name in chart.groups]
  row = max(_height(name, _TEXT) for name in names) + 0.2
  figure = _figure(chart.title, 7.0, max(2.0, 0.8 + row * len(names)))
  panel = _panel(figure, chart.x_label, '')
  for place, (label, values) in enumerate(chart.groups.items()):
    look = looks[label]
    panel.boxplot(
      values,
      positions=[place],
      orientation='horizontal',
      widths=0.5,
      showfliers=False,
      medianprops={'color': look.colour},
    )
    across = place + np.linspace(-0.15, 0.15, len(values))
    panel.scatter(
      np.sort(values), across, color=look.colour, marker=look.marker[0], s=18
    )
  panel.set_yticks(range(len(names)), names, fontsize=_TEXT, parse_math=False)
  panel.set_ylim(len(names) - 0.4, -0.6)  # the first on top
  return figure


def _scatter(chart: Scatter, looks: Mapping[str, Style]) -> Figure:
  return tiled([chart], 5.0)


def tiled(charts: Sequence[Scatter], side: float = _PANEL) -> Figure:
  """Scatters of so many inches, four in a row, each below its title."""
  columns = min(4, len(charts))
  rows = -(-len(charts) // columns)
  titles = [_wrapped(chart.title, side - 0.5, _TEXT) for chart in charts]
  above = max(_height(title, _TEXT) for title in titles)
  figure = Figure((side * columns, (side + above) * rows), layout='constrained')
  for panel in figure.subplots(rows, columns, squeeze=False).flat[len(charts) :]:
    panel.remove()
  for panel, chart, title in zip(figure.axes, charts, titles, strict=True):
    panel.set_title(title, fontsize=_TEXT, parse_math=False)
    panel.set(xticks=[], yticks=[], xlabel='t-SNE 1', ylabel='t-SNE 2')
    _embedding(panel, chart)
  return figure


def _embedding(panel, chart: Scatter) -> None:
  classes = chart.by_class()
  for _, points, look in classes:
    panel.scatter(*points.T, s=6, color=look.colour, marker=look.marker[0], lw=0)
  box = {'boxstyle': 'round,pad=0.2', 'facecolor': 'white', 'alpha': 0.8, 'lw': 0}
  for label, points, _ in classes if len(classes) <= _MOST_ANNOTATED else ():
    middle = np.median(points, axis=0)
    panel.text(*middle, str(label), ha='center', va='center', bbox=box, fontsize=10)
