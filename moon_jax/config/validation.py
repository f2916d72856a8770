"""The one check of a configuration: every mistake is told at once."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from moon_jax import catalog
from moon_jax.catalog import used
from moon_jax.config.messages import ConfigError, problem, unknown_knob
from moon_jax.config.rules import conflicts
from moon_jax.config.trees import Config, flatten, nest
from moon_jax.errors import did_you_mean

# As README.md writes them, and as Python and --help do.
_BOOLS = {'true': True, 'false': False, 'True': True, 'False': False}

_WANTED = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  str: 'a word',
}


def from_word(name: str, word: str) -> Any:
  """The command line's word as the knob's type, or unchanged if it does not fit."""
  kind = catalog.every_knob()[name].kind
  if kind is bool:
    return _BOOLS.get(word, word)
  try:
    return kind(word)
  except ValueError:
    return word  # `validate` says what is wanted instead


def convert(name: str, value: Any) -> Any:
  """Checks one value against its knob's type and bounds.

  Raises:
    ConfigError: with the one line that says what is wanted.
  """
  knob = catalog.every_knob()[name]
  if hasattr(value, 'item') and not getattr(value, 'shape', None):
    value = value.item()  # numpy's numbers, as of a sweep over np.arange
  if knob.auto and value == 'auto':
    return value
  if type(value) is not knob.kind and (knob.kind, type(value)) != (float, int):
    wanted = ("'auto' or " if knob.auto else '') + _WANTED[knob.kind]
    raise ConfigError([problem(name, value, wanted)])
  if knob.kind is float:
    value = _as_float(name, value)
  for bound in knob.bounds:
    if isinstance(bound, catalog.Bound):
      if not bound.holds(value):
        raise ConfigError([problem(name, value, bound.wanted)])
    elif value not in (words := choices(bound)):
      line = problem(name, value, f'one of {", ".join(words)}')
      raise ConfigError([line + did_you_mean(value, words)])
  return value


def choices(bound: catalog.OneOf | catalog.PartOf) -> tuple[str, ...]:
  """The words that a knob may be."""
  is_part = isinstance(bound, catalog.PartOf)
  return catalog.names(bound.kind) if is_part else bound.names


def _as_float(name: str, value: float) -> float:
  if type(value) is float and not math.isfinite(value):
    raise ConfigError([problem(name, value, 'a finite number')])
  low, high = catalog.FLOAT32
  if value and not low <= abs(value) <= high:
    raise ConfigError([problem(name, value, 'a number that fits 32 bits')])
  return float(value)


def validate(values: Mapping[str, Any], given: Iterable[str] = ()) -> Config:
  """Checks a configuration.

  Args:
    values: every knob, nested or by dotted name, e.g. a ConfigDict from configs/.
    given: dotted names set by the user; one that the chosen algorithm, model, data or
      partition does not use is a mistake.

  Returns:
    The valid configuration, with a number for each number that was 'auto'.

  Raises:
    ConfigError: every problem found, one line each.
  """
  if not isinstance(values, Mapping | ConfigDict):
    raise ConfigError([f'{values!r} is no configuration; `load_config` returns one.'])
  flat, problems, valid = flatten(values), [], {}
  knobs = catalog.every_knob()
  problems += [unknown_knob(name) for name in flat if name not in knobs]
  for name, knob in knobs.items():
    if name not in flat and not knob.optional:
      problems.append(f'--config.{name} is missing from the config file.')
      continue
    try:
      valid[name] = convert(name, flat.get(name, knob.default))
    except ConfigError as error:
      problems += error.problems
  problems += conflicts(valid, [name for name in given if name in knobs])
  if problems:
    raise ConfigError(problems)
  # Of what users registered a run has only what it uses.
  mine = catalog.of_registered
  valid = {n: v for n, v in valid.items() if not mine(n) or used(n, valid)}
  autos = {name: knobs[name].auto for name in valid if valid[name] == 'auto'}
  resolved = {n: auto.values[valid[auto.decider]] for n, auto in autos.items() if auto}
  return Config(nest(valid | resolved))
