"""Draws the runs of a table side by side."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from moon_jax.runner import files, plots

# Column, factor, label; the supervised loss is comparable between algorithms.
_PANELS = (
  ('test_accuracy', 100.0, 'test accuracy, %'),
  ('train_loss', 1.0, 'training loss, nats'),
  ('supervised_loss', 1.0, 'its supervised part, nats'),
)


def side_by_side(
  path: pathlib.Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], digest: str
) -> None:
  """Draws accuracy, training loss and supervised loss against rounds as a PNG.

  Args:
    path: where to.
    runs: title -> the lines of metrics.jsonl.
    digest: of what is drawn; `digest_of` reads it from the picture.
  """
  figure = Figure(figsize=(13, 4), layout='constrained')
  for panel, (name, factor, label) in zip(
    figure.subplots(1, len(_PANELS)), _PANELS, strict=True
  ):
    panel.set_prop_cycle(color=plots.PALETTE)
    for title, rounds in runs.items():
      points = [(line['round'], factor * line[name]) for line in rounds if name in line]
      panel.plot(*zip(*points, strict=True), label=title, linewidth=1.2)
    panel.set(xlabel='communication rounds', ylabel=label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    plots.open_frame(panel)
  figure.axes[0].legend(frameon=False, fontsize=9)
  with files.replacing(path) as file:
    figure.savefig(file, dpi=120, metadata={'Description': digest})


def digest_of(path: pathlib.Path) -> str:
  """What a picture of `side_by_side` was drawn from; '' if there is none."""
  if not path.exists():
    return ''
  with Image.open(path) as image:
    return image.info.get('Description', '')
