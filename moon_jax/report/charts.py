"""The charts as plain data; `figures` and `interactive` draw them."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from moon_jax.report import groups, naming, traces
from moon_jax.report.groups import Series, Setting
from moon_jax.report.naming import Key, titled
from moon_jax.report.results import BASELINE
from moon_jax.report.runs import Value
from moon_jax.runner.plots import PALETTE

# Algorithms that a sweep is compared with, where they lack the knob.
_REFERENCES = (BASELINE, 'solo', 'centralized')
_LONGEST = 120  # letters of a file's name


# matplotlib's and plotly's names for the same, and how the page shows it.
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


class Style(NamedTuple):
  """Of a line.

  Attributes:
    colour: '#RRGGBB'.
    dash: matplotlib's word, plotly's, SVG's.
    marker: matplotlib's word, plotly's, a letter like it.
  """

  colour: str
  dash: tuple[str, str, str]
  marker: tuple[str, str, str]


def style(index: int) -> Style:
  """The style of the series of an index; 84 differ."""
  return Style(
    PALETTE[index % len(PALETTE)],
    _DASHES[index // len(PALETTE) % len(_DASHES)],
    _MARKERS[index % len(_MARKERS)],
  )


class Line(NamedTuple):
  """One series of a chart.

  Attributes:
    label: of the legend; it decides the style.
    points: `traces.estimates` by round, or place of a sweep's value, from 0.
    like: label of the series whose style it has; None if the label is of a series.
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
  """Lines over rounds, or the values of a knob at equal distances.

  Attributes:
    name: of the file, without its ending.
    title: what is seen.
    x_label: with the unit.
    y_label: with the unit.
    lines: at least one.
    ticks: the values of a sweep; () of numbers.
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
    name, title: as of a LineChart.
    x_label: of the columns, which count from 0 or have names.
    y_label: of the rows, which count from 0 or have names.
    values: [rows, columns].
    unit: of the values.
    rows: names of the rows, no two alike; () if they are numbered.
    columns: names of the columns, as of the rows.
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
  """How a number is spread over clients.

  Attributes:
    name, title, x_label: as of a LineChart.
    groups: label -> [clients] values.
  """

  name: str
  title: str
  x_label: str
  groups: dict[str, np.ndarray]


class Scatter(NamedTuple):
  """Points in the plane, coloured by class.

  Attributes:
    name, title: as of a LineChart.
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
    """Name or number of a class, its points, its style."""
    names = dict(enumerate(self.class_names))
    every = map(int, np.unique(self.classes))
    of = {y: self.points[self.classes == y] for y in every}
    return [(names.get(y, str(y)), points, style(y)) for y, points in of.items()]


Chart = LineChart | Matrix | Spread | Scatter


def of_setting(setting: Setting) -> list[LineChart]:
  """Accuracy, losses, and what else is recorded, against rounds."""
  runs = [run for series in setting.series for run in series.finished.values()]
  drawn, x_label = [], 'communication rounds'
  for name, metric in traces.followed(runs).items():
    # One line for each series of which every finished run has the number.
    lines = [Line(series.label, _curve(series, name)) for series in setting.series]
    if lines := [line for line in lines if len(line.points)]:
      file = file_name(name.removesuffix('_mean'), setting.title)
      title = titled(metric.title, setting.title)
      drawn.append(LineChart(file, title, x_label, metric.unit, lines))
  return drawn


def _curve(series: Series, name: str = traces.ACCURACY) -> pd.DataFrame:
  return traces.curve(traces.column(run, name) for run in series.finished.values())


class Sweep(NamedTuple):
  """How runs of one setting do by a knob, after equally many rounds.

  Attributes:
    knob: the one with several values.
    setting: title of what the runs have in common; '' if there is one setting only.
    lines: label -> value of the knob -> its series.
    levels: label -> series without the knob, for comparison.
    after: rounds.
    by: column of the accuracy that tells which value is best; see `traces.chosen_by`.
  """

  knob: str
  setting: str
  lines: dict[str, dict[Value, Series]]
  levels: dict[str, Series]
  after: int
  by: str

  def accuracy(self, series: Series, name: str) -> float:
    """The mean over runs after these rounds, in [0, 1]; NaN if not all have it."""
    columns = (run.column(name) for run in series.finished.values())
    return traces.curve(columns)['mean'].get(self.after, np.nan)


def sweeps(settings: Sequence[Setting]) -> list[Sweep]:
  """One for each knob that has several values, and for each setting of the others."""
  return [one for knob in groups.swept(settings) for one in _sweeps(knob, settings)]


def _sweeps(knob: str, settings: Sequence[Setting]) -> Iterable[Sweep]:
  by_setting: dict[Key, tuple[dict, dict]] = {}
  for setting in settings:
    lines, levels = by_setting.setdefault(_without(setting.key, knob), ({}, {}))
    for series in setting.series:
      value = dict((*setting.key, *series.key)).get(knob)
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
  values = sorted({value for points in sweep.lines.values() for value in points})
  drawn = []
  for label, points in sweep.lines.items():
    found = {values.index(v): _curve(points[v], sweep.by).loc[after] for v in points}
    table = pd.DataFrame(found).T.sort_index()
    drawn.append(Line(label, table, like=points[min(points)].label))
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
  words = [naming.describe_series(own), f'any {naming.short(knob)}']
  return ', '.join(filter(None, words))


def _without(key: Key, knob: str) -> Key:
  return tuple(item for item in key if item[0] != knob)


def file_name(what: str, setting: str) -> str:
  """'accuracy-beta=0.5', without what a file system may refuse."""
  return safe('-'.join(filter(None, [what, *setting.split(', ')])))


def safe(name: str) -> str:
  """A name that every file system takes; a long one ends with a digest of itself."""
  return naming.cut(re.sub(r'[^\w.=+-]+', '_', name), _LONGEST, '-')


def looks(settings: Iterable[Setting], drawn: Iterable[Chart]) -> dict[str, Style]:
  """A style for every label: of the series in the order of the algorithms.

  Args:
    settings: whose series are drawn.
    drawn: every chart of the report.
  """
  found = {label: style(index) for index, label in enumerate(groups.labels(settings))}
  for chart in drawn:
    if isinstance(chart, LineChart):
      found |= {line.label: found[line.like] for line in chart.lines if line.like}
  return found
