"""Saves figures whose texts have letters that matplotlib's own font lacks.

Names of classes and clients may be Chinese or Hindi, or have emoji. matplotlib warns of
each such letter. Here the installed fonts that have them are used, and one line names
the letters that none has, which are drawn as boxes.
"""

import contextlib
import functools
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

_MISSING = re.compile(
  r'Glyph (\d+) .*missing from|Matplotlib currently does not support'
)
_BOXES = 'Last Resort'  # a font of boxes, which comes with matplotlib
_MOST_NAMED = 5  # letters in the line


def saved(figure: Figure, write: Callable[[], None]) -> None:
  """Saves a figure with fonts that have its letters, if such fonts are installed.

  Args:
    figure: the figure.
    write: saves it; called again, to replace the file, if other fonts are needed.
  """
  with _quiet_search():
    missing = _missing_letters(write)
    if not missing:
      return
    families = _families_with(frozenset(missing))
    if families:
      for text in figure.findobj(Text):
        text.set_fontfamily([*text.get_fontfamily(), *families])
      missing = _missing_letters(write)
  if missing:
    _NOTICE.say(''.join(sorted(missing)))


@contextlib.contextmanager
def _quiet_search() -> Iterator[None]:
  """Inside, matplotlib logs no line about a font that lacks a weight or a width."""
  log = logging.getLogger('matplotlib.font_manager')
  level = log.level
  log.setLevel(logging.ERROR)
  try:
    yield
  finally:
    log.setLevel(level)


def _missing_letters(write: Callable[[], None]) -> set[str]:
  """Calls `write`; returns the letters that its fonts lack. Other warnings stay."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    write()
  missing = set()
  for warning in caught:
    match = _MISSING.match(str(warning.message))
    if match is None:
      warnings.warn_explicit(
        warning.message, warning.category, warning.filename, warning.lineno
      )
    elif match[1]:
      missing.add(chr(int(match[1])))
  return missing


@functools.cache
def _families_with(letters: frozenset[str]) -> tuple[str, ...]:
  """Few families of installed fonts that together have as many letters as possible."""
  wanted = set(map(ord, letters))
  families = []
  letters_of_family = _letters_of_families(letters)
  while letters_of_family:
    numbers = {name: len(wanted & has) for name, has in letters_of_family.items()}
    family = max(numbers, key=numbers.get)
    if not numbers[family]:
      break
    families.append(family)
    wanted -= letters_of_family[family]
  return tuple(families)


def _letters_of_families(letters: frozenset[str]) -> dict[str, set[int]]:
  """Family of an installed font -> which of the letters it has."""
  codes = set(map(ord, letters))
  letters_of_family = {}
  for entry in font_manager.fontManager.ttflist:
    if entry.name in letters_of_family or entry.name.startswith(_BOXES):
      continue
    try:
      font = font_manager.get_font(entry.fname)
      # A font of pictures, as of coloured emoji, cannot be drawn.
      has = codes & font.get_charmap().keys() if font.scalable else set()
    except (OSError, RuntimeError, ValueError):
      has = set()  # the file is gone or damaged
    letters_of_family[entry.name] = has
  return letters_of_family


class _Notice:
  """A line that a process prints once, because many pictures have the same names."""

  is_said = False

  def say(self, letters: str) -> None:
    """Names the first of some letters."""
    if self.is_said:
      return
    self.is_said = True
    named = ', '.join(map(_named, letters[:_MOST_NAMED]))
    more = ', ...' if len(letters) > _MOST_NAMED else ''
    print(
      'Pictures have boxes in place of letters that no installed font has, such as '
      f'{named}{more}; install a font that has them (on Debian: '
      'apt install fonts-noto-cjk fonts-noto-core).',
      file=sys.stderr,
    )


_NOTICE = _Notice()


def _named(letter: str) -> str:
  code = f'U+{ord(letter):04X}'
  return f'{letter} ({code})' if letter.isprintable() else code
