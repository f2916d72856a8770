"""How is a legend laid out, so that the plot above it stays readable?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from moon_jax.report.draw import lettering

_SIZE = 9  # of the letters, in points
_EM = _SIZE / 72  # inches
_TALL = 1.6  # inches


class Layout(NamedTuple):
  """A legend, and the figure that is wide enough for it.

  Attributes:
    width: of the figure, in inches.
    height: of the legend, in inches.
    columns: of the legend.
    labels: name -> the same in lines.
  """

  width: float
  height: float
  columns: int
  labels: dict[str, str]


def fit(names: Sequence[str], widths: Sequence[float]) -> Layout:
  """The legend in the narrowest figure where it is not tall; else in the widest.

  Args:
    names: at least one.
    widths: of figures, in inches, rising; at least one.
  """
  fitted = [_in(width, names) for width in widths]
  return next((one for one in fitted if one.height <= _TALL), fitted[-1])


def draw(figure: Figure, panel, layout: Layout) -> None:
  """Draws it below the plot, where it hides no line."""
  handles, names = panel.get_legend_handles_labels()
  by_name = dict(zip(names, handles, strict=True))  # matplotlib has its own order
  legend = figure.legend(
    [by_name[name] for name in layout.labels],
    list(layout.labels.values()),
    loc='outside lower center',
    ncols=layout.columns,
    frameon=False,
    fontsize=_SIZE,
  )
  for text in legend.get_texts():
    text.set_parse_math(False)  # a name may hold $ signs


def _in(width: float, names: Sequence[str]) -> Layout:
  """Each name in one line if that is not tall; else the least tall, no word cut."""
  word = max(lettering.width(word, _SIZE) for name in names for word in name.split())
  fitted = [_with_columns(1, width, names)]
  for columns in range(2, len(names) + 1):
    if _room(columns, width) >= word:
      fitted.append(_with_columns(columns, width, names))
  whole = [one for one in fitted if list(one.labels.values()) == list(one.labels)]
  if whole and whole[-1].height <= _TALL:
    return whole[-1]
  return min(fitted, key=lambda one: one.height)


def _room(columns: int, width: float) -> float:
  """Inches for a name, without the line at its left and the next column's distance."""
  return (width - 2 * lettering.EDGE) / columns - 5 * _EM


def _with_columns(columns: int, width: float, names: Sequence[str]) -> Layout:
  texts = [lettering.wrap(name, _room(columns, width), _SIZE) for name in names]
  heights = [lettering.height(len(lines), _SIZE) + 0.5 * _EM for lines in texts]
  # matplotlib fills column by column.
  tallest = max(part.sum() for part in np.array_split(heights, columns))
  labels = ['\n'.join(lines) for lines in texts]
  return Layout(width, tallest, columns, dict(zip(names, labels, strict=True)))
