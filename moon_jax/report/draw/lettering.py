"""How much room does a text take in a figure?"""

import functools
import textwrap
from collections.abc import Sequence

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

EDGE = 0.1  # inches, free at each side of a figure
_POINTS = 72  # in an inch
_LINE = 1.4  # from line to line, in sizes of the letters


@functools.lru_cache(maxsize=4096)
def width(text: str, size: float) -> float:
  """Inches that one line takes, in matplotlib's own font.

  Args:
    text: without a line break.
    size: of the letters, in points.
  """
  font = FontProperties(size=size)
  points, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
  return points / _POINTS


def widest(lines: Sequence[str], size: float) -> float:
  """Inches that the longest of several lines takes."""
  return max(width(line, size) for line in lines)


def height(num_lines: int, size: float) -> float:
  """Inches that so many lines below each other take."""
  return num_lines * _LINE * size / _POINTS


def wrap(text: str, inches: float, size: float) -> list[str]:
  """The lines of a text, none wider than so many inches.

  Args:
    text: at least one letter; a word that is too long is cut.
    inches: room for several letters.
    size: of the letters, in points.
  """
  letters = len(text)
  while True:
    lines = textwrap.wrap(text, letters, break_on_hyphens=False)
    taken = widest(lines, size)
    if taken <= inches or letters == 1:
      return lines
    letters = max(1, min(letters - 1, int(letters * inches / taken)))
