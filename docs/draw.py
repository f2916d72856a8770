"""Draws what the kept runs measured: curves, accuracies, differences, t-SNE."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from moon_jax.core import files
from moon_jax.report import figures
from moon_jax.report.charts import Scatter
from moon_jax.runner import plots

# Column, factor, label. The supervised loss is comparable between algorithms; the last
# two columns belong to SA-MOON and DCO-MOON.
PROGRESS = (
  ('test_accuracy', 100.0, 'test accuracy, %'),
  ('train_loss', 1.0, 'training loss, nats'),
  ('supervised_loss', 1.0, 'its supervised part, nats'),
  ('temperature_mean', 1.0, 'temperature, mean of clients'),
  ('p_t', 1.0, 'share of clients that strayed'),
)
# Columns of the contrastive term, and of the clients' drift.
DRIFT = (
  ('contrastive_loss', 1.0, 'contrastive loss, nats'),
  ('positive_cosine', 1.0, 'cosine to the received model'),
  ('negative_cosine', 1.0, 'cosine to the own previous model'),
  ('drift', 1.0, 'drift of a client, L2 norm'),
)
_DPI = 120
_NO_BETA = 0.02  # where a column without a beta stands on the axis of beta

# Title -> its runs, each the lines of metrics.jsonl.
Curves = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
# Measured quantity -> value of the knob, mean, and sample deviation or 0.
Points = Mapping[str, Sequence[tuple[float, float, float]]]


def side_by_side(
  path: pathlib.Path, runs: Curves, digest: str, given: Sequence
) -> None:
  """Draws what the runs recorded against rounds as a PNG: means, lowest to highest.

  Args:
    path: path of the picture.
    runs: title -> its runs, which differ in their seeds and have the same colour.
    digest: digest of what is drawn; `digest_of` reads it from the picture.
    given: the panels, each a column, a factor and a label; a column that no run has is
      left out.
  """
  columns = {name for seeds in runs.values() for name in seeds[0][0] | seeds[0][-1]}
  panels = [panel for panel in given if panel[0] in columns]
  figure = Figure(figsize=(4.4 * len(panels), 4), layout='constrained')
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for panel, (name, factor, label) in zip(axes, panels, strict=True):
    for number, (title, seeds) in enumerate(runs.items()):
      color = plots.PALETTE[number % len(plots.PALETTE)]
      told = [{r['round']: factor * r[name] for r in run if name in r} for run in seeds]
      table = pd.DataFrame(told, dtype=float).sort_index(axis=1)
      x = table.columns.to_numpy(float)
      panel.plot(x, table.mean(), label=title, color=color, linewidth=1.2)
      band = {'color': color, 'alpha': 0.15, 'linewidth': 0}
      panel.fill_between(x, table.min(), table.max(), **band)
    panel.set(xlabel='communication rounds', ylabel=label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    plots.open_frame(panel)
  shown = axes[0].get_legend_handles_labels()
  figure.legend(*shown, loc='outside lower center', ncols=5, frameon=False)
  _save(path, figure, digest)


def over_knob(path: pathlib.Path, points: Points, *, knob: str, digest: str) -> None:
  """Draws accuracies in per cent, with bars of one deviation, over a knob as a PNG."""
  figure = Figure(figsize=(5, 4), layout='constrained')
  panel = figure.subplots()
  for number, (label, given) in enumerate(points.items()):
    x, mean, std = zip(*sorted(given), strict=True)
    look = {'color': plots.PALETTE[number], 'marker': 'o', 'linewidth': 1.2}
    panel.errorbar(x, mean, yerr=std, label=label, capsize=3, **look)
  panel.set(xlabel=knob, ylabel='%')
  panel.legend(frameon=False, fontsize=9)
  plots.open_frame(panel)
  _save(path, figure, digest)


def under_attack(path: pathlib.Path, panels: Mapping[str, Points], digest: str) -> None:
  """Draws accuracies in per cent over the fraction of attackers as a PNG.

  Args:
    path: path of the picture.
    panels: attack -> server rule -> fraction, mean, deviation or 0.
    digest: see `side_by_side`.
  """
  figure = Figure(figsize=(4.4 * len(panels), 4), layout='constrained')
  axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
  for panel, (attack, rules) in zip(axes, panels.items(), strict=True):
    for number, (rule, given) in enumerate(rules.items()):
      x, mean, std = np.transpose(sorted(given))
      look = {'color': plots.PALETTE[number], 'marker': 'os^D'[number % 4]}
      panel.errorbar(100 * x, mean, yerr=std, label=rule, linewidth=1.2, **look)
    panel.set(title=attack.upper(), xlabel='attackers, % of clients')
    plots.open_frame(panel)
  axes[0].set(ylabel='test accuracy, %', ylim=(0, None))
  axes[0].legend(frameon=False, fontsize=9)
  _save(path, figure, digest)


def over_beta(path: pathlib.Path, given: Mapping[str, Sequence], digest: str) -> None:
  """Draws differences in points over the label skew as a PNG: dots, and their means.

  Args:
    path: path of the picture.
    given: title -> (column, its beta or None, differences) for each column.
    digest: see `side_by_side`.
  """
  figure = Figure(figsize=(6.5, 4), layout='constrained')
  panel, ticks = figure.subplots(), {}
  for number, (title, columns) in enumerate(given.items()):
    look, means = {'color': plots.PALETTE[number]}, []
    for column, beta, differences in columns:
      x = beta or _NO_BETA
      ticks[x] = f'{beta:g}' if beta else column
      x *= 1.12 ** (number - (len(given) - 1) / 2)
      beside = 1.03 ** (np.arange(len(differences)) - (len(differences) - 1) / 2)
      panel.plot(x * beside, differences, 'o', **look)
      means += [(x, np.mean(differences))] if differences else []
    panel.plot(*zip(*means, strict=True), '_', markersize=20, label=title, **look)
  panel.axhline(0, color='black', linewidth=0.8)
  panel.set(xscale='log', xlabel='beta', ylabel='difference to FedAvg, points')
  panel.set_xlim(0.7 * min(ticks), 1.4 * max(ticks))
  panel.set_xticks(list(ticks), ticks.values())
  panel.minorticks_off()
  panel.legend(frameon=False, fontsize=9)
  plots.open_frame(panel)
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
