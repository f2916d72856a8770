"""The pictures of a run.

Drawn with matplotlib's object API: pyplot would keep figures alive and look for a
display.
"""

import pathlib
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito 2008: told apart by colour-blind readers. Later lines are drawn on top.
_LOSSES = {
  'train_loss': ('#000000', '-'),
  'test_loss': ('#009E73', '-'),
  'supervised_loss': ('#0072B2', '--'),
  'contrastive_loss': ('#D55E00', '-'),
}
_OTHER_PART = ('#CC79A7', '-')
_BLUE = '#0072B2'
_MOST_ANNOTATED = 20  # numbers of more clients or classes do not fit


def curves(path: pathlib.Path, rounds: list[dict[str, Any]], title: str) -> None:
  """Draws test accuracy, and the losses, against rounds as a PNG.

  Args:
    path: where to.
    rounds: the lines of metrics.jsonl, at least one with a test.
    title: over both panels.
  """
  figure = Figure(figsize=(10, 4), layout='constrained')
  FigureCanvasAgg(figure)
  figure.suptitle(title, parse_math=False)  # a name may hold $ signs
  accuracy, loss = figure.subplots(1, 2)
  _accuracy(accuracy, [line for line in rounds if 'test_accuracy' in line])
  _losses(loss, rounds)
  for panel in (accuracy, loss):
    panel.set_xlabel('communication rounds')
    panel.set_xlim(0.5, rounds[-1]['round'] + 0.5)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    panel.grid(alpha=0.3)
    panel.spines[['top', 'right']].set_visible(False)
  figure.savefig(path, dpi=150)


def _accuracy(panel, tested):
  steps = [line['round'] for line in tested]
  mean = [line['test_accuracy'] for line in tested]
  panel.plot(steps, mean, color=_BLUE, marker='.')
  if 'test_accuracy_std' in tested[0]:
    spread = [line['test_accuracy_std'] for line in tested]
    low = [m - s for m, s in zip(mean, spread, strict=True)]
    high = [m + s for m, s in zip(mean, spread, strict=True)]
    panel.fill_between(steps, low, high, color=_BLUE, alpha=0.2, linewidth=0)
    panel.set_ylabel('test accuracy, mean and std over clients')
  else:
    panel.set_ylabel('test accuracy')


def _losses(panel, rounds):
  found = {name for line in rounds for name in line if name.endswith('_loss')}
  names = [*(n for n in _LOSSES if n in found), *sorted(found - set(_LOSSES))]
  for name in names:
    colour, style = _LOSSES.get(name, _OTHER_PART)
    points = [(line['round'], line[name]) for line in rounds if name in line]
    label = name.removesuffix('_loss')
    panel.plot(*zip(*points, strict=True), style, color=colour, marker='.', label=label)
  panel.set_ylabel('losses; the parts before weighting')
  panel.set_ylim(bottom=0)
  panel.legend(frameon=False)


def heat_map(path: pathlib.Path, counts: np.ndarray, title: str) -> None:
  """Draws counts [N, Y], a heat map below a bar of each client's total, as a PNG."""
  num_clients, num_classes = counts.shape
  width = float(np.clip(2.2 + 0.52 * num_clients, 5.0, 12.0))
  height = float(np.clip(2.0 + 0.32 * num_classes, 4.0, 9.0))
  figure = Figure(figsize=(width, height), layout='constrained')
  FigureCanvasAgg(figure)
  figure.suptitle(title, parse_math=False)  # a name may hold $ signs
  bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=(1, height - 1.5))
  bars.bar(np.arange(num_clients), counts.sum(1), width=0.8, color='0.55')
  bars.set(ylabel='total')
  bars.spines[['top', 'right']].set_visible(False)
  image = cells.imshow(
    counts.T, cmap='Blues', vmin=0, aspect='auto', interpolation='nearest'
  )
  cells.set(xlabel='client', ylabel='class')
  cells.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
  cells.yaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
  figure.colorbar(image, ax=cells, label='training examples', pad=0.02)
  if num_clients <= _MOST_ANNOTATED:
    bars.bar_label(bars.containers[0], fontsize=8, padding=1)
    bars.margins(y=0.3)
    if num_classes <= _MOST_ANNOTATED:
      _annotate(cells, counts)
  figure.align_ylabels([bars, cells])
  figure.savefig(path, dpi=200)


def _annotate(cells, counts):
  for (client, label), count in np.ndenumerate(counts):
    # The top of the colour map is dark.
    colour = 'white' if count > 0.6 * counts.max() else 'black'
    cells.text(client, label, count, color=colour, fontsize=8, ha='center', va='center')
