"""The charts as plain data; `figures` and `interactive` draw them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from moon_jax.core import paths
from moon_jax.report import groups, naming, statistics, traces
from moon_jax.report.groups import Series, Setting
from moon_jax.report.naming import Key, titled
from moon_jax.report.results import BASELINE
from moon_jax.report.runs import Value
from moon_jax.runner.plots import PALETTE

# Algorithms without the knob of a sweep that are drawn beside it, for comparison.
_REFERENCES = (BASELINE, 'solo', 'centralized')


# matplotlib's and plotly's names for the same style, and the style on the page.
_DASHES = (
  ('-', 'solid', 'none'),
  ('--', 'dash', '8 4'),
  (':', 'dot', '2 3'),
  ('-.', 'dashdot', '8 3 2 3'),
)
_MARKERS = (
  ('o', 'circle', '●'),
  ('s', 'square', '■'),
  ('^', 'triangle-up', '▲'),
  ('D', 'diamond', '◆'),
  ('v', 'triangle-down', '▼'),
  ('X', 'x', '✖'),
  ('P', 'cross', '✚'),
)
# Colours of classes; matplotlib calls them tab10.
_CLASSES = (
  *('#1F77B4', '#FF7F0E', '#2CA02C', '#D62728', '#9467BD'),
  *('#8C564B', '#E377C2', '#7F7F7F', '#BCBD22', '#17BECF'),
)


class Style(NamedTuple):
  """The style of a line.

  Attributes:
    colour: '#RRGGBB'.
    dash: matplotlib's word, plotly's, SVG's.
    marker: matplotlib's word, plotly's, a letter like it.
  """

  colour: str
  dash: tuple[str, str, str]
  marker: tuple[str, str, str]


def style(index: int) -> Style:
  """The style of the series with an index; 84 styles differ."""
  return Style(
    PALETTE[index % len(PALETTE)],
    _DASHES[index // len(PALETTE) % len(_DASHES)],
    _MARKERS[index % len(_MARKERS)],
  )


class Line(NamedTuple):
  """One series of a chart.

  Attributes:
    label: label in the legend; it decides the style.
    points: `statistics.estimates` by round, or by the place of a sweep's value, from 0.
    like: label of the series whose style it has; None if the label is that of a series.
  """

  label: str
  points: pd.DataFrame
  like: str | None = None

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
  """

  name: str
  title: str
  x_label: str
  groups: dict[str, np.ndarray]


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

  def by_class(self) -> list[tuple[str, np.ndarray, Style]]:
    """Name or number of each class, its points, its style."""
    names = dict(enumerate(self.class_names))
    every = map(int, np.unique(self.classes))
    of = {y: self.points[self.classes == y] for y in every}
    looks = {y: style(y)._replace(colour=_CLASSES[y % len(_CLASSES)]) for y in of}
    return [(names.get(y, str(y)), points, looks[y]) for y, points in of.items()]


Chart = LineChart | Matrix | Spread | Scatter


def of_setting(setting: Setting) -> list[LineChart]:
  """Charts of accuracy, losses, and what else is recorded, against rounds."""
  runs = [run for series in setting.series for run in series.finished.values()]
  drawn, x_label = [], 'communication rounds'
  for name, metric in traces.followed(runs).items():
    # One line for each series whose finished runs all have the number.
    lines = [Line(series.label, _curve(series, name)) for series in setting.series]
    if lines := [line for line in lines if len(line.points)]:
      file = file_name(name.removesuffix('_mean'), setting.title)
      title = titled(metric.title, setting.title)
      drawn.append(LineChart(file, title, x_label, metric.unit, lines))
  return drawn


def _curve(series: Series, name: str = traces.ACCURACY) -> pd.DataFrame:
  runs = series.finished.values()
  return statistics.mean_curve(traces.column(run, name) for run in runs)


class Sweep(NamedTuple):
  """The results of the runs of one setting by a knob, after equally many rounds.

  Attributes:
    knob: the knob that has several values.
    setting: title of what the runs have in common; '' if there is one setting only.
    lines: label -> value of the knob -> its series.
    levels: label -> series without the knob, for comparison.
    after: number of rounds.
    by: column of the accuracy by which the best value is chosen; see
      `traces.chosen_by`.
  """

  knob: str
  setting: str
  lines: dict[str, dict[Value, Series]]
  levels: dict[str, Series]
  after: int
  by: str

  def accuracy(self, series: Series, name: str) -> float:
    """The mean over runs after these rounds, in [0, 1]; NaN if a run lacks it."""
    columns = (run.column(name) for run in series.finished.values())
    return statistics.mean_curve(columns)['mean'].get(self.after, np.nan)


def sweeps(settings: Sequence[Setting]) -> list[Sweep]:
  """A sweep for each knob with several values, and for each setting of the others."""
  return [one for knob in groups.swept(settings) for one in _sweeps(knob, settings)]


def _sweeps(knob: str, settings: Sequence[Setting]) -> Iterable[Sweep]:
  by_setting: dict[Key, tuple[dict, dict]] = {}
  for setting in settings:
    lines, levels = by_setting.setdefault(_without(setting.key, knob), ({}, {}))
    for series in setting.series:
      value = series.runs[0].identity.get(knob)
      if value is not None:
        lines.setdefault(_line_label(series, knob), {})[value] = series
      elif series.algorithm in _REFERENCES:
        levels[series.label] = series
  for key, (lines, levels) in by_setting.items():
    lines = {label: points for label, points in lines.items() if len(points) > 1}
    drawn = [series for points in lines.values() for series in points.values()]
    by = traces.chosen_by(run for one in drawn for run in one.finished.values())
    tested = [set(_curve(series, by).index) for series in drawn]
    if common := set.intersection(*tested) if tested else None:
      yield Sweep(knob, naming.describe(key), lines, levels, max(common), by)


def of_sweep(sweep: Sweep) -> LineChart:
  """Accuracy against the knob."""
  knob, after = sweep.knob, sweep.after
  what = f'Accuracy after {after} rounds against {naming.short(knob)}'
  every = (value for points in sweep.lines.values() for value in points)
  values = groups.in_order(knob, every)
  drawn = []
  for label, points in sweep.lines.items():
    found = {values.index(v): _curve(points[v], sweep.by).loc[after] for v in points}
    table = pd.DataFrame(found).T.sort_index()
    drawn.append(Line(label, table, like=next(iter(points.values())).label))
  for label, series in sweep.levels.items():
    level = _curve(series, sweep.by).reindex([after] * len(values))
    if len(level := level.dropna(subset='mean')):
      drawn.append(Line(label, level.reset_index(drop=True)))
  return LineChart(
    name=file_name(f'sweep-{knob}', sweep.setting),
    title=titled(what, sweep.setting),
    x_label=knob,
    y_label=traces.GENERAL[sweep.by].unit,
    lines=drawn,
    ticks=[naming.word(value) for value in values],
  )


def _line_label(series: Series, knob: str) -> str:
  own = _without(series.key, knob)
  if own == series.key:
    return series.label
  told = naming.describe_series(own, series.runs[0].identity)
  words = [told, f'any {naming.short(knob)}']
  return ', '.join(filter(None, words))


def _without(key: Key, knob: str) -> Key:
  return tuple(item for item in key if item[0] != knob)


def file_name(what: str, setting: str) -> str:
  """'accuracy-beta=0.5', without characters that a file system may refuse."""
  return paths.file_name('-'.join(filter(None, [what, *setting.split(', ')])))


def looks(settings: Iterable[Setting], drawn: Iterable[Chart]) -> dict[str, Style]:
  """A style for every label, which series get in the order of their algorithms.

  Args:
    settings: the settings whose series are drawn.
    drawn: every chart of the report.
  """
  found = {label: style(index) for index, label in enumerate(groups.labels(settings))}
  for chart in drawn:
    if isinstance(chart, LineChart):
      found |= {line.label: found[line.like] for line in chart.lines if line.like}
  return found
