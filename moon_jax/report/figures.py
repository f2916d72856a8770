"""The charts as PNG and PDF, for papers; sizes follow the content."""

import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moon_jax.report.charts import Chart, LineChart, Matrix, Scatter, Spread, Style
from moon_jax.runner import plots

_PANEL = 3.4  # inches of a panel among several
_LETTERS = 10  # letters in an inch of a title
_NAME = 36  # letters in a line beside a plot


def draw(chart: Chart, looks: Mapping[str, Style]) -> Figure:
  """A figure; what lies outside its axes, such as the legend, is saved too."""
  by_kind = {LineChart: _lines, Matrix: _matrix, Spread: _boxes, Scatter: _scatter}
  return by_kind[type(chart)](chart, looks)


def save(figure: Figure, folder: pathlib.Path, name: str) -> list[str]:
  """Writes a figure as PNG and PDF; returns the names of the files."""
  names = [f'{name}.{ending}' for ending in ('png', 'pdf')]
  with matplotlib.rc_context({'pdf.fonttype': 42}):  # text stays text
    for file in names:
      figure.savefig(folder / file, dpi=200, bbox_inches='tight')
  return names


def _wrapped(text: str, letters: float) -> str:
  return textwrap.fill(text, int(letters), break_on_hyphens=False)


def _panel(chart: LineChart | Matrix | Spread, width: float, height: float) -> Axes:
  """The axes of a figure of the given inches, with its texts."""
  panel = Figure((width, height)).subplots()
  # A name may hold $ signs.
  title = _wrapped(chart.title, width * _LETTERS)
  panel.set_title(title, fontsize=11, parse_math=False)
  panel.set_xlabel(chart.x_label, parse_math=False)
  return panel


def _lines(chart: LineChart, looks: Mapping[str, Style]) -> Figure:
  panel = _panel(chart, 6.0, 4.0)
  panel.set_ylabel(chart.y_label, parse_math=False)
  plots.open_frame(panel)
  for line in chart.lines:
    x, look, (low, mean, high) = line.points.index, looks[line.label], line.band
    marked = {'marker': look.marker[0], 'markevery': max(1, len(mean) // 10)}
    drawn = {'color': look.colour, 'linestyle': look.dash[0], 'markersize': 5}
    panel.plot(x, mean, label=_wrapped(line.label, _NAME), **drawn, **marked)
    panel.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
  if chart.ticks:
    panel.set_xticks(range(len(chart.ticks)), chart.ticks, rotation='vertical')
  else:
    # The number of a single round is whole, too.
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
  beside = {'loc': 'upper left', 'bbox_to_anchor': (1.02, 1.0), 'borderaxespad': 0}
  for text in panel.legend(**beside, frameon=False, fontsize=9).get_texts():
    text.set_parse_math(False)
  return panel.figure


def _matrix(chart: Matrix, looks: Mapping[str, Style]) -> Figure:
  rows, columns = chart.values.shape
  width = float(np.clip(2.4 + 0.5 * columns, 5.0, 12.0))
  height = float(np.clip(1.6 + 0.35 * rows, 3.5, 10.0))
  panel = _panel(chart, width, height)
  panel.set_ylabel(chart.y_label)
  plots.matrix(panel, chart.values, chart.unit, chart.rows, chart.columns)
  return panel.figure


def _boxes(chart: Spread, looks: Mapping[str, Style]) -> Figure:
  names = [_wrapped(name, _NAME) for name in chart.groups]
  row = 0.3 + 0.15 * max(name.count('\n') for name in names)
  panel = _panel(chart, 6.0, max(2.0, 0.8 + row * len(names)))
  plots.open_frame(panel)
  for place, (label, values) in enumerate(chart.groups.items()):
    colour, marker = looks[label].colour, looks[label].marker[0]
    box = {'positions': [place], 'widths': 0.5, 'medianprops': {'color': colour}}
    # The whiskers reach the least and the greatest value, as on the page.
    panel.boxplot(values, orientation='horizontal', whis=(0, 100), **box)
    across = place + np.linspace(-0.15, 0.15, len(values))
    panel.scatter(np.sort(values), across, color=colour, marker=marker, s=18)
  panel.set_yticks(range(len(names)), names, fontsize=9, parse_math=False)
  panel.set_ylim(len(names) - 0.4, -0.6)  # the first one is on top
  return panel.figure


def _scatter(chart: Scatter, looks: Mapping[str, Style]) -> Figure:
  return tiled([chart], 5.0)


def tiled(charts: Sequence[Scatter], side: float = _PANEL) -> Figure:
  """Scatters of the given inches, four in a row, each below its title."""
  columns = min(4, len(charts))
  rows = -(-len(charts) // columns)
  titles = [_wrapped(chart.title, side * _LETTERS) for chart in charts]
  above = 0.17 * max(title.count('\n') + 1 for title in titles)
  figure = Figure((side * columns, (side + above) * rows), layout='constrained')
  for panel in figure.subplots(rows, columns, squeeze=False).flat[len(charts) :]:
    panel.remove()
  for panel, chart, title in zip(figure.axes, charts, titles, strict=True):
    panel.set_title(title, fontsize=9, parse_math=False)
    panel.set(xticks=[], yticks=[], xlabel='t-SNE 1', ylabel='t-SNE 2')
    _embedding(panel, chart)
  return figure


def _embedding(panel: Axes, chart: Scatter) -> None:
  classes = chart.by_class()
  for _, points, look in classes:
    panel.scatter(*points.T, s=6, color=look.colour, marker=look.marker[0], lw=0)
  box = {'boxstyle': 'round,pad=0.2', 'facecolor': 'white', 'alpha': 0.8, 'lw': 0}
  for label, points, _ in classes if len(classes) <= plots.MOST_ANNOTATED else ():
    middle = np.median(points, axis=0)
    words = {'ha': 'center', 'va': 'center', 'bbox': box, 'parse_math': False}
    panel.text(*middle, plots.shortened(label), fontsize=10, **words)
