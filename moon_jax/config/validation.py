"""Is this configuration valid? Every mistake is told at once."""

import dataclasses
import functools
import math
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from moon_jax.config.messages import ConfigError, did_you_mean, problem, unknown_knob
from moon_jax.config.rules import conflicts
from moon_jax.config.schema import Auto, Bound, Choice, Config, flatten, knobs

# The smallest and the largest positive float32, which the device computes in.
_FLOAT32 = (2.0**-126, 2.0**128 * (1 - 2.0**-24))

# As README.md writes them, and as Python and --help do.
_BOOLS = {'true': True, 'false': False, 'True': True, 'False': False}

_WANTED = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  str: 'a word',
}


@functools.cache
def _kind_and_bounds(name: str) -> tuple[type, list[Any]]:
  kind, *bounds = typing.get_args(knobs()[name]) or (knobs()[name],)
  return kind, bounds


def _auto(name: str) -> Auto | None:
  """What 'auto' stands for, if the knob may be that."""
  return next((b for b in _kind_and_bounds(name)[1] if isinstance(b, Auto)), None)


def from_word(name: str, word: str) -> Any:
  """The command line's word as the knob's type, or unchanged if it does not fit."""
  kind, _ = _kind_and_bounds(name)
  if kind is bool:
    return _BOOLS.get(word, word)
  try:
    return kind(word)
  except ValueError:
    return word  # `validate` says what is wanted instead


def convert(name: str, value: Any) -> Any:
  """Checks one value against its knob's type and bound.

  Raises:
    ConfigError: with the one line that says what is wanted.
  """
  kind, bounds = _kind_and_bounds(name)
  if _auto(name) and value == 'auto':
    return value
  if type(value) is not kind and (kind, type(value)) != (float, int):
    wanted = ("'auto' or " if _auto(name) else '') + _WANTED[kind]
    raise ConfigError([problem(name, value, wanted)])
  if kind is float:
    value = _as_float(name, value)
  for bound in bounds:
    if isinstance(bound, Choice) and value not in bound.names:
      wanted = f'one of {", ".join(bound.names)}'
      raise ConfigError(
        [problem(name, value, wanted) + did_you_mean(value, bound.names)]
      )
    if isinstance(bound, Bound) and not bound.holds(value):
      raise ConfigError([problem(name, value, bound.wanted)])
  return value


def _as_float(name: str, value: float) -> float:
  if type(value) is float and not math.isfinite(value):
    raise ConfigError([problem(name, value, 'a finite number')])
  if value and not _FLOAT32[0] <= abs(value) <= _FLOAT32[1]:
    raise ConfigError([problem(name, value, 'a number that fits 32 bits')])
  return float(value)


def validate(values: Mapping[str, Any], given: Iterable[str] = ()) -> Config:
  """Builds the typed configuration.

  Args:
    values: nested mapping with every knob, e.g. a ConfigDict from configs/.
    given: dotted names set on the command line; one that the chosen algorithm, model,
      data or partition does not use is a mistake.

  Returns:
    The valid configuration, with a number for each number that was 'auto'.

  Raises:
    ConfigError: every problem found, one line each.
  """
  flat, problems, valid = flatten(values), [], {}
  problems += [unknown_knob(name) for name in flat if name not in knobs()]
  for name in knobs():
    if name not in flat:
      problems.append(f'--config.{name} is missing from the config file.')
      continue
    try:
      valid[name] = convert(name, flat[name])
    except ConfigError as error:
      problems += error.problems
  problems += conflicts(valid, given)
  if problems:
    raise ConfigError(problems)
  return _build(Config, valid | _resolved(valid))


def _resolved(valid: Mapping[str, Any]) -> dict[str, Any]:
  """What 'auto' stands for, for every number that is that."""
  autos = {name: _auto(name) for name in valid if valid[name] == 'auto'}
  return {name: a.values[valid[a.decider]] for name, a in autos.items() if a}


def _build(cls: type, valid: Mapping[str, Any], prefix: str = '') -> Any:
  values = {}
  for name, kind in typing.get_type_hints(cls).items():
    if dataclasses.is_dataclass(kind):
      values[name] = _build(kind, valid, f'{prefix}{name}.')
    else:
      values[name] = valid[prefix + name]
  return cls(**values)
