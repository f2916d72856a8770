"""Configurations: as trees, as mappings of dotted names, and as the page of knobs."""

import textwrap
from collections.abc import Mapping
from typing import Any

import ml_collections

from moon_jax import catalog
from moon_jax.core.flags import flag

# A valid configuration: attributes by group and name; it cannot be changed.
Config = ml_collections.FrozenConfigDict
_WIDTH = 86


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """{'moon': {'mu': 1.0}} -> {'moon.mu': 1.0}; also for a Config."""
  flat = {}
  for key, value in tree.items():
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[f'{prefix}{key}'] = value
  return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
  """{'moon.mu': 1.0} -> {'moon': {'mu': 1.0}}, in the same order."""
  tree = {}
  for name, value in flat.items():
    *groups, key = name.split('.')
    branch = tree
    for group in groups:
      branch = branch.setdefault(group, {})
    branch[key] = value
  return tree


def defaults() -> ml_collections.ConfigDict:
  """A configuration with the default of every knob."""
  values = nest({name: knob.default for name, knob in catalog.every_knob().items()})
  # `validate` reports values of another type.
  return ml_collections.ConfigDict(values, type_safe=False)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
  """The configuration with other values, by dotted name."""
  return Config(nest(flatten(config) | dict(changes)))


def ordered(config: Config) -> dict[str, Any]:
  """The configuration as nested dicts, in the order of `--help`."""
  flat = flatten(config)
  return nest({name: flat[name] for name in catalog.every_knob() if name in flat})


def knob_table() -> str:
  """The page of `--help` and configs/base.py: flag, default, meaning and bound."""
  text_by_flag = {}
  for name, knob in catalog.every_knob().items():
    text = knob.meaning
    if knob.bound:
      text += f'; {knob.bound.requirement}'
    # Not by `flag`: the page shows Python's True, and text without quotes.
    text_by_flag[f'{flag(name)}={knob.default}'] = text
  indent = 2 + max(map(len, text_by_flag))
  lines = []
  for knob_flag, text in text_by_flag.items():
    first, *continued = textwrap.wrap(text, _WIDTH - indent)
    lines.append(f'{knob_flag:<{indent}}{first}')
    lines += [' ' * indent + line for line in continued]
  return '\n'.join(f'  {line}' for line in lines)
