"""Is this configuration valid? Typed, bounded, and every mistake told at once.

Imports nothing heavy, so that a typo is answered before JAX loads.
"""

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from moon_jax.errors import UsageError


class ConfigError(UsageError):
  """Everything wrong with a configuration; `problems` holds one line for each."""

  def __init__(self, problems: Iterable[str]):
    # A name or a config file's own message may hold line breaks.
    self.problems = tuple(' '.join(problem.splitlines()) for problem in problems)
    super().__init__('\n'.join(self.problems))


class Bound(NamedTuple):
  """What a value must satisfy, and how to say so."""

  wanted: str
  holds: Callable[[Any], bool]


class Choice(NamedTuple):
  """The names that a value may take."""

  names: tuple[str, ...]


def _at_least(low) -> Bound:
  return Bound(f'at least {low}', lambda value: value >= low)


_ABOVE_ZERO = Bound('above 0', lambda value: value > 0)
_SEED = Bound('in [0, 2147483647]', lambda value: 0 <= value < 2**31)
_FRACTION = Bound(
  'a fraction of the clients in (0, 1], not a count', lambda value: 0 < value <= 1
)
_UNIT = Bound('in [0, 1]', lambda value: 0 <= value <= 1)
_BELOW_ONE = Bound('in [0, 1)', lambda value: 0 <= value < 1)
_HEADS = Bound('a divisor of 256', lambda value: value > 0 and 256 % value == 0)
_AUTO_OR_COUNT = Bound(
  "'auto' or a count of at least 1",
  re.compile('auto|[1-9][0-9]{0,8}').fullmatch,
)

# The smallest and the largest positive float32, which the device computes in.
_FLOAT32 = (2.0**-126, 2.0**128 * (1 - 2.0**-24))

_WANTED = {
  bool: 'true or false',
  int: 'a whole number',
  float: 'a number',
  str: 'a word',
}

Count = Annotated[int, _at_least(1)]
PositiveFloat = Annotated[float, _ABOVE_ZERO]
NonNegativeFloat = Annotated[float, _at_least(0)]

ALGORITHMS = (
  'fedavg',
  'fedprox',
  'scaffold',
  'moon',
  'sa_moon',
  'dco_moon',
  'solo',
)
MODELS = (
  'mlp',
  'moon_cnn',
  'tutorial_cnn',
  'dco_cnn',
  'cnn_transformer',
  'resnet18',
  'resnet50',
)
SOURCES = ('digits', 'tfds', 'npz')
PARTITIONS = ('iid', 'dirichlet', 'shards', 'quantity', 'noise')
AUGMENTATIONS = ('none', 'flip', 'crop_flip')
PADDINGS = ('reflect', 'zero')
OPTIMIZERS = ('sgd',)
NEGATIVES = ('none', 'global', 'init')
COMPARED = ('representation', 'features')
FROZEN_MODES = ('evaluation', 'training')
SCOPES = ('client', 'server')
CONVOLUTIONS = ('auto', 'library', 'im2col', 'banded')
DTYPES = ('float32', 'bfloat16')
MATMUL_PRECISIONS = ('default', 'high', 'highest')


@dataclasses.dataclass(frozen=True)
class DataConfig:
  source: Annotated[str, Choice(SOURCES)]
  name: str
  dir: str
  path: str
  limit: Annotated[int, _at_least(0)]


@dataclasses.dataclass(frozen=True)
class PartitionConfig:
  name: Annotated[str, Choice(PARTITIONS)]
  beta: PositiveFloat
  classes_per_client: Count
  noise_sigma: Annotated[float, _UNIT]
  min_size: Count


@dataclasses.dataclass(frozen=True)
class AugmentationConfig:
  name: Annotated[str, Choice(AUGMENTATIONS)]
  padding: Annotated[str, Choice(PADDINGS)]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  name: Annotated[str, Choice(OPTIMIZERS)]
  learning_rate: PositiveFloat
  momentum: Annotated[float, _BELOW_ONE]
  weight_decay: NonNegativeFloat


@dataclasses.dataclass(frozen=True)
class MoonConfig:
  mu: NonNegativeFloat
  tau: PositiveFloat
  negative: Annotated[str, Choice(NEGATIVES)]
  similarity_on: Annotated[str, Choice(COMPARED)]
  num_previous: Count
  frozen_mode: Annotated[str, Choice(FROZEN_MODES)]


@dataclasses.dataclass(frozen=True)
class SaMoonConfig:
  mu: NonNegativeFloat
  initial_temperature: PositiveFloat
  min_temperature: PositiveFloat
  sigma: Annotated[float, _UNIT]
  scope: Annotated[str, Choice(SCOPES)]


@dataclasses.dataclass(frozen=True)
class DcoMoonConfig:
  mu: NonNegativeFloat
  tau: PositiveFloat
  theta: PositiveFloat
  normalise: bool


@dataclasses.dataclass(frozen=True)
class FedProxConfig:
  mu: NonNegativeFloat


@dataclasses.dataclass(frozen=True)
class MlpConfig:
  width: Count
  representation: Count


@dataclasses.dataclass(frozen=True)
class CnnTransformerConfig:
  layers: Count
  heads: Annotated[int, _HEADS]
  feedforward: Count
  dropout: Annotated[float, _BELOW_ONE]


@dataclasses.dataclass(frozen=True)
class ExecutionConfig:
  devices: Annotated[str, _AUTO_OR_COUNT]
  lanes: Annotated[str, _AUTO_OR_COUNT]
  convolution: Annotated[str, Choice(CONVOLUTIONS)]
  cache_mib: Annotated[int, _at_least(0)]
  dtype: Annotated[str, Choice(DTYPES)]
  matmul_precision: Annotated[str, Choice(MATMUL_PRECISIONS)]
  profile: bool


@dataclasses.dataclass(frozen=True)
class Config:
  """A valid experiment. The meaning of each knob stands in configs/base.py."""

  algorithm: Annotated[str, Choice(ALGORITHMS)]
  model: Annotated[str, Choice(MODELS)]
  seed: Annotated[int, _SEED]
  num_clients: Count
  participation: Annotated[float, _FRACTION]
  num_rounds: Count
  local_epochs: Count
  batch_size: Count
  eval_every_rounds: Count
  checkpoint_every_rounds: Count
  data: DataConfig
  partition: PartitionConfig
  augmentation: AugmentationConfig
  optimizer: OptimizerConfig
  moon: MoonConfig
  sa_moon: SaMoonConfig
  dco_moon: DcoMoonConfig
  fedprox: FedProxConfig
  mlp: MlpConfig
  cnn_transformer: CnnTransformerConfig
  execution: ExecutionConfig

  def options(self, group: str) -> dict[str, Any]:
    """The knobs of an algorithm or a model; {} if it has none."""
    return dataclasses.asdict(getattr(self, group)) if hasattr(self, group) else {}


# A knob or group -> the knob that decides whether it is used, and for which values.
_USED_WHEN = {
  'moon': ('algorithm', ('moon',)),
  'sa_moon': ('algorithm', ('sa_moon',)),
  'dco_moon': ('algorithm', ('dco_moon',)),
  'fedprox': ('algorithm', ('fedprox',)),
  'mlp': ('model', ('mlp',)),
  'cnn_transformer': ('model', ('cnn_transformer',)),
  'partition.beta': ('partition.name', ('dirichlet', 'quantity')),
  'partition.classes_per_client': ('partition.name', ('shards',)),
  'partition.noise_sigma': ('partition.name', ('noise',)),
  'augmentation.padding': ('augmentation.name', ('crop_flip',)),
  'execution.convolution': ('model', tuple(name for name in MODELS if name != 'mlp')),
  'execution.cache_mib': ('algorithm', ('moon', 'sa_moon', 'dco_moon')),
  'data.name': ('data.source', ('tfds',)),
  'data.dir': ('data.source', ('tfds',)),
  'data.path': ('data.source', ('npz',)),
}

# A knob that may be empty in general -> the knob and value with which it may not.
_NEEDED_WHEN = {
  'data.name': ('data.source', 'tfds'),
  'data.path': ('data.source', 'npz'),
}

# Knobs that may differ when a run is resumed. Those of the execution change results by
# float32 rounding only. What data.dir holds is compared itself.
MAY_CHANGE = (
  'num_rounds',
  'eval_every_rounds',
  'checkpoint_every_rounds',
  'data.dir',
  'execution.devices',
  'execution.lanes',
  'execution.convolution',
  'execution.cache_mib',
  'execution.profile',
)


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """{'moon': {'mu': 1.0}} -> {'moon.mu': 1.0}."""
  flat = {}
  for key, value in tree.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def knobs(cls: type = Config, prefix: str = '') -> dict[str, Any]:
  """Every knob's dotted name -> its annotated type, in the order of definition."""
  types = {}
  for name, kind in typing.get_type_hints(cls, include_extras=True).items():
    if dataclasses.is_dataclass(kind):
      types |= knobs(kind, f'{prefix}{name}.')
    else:
      types[prefix + name] = kind
  return types


def did_you_mean(word: str, names: Iterable[str]) -> str:
  """' Did you mean X?' for the nearest name, '' if none is near."""
  near = difflib.get_close_matches(word.lower(), list(names), n=1)
  return f' Did you mean {near[0]!r}?' if near else ''


def problem(name: str, value: Any, wanted: str) -> str:
  """The one form of a complaint: the flag, the value, what is wanted."""
  return f'--config.{name}={value!r} must be {wanted}.'


def unknown_knob(name: str) -> str:
  """The complaint about a name that is no knob: a group, or a misspelling."""
  inside = [knob for knob in knobs() if knob.startswith(name + '.')]
  if inside:
    return f'--config.{name} is a group; set one of its knobs: {", ".join(inside)}.'
  hint = did_you_mean(name, knobs())
  # `--config.beta` names a knob without its group: the last part alone must match.
  last = [repr(knob) for knob in knobs() if knob.split('.')[-1] == name.split('.')[-1]]
  if last and not hint:
    hint = f' Did you mean {" or ".join(last)}?'
  return f'--config.{name} is not a knob.{hint}'


def _kind_and_bounds(name: str) -> tuple[type, list[Any]]:
  kind, *bounds = typing.get_args(knobs()[name]) or (knobs()[name],)
  return kind, bounds


def from_word(name: str, word: str) -> Any:
  """The command line's word as the knob's type, or unchanged if it does not fit."""
  kind, _ = _kind_and_bounds(name)
  if kind is bool:
    return {'true': True, 'false': False}.get(word, word)
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
  if kind is float and type(value) is int:
    value = float(value)
  if type(value) is not kind:
    raise ConfigError([problem(name, value, _WANTED[kind])])
  if kind is float and not math.isfinite(value):
    raise ConfigError([problem(name, value, 'a finite number')])
  if kind is float and value and not _FLOAT32[0] <= abs(value) <= _FLOAT32[1]:
    raise ConfigError([problem(name, value, 'a number that fits 32 bits')])
  for bound in bounds:
    if isinstance(bound, Choice) and value not in bound.names:
      wanted = f'one of {", ".join(bound.names)}'
      raise ConfigError(
        [problem(name, value, wanted) + did_you_mean(value, bound.names)]
      )
    if isinstance(bound, Bound) and not bound.holds(value):
      raise ConfigError([problem(name, value, bound.wanted)])
  return value


def validate(values: Mapping[str, Any], given: Iterable[str] = ()) -> Config:
  """Builds the typed configuration.

  Args:
    values: nested mapping with every knob, e.g. a ConfigDict from configs/.
    given: dotted names set on the command line; one that the chosen algorithm, model,
      data or partition does not use is a mistake.

  Returns:
    The valid configuration.

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
  problems += _conflicts(valid, given)
  if problems:
    raise ConfigError(problems)
  return _build(Config, valid)


def _conflicts(valid: Mapping[str, Any], given: Iterable[str]) -> list[str]:
  """Problems between knobs that are each valid alone."""
  problems = []
  for name in given:
    for part, (decider, chosen) in _USED_WHEN.items():
      if _is_part(name, part) and valid.get(decider, chosen[0]) not in chosen:
        problems.append(
          f'--config.{name} is not used with --config.{decider}={valid[decider]}; '
          f'it belongs to {" or ".join(chosen)}.'
        )
  for name, (decider, chosen) in _NEEDED_WHEN.items():
    if valid.get(decider) == chosen and valid.get(name) == '':
      problems.append(f'--config.{name} is needed with --config.{decider}={chosen}.')
  return problems + _algorithm_conflicts(valid)


def _algorithm_conflicts(valid: Mapping[str, Any]) -> list[str]:
  """What the chosen algorithm cannot do."""
  problems, algorithm = [], valid.get('algorithm')
  plain = valid.get('optimizer.name') == 'sgd' and not valid.get('optimizer.nesterov')
  if algorithm == 'scaffold' and 'optimizer.name' in valid and not plain:
    problems.append(
      '--config.algorithm=scaffold needs --config.optimizer.name=sgd without nesterov: '
      'it divides by how far SGD comes in so many steps.'
    )
  if algorithm == 'dco_moon' and valid.get('dco_moon.normalise'):
    mu = valid.get('dco_moon.mu')
    if mu == 0:
      wanted = 'above 0 with --config.dco_moon.normalise=true, which divides by it'
      problems.append(problem('dco_moon.mu', mu, wanted))
  start, low = (
    valid.get(f'sa_moon.{name}') for name in ('initial_temperature', 'min_temperature')
  )
  if algorithm == 'sa_moon' and None not in (start, low) and low > start:
    wanted = f'at most --config.sa_moon.initial_temperature={start}'
    problems.append(problem('sa_moon.min_temperature', low, wanted))
  return problems


def _build(cls: type, valid: Mapping[str, Any], prefix: str = '') -> Any:
  values = {}
  for name, kind in typing.get_type_hints(cls).items():
    if dataclasses.is_dataclass(kind):
      values[name] = _build(kind, valid, f'{prefix}{name}.')
    else:
      values[name] = valid[prefix + name]
  return cls(**values)


def used(flat: Mapping[str, Any]) -> dict[str, Any]:
  """The knobs that the chosen algorithm, model, data and partition use."""

  def is_used(name):
    return all(
      flat.get(decider) in chosen
      for part, (decider, chosen) in _USED_WHEN.items()
      if _is_part(name, part)
    )

  return {name: value for name, value in flat.items() if is_used(name)}


def _is_part(name: str, group: str) -> bool:
  return name == group or name.startswith(group + '.')


def changes(saved: Mapping[str, Any], given: Config) -> list[str]:
  """'key: saved -> given' for every difference that makes it another experiment."""
  old, new = used(flatten(saved)), used(flatten(dataclasses.asdict(given)))
  names = [n for n in sorted(old | new) if n not in MAY_CHANGE]
  return [
    f'{n}: {old.get(n, "absent")!r} -> {new.get(n, "absent")!r}'
    for n in names
    if old.get(n) != new.get(n)
  ]
