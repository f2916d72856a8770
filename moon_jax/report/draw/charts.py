"""The charts as plain data; `figures` and `interactive` draw them."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.report.draw.styles import Style, style
from moon_jax.report.numbers import groups, naming, statistics, traces
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.naming import Key, titled
from moon_jax.report.numbers.results import BASELINE
from moon_jax.report.numbers.statistics import Estimate
from moon_jax.runner import plots

# Algorithms that a sweep is compared with, where they lack the knob.
_REFERENCES = (BASELINE, 'solo', 'centralized')
_LONGEST = 120  # letters of a file's name


class Line(NamedTuple):
  """One series of a chart.

  Attributes:
    label: of the legend; it decides the style.
    points: round, number of examples, or place of a sweep's value, from 0 -> what is
      there.
    like: label of the series whose style it has; None if the label is of a series.
  """

  label: str
  points: Mapping[int, Estimate]
  like: str | None = None

  @property
  def band(self) -> np.ndarray:
    """[3, points] mean - deviation, mean, mean + deviation."""
    mean = np.array([point.mean for point in self.points.values()])
    std = np.array([point.std or 0.0 for point in self.points.values()])
    return np.stack([mean - std, mean, mean + std])


class LineChart(NamedTuple):
  """Lines over rounds, examples, or the values of a knob at equal distances.

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
    name: of the file, without its ending.
    title: what is seen.
    x_label: of the columns, which count from 0.
    y_label: of the rows, which count from 0.
    values: [rows, columns].
    unit: of the values.
  """

  name: str
  title: str
  x_label: str
  y_label: str
  values: np.ndarray
  unit: str


class Spread(NamedTuple):
  """How a number is spread over clients.

  Attributes:
    name: of the file, without its ending.
    title: what is seen.
    x_label: with the unit.
    groups: label -> [clients] values.
  """

  name: str
  title: str
  x_label: str
  groups: dict[str, np.ndarray]


class Scatter(NamedTuple):
  """Points in the plane, coloured by class.

  Attributes:
    name: of the file, without its ending.
    title: what is seen.
    points: [M, 2].
    classes: [M].
  """

  name: str
  title: str
  points: np.ndarray
  classes: np.ndarray

  def by_class(self) -> list[tuple[int, np.ndarray, Style]]:
    """Class, its points, its style."""
    found = [int(label) for label in np.unique(self.classes)]
    return [(y, self.points[self.classes == y], style(y)) for y in found]


Chart = LineChart | Matrix | Spread | Scatter


def of_setting(setting: Setting) -> list[LineChart]:
  """Accuracy, losses, and what else is recorded, against rounds."""
  runs = [run for series in setting.series for run in series.finished.values()]
  drawn = [
    LineChart(
      name=file_name(name.removesuffix('_mean'), setting.title),
      title=titled(metric.title, setting.title),
      x_label='communication rounds',
      y_label=metric.unit,
      lines=_over_rounds(setting, name),
    )
    for name, metric in traces.followed(runs).items()
  ]
  return [chart for chart in drawn if chart.lines]


def _over_rounds(setting: Setting, name: str) -> list[Line]:
  """One line for each series of which every finished run has the number."""
  lines = [Line(series.label, _curve(series, name)) for series in setting.series]
  return [line for line in lines if line.points]


def _curve(series: Series, name: str = traces.ACCURACY) -> dict[int, Estimate]:
  runs = series.finished.values()
  return statistics.curve([traces.column(run, name) for run in runs])


def sweeps(settings: Sequence[Setting]) -> list[LineChart]:
  """Accuracy against each knob that has several values, after equally many rounds."""
  knobs = groups.swept(settings)
  return [chart for knob in knobs for chart in _sweep(knob, settings)]


def _sweep(knob: str, settings: Sequence[Setting]) -> Iterable[LineChart]:
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
    tested = [set(_curve(series)) for series in drawn]
    if common := set.intersection(*tested) if tested else None:
      yield _sweep_chart(knob, naming.describe(key), lines, levels, max(common))


def _sweep_chart(knob: str, setting: str, lines, levels, after: int) -> LineChart:
  what = f'Accuracy after {after} rounds against {naming.short(knob)}'
  values = sorted({value for points in lines.values() for value in points})
  drawn = [
    Line(
      label,
      {values.index(value): _curve(points[value])[after] for value in sorted(points)},
      like=points[min(points)].label,
    )
    for label, points in lines.items()
  ]
  for label, series in levels.items():
    if level := _curve(series).get(after):
      drawn.append(Line(label, dict.fromkeys(range(len(values)), level)))
  return LineChart(
    name=file_name(f'sweep-{knob}', setting),
    title=titled(what, setting),
    x_label=knob,
    y_label='test accuracy, %',
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


def partition(setting: Setting) -> list[Matrix | LineChart]:
  """Who owns which class, in the first run that says so; nothing if none does."""
  for series in setting.series:
    for sample, run in series.finished.items():
      counts = run.class_counts()
      if counts is not None and len(counts) > 1:
        seed = naming.describe(sample)
        owned = _owned(counts, setting.title, f' ({seed})' if seed else '')
        return [owned, *_sizes(counts.sum(1), series.label, setting.title)]
  return []


def _owned(counts: np.ndarray, setting: str, sample: str) -> Matrix:
  return Matrix(
    name=file_name('partition', setting),
    title=titled('Training examples of each client and class', setting) + sample,
    x_label=plots.name_of_columns(len(counts)),
    y_label='class',
    values=counts[plots.shown(counts.sum(1))].T,
    unit='training examples',
  )


def _sizes(totals: np.ndarray, label: str, setting: str) -> list[LineChart]:
  """How many clients own how much, where there are too many to be shown each."""
  if len(totals) <= plots.MOST_CLIENTS:
    return []
  first, clients, width = plots.distribution(totals)
  middle = first + (width - 1) // 2
  # From nobody to nobody: the line encloses all clients, as a histogram does.
  ends = {max(int(middle[0]) - width, 0): 0, int(middle[-1]) + width: 0}
  found = ends | dict(zip(middle.tolist(), clients.tolist(), strict=True))
  return [
    LineChart(
      name=file_name('sizes', setting),
      title=titled('Clients by their training examples', setting),
      x_label='training examples',
      y_label='clients',
      lines=[Line(label, {x: Estimate(found[x], None, 1) for x in sorted(found)})],
    )
  ]


def file_name(what: str, setting: str) -> str:
  """'accuracy-beta=0.5', without what a file system may refuse."""
  return safe('-'.join(filter(None, [what, *setting.split(', ')])))


def safe(name: str) -> str:
  """A name that every file system takes; a long one ends with a digest of itself."""
  clean = re.sub(r'[^\w.=+-]+', '_', name)
  if len(clean) <= _LONGEST:
    return clean
  return f'{clean[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}'


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
