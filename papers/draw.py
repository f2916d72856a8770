"""Draws what the kept runs measured: curves, accuracies, differences, t-SNE."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from moon_jax.core import files
from moon_jax.report import figures
from moon_jax.report.charts import Scatter
from moon_jax.runner import plots


class Panel(NamedTuple):
  """A panel of a picture of curves: a column of metrics.jsonl, its unit and label."""

  column: str
  factor: float
  label: str


# The supervised loss is comparable between algorithms; the last two columns belong to
# SA-MOON and DCO-MOON.
PROGRESS = (
  Panel('test_accuracy', 100.0, 'test accuracy, %'),
  Panel('train_loss', 1.0, 'training loss, nats'),
  Panel('supervised_loss', 1.0, 'its supervised part, nats'),
  Panel('temperature_mean', 1.0, 'temperature, mean of clients'),
  Panel('p_t', 1.0, 'share of clients that strayed'),
)
# The contrastive term, and the clients' drift.
DRIFT = (
  Panel('contrastive_loss', 1.0, 'contrastive loss, nats'),
  Panel('positive_cosine', 1.0, 'cosine to the received model'),
  Panel('negative_cosine', 1.0, 'cosine to the own previous model'),
  Panel('drift', 1.0, 'drift of a client, L2 norm'),
)
_DPI = 120
_X_WITHOUT_BETA = 0.02  # where a column without a beta stands on the axis of beta
_SIZE_OF_PANEL = (4.4, 4)  # inches

# Title -> its runs, each the lines of metrics.jsonl.
Curves = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
# Measured quantity -> value of the knob, mean, and sample deviation or 0.
Points = Mapping[str, Sequence[tuple[float, float, float]]]


def side_by_side(
  path: pathlib.Path, runs: Curves, digest: str, *, panels: Sequence[Panel]
) -> None:
  """Draws what the runs recorded against rounds as a PNG: means, lowest to highest.

  Args:
    path: path of the picture.
    runs: title -> its runs, which differ in their seeds and have the same colour.
    digest: digest of what is drawn; `digest_of` reads it from the picture.
    panels: the panels; one whose column no run has is left out.
  """
  columns = {name for seeds in runs.values() for name in seeds[0][0] | seeds[0][-1]}
  drawn_panels = [panel for panel in panels if panel.column in columns]
  figure, axes = _panels(len(drawn_panels))
  for ax, panel in zip(axes, drawn_panels, strict=True):
    for number, (title, seeds) in enumerate(runs.items()):
      color = plots.PALETTE[number % len(plots.PALETTE)]
      _draw_band(ax, panel, title, seeds, color)
    ax.set(xlabel='communication rounds', ylabel=panel.label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    plots.open_frame(ax)
  handles, labels = axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='outside lower center', ncols=5, frameon=False)
  _save(path, figure, digest)


def _draw_band(
  ax: Axes,
  panel: Panel,
  title: str,
  runs: Sequence[Sequence[Mapping[str, Any]]],
  color: str,
) -> None:
  """A line of the mean over runs, in a band from the lowest to the highest."""
  curves = []
  for run in runs:
    lines = [line for line in run if panel.column in line]
    curves.append({line['round']: panel.factor * line[panel.column] for line in lines})
  table = pd.DataFrame(curves, dtype=float).sort_index(axis=1)
  x = table.columns.to_numpy(float)
  ax.plot(x, table.mean(), label=title, color=color, linewidth=1.2)
  ax.fill_between(x, table.min(), table.max(), color=color, alpha=0.15, linewidth=0)


def over_knob(path: pathlib.Path, points: Points, digest: str, *, knob: str) -> None:
  """Draws accuracies in per cent, with bars of one deviation, over a knob as a PNG."""
  figure = Figure(figsize=(5, 4), layout='constrained')
  ax = figure.subplots()
  for number, (label, points_of_label) in enumerate(points.items()):
    x, mean, std = zip(*sorted(points_of_label), strict=True)
    ax.errorbar(
      x,
      mean,
      yerr=std,
      label=label,
      capsize=3,
      color=plots.PALETTE[number],
      marker='o',
      linewidth=1.2,
    )
  ax.set(xlabel=knob, ylabel='%')
  ax.legend(frameon=False, fontsize=9)
  plots.open_frame(ax)
  _save(path, figure, digest)


def under_attack(
  path: pathlib.Path, attacks: Mapping[str, Points], digest: str
) -> None:
  """Draws accuracies in per cent over the fraction of attackers as a PNG.

  Args:
    path: path of the picture.
    attacks: attack -> server rule -> fraction, mean, deviation or 0.
    digest: see `side_by_side`.
  """
  figure, axes = _panels(len(attacks), sharey=True)
  for ax, (attack, points_of_rules) in zip(axes, attacks.items(), strict=True):
    for number, (rule, points) in enumerate(points_of_rules.items()):
      fraction, mean, std = np.transpose(sorted(points))
      ax.errorbar(
        100 * fraction,
        mean,
        yerr=std,
        label=rule,
        linewidth=1.2,
        color=plots.PALETTE[number],
        marker='os^D'[number % 4],
      )
    ax.set(title=attack.upper(), xlabel='attackers, % of clients')
    plots.open_frame(ax)
  axes[0].set(ylabel='test accuracy, %', ylim=(0, None))
  axes[0].legend(frameon=False, fontsize=9)
  _save(path, figure, digest)


def over_beta(path: pathlib.Path, series: Mapping[str, Sequence], digest: str) -> None:
  """Draws differences in points over the label skew as a PNG: dots, and their means.

  Args:
    path: path of the picture.
    series: title -> (column, its beta or None, differences) for each column.
    digest: see `side_by_side`.
  """
  figure = Figure(figsize=(6.5, 4), layout='constrained')
  ax = figure.subplots()
  ticks = {}
  for number, (title, columns) in enumerate(series.items()):
    color = plots.PALETTE[number]
    shift_of_series = 1.12 ** (number - (len(series) - 1) / 2)
    means = {}
    for column, beta, differences in columns:
      tick = beta or _X_WITHOUT_BETA
      ticks[tick] = f'{beta:g}' if beta else column
      x = tick * shift_of_series
      dots = np.arange(len(differences))
      shift_of_dots = 1.03 ** (dots - (len(differences) - 1) / 2)
      ax.plot(x * shift_of_dots, differences, 'o', color=color)
      if differences:
        means[x] = np.mean(differences)
    ax.plot(
      list(means), list(means.values()), '_', markersize=20, label=title, color=color
    )
  ax.axhline(0, color='black', linewidth=0.8)
  ax.set(xscale='log', xlabel='beta', ylabel='difference to FedAvg, points')
  ax.set_xlim(0.7 * min(ticks), 1.4 * max(ticks))
  ax.set_xticks(list(ticks), ticks.values())
  ax.minorticks_off()
  ax.legend(frameon=False, fontsize=9)
  plots.open_frame(ax)
  _save(path, figure, digest)


def representations(
  path: pathlib.Path,
  embedded: np.ndarray,
  classes: np.ndarray,
  names: Sequence[str],
  title: str,
) -> None:
  """Draws test images as a PNG, embedded by t-SNE and coloured by class.

  Args:
    path: the file.
    embedded: [M, 2].
    classes: [M].
    names: names of the classes; () if they are numbered.
    title: title of the picture.
  """
  _save(path, figures.tiled([Scatter('', title, embedded, classes, names)], side=4.0))


def _panels(count: int, sharey: bool = False) -> tuple[Figure, Sequence[Axes]]:
  """A figure, and its axes side by side."""
  width, height = _SIZE_OF_PANEL
  figure = Figure(figsize=(width * count, height), layout='constrained')
  return figure, figure.subplots(1, count, squeeze=False, sharey=sharey)[0]


def _save(path: pathlib.Path, figure: Figure, digest: str = '') -> None:
  with files.replacing(path) as file:
    figure.savefig(file, dpi=_DPI, metadata={'Description': digest})


def digest_of(path: pathlib.Path) -> str:
  """The digest in a picture of several runs; '' without a digest or a picture."""
  try:
    with Image.open(path) as image:
      return image.info.get('Description', '')
  except OSError:  # the file is missing or no picture
    return ''
