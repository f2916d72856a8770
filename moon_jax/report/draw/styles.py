"""The colours, dashes and markers that tell series apart."""

from typing import NamedTuple

from moon_jax.runner.plots import PALETTE

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
