"""The charts as PNG and PDF, for papers."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moon_jax.report.draw import legend, lettering
from moon_jax.report.draw.charts import Chart, Line, LineChart, Matrix, Scatter, Spread
from moon_jax.report.draw.styles import Style, style
from moon_jax.report.numbers import naming

_MOST_ANNOTATED = 20  # numbers of more rows do not fit
_PANELS = 4  # in a row
# Inches.
_PLOT = 3.9  # height of a plot with its axes' labels
_WIDTHS = (6.0, 8.0, 10.0)  # of a plot, by how much its legend holds
_PANEL, _PANEL_TITLE = 3.4, 2.8  # width of one of several, and of its title
_NAMES = 2.4  # of the boxes, at their left
_BOXES = 4.0
# Points.
_TITLE, _TICK, _TEXT = 11, 10, 9
_DPI = 200
_MOST_PIXELS = 2**16 - 1  # that matplotlib takes in a direction


def write(chart: Chart, folder: pathlib.Path, styles: Mapping[str, Style]) -> list[str]:
  """Draws a chart into a folder.

  Args:
    chart: what is drawn.
    folder: exists.
    styles: label -> style.

  Returns:
    The names of the files.
  """
  return _save(draw(chart, styles), folder, chart.name)


def draw(chart: Chart, styles: Mapping[str, Style]) -> Figure:
  """A figure as large as what it has to hold, its texts included."""
  by_kind = {LineChart: _lines, Matrix: _matrix, Spread: _spread, Scatter: _scatter}
  return by_kind[type(chart)](chart, styles)


def _save(figure: Figure, folder: pathlib.Path, name: str) -> list[str]:
  names = [f'{name}.{ending}' for ending in ('png', 'pdf')]
  with matplotlib.rc_context({'pdf.fonttype': 42}):  # text stays text
    for file in names:
      figure.savefig(folder / file, dpi=dots(figure))
  return names


def dots(figure: Figure) -> float:
  """In an inch of a PNG: fewer where matplotlib would refuse so large a picture."""
  return min(_DPI, _MOST_PIXELS / max(figure.get_size_inches()))


def _figure(title: str, width: float, height: float) -> Figure:
  """A figure of so many inches and, above them, its title in lines that fit."""
  lines = lettering.wrap(title, width - 2 * lettering.EDGE, _TITLE)
  above = lettering.height(len(lines), _TITLE)
  figure = Figure(figsize=(width, height + above), layout='constrained')
  FigureCanvasAgg(figure)
  # A name may hold $ signs.
  figure.suptitle('\n'.join(lines), fontsize=_TITLE, parse_math=False)
  return figure


def _panel(figure: Figure, x_label: str, y_label: str):
  panel = figure.subplots()
  panel.set_xlabel(x_label, parse_math=False)
  panel.set_ylabel(y_label, parse_math=False)
  panel.grid(alpha=0.3)
  panel.spines[['top', 'right']].set_visible(False)
  return panel


def _lines(chart: LineChart, styles: Mapping[str, Style]) -> Figure:
  values = sorted({x for line in chart.lines for x in line.x})
  ticks = [naming.word(value) for value in values] if chart.is_sweep else []
  names = [*(line.label for line in chart.lines), *chart.levels]
  fitted = legend.fit(names, _widths(ticks))
  figure = _figure(chart.title, fitted.width, _PLOT + fitted.height)
  panel = _panel(figure, chart.x_label, chart.y_label)
  if chart.is_sweep:
    panel.set_xticks(range(len(values)), ticks)
    place = {value: index for index, value in enumerate(values)}
    for line in chart.lines:
      _bars(panel, line, [place[x] for x in line.x], styles[line.label])
  else:
    # A single round is a whole number too.
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for line in chart.lines:
      _band(panel, line, styles[line.label])
  for label, level in chart.levels.items():
    _level(panel, label, level, styles[label])
  legend.draw(figure, panel, fitted)
  return figure


def _widths(ticks: Sequence[str]) -> list[float]:
  """Of figures that hold the words below the ticks, in inches; at least one."""
  widest = max((lettering.width(f'{tick}mm', _TICK) for tick in ticks), default=0.0)
  least = 1.0 + widest * len(ticks)
  return [width for width in _WIDTHS if width >= least] or [least]


def _band(panel, line: Line, look: Style) -> None:
  mean = np.array([point.mean for point in line.points])
  std = np.array([point.std or 0.0 for point in line.points])
  every = max(1, len(mean) // 10)
  panel.plot(
    line.x,
    mean,
    linestyle=look.dash[0],
    color=look.colour,
    marker=look.marker[0],
    markevery=every,
    markersize=5,
    label=line.label,
  )
  panel.fill_between(
    line.x, mean - std, mean + std, color=look.colour, alpha=0.15, linewidth=0
  )


def _bars(panel, line: Line, places: list[int], look: Style) -> None:
  panel.errorbar(
    places,
    [point.mean for point in line.points],
    yerr=[point.std or 0.0 for point in line.points],
    linestyle=look.dash[0],
    color=look.colour,
    marker=look.marker[0],
    capsize=3,
    label=line.label,
  )


def _level(panel, label: str, level, look: Style) -> None:
  panel.axhline(level.mean, linestyle=look.dash[0], color=look.colour, label=label)
  if level.std:
    low, high = level.mean - level.std, level.mean + level.std
    panel.axhspan(low, high, color=look.colour, alpha=0.1, linewidth=0)


def _matrix(chart: Matrix, styles: Mapping[str, Style]) -> Figure:
  del styles
  rows, columns = chart.values.shape
  width = float(np.clip(2.4 + 0.5 * columns, 5.0, 12.0))
  height = float(np.clip(1.6 + 0.35 * rows, 3.5, 10.0))
  figure = _figure(chart.title, width, height)
  panel = figure.subplots()
  image = panel.imshow(
    chart.values, cmap='Blues', vmin=0, aspect='auto', interpolation='nearest'
  )
  panel.set(xlabel=chart.x_label, ylabel=chart.y_label)
  for axis in (panel.xaxis, panel.yaxis):
    axis.set_major_locator(MaxNLocator(nbins=20, integer=True))
  figure.colorbar(image, ax=panel, label=chart.unit, pad=0.02)
  if max(rows, columns) <= _MOST_ANNOTATED:
    _annotate(panel, chart.values)
  return figure


def _annotate(panel, values: np.ndarray) -> None:
  for (row, column), value in np.ndenumerate(values):
    # The top of the colour map is dark.
    colour = 'white' if value > 0.6 * values.max() else 'black'
    word = f'{value:.0f}'
    panel.text(column, row, word, color=colour, fontsize=7, ha='center', va='center')


def _spread(chart: Spread, styles: Mapping[str, Style]) -> Figure:
  texts = [lettering.wrap(label, _NAMES, _TEXT) for label in chart.groups]
  left = max(lettering.widest(lines, _TEXT) for lines in texts)
  row = lettering.height(max(map(len, texts)) + 1, _TEXT)
  width = max(_WIDTHS[0], left + _BOXES)
  figure = _figure(chart.title, width, max(2.0, 0.8 + row * len(texts)))
  panel = _panel(figure, chart.y_label, '')
  for place, (label, values) in enumerate(chart.groups.items()):
    look = styles[label]
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
  names = ['\n'.join(lines) for lines in texts]
  panel.set_yticks(range(len(names)), names, fontsize=_TEXT, parse_math=False)
  panel.set_ylim(len(names) - 0.4, -0.6)  # the first on top
  return figure


def _scatter(chart: Scatter, styles: Mapping[str, Style]) -> Figure:
  del styles
  figure = _figure(chart.title, 5.0, 5.0)
  _embedding(figure.subplots(), chart)
  return figure


def side_by_side(
  charts: Sequence[Scatter], folder: pathlib.Path, name: str
) -> list[str]:
  """Draws several scatters as one picture; the names of the files.

  Args:
    charts: at least one.
    folder: exists.
    name: of the files, without their ending.
  """
  return _save(tiled(charts), folder, name)


def tiled(charts: Sequence[Scatter]) -> Figure:
  """Several scatters in rows, each below its title."""
  columns = min(_PANELS, len(charts))
  titles = [lettering.wrap(chart.title, _PANEL_TITLE, _TEXT) for chart in charts]
  rows = [titles[first : first + columns] for first in range(0, len(charts), columns)]
  above = [lettering.height(max(map(len, row)), _TEXT) for row in rows]
  size = (_PANEL * columns, _PANEL * len(rows) + sum(above))
  figure = Figure(figsize=size, layout='constrained')
  FigureCanvasAgg(figure)
  for panel in figure.subplots(len(rows), columns, squeeze=False).flat[len(charts) :]:
    panel.remove()
  for panel, chart, lines in zip(figure.axes, charts, titles, strict=True):
    panel.set_title('\n'.join(lines), fontsize=_TEXT, parse_math=False)
    _embedding(panel, chart)
  return figure


def _embedding(panel, chart: Scatter) -> None:
  panel.set(xticks=[], yticks=[], xlabel='t-SNE 1', ylabel='t-SNE 2')
  for label in np.unique(chart.classes):
    look, mine = style(int(label)), chart.points[chart.classes == label]
    panel.scatter(*mine.T, s=6, color=look.colour, marker=look.marker[0], linewidths=0)
  _name_classes(panel, chart)


def _name_classes(panel, chart: Scatter) -> None:
  classes = np.unique(chart.classes)
  if len(classes) > _MOST_ANNOTATED:
    return
  for label in classes:
    middle = np.median(chart.points[chart.classes == label], axis=0)
    box = {'boxstyle': 'round,pad=0.2', 'facecolor': 'white', 'alpha': 0.8, 'lw': 0}
    panel.text(*middle, str(label), ha='center', va='center', bbox=box, fontsize=10)
