"""The knobs as a page: of `--help` and of configs/base.py."""

import textwrap

from moon_jax import catalog
from moon_jax.config.validation import choices

_WIDTH = 86


def knob_table() -> str:
  """Every knob: its flag, default, meaning and bound."""
  entries = [
    (f'--config.{name}={knob.default}', f'{knob.meaning}{_bound(knob)}')
    for name, knob in catalog.every_knob().items()
  ]
  start = 2 + max(len(flag) for flag, _ in entries)
  lines = []
  for flag, text in entries:
    first, *rest = textwrap.wrap(text, _WIDTH - start)
    lines += [f'{flag:<{start}}{first}', *(' ' * start + line for line in rest)]
  return '\n'.join(f'  {line}' for line in lines)


def _bound(knob: catalog.Knob) -> str:
  """'; at least 0', or the words that it may be."""
  for bound in knob.bounds[:1]:
    if isinstance(bound, catalog.Bound):
      return f'; {bound.wanted}'
    return f'; one of {", ".join(choices(bound))}'
  return ''
