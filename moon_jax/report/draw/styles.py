"""How is a series told from the others? By colour, dashes and markers alike."""

from collections.abc import Iterable
from typing import NamedTuple

# Okabe and Ito 2008: told apart by colour-blind readers; without black and yellow, one
# of which is lost on a dark or a light ground.
PALETTE = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
# matplotlib's and plotly's names for the same.
_DASHES = (('-', 'solid'), ('--', 'dash'), (':', 'dot'), ('-.', 'dashdot'))
_MARKERS = (
  ('o', 'circle'),
  ('s', 'square'),
  ('^', 'triangle-up'),
  ('D', 'diamond'),
  ('v', 'triangle-down'),
  ('X', 'x'),
  ('P', 'cross'),
)


class Style(NamedTuple):
  """Of a line.

  Attributes:
    colour: '#RRGGBB'.
    dash: (matplotlib's word, plotly's word).
    marker: (matplotlib's word, plotly's word).
  """

  colour: str
  dash: tuple[str, str]
  marker: tuple[str, str]


def style(index: int) -> Style:
  """The style of the series of an index; 84 differ."""
  return Style(
    PALETTE[index % len(PALETTE)],
    _DASHES[index // len(PALETTE) % len(_DASHES)],
    _MARKERS[index % len(_MARKERS)],
  )


def styles(labels: Iterable[str]) -> dict[str, Style]:
  """A style for each label, the same in every chart of a report."""
  return {label: style(index) for index, label in enumerate(labels)}
