"""The charts as PNG and PDF, for papers."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from moon_jax.report import groups
from moon_jax.report.charts import Chart, Line, LineChart, Matrix, Scatter, Spread
from moon_jax.report.styles import Style, style

_MOST_ANNOTATED = 20  # numbers of more rows do not fit
_MOST_LETTERS = 50  # of the names below the boxes
_LEGEND_LETTERS = 80  # in a row
_PANELS = 3  # in a row


def write(chart: Chart, folder: pathlib.Path, styles: Mapping[str, Style]) -> list[str]:
  """Draws a chart into a folder.

  Args:
    chart: what is drawn.
    folder: exists.
    styles: label -> style.

  Returns:
    The names of the files.
  """
  draw = {LineChart: _lines, Matrix: _matrix, Spread: _spread, Scatter: _scatter}
  figure = draw[type(chart)](chart, styles)
  FigureCanvasAgg(figure)
  return _save(figure, folder, chart.name)


def _save(figure: Figure, folder: pathlib.Path, name: str) -> list[str]:
  names = [f'{name}.{ending}' for ending in ('png', 'pdf')]
  with matplotlib.rc_context({'pdf.fonttype': 42}):  # text stays text
    for file in names:
      figure.savefig(folder / file, dpi=200, bbox_inches='tight')
  return names


def _figure(chart: Chart, width: float = 6.0, height: float = 4.0) -> Figure:
  figure = Figure(figsize=(width, height), layout='constrained')
  # A name may hold $ signs.
  figure.suptitle(chart.title, fontsize=11, parse_math=False, wrap=True)
  return figure


def _panel(figure: Figure, x_label: str, y_label: str):
  panel = figure.subplots()
  panel.set_xlabel(x_label, parse_math=False)
  panel.set_ylabel(y_label, parse_math=False)
  panel.grid(alpha=0.3)
  panel.spines[['top', 'right']].set_visible(False)
  return panel


def _lines(chart: LineChart, styles: Mapping[str, Style]) -> Figure:
  names = [*(line.label for line in chart.lines), *chart.levels]
  columns = max(1, min(len(names), int(_LEGEND_LETTERS / (max(map(len, names)) + 6))))
  # A legend below the plot hides no line; the figure grows with it.
  figure = _figure(chart, height=3.9 + 0.2 * -(-len(names) // columns))
  panel = _panel(figure, chart.x_label, chart.y_label)
  if chart.is_sweep:
    values = sorted({x for line in chart.lines for x in line.x})
    panel.set_xticks(range(len(values)), [groups.word(value) for value in values])
    place = {value: index for index, value in enumerate(values)}
    for line in chart.lines:
      _bars(panel, line, [place[x] for x in line.x], styles[line.label])
  else:
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for line in chart.lines:
      _band(panel, line, styles[line.label])
  for label, level in chart.levels.items():
    _level(panel, label, level, styles[label])
  legend = figure.legend(
    *panel.get_legend_handles_labels(),
    loc='outside lower center',
    ncols=columns,
    frameon=False,
    fontsize=9,
  )
  for text in legend.get_texts():
    text.set_parse_math(False)
  return figure


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
  panel.axhline(level.mean, linestyle='--', color=look.colour, label=label)
  if level.std:
    low, high = level.mean - level.std, level.mean + level.std
    panel.axhspan(low, high, color=look.colour, alpha=0.1, linewidth=0)


def _matrix(chart: Matrix, styles: Mapping[str, Style]) -> Figure:
  del styles
  rows, columns = chart.values.shape
  width = float(np.clip(2.4 + 0.5 * columns, 5.0, 12.0))
  height = float(np.clip(1.6 + 0.35 * rows, 3.5, 10.0))
  figure = _figure(chart, width, height)
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
  figure = _figure(chart)
  panel = _panel(figure, '', chart.y_label)
  for place, (label, values) in enumerate(chart.groups.items()):
    look = styles[label]
    panel.boxplot(
      values,
      positions=[place],
      widths=0.5,
      showfliers=False,
      medianprops={'color': look.colour},
    )
    across = place + np.linspace(-0.15, 0.15, len(values))
    panel.scatter(
      across, np.sort(values), color=look.colour, marker=look.marker[0], s=18
    )
  names = list(chart.groups)
  crowded = sum(map(len, names)) > _MOST_LETTERS
  panel.set_xticks(
    range(len(names)),
    names,
    rotation=30 if crowded else 0,
    ha='right' if crowded else 'center',
  )
  panel.set_xlim(-0.6, len(names) - 0.4)
  return figure


def _scatter(chart: Scatter, styles: Mapping[str, Style]) -> Figure:
  del styles
  figure = _figure(chart, 5.0, 5.0)
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
  columns = min(_PANELS, len(charts))
  rows = -(-len(charts) // columns)
  figure = Figure(figsize=(4.2 * columns, 4.4 * rows), layout='constrained')
  FigureCanvasAgg(figure)
  for panel in figure.subplots(rows, columns, squeeze=False).flat:
    panel.axis('off')
  for panel, chart in zip(figure.axes, charts, strict=False):
    panel.axis('on')
    panel.set_title(chart.title, fontsize=9, parse_math=False, wrap=True)
    _embedding(panel, chart)
  return _save(figure, folder, name)


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
