"""The charts as PNG, PDF or SVG, for papers; sizes follow the content."""

import functools
import math
import pathlib
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moon_jax.core import files
from moon_jax.report import labels
from moon_jax.report.charts import (
  Chart,
  LineChart,
  Matrix,
  Scatter,
  Spread,
  Style,
  covered_lines,
  num_rims,
)
from moon_jax.runner import fonts, plots

_TILE = 3.4  # inches of a panel among several
_LETTERS_PER_INCH = 10  # of a title
_LABEL_POINTS = 10  # size of the letters of a class's name
_AXIS_INCHES = 0.4  # of a tile, beside its axes
_NAME_LETTERS = 36  # letters in a line beside a plot
_RIM_POINTS = 2.5  # by which a line is wider than one that lies on it


def draw(chart: Chart, styles: Mapping[str, Style]) -> Figure:
  """A figure; what lies outside its axes, such as the legend, is saved too."""
  if isinstance(chart, LineChart):
    return _lines(chart, styles)
  if isinstance(chart, Matrix):
    return _matrix(chart)
  if isinstance(chart, Spread):
    return _boxes(chart, styles)
  return tiled([chart], side=5.0)


def save(
  figure: Figure, folder: pathlib.Path, name: str, formats: Sequence[str]
) -> None:
  """Replaces the files of a figure, one for each format, by new ones.

  Args:
    figure: the figure.
    folder: folder of the files.
    name: their name, without the ending.
    formats: some of `request.FORMATS`.
  """
  with matplotlib.rc_context({'pdf.fonttype': 42, 'svg.fonttype': 'none'}):  # text
    for ending in formats:
      path = folder / f'{name}.{ending}'
      fonts.saved(figure, functools.partial(_save, figure, path, ending))


def _save(figure: Figure, path: pathlib.Path, ending: str) -> None:
  with files.new_file(path) as file:
    figure.savefig(file, format=ending, dpi=200, bbox_inches='tight')


def _wrapped(text: str, letters: float) -> str:
  return textwrap.fill(text, int(letters), break_on_hyphens=False)


def _panel(chart: LineChart | Matrix | Spread, width: float, height: float) -> Axes:
  """The axes of a figure of the given inches, with its texts."""
  panel = Figure((width, height)).subplots()
  # A name may hold $ signs.
  title = _wrapped(chart.title, width * _LETTERS_PER_INCH)
  panel.set_title(title, fontsize=11, parse_math=False)
  panel.set_xlabel(chart.x_label, parse_math=False)
  return panel


def _lines(chart: LineChart, styles: Mapping[str, Style]) -> Figure:
  panel = _panel(chart, 6.0, 4.0)
  panel.set_ylabel(chart.y_label, parse_math=False)
  plots.open_frame(panel)
  rims = num_rims(covered_lines(chart.lines))
  for line, rim in zip(chart.lines, rims, strict=True):
    style = line.style or styles[line.label]
    x = line.points.index
    lower, mean, upper = line.band
    panel.plot(
      x,
      mean,
      label=_wrapped(line.label, _NAME_LETTERS),
      color=style.colour,
      linestyle=style.dash.matplotlib,
      marker=style.marker.matplotlib,
      linewidth=1.5 + _RIM_POINTS * rim,
      markersize=5 + _RIM_POINTS * rim,
      markevery=max(1, len(mean) // 10),
    )
    panel.fill_between(x, lower, upper, color=style.colour, alpha=0.15, linewidth=0)
  if chart.ticks:
    panel.set_xticks(range(len(chart.ticks)), chart.ticks, rotation='vertical')
  else:
    # The number of a single round is whole, too.
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
  legend = panel.legend(
    loc='upper left',
    bbox_to_anchor=(1.02, 1.0),  # to the right of the panel
    borderaxespad=0,
    frameon=False,
    fontsize=9,
  )
  for text in legend.get_texts():
    text.set_parse_math(False)
  return panel.figure


def _matrix(chart: Matrix) -> Figure:
  num_rows, num_columns = chart.values.shape
  width = float(np.clip(2.4 + 0.5 * num_columns, 5.0, 12.0))
  height = float(np.clip(1.6 + 0.35 * num_rows, 3.5, 10.0))
  panel = _panel(chart, width, height)
  panel.set_ylabel(chart.y_label)
  plots.matrix(panel, chart.values, chart.unit, chart.rows, chart.columns)
  return panel.figure


def _boxes(chart: Spread, styles: Mapping[str, Style]) -> Figure:
  names = [_wrapped(name, _NAME_LETTERS) for name in chart.groups]
  num_breaks = max(name.count('\n') for name in names)
  row_height = 0.3 + 0.15 * num_breaks
  panel = _panel(chart, 6.0, max(2.0, 0.8 + row_height * len(names)))
  plots.open_frame(panel)
  for row, (label, values) in enumerate(chart.groups.items()):
    style = styles[label]
    panel.boxplot(
      values,
      orientation='horizontal',
      whis=(0, 100),  # to the least and the greatest value, as on the page
      positions=[row],
      widths=0.5,
      medianprops={'color': style.colour},
    )
    heights = row + np.linspace(-0.15, 0.15, len(values))
    panel.scatter(
      np.sort(values),
      heights,
      color=style.colour,
      marker=style.marker.matplotlib,
      s=18,
    )
  panel.set_yticks(range(len(names)), names, fontsize=9, parse_math=False)
  panel.set_ylim(len(names) - 0.4, -0.6)  # the first one is on top
  return panel.figure


def tiled(charts: Sequence[Scatter], side: float = _TILE) -> Figure:
  """Scatters of the given inches, four in a row, each below its title."""
  num_columns = min(4, len(charts))
  num_rows = math.ceil(len(charts) / num_columns)
  titles = [_wrapped(chart.title, side * _LETTERS_PER_INCH) for chart in charts]
  title_height = 0.17 * max(title.count('\n') + 1 for title in titles)
  size = side * num_columns, (side + title_height) * num_rows
  figure = Figure(size, layout='constrained')
  panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
  for unused_panel in panels[len(charts) :]:
    unused_panel.remove()
  for panel, chart, title in zip(figure.axes, charts, titles, strict=True):
    panel.set_title(title, fontsize=9, parse_math=False)
    panel.set(xticks=[], yticks=[], xlabel='t-SNE 1', ylabel='t-SNE 2')
    _embedding(panel, chart, side)
  return figure


def _embedding(panel: Axes, chart: Scatter, side: float) -> None:
  classes = chart.by_class()
  for _, points, style in classes:
    marker = style.marker.matplotlib
    panel.scatter(*points.T, s=6, color=style.colour, marker=marker, lw=0)
  if len(classes) > plots.MOST_ANNOTATED:
    return
  names = [plots.shortened(entry.label) for entry in classes]
  medians = np.array([np.median(entry.points, axis=0) for entry in classes])
  # Limits are computed late; without this they would lack the last class.
  panel.autoscale_view()
  to_panel = panel.transData + panel.transAxes.inverted()
  anchors = to_panel.transform(medians)
  placement = labels.placed(anchors, _label_sizes(names, side))
  box = {'boxstyle': 'round,pad=0.2', 'facecolor': 'white', 'alpha': 0.8, 'lw': 0}
  for name, anchor, centre in zip(names, anchors, placement.centres, strict=True):
    label = panel.annotate(
      name,
      xy=anchor,
      xytext=centre,
      xycoords='axes fraction',
      textcoords='axes fraction',
      fontsize=_LABEL_POINTS * placement.scale,
      ha='center',
      va='center',
      bbox=box,
      arrowprops={'arrowstyle': '-', 'color': '0.3', 'lw': 0.6},
      parse_math=False,
    )
    label.set_in_layout(False)  # no name makes the file larger or the panel smaller


def _label_sizes(names: Sequence[str], side: float) -> np.ndarray:
  """[L, 2] width and height of labels in a panel whose side has so many inches."""
  points = 72 * (side - _AXIS_INCHES)
  widths = [_LABEL_POINTS * (0.66 * len(name) + 0.5) / points for name in names]
  return np.array([[width, 1.5 * _LABEL_POINTS / points] for width in widths])
