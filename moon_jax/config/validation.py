"""Checks a configuration: every mistake is reported at once.

It answers: Is each value valid? Which knobs go together? Which knobs may change when a
run is resumed?
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from moon_jax import catalog
from moon_jax.config.trees import Config, flatten, nest
from moon_jax.core.errors import UsageError

# Spellings of booleans: those of README.md, of Python and of --help.
_BOOLS = {'true': True, 'false': False, 'True': True, 'False': False}

_KIND = {bool: 'true or false', int: 'a whole number', float: 'a number', str: 'a word'}

# The smallest and largest positive float32: the device computes in float32.
_FLOAT32 = (2.0**-126, math.ldexp(1 - 2.0**-24, 128))


class ConfigError(UsageError):
  """Everything wrong with a configuration; `problems` holds one line for each."""

  def __init__(self, problems: Iterable[str]):
    # A name or a config file's own message may hold line breaks.
    self.problems = tuple(' '.join(problem.splitlines()) for problem in problems)
    super().__init__('\n'.join(self.problems))


def unknown_knob(name: str) -> str:
  """The complaint about a name that is no knob: a group, or a misspelling."""
  knobs = list(catalog.every_knob())
  inside = [knob for knob in knobs if knob.startswith(name + '.')]
  if inside:
    return f'--config.{name} is a group; set one of its knobs: {", ".join(inside)}.'
  hint = catalog.did_you_mean(name, knobs)
  # `--config.beta` names a knob without its group: the last part alone must match.
  last = [repr(knob) for knob in knobs if knob.split('.')[-1] == name.split('.')[-1]]
  if last and not hint:
    hint = f' Did you mean {" or ".join(last)}?'
  return f'--config.{name} is not a knob.{hint}'


# --- one value ------------------------------------------------------------------------


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
  """Checks one value against its knob's type and bound.

  Raises:
    ConfigError: its one line says what is wanted.
  """
  knob = catalog.every_knob()[name]
  if hasattr(value, 'item') and not getattr(value, 'shape', None):
    value = value.item()  # a number of numpy, such as from a sweep over np.arange
  if knob.auto and isinstance(value, str) and value == 'auto':
    return value
  if wanted := _other_type(knob, value):
    raise ConfigError([_problem(name, value, wanted)])
  value = float(value) if knob.kind is float else value
  if (bound := knob.bound) and not bound.holds(value):
    hint = catalog.did_you_mean(value, bound.words) if bound.words else ''
    raise ConfigError([_problem(name, value, bound.wanted) + hint])
  return value


def _problem(name: str, value: Any, wanted: str) -> str:
  # Nobody has given a wrong default of an own knob.
  default = ', its default,' if value is catalog.every_knob()[name].default else ''
  return f'--config.{name}={value!r}{default} must be {wanted}.'


def _other_type(knob: catalog.Knob, value: Any) -> str:
  """What is wanted instead, if the value is not of the knob's type."""
  if type(value) is not knob.kind and (knob.kind, type(value)) != (float, int):
    return ("'auto' or " if knob.auto else '') + _KIND[knob.kind]
  if type(value) is float and not math.isfinite(value):
    return 'a finite number'
  low, high = _FLOAT32
  if knob.kind is float and value and not low <= abs(value) <= high:
    return 'a number that fits 32 bits'
  return ''


# 1 averages; FedAdam and FedYogi move each weight by up to the rate in a round.
_SERVER_RATE = 'server_optimizer.learning_rate'


# --- all of them ----------------------------------------------------------------------


def validate(values: Mapping[str, Any], given: Iterable[str] = ()) -> Config:
  """Checks a configuration.

  Args:
    values: values of knobs, nested or by dotted name, e.g. a ConfigDict from configs/;
      knobs that are left out have their defaults.
    given: dotted names set by the user. A knob that is given, but that the chosen parts
      do not use, is a mistake.

  Returns:
    The valid configuration; the server's learning rate is a number if it was 'auto'.

  Raises:
    ConfigError: every problem found, one line each.
  """
  if not isinstance(values, Mapping | ConfigDict):
    raise ConfigError([f'{values!r} is no configuration; `load_config` returns one.'])
  flat, knobs, valid = flatten(values), catalog.every_knob(), {}
  problems = [unknown_knob(name) for name in flat if name not in knobs]
  for name, knob in knobs.items():
    try:
      valid[name] = convert(name, flat.get(name, knob.default))
    except ConfigError as error:
      problems += error.problems
  problems += _conflicts(valid, [name for name in given if name in knobs])
  if problems:
    raise ConfigError(problems)
  # A run has only the registered parts that it uses.
  mine = catalog.of_registered
  valid = {n: v for n, v in valid.items() if not mine(n) or catalog.used(n, valid)}
  if valid[_SERVER_RATE] == 'auto':
    valid[_SERVER_RATE] = 1.0 if valid['server_optimizer.name'] == 'sgd' else 0.01
  return Config(nest(valid))


def _conflicts(valid: Mapping[str, Any], given: Iterable[str]) -> list[str]:
  """Problems between knobs that are valid alone; invalid knobs are left out."""
  problems = [line for name in given for line in _unused(name, valid)]
  known = {name: value for name, value in valid.items() if catalog.used(name, valid)}
  for name, knob in catalog.every_knob().items():
    if knob.required and known.get(name) == '':
      decider = catalog.KINDS[knob.needs[-1][0]]
      chosen = f'--config.{decider}={valid[decider]}'
      problems.append(f'--config.{name} is needed with {chosen}.')
  # The number of natural clients, and what else depends on the data, is checked later.
  return problems + complaints(known)


def complaints(known: Mapping[str, Any]) -> list[str]:
  """The problems that the chosen parts' own checks find in the valid values."""
  found = []
  for kind, name in catalog.KINDS.items():
    part = catalog.chosen(kind, known)
    if part is None or not part.check or not catalog.used(name, known):
      continue
    try:
      found += part.check(known) or ()
    except KeyError as error:  # the check reads a knob that is invalid or unused
      if error.args[0] not in catalog.every_knob():
        raise
  return found


# At most this many parts are named; if more parts use the knob, all others are named.
_MOST_NAMED = 8


def _unused(name: str, valid: Mapping[str, Any]) -> Iterator[str]:
  """The complaint that a knob is not used, for each part that does not use it."""
  for kind, trait in catalog.every_knob()[name].needs:
    part = catalog.chosen(kind, valid)
    if part is not None and not part.has(trait):
      names = catalog.names(kind)
      having = [one for one in names if catalog.part(kind, one).has(trait)]
      others = [one for one in names if one not in having]
      owners = ', '.join(having)
      if len(having) > _MOST_NAMED:
        owners = f'all except {", ".join(others)}'
      yield (
        f'--config.{name} is not used with --config.{catalog.KINDS[kind]}={part.name}; '
        f'it is used by {owners}.'
      )


# --- of a saved run -------------------------------------------------------------------


def used(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs that the chosen algorithm, model, data and partition use."""
  known = catalog.every_knob()
  return {n: v for n, v in flat.items() if n not in known or catalog.used(n, flat)}


def used_value(config: Config, name: str) -> Any:
  """The value of a knob, or its default if the chosen parts do not use it.

  A config file may set what only some of the algorithms that it serves use.
  """
  flat, knob = flatten(config), catalog.every_knob()[name]
  return flat[name] if catalog.used(name, flat) else knob.default


def identity(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs in use that identify an experiment, with their values."""
  chosen = used(flat)
  return {name: value for name, value in chosen.items() if _is_fixed(name, chosen)}


def with_defaults(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs of a saved run; knobs that it does not know have their defaults."""
  return {n: knob.default for n, knob in catalog.every_knob().items()} | dict(flat)


def changes(saved: Mapping[str, Any], given: Config) -> list[str]:
  """'key: saved -> given' for every difference that makes it another experiment.

  A knob that only one of them uses is left out: the knob that decides so differs too.
  """
  before, after = with_defaults(flatten(saved)), flatten(given)
  old, new = used(before), used(after)
  problems = []
  for name in filter(lambda name: _is_fixed(name, new), sorted(old)):
    if name not in after and name not in catalog.every_knob():
      problems.append(f'{name}: {old[name]!r} -> no longer a knob')
    elif name in new and old[name] != new[name]:
      problems.append(f'{name}: {old[name]!r} -> {new[name]!r}')
  return problems


def _is_fixed(name: str, flat: Mapping[str, Any]) -> bool:
  """Whether another value of the knob makes another experiment."""
  # The cosine ends with the last round, so its earlier values depend on which that is;
  # those of a registered schedule may.
  schedule = flat.get('optimizer.schedule', 'constant')
  if name == 'num_rounds' and schedule not in ('constant', 'exponential', 'step'):
    return True
  knob = catalog.every_knob().get(name)
  return knob is None or not knob.may_change
