"""The charts as plain data; `figures` and `interactive` draw them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from moon_jax.catalog import Metric
from moon_jax.core import paths
from moon_jax.report import groups, naming, statistics, traces
from moon_jax.report.groups import Series, Setting
from moon_jax.report.naming import Key, Value, titled
from moon_jax.report.request import BASELINE
from moon_jax.report.runs import Run
from moon_jax.runner.plots import PALETTE

_MOST_RIMS = 3
# Algorithms without the knob of a sweep that are drawn beside it, for comparison.
_REFERENCES = (BASELINE, 'solo', 'centralized')


class Words(NamedTuple):
  """What the same dash or marker is called.

  Attributes:
    matplotlib: matplotlib's word.
    plotly: plotly's word.
    page: SVG's pattern of a dash, or a letter that looks like a marker.
  """

  matplotlib: str
  plotly: str
  page: str


_DASHES = (
  Words('-', 'solid', 'none'),
  Words('--', 'dash', '8 4'),
  Words(':', 'dot', '2 3'),
  Words('-.', 'dashdot', '8 3 2 3'),
)
_MARKERS = (
  Words('o', 'circle', '●'),
  Words('s', 'square', '■'),
  Words('^', 'triangle-up', '▲'),
  Words('D', 'diamond', '◆'),
  Words('v', 'triangle-down', '▼'),
  Words('X', 'x', '✖'),
  Words('P', 'cross', '✚'),
)
# Colours of classes; matplotlib calls them tab10.
_CLASS_COLOURS = (
  '#1F77B4',
  '#FF7F0E',
  '#2CA02C',
  '#D62728',
  '#9467BD',
  '#8C564B',
  '#E377C2',
  '#7F7F7F',
  '#BCBD22',
  '#17BECF',
)


class Style(NamedTuple):
  """The style of a line.

  Attributes:
    colour: '#RRGGBB'.
    dash: the dash of the line.
    marker: the marker of its points.
  """

  colour: str
  dash: Words
  marker: Words


def style_of(index: int) -> Style:
  """The style of the series with an index; 84 styles differ."""
  return Style(
    colour=PALETTE[index % len(PALETTE)],
    dash=_DASHES[index // len(PALETTE) % len(_DASHES)],
    marker=_MARKERS[index % len(_MARKERS)],
  )


# --- kinds of charts ------------------------------------------------------------------


class Line(NamedTuple):
  """One series of a chart.

  Attributes:
    label: label in the legend; it decides the style.
    points: `statistics.estimates` by round, or by the index of a sweep's value.
    style_label: label of the series whose style it has; '' if it is a series itself.
    style: its style if it is of no series, such as the line of a client; else None.
  """

  label: str
  points: pd.DataFrame
  style_label: str = ''
  style: Style | None = None

  @property
  def band(self) -> np.ndarray:
    """[3, points] mean - deviation, mean, mean + deviation."""
    mean, std = self.points['mean'], self.points['std'].fillna(0.0)
    return np.stack([mean - std, mean, mean + std])


class LineChart(NamedTuple):
  """Lines over rounds, or over the values of a knob at equal distances.

  Attributes:
    name: name of the file, without its ending.
    title: what the chart shows.
    x_label: label with the unit.
    y_label: label with the unit.
    lines: at least one.
    ticks: the values of a sweep; () for numbers.
  """

  name: str
  title: str
  x_label: str
  y_label: str
  lines: Sequence[Line]
  ticks: Sequence[str] = ()


def covered_lines(lines: Sequence[Line]) -> list[list[int]]:
  """The earlier lines on which each line lies, so that it would hide them.

  A personal algorithm whose global model is FedAvg's has such a line. Two lines lie on
  each other if their means differ by at most 1 % of what the lines extend over.

  Args:
    lines: in the order in which they are drawn.

  Returns:
    For each line the indices of earlier ones.
  """
  means = [line.points['mean'] for line in lines]
  limit = 0.01 * np.ptp(np.concatenate(means))
  return [
    [
      lower
      for lower in range(upper)
      if means[lower].index.equals(mean.index)
      and np.abs(means[lower] - mean).max() <= limit
    ]
    for upper, mean in enumerate(means)
  ]


def num_rims(covered: Sequence[Sequence[int]]) -> list[int]:
  """By how many steps each line is wider, to be seen under those that lie on it.

  Args:
    covered: what `covered_lines` returns.
  """
  return [
    min(_MOST_RIMS, sum(index in lower_lines for lower_lines in covered))
    for index in range(len(covered))
  ]


class Matrix(NamedTuple):
  """A heat map.

  Attributes:
    name, title: as in a LineChart.
    x_label: label of the columns, which count from 0 or have names.
    y_label: label of the rows, which count from 0 or have names.
    values: [rows, columns].
    unit: unit of the values.
    rows: names of the rows, all different; () if they are numbered.
    columns: names of the columns, likewise.
  """

  name: str
  title: str
  x_label: str
  y_label: str
  values: np.ndarray
  unit: str
  rows: Sequence[str] = ()
  columns: Sequence[str] = ()


class Spread(NamedTuple):
  """The distribution of a number over clients.

  Attributes:
    name, title, x_label: as in a LineChart.
    groups: label -> [clients] values.
    names: label -> [clients] names or numbers of the clients.
  """

  name: str
  title: str
  x_label: str
  groups: dict[str, np.ndarray]
  names: dict[str, list[str]]


class ClassPoints(NamedTuple):
  """The points of one class.

  Attributes:
    label: name or number of the class.
    points: [points, 2].
    style: style of its markers.
  """

  label: str
  points: np.ndarray
  style: Style


class Scatter(NamedTuple):
  """Points in the plane, coloured by class.

  Attributes:
    name, title: as in a LineChart.
    points: [M, 2].
    classes: [M].
    class_names: [Y]; () if the classes are numbered.
  """

  name: str
  title: str
  points: np.ndarray
  classes: np.ndarray
  class_names: Sequence[str] = ()

  def by_class(self) -> list[ClassPoints]:
    """The classes that have points."""
    classes = []
    for index in map(int, np.unique(self.classes)):
      has_name = index < len(self.class_names)
      colour = _CLASS_COLOURS[index % len(_CLASS_COLOURS)]
      classes.append(
        ClassPoints(
          label=self.class_names[index] if has_name else str(index),
          points=self.points[self.classes == index],
          style=style_of(index)._replace(colour=colour),
        )
      )
    return classes


Chart = LineChart | Matrix | Spread | Scatter


# --- charts over rounds ---------------------------------------------------------------


def of_setting(setting: Setting) -> list[LineChart]:
  """Charts of accuracy, losses, and what else is recorded, against rounds."""
  line_charts = []
  runs = [run for series in setting.series for run in series.finished.values()]
  for name, metric in traces.metrics_of(runs).items():
    lines = [Line(series.label, _mean_curve(series, name)) for series in setting.series]
    # A series has a line if all its finished runs have the number.
    lines = [line for line in lines if len(line.points)]
    if lines:
      subject = _subject(name, metric, runs)
      drawn_labels = {line.label for line in lines}
      incomplete_labels = [
        series.label
        for series in setting.series
        if series.label not in drawn_labels and _has_some_numbers(series, name)
      ]
      if incomplete_labels:
        subject += f' (without {", ".join(incomplete_labels)}: not in all of its runs)'
      line_charts.append(
        LineChart(
          name=file_name(name.removesuffix('_mean'), setting.title),
          title=titled(subject, setting.title),
          x_label='communication rounds',
          y_label=metric.unit,
          lines=lines,
        )
      )
  return line_charts


def _subject(name: str, metric: Metric, runs: Sequence[Run]) -> str:
  """The title of a metric, which says whose models have the test accuracy."""
  if name == traces.ACCURACY and not all(map(traces.has_global_model, runs)):
    return f"{metric.title} (without a global model: mean of the clients' models)"
  return metric.title


def _has_some_numbers(series: Series, metric: str) -> bool:
  """Whether a finished run of the series has the metric in a round."""
  return any(len(traces.trace(run, metric)) for run in series.finished.values())


def _mean_curve(series: Series, metric: str) -> pd.DataFrame:
  """The estimates of a metric, in its unit, by rounds."""
  runs = series.finished.values()
  return statistics.mean_curve(traces.trace(run, metric) for run in runs)


# --- charts over the values of a knob -------------------------------------------------


class Sweep(NamedTuple):
  """The results of the runs of one setting by a knob, after equally many rounds.

  Attributes:
    knob: the knob that has several values.
    setting: title of what the runs have in common; '' if there is one setting only.
    lines: label -> value of the knob -> its series.
    levels: label -> series without the knob, for comparison.
    num_rounds: number of rounds.
    chosen_by: metric by which the best value is chosen; see `traces.chosen_by`.
  """

  knob: str
  setting: str
  lines: dict[str, dict[Value, Series]]
  levels: dict[str, Series]
  num_rounds: int
  chosen_by: str

  def accuracy(self, series: Series, metric: str) -> float:
    """The mean over runs after these rounds, in [0, 1]; NaN if a run lacks it."""
    curves = (run.metric(metric) for run in series.finished.values())
    return statistics.mean_curve(curves)['mean'].get(self.num_rounds, np.nan)


def sweeps(settings: Sequence[Setting]) -> list[Sweep]:
  """A sweep for each knob with several values, and for each setting of the others."""
  return [sweep for knob in groups.swept(settings) for sweep in _sweeps(knob, settings)]


class _Lines(NamedTuple):
  """The lines and levels of a sweep; see Sweep."""

  lines: dict[str, dict[Value, Series]]
  levels: dict[str, Series]


def _sweeps(knob: str, settings: Sequence[Setting]) -> Iterable[Sweep]:
  for setting_key, (lines, levels) in _lines_by_setting(knob, settings).items():
    # A single value is no line.
    lines = {label: values for label, values in lines.items() if len(values) > 1}
    on_lines = [series for values in lines.values() for series in values.values()]
    chosen_by = traces.chosen_by(
      run for series in on_lines for run in series.finished.values()
    )
    tested_rounds = [set(_mean_curve(series, chosen_by).index) for series in on_lines]
    common_rounds = set.intersection(*tested_rounds) if tested_rounds else set()
    if common_rounds:
      yield Sweep(
        knob=knob,
        setting=naming.describe(setting_key),
        lines=lines,
        levels=levels,
        num_rounds=max(common_rounds),
        chosen_by=chosen_by,
      )


def _lines_by_setting(knob: str, settings: Sequence[Setting]) -> dict[Key, _Lines]:
  """Key of a setting without the knob -> the series by the knob's values."""
  lines_by_setting: dict[Key, _Lines] = {}
  for setting in settings:
    setting_key = naming.without(setting.key, knob)
    lines, levels = lines_by_setting.setdefault(setting_key, _Lines({}, {}))
    for series in setting.series:
      value = series.runs[0].identity.get(knob)
      if value is not None:
        lines.setdefault(_line_label(series, knob), {})[value] = series
      elif series.algorithm in _REFERENCES:
        levels[series.label] = series
  return lines_by_setting


def _line_label(series: Series, knob: str) -> str:
  """'MOON, any mu'; the label of the series if the knob is one of the setting."""
  key = naming.without(series.key, knob)
  if key == series.key:
    return series.label
  any_value = f'any {naming.short_name(knob)}'
  if knob in naming.PLAIN:  # one line also has the value of the plain mean
    label = naming.describe(key)
  else:
    label = naming.describe_series(key, series.runs[0].identity)
  return f'{label}, {any_value}' if label else any_value


def of_sweep(sweep: Sweep) -> LineChart:
  """Accuracy against the knob."""
  all_values = (value for line in sweep.lines.values() for value in line)
  values = groups.in_order(sweep.knob, all_values)
  lines = [
    Line(
      label=label,
      points=_points(sweep, series_by_value, values),
      style_label=_first_label(series_by_value),
    )
    for label, series_by_value in sweep.lines.items()
  ]
  for label, series in sweep.levels.items():
    curve = _mean_curve(series, sweep.chosen_by)
    level = curve.reindex([sweep.num_rounds] * len(values)).dropna(subset='mean')
    if len(level):
      lines.append(Line(label, level.reset_index(drop=True)))
  subject = (
    f'Accuracy after {sweep.num_rounds} rounds against {naming.short_name(sweep.knob)}'
  )
  return LineChart(
    name=file_name(f'sweep-{sweep.knob}', sweep.setting),
    title=titled(subject, sweep.setting),
    x_label=sweep.knob,
    y_label=traces.GENERAL[sweep.chosen_by].unit,
    lines=lines,
    ticks=[_tick(sweep, value) for value in values],
  )


def _tick(sweep: Sweep, value: Value) -> str:
  """'0.1', or '0.1 (2 diverged)' if so many runs with the value did."""
  num_diverged = sum(
    len(series_by_value[value].diverged)
    for series_by_value in sweep.lines.values()
    if value in series_by_value
  )
  text = naming.value_text(value)
  return f'{text} ({num_diverged} diverged)' if num_diverged else text


def _points(
  sweep: Sweep, series_by_value: dict[Value, Series], values: Sequence[Value]
) -> pd.DataFrame:
  """The estimates of a line by the index of the value."""
  points = {
    values.index(value): _mean_curve(series, sweep.chosen_by).loc[sweep.num_rounds]
    for value, series in series_by_value.items()
  }
  return pd.DataFrame(points).T.sort_index()


def _first_label(series_by_value: dict[Value, Series]) -> str:
  return next(iter(series_by_value.values())).label


# --- names and styles -----------------------------------------------------------------


def file_name(subject: str, setting: str) -> str:
  """'accuracy-beta=0.5', without characters that a file system may refuse."""
  words = [subject, *setting.split(', ')]
  return paths.file_name('-'.join(word for word in words if word))


def styles(settings: Iterable[Setting], charts: Iterable[Chart]) -> dict[str, Style]:
  """A style for every label, which series get in the order of their algorithms.

  Args:
    settings: the settings whose series are drawn.
    charts: every chart of the report.
  """
  by_label = {
    label: style_of(index) for index, label in enumerate(groups.labels(settings))
  }
  for chart in charts:
    if isinstance(chart, LineChart):
      for line in chart.lines:
        if line.style_label:
          by_label[line.label] = by_label[line.style_label]
  return by_label
