"""Checks a configuration: every mistake is reported at once.

It answers: Is each value valid? Which knobs go together? Which knobs may change when a
run is resumed?
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from moon_jax import catalog
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.config.configuration import Config, flatten, nest
from moon_jax.core.errors import ConfigError, UsageError
from moon_jax.core.flags import flag

# Spellings of booleans: those of README.md, of Python and of --help.
_BOOLS = {'true': True, 'false': False, 'True': True, 'False': False}

_TYPE_NAMES = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  str: 'a word',
}

# The smallest and largest positive float32: the device computes in float32.
_MIN_FLOAT32 = 2.0**-126
_MAX_FLOAT32 = math.ldexp(1 - 2.0**-24, 128)

# The largest whole number that the device, and the files of a run, hold.
_MAX_INT32 = 2**31 - 1

# With 'auto' the plain average has the rate 1. FedAdam and FedYogi have a small one,
# because they move each weight by up to the rate in a round.
_SERVER_RATE = 'server_optimizer.learning_rate'
_AVERAGING_RATE = 1.0
_ADAPTIVE_RATE = 0.01

# At most this many parts are named; if more parts use the knob, all others are named.
_MAX_PARTS_NAMED = 8


def unknown_knob(name: str) -> str:
  """The complaint about a name that is no knob: a group, or a misspelling."""
  knobs = list(catalog.every_knob())
  knobs_of_group = [knob for knob in knobs if knob.startswith(name + '.')]
  if knobs_of_group:
    listed = ', '.join(knobs_of_group)
    return f'{flag(name)} is a group; set one of its knobs: {listed}.'
  hint = catalog.did_you_mean(name, knobs)
  if not hint:
    # `--config.beta` names a knob without its group: the last part alone must match.
    last_part = name.split('.')[-1]
    candidates = [repr(knob) for knob in knobs if knob.split('.')[-1] == last_part]
    if candidates:
      hint = f' Did you mean {" or ".join(candidates)}?'
  return f'{flag(name)} is not a knob.{hint}'


# --- one value ------------------------------------------------------------------------


def from_word(name: str, word: str) -> Any:
  """The command line's word as the knob's type, or unchanged if it does not fit."""
  kind = catalog.every_knob()[name].kind
  if kind is bool:
    return _BOOLS.get(word, word)
  try:
    return kind(word)
  except ValueError:
    return word  # `validate` complains


def convert(name: str, value: Any) -> Any:
  """Checks one value against its knob's type and bound.

  Raises:
    ConfigError: its one line says what the value must be.
  """
  knob = catalog.every_knob()[name]
  if hasattr(value, 'item') and not getattr(value, 'shape', None):
    value = value.item()  # a number of numpy, such as from a sweep over np.arange
  if knob.auto and isinstance(value, str) and value == 'auto':
    return value
  required_type = _required_type(knob, value)
  if required_type:
    raise ConfigError([_problem(name, value, required_type)])
  if knob.kind is float:
    value = float(value)
  if knob.bound and not knob.bound.holds(value):
    hint = ''
    if knob.bound.words:
      hint = _hint_at(value, knob.bound.words)
    raise ConfigError([_problem(name, value, knob.bound.requirement) + hint])
  if knob.kind is int and abs(value) > _MAX_INT32:
    raise ConfigError([_problem(name, value, f'at most {_MAX_INT32}')])
  is_zero = knob.kind is float and value == 0
  return 0.0 if is_zero else value  # not -0.0


def _hint_at(value: str, words: Sequence[str]) -> str:
  """' Did you mean X?' for the first wrong word of a value, which may be a list."""
  wrong_words = [word for word in catalog.listed_words(value) if word not in words]
  return catalog.did_you_mean(wrong_words[0], words) if wrong_words else ''


def _problem(name: str, value: Any, requirement: str) -> str:
  # A wrong default can only be that of a knob which a user declared.
  is_default = value is catalog.every_knob()[name].default
  default = ', its default,' if is_default else ''
  return f'{flag(name, value)}{default} must be {requirement}.'


def _required_type(knob: catalog.Knob, value: Any) -> str:
  """What a value that is not of the knob's type must be; '' if it is."""
  is_int_for_float = knob.kind is float and type(value) is int
  if type(value) is not knob.kind and not is_int_for_float:
    return ("'auto' or " if knob.auto else '') + _TYPE_NAMES[knob.kind]
  if type(value) is float and not math.isfinite(value):
    return 'a finite number'
  if knob.kind is not float or value == 0:
    return ''
  fits_float32 = _MIN_FLOAT32 <= abs(value) <= _MAX_FLOAT32
  return '' if fits_float32 else 'a number that fits 32 bits'


# --- all of them ----------------------------------------------------------------------


def validate(values: Mapping[str, Any], set_by_user: Iterable[str] = ()) -> Config:
  """Checks a configuration.

  Args:
    values: values of knobs, nested or by dotted name, e.g. a ConfigDict from configs/;
      knobs that are left out have their defaults.
    set_by_user: dotted names of the knobs that the user has set. To set a knob that the
      chosen parts do not use is a mistake.

  Returns:
    The valid configuration; the server's learning rate is a number if it was 'auto'.

  Raises:
    ConfigError: every problem found, one line each.
  """
  if not isinstance(values, Mapping | ConfigDict):
    raise ConfigError([f'{values!r} is no configuration; `load_config` returns one.'])
  flat = flatten(values)
  knobs = catalog.every_knob()
  problems = [unknown_knob(name) for name in flat if name not in knobs]
  valid_values = {}
  for name, knob in knobs.items():
    try:
      valid_values[name] = convert(name, flat.get(name, knob.default))
    except ConfigError as error:
      problems += error.problems
  problems += _conflicts(valid_values, [name for name in set_by_user if name in knobs])
  if problems:
    raise ConfigError(problems)
  # A run has only the registered parts that it uses.
  settings = {
    name: value
    for name, value in valid_values.items()
    if not catalog.is_of_registered_part(name) or catalog.is_used(name, valid_values)
  }
  if settings[_SERVER_RATE] == 'auto':
    averages = settings['server_optimizer.name'] == 'sgd'
    settings[_SERVER_RATE] = _AVERAGING_RATE if averages else _ADAPTIVE_RATE
  return Config(nest(settings))


def _conflicts(
  valid_values: Mapping[str, Any], set_by_user: Iterable[str]
) -> list[str]:
  """Problems between knobs that are valid alone; invalid knobs are left out."""
  problems = [line for name in set_by_user for line in _unused(name, valid_values)]
  values_in_use = {
    name: value
    for name, value in valid_values.items()
    if catalog.is_used(name, valid_values)
  }
  for name, knob in catalog.every_knob().items():
    if knob.required and values_in_use.get(name) == '':
      deciding_kind, _ = knob.needs[-1]
      decider = catalog.KINDS[deciding_kind]
      problems.append(
        f'{flag(name)} is needed with {flag(decider, valid_values[decider])}.'
      )
  # The number of natural clients, and what else depends on the data, is checked later.
  return problems + complaints(values_in_use)


def complaints(values: Mapping[str, Any]) -> list[str]:
  """The problems that the chosen parts' own checks find in valid values of knobs."""
  problems = [*catalog.check_general(values)]
  for kind, name in catalog.KINDS.items():
    part = catalog.chosen(kind, values)
    if part is None or not part.check or not catalog.is_used(name, values):
      continue
    with explaining_errors_of(part):
      problems += _complaints_of(part, values)
  return problems


def _complaints_of(part: catalog.Part, values: Mapping[str, Any]) -> Iterator[str]:
  """The problems that a part's own check finds.

  Raises:
    UsageError: the check returned something else.
  """
  try:
    lines = part.check(values) or ()
    if isinstance(lines, str):
      raise UsageError(
        f'The check of the {part.kind} {part.name!r} must return a list of lines, not '
        f'the text {lines!r}.'
      )
    yield from lines
  except KeyError as error:  # the check reads a knob that is invalid or unused
    if error.args[0] not in catalog.every_knob():
      raise


def _unused(name: str, valid_values: Mapping[str, Any]) -> Iterator[str]:
  """The complaint that a knob is not used, for each part that does not use it."""
  for kind, trait in catalog.every_knob()[name].needs:
    part = catalog.chosen(kind, valid_values)
    if part is None or part.has(trait):
      continue
    users, others = [], []
    for part_name in catalog.names(kind):
      if catalog.part(kind, part_name).has(trait):
        users.append(part_name)
      else:
        others.append(part_name)
    used_by = ', '.join(users)
    if len(users) > _MAX_PARTS_NAMED:
      used_by = f'all except {", ".join(others)}'
    yield (
      f'{flag(name)} is not used with {flag(catalog.KINDS[kind], part.name)}; '
      f'it is used by {used_by}.'
    )
  used_if = catalog.every_knob()[name].used_if
  if used_if:
    other, bound = used_if
    # A value of the other knob that is missing is wrong, which is reported.
    if other in valid_values and not bound.holds(valid_values[other]):
      yield (
        f'{flag(name)} is not used with {flag(other, valid_values[other])}; '
        f'it is used if that is {bound.requirement}.'
      )


# --- of a saved run -------------------------------------------------------------------


def used_knobs(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs that the chosen algorithm, model, data and partition use."""
  knobs = catalog.every_knob()
  return {
    name: value
    for name, value in flat.items()
    if name not in knobs or catalog.is_used(name, flat)
  }


def used_value(config: Config, name: str) -> Any:
  """The value of a knob, or its default if the chosen parts do not use it.

  A config file may set what only some of the algorithms that it serves use.
  """
  flat = flatten(config)
  if not catalog.is_used(name, flat):
    return catalog.every_knob()[name].default
  return flat[name]


def identity(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs in use that identify an experiment, with their values."""
  in_use = used_knobs(flat)
  return {name: value for name, value in in_use.items() if _is_fixed(name, in_use)}


def with_defaults(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs of a saved run; knobs that it does not know have their defaults."""
  defaults = {name: knob.default for name, knob in catalog.every_knob().items()}
  return defaults | dict(flat)


def changes(saved: Mapping[str, Any], current: Config) -> list[str]:
  """'key: saved -> current' for every difference that makes it another experiment.

  A knob that only one of them uses is left out: the knob that decides so differs too.
  """
  saved_values = with_defaults(flatten(saved))
  current_values = flatten(current)
  saved_used = used_knobs(saved_values)
  current_used = used_knobs(current_values)
  problems = []
  for name in sorted(saved_used):
    if not _is_fixed(name, current_used):
      continue
    if name not in current_values and name not in catalog.every_knob():
      problems.append(f'{name}: {saved_used[name]!r} -> no longer a knob')
    elif name in current_used and saved_used[name] != current_used[name]:
      problems.append(f'{name}: {saved_used[name]!r} -> {current_used[name]!r}')
  return problems


def permitted_changes(saved: Mapping[str, Any], current: Config) -> list[str]:
  """'key: saved -> current' for every difference that leaves it the same experiment."""
  saved_used = used_knobs(with_defaults(flatten(saved)))
  current_used = used_knobs(flatten(current))
  return [
    f'{name}: {saved_used[name]!r} -> {value!r}'
    for name, value in current_used.items()
    if saved_used.get(name, value) != value and not _is_fixed(name, current_used)
  ]


def _is_fixed(name: str, flat: Mapping[str, Any]) -> bool:
  """Whether another value of the knob makes another experiment."""
  # The cosine ends with the last round, so its earlier values depend on which that is;
  # those of a registered schedule may.
  schedule = flat.get('optimizer.schedule', 'constant')
  if name == 'num_rounds' and schedule not in ('constant', 'exponential', 'step'):
    return True
  knob = catalog.every_knob().get(name)
  return knob is None or not knob.may_change
