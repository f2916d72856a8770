"""Draws what the kept runs measured: curves, differences to FedAvg, skew, attacks.

An algorithm has one colour and one style of line in every picture (`STYLES`).
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from moon_jax.core import files
from moon_jax.runner import plots
from papers.differences import Comparison


class Style(NamedTuple):
  """How an algorithm, or a rule of the server, is drawn."""

  color: str
  line: str
  marker: str


STYLES = {
  'fedavg': Style('#000000', '-', 'o'),
  'moon': Style('#D55E00', '--', 's'),
  'mu_1': Style('#E69F00', (0, (1, 1)), 'v'),
  'fedprox': Style('#009E73', '-.', '^'),
  'scaffold': Style('#0072B2', ':', 'D'),
  'solo': Style('#7F7F7F', (0, (5, 1)), 'x'),
  'dco_moon': Style('#CC79A7', (0, (3, 1, 1, 1)), 'P'),
  'median': Style('#56B4E9', '--', 's'),
  'trimmed_mean': Style('#882255', '-.', '^'),
  'krum': Style('#999933', ':', 'D'),
}


class Panel(NamedTuple):
  """A panel of a picture of curves: a column of metrics.jsonl, its unit and label."""

  column: str
  factor: float
  label: str


# The supervised loss is comparable between algorithms; the last column is DCO-MOON's.
PROGRESS = (
  Panel('test_accuracy', 100.0, 'test accuracy, %'),
  Panel('train_loss', 1.0, 'training loss, nats'),
  Panel('supervised_loss', 1.0, 'its supervised part, nats'),
  Panel('p_t', 1.0, 'share of clients that strayed'),
)
_DPI = 120
_SIZE_OF_PANEL = (4.4, 4)  # inches


class Curves(NamedTuple):
  """The runs of one algorithm, which differ in their seeds.

  Attributes:
    title: name in the legend.
    style: name of the style.
    runs: the lines of metrics.jsonl of each run.
  """

  title: str
  style: str
  runs: Sequence[Sequence[Mapping[str, Any]]]


def side_by_side(path: pathlib.Path, curves: Sequence[Curves], digest: str) -> None:
  """Draws what the runs recorded against rounds as a PNG: means, lowest to highest.

  Args:
    path: path of the picture.
    curves: the algorithms.
    digest: digest of what is drawn; `digest_of` reads it from the picture.
  """
  columns = {name for curve in curves for name in curve.runs[0][0] | curve.runs[0][-1]}
  drawn_panels = [panel for panel in PROGRESS if panel.column in columns]
  figure, axes = _panels(len(drawn_panels))
  for ax, panel in zip(axes, drawn_panels, strict=True):
    for curve in curves:
      _draw_band(ax, panel, curve)
    ax.set(xlabel='communication rounds', ylabel=panel.label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    plots.open_frame(ax)
  handles, labels = axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='outside lower center', ncols=3, frameon=False)
  _save(path, figure, digest)


def _draw_band(ax: Axes, panel: Panel, curves: Curves) -> None:
  """A line of the mean over runs, in a band from the lowest to the highest."""
  columns = []
  for run in curves.runs:
    lines = [line for line in run if panel.column in line]
    columns.append({line['round']: panel.factor * line[panel.column] for line in lines})
  table = pd.DataFrame(columns, dtype=float).sort_index(axis=1)
  x = table.columns.to_numpy(float)
  style = STYLES[curves.style]
  ax.plot(
    x,
    table.mean(),
    label=curves.title,
    color=style.color,
    linestyle=style.line,
    linewidth=1.4,
  )
  lowest, highest = table.min(), table.max()
  ax.fill_between(x, lowest, highest, color=style.color, alpha=0.12, linewidth=0)


class Differences(NamedTuple):
  """An algorithm's differences to FedAvg: a panel of `forest`.

  Attributes:
    title: name of the algorithm.
    style: name of its style.
    by_row: name of a row -> the comparison there.
    pooled_half_widths: name of a row -> half its interval by the pooled deviation.
    reported: name of a row -> the paper's difference.
    notes: name of a row -> words in place of a mean.
  """

  title: str
  style: str
  by_row: Mapping[str, Comparison]
  pooled_half_widths: Mapping[str, float]
  reported: Mapping[str, float]
  notes: Mapping[str, str]


def forest(path: pathlib.Path, panels: Sequence[Differences], digest: str) -> None:
  """Draws differences to FedAvg in points as a PNG: a panel for each algorithm.

  A row has a dot for each seed, the mean with its 95 % interval, that by the pooled
  deviation as a pale band, and the paper's difference as an open diamond. Intervals
  that leave the panel have arrowheads.

  Args:
    path: path of the picture.
    panels: the algorithms; all have the same rows.
    digest: see `side_by_side`.
  """
  width = 3.1
  figure = Figure(figsize=(width * len(panels) + 0.8, 4.2), layout='constrained')
  axes = figure.subplots(1, len(panels), squeeze=False, sharey=True, sharex=True)[0]
  names = [*panels[0].by_row]
  limits = (-8.5, 10.5)
  for ax, panel in zip(axes, panels, strict=True):
    style = STYLES[panel.style]
    ax.axvline(0, color='black', linewidth=0.8)
    for height, name in enumerate(reversed(names)):
      _draw_row(ax, panel, name, height, limits)
    ax.set(title=panel.title, xlim=limits, xlabel='minus FedAvg, points')
    ax.title.set_color(style.color)
    ax.grid(axis='x', color='#DDDDDD', linewidth=0.6)
    ax.set_axisbelow(True)
    plots.open_frame(ax)
  axes[0].set_yticks(range(len(names)), reversed(names))
  axes[0].set_ylim(-0.6, len(names) - 0.4)
  _save(path, figure, digest)


def _draw_row(
  ax: Axes, panel: Differences, name: str, height: int, limits: tuple[float, float]
) -> None:
  style = STYLES[panel.style]
  comparison = panel.by_row[name]
  dots = comparison.differences
  ax.plot(
    dots,
    [height + 0.18] * len(dots),
    marker='o',
    linestyle='none',
    markersize=4,
    color=style.color,
    alpha=0.55,
  )
  if name in panel.notes:
    ax.text(10, height - 0.28, panel.notes[name], ha='right', fontsize=8)
  elif comparison.count > 1:
    low, high = comparison.low, comparison.high
    half_width = panel.pooled_half_widths[name]
    ax.plot(
      [comparison.mean - half_width, comparison.mean + half_width],
      [height - 0.12] * 2,
      color=style.color,
      linewidth=9,
      alpha=0.22,
      solid_capstyle='butt',
    )
    ax.plot(
      [max(low, limits[0]), min(high, limits[1])],
      [height - 0.12] * 2,
      color=style.color,
      linestyle=style.line,
      linewidth=1.8,
    )
    ends = [(low, limits[0], '<'), (high, limits[1], '>')]
    marks = [(comparison.mean, '|', 12)]
    for end, limit, arrow in ends:
      marks.append((limit, arrow, 6) if abs(end) > abs(limit) else (end, '|', 6))
    for x, marker, size in marks:
      ax.plot(
        x,
        height - 0.12,
        marker,
        markersize=size,
        markeredgewidth=2,
        color=style.color,
        clip_on=False,
      )
  if name in panel.reported:
    ax.plot(
      panel.reported[name],
      height - 0.12,
      marker='D',
      markersize=8,
      markerfacecolor='white',
      markeredgecolor='black',
    )


class Points(NamedTuple):
  """Points of one algorithm, or of one rule: (x, accuracy in per cent)."""

  title: str
  style: str
  points: Sequence[tuple[float, float]]


def scattered(path: pathlib.Path, series: Sequence[Points], digest: str) -> None:
  """Draws accuracies over the effective classes of a client as a PNG."""
  figure = Figure(figsize=(6, 4), layout='constrained')
  ax = figure.subplots()
  for points in series:
    style = STYLES[points.style]
    ax.plot(
      [num_classes for num_classes, _ in points.points],
      [accuracy for _, accuracy in points.points],
      marker=style.marker,
      linestyle='none',
      markersize=5,
      label=points.title,
      color=style.color,
      alpha=0.7,
    )
  ax.set(xlabel='effective classes of a client, mean', ylabel='test accuracy, %')
  ax.legend(frameon=False, fontsize=9)
  plots.open_frame(ax)
  _save(path, figure, digest)


def under_attack(
  path: pathlib.Path, attacks: Mapping[str, Sequence[Points]], digest: str
) -> None:
  """Draws accuracies over the fraction of attackers as a PNG.

  Args:
    path: path of the picture.
    attacks: attack -> the server's rules, whose x is the fraction of attackers.
    digest: see `side_by_side`.
  """
  figure, axes = _panels(len(attacks), sharey=True)
  for ax, (attack, rules) in zip(axes, attacks.items(), strict=True):
    for rule in rules:
      style = STYLES[rule.style]
      points = sorted(rule.points)
      ax.plot(
        [100 * fraction for fraction, _ in points],
        [accuracy for _, accuracy in points],
        label=rule.title,
        linewidth=1.4,
        color=style.color,
        linestyle=style.line,
        marker=style.marker,
      )
    ax.set(title=attack.upper(), xlabel='attackers, % of clients')
    plots.open_frame(ax)
  axes[0].set(ylabel='test accuracy, %', ylim=(0, None))
  axes[0].legend(frameon=False, fontsize=9)
  _save(path, figure, digest)


def _panels(count: int, sharey: bool = False) -> tuple[Figure, Sequence[Axes]]:
  """A figure, and its axes side by side."""
  width, height = _SIZE_OF_PANEL
  figure = Figure(figsize=(width * count, height), layout='constrained')
  return figure, figure.subplots(1, count, squeeze=False, sharey=sharey)[0]


def _save(path: pathlib.Path, figure: Figure, digest: str) -> None:
  with files.replacing(path) as file:
    figure.savefig(file, dpi=_DPI, metadata={'Description': digest})


def digest_of(path: pathlib.Path) -> str:
  """The digest in a picture; '' without a digest or a picture."""
  try:
    with Image.open(path) as image:
      return image.info.get('Description', '')
  except OSError:  # the file is missing or no picture
    return ''
