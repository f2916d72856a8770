"""What is drawn? The charts as plain data; `files` and `interactive` draw them."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.report.draw.styles import Style, styles
from moon_jax.report.numbers import groups, naming, statistics, traces
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.naming import Key
from moon_jax.report.numbers.results import BASELINE
from moon_jax.report.numbers.statistics import Estimate
from moon_jax.report.numbers.traces import Trace

# Algorithms that a sweep is compared with, where they lack the knob.
_REFERENCES = (BASELINE, 'solo', 'centralized')
_LONGEST = 120  # letters of a file's name


class Line(NamedTuple):
  """One series of a chart.

  Attributes:
    label: of the legend; it decides the style.
    x: rounds, or the values of a knob.
    points: one for each x; a deviation becomes a band or a bar.
    like: label of the series whose style it has; None if the label is of a series.
  """

  label: str
  x: Sequence[float]
  points: Sequence[Estimate]
  like: str | None = None


class LineChart(NamedTuple):
  """Lines over rounds, or over the values of a knob at equal distances.

  Attributes:
    name: of the file, without its ending.
    title: what is seen.
    x_label: with the unit.
    y_label: with the unit.
    lines: at least one.
    levels: label -> what does not depend on x, drawn as a level.
    is_sweep: whether x is the values of a knob.
  """

  name: str
  title: str
  x_label: str
  y_label: str
  lines: Sequence[Line]
  levels: dict[str, Estimate]
  is_sweep: bool


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
    y_label: with the unit.
    groups: label -> [clients] values.
  """

  name: str
  title: str
  y_label: str
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


Chart = LineChart | Matrix | Spread | Scatter


def of_setting(setting: Setting) -> list[LineChart]:
  """Accuracy, losses, and what else is recorded, against rounds."""
  every = (traces.ACCURACY, *traces.LOSSES, *traces.OTHERS)
  drawn = [over_rounds(setting, trace) for trace in every]
  return [chart for chart in drawn if chart.lines]


def over_rounds(setting: Setting, trace: Trace) -> LineChart:
  """One line for each series of which every finished run has the trace."""
  lines = []
  for series in setting.series:
    mean = statistics.curve([trace.column(run) for run in series.finished.values()])
    if mean.rounds:
      lines.append(Line(series.label, mean.rounds, mean.points))
  return LineChart(
    name=file_name(trace.name, setting.title),
    title=titled(trace.title, setting.title),
    x_label='communication rounds',
    y_label=trace.unit,
    lines=lines,
    levels={},
    is_sweep=False,
  )


def sweeps(settings: Sequence[Setting]) -> list[LineChart]:
  """Accuracy against each knob that has several values, after equally many rounds."""
  knobs = groups.swept(settings)
  return [chart for knob in knobs for chart in _sweep(knob, settings)]


def _sweep(knob: str, settings: Sequence[Setting]) -> Iterable[LineChart]:
  by_setting: dict[Key, tuple[list[Setting], dict, dict]] = {}
  for setting in settings:
    place = _without(setting.key, knob)
    together, lines, levels = by_setting.setdefault(place, ([], {}, {}))
    together.append(setting)
    for series in setting.series:
      value = dict((*setting.key, *series.key)).get(knob)
      if value is not None:
        lines.setdefault(_line_label(series, knob), {})[value] = series
      elif series.algorithm in _REFERENCES:
        levels[series.label] = series
  for key, (together, lines, levels) in by_setting.items():
    lines = {label: points for label, points in lines.items() if len(points) > 1}
    after = _last_common_round(
      [s for points in lines.values() for s in points.values()]
    )
    if after is not None:
      titles = ', '.join(setting.title for setting in together)
      title = titles if together[0].is_numbered else naming.describe(key)
      yield _sweep_chart(knob, title, lines, levels, after)


def _sweep_chart(knob: str, setting: str, lines, levels, after: int) -> LineChart:
  what = f'Accuracy after {after} rounds against {naming.short(knob)}'
  known = {label: _after(series, after) for label, series in levels.items()}
  return LineChart(
    name=file_name(f'sweep-{knob}', setting),
    title=titled(what, setting),
    x_label=knob,
    y_label='test accuracy, %',
    lines=[
      Line(
        label,
        sorted(points),
        [_after(points[x], after) for x in sorted(points)],
        like=points[min(points)].label,
      )
      for label, points in lines.items()
    ],
    levels={label: level for label, level in known.items() if level},
    is_sweep=True,
  )


def _line_label(series: Series, knob: str) -> str:
  own = _without(series.key, knob)
  if own == series.key:
    return series.label
  return ', '.join(
    filter(None, [naming.describe_series(own), f'any {naming.short(knob)}'])
  )


def _last_common_round(every: Sequence[Series]) -> int | None:
  """The last round in which every run was tested; None without a run or a round."""
  tested = [set(traces.ACCURACY.column(r)) for s in every for r in s.finished.values()]
  return max(set.intersection(*tested), default=None) if tested else None


def _after(series: Series, number: int) -> Estimate | None:
  """Accuracy in per cent after so many rounds; None if a run was not tested then."""
  columns = [traces.ACCURACY.column(run) for run in series.finished.values()]
  if not all(number in column for column in columns):
    return None
  return statistics.estimate(column[number] for column in columns)


def _without(key: Key, knob: str) -> Key:
  return tuple(item for item in key if item[0] != knob)


def partition(setting: Setting) -> Matrix | None:
  """Who owns which class, in the first run that says so; None if none does."""
  for series in setting.series:
    for sample, run in series.finished.items():
      counts = run.class_counts()
      if counts is not None and len(counts) > 1:
        seed = naming.describe(sample)
        return Matrix(
          name=file_name('partition', setting.title),
          title=titled('Training examples of each client and class', setting.title)
          + (f' ({seed})' if seed else ''),
          x_label='client',
          y_label='class',
          values=counts.T,
          unit='training examples',
        )
  return None


def file_name(what: str, setting: str) -> str:
  """'accuracy-beta=0.5', without what a file system may refuse."""
  return safe('-'.join(filter(None, [what, *setting.split(', ')])))


def safe(name: str) -> str:
  """A name that every file system takes; a long one ends with a digest of itself."""
  clean = re.sub(r'[^\w.=+-]+', '_', name)
  if len(clean) <= _LONGEST:
    return clean
  return f'{clean[:_LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}'


def titled(what: str, setting: str) -> str:
  """'Test accuracy: beta=0.5'."""
  return f'{what}: {setting}' if setting else what


def looks(settings: Iterable[Setting], drawn: Iterable[Chart]) -> dict[str, Style]:
  """A style for every label: of the series in the order of the algorithms.

  Args:
    settings: whose series are drawn.
    drawn: every chart of the report.
  """
  found = styles(groups.labels(settings))
  for chart in drawn:
    if isinstance(chart, LineChart):
      found |= {line.label: found[line.like] for line in chart.lines if line.like}
  return found
