"""Which knobs are there? Typed and bounded; their meaning stands in configs/base.py."""

import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple


class Bound(NamedTuple):
  """What a value must satisfy, and how to say so."""

  wanted: str
  holds: Callable[[Any], bool]


class Choice(NamedTuple):
  """The names that a value may take."""

  names: tuple[str, ...]


class Auto(NamedTuple):
  """The knob may also be 'auto', which another knob turns into a value.

  Attributes:
    decider: the other knob.
    values: its value -> what 'auto' stands for.
  """

  decider: str
  values: Mapping[str, Any]


def _at_least(low) -> Bound:
  return Bound(f'at least {low}', lambda value: value >= low)


# The device counts in int32.
_AT_MOST = Bound('at most 2147483647', lambda value: value < 2**31)
_ABOVE_ZERO = Bound('above 0', lambda value: value > 0)
_SEED = Bound('in [0, 2147483647]', lambda value: 0 <= value < 2**31)
_FRACTION = Bound(
  'a fraction of the clients in (0, 1], not a count', lambda value: 0 < value <= 1
)
_UNIT = Bound('in [0, 1]', lambda value: 0 <= value <= 1)
_PROBABILITY = Bound('in (0, 1]', lambda value: 0 < value <= 1)
_EVEN = Bound('even, at least 2', lambda value: value >= 2 and value % 2 == 0)
_BELOW_ONE = Bound('in [0, 1)', lambda value: 0 <= value < 1)
_HEADS = Bound('a divisor of 256', lambda value: value > 0 and 256 % value == 0)
_AUTO_OR_COUNT = Bound(
  "'auto' or a count of at least 1",
  re.compile('auto|[1-9][0-9]{0,8}').fullmatch,
)
# 1 averages; FedAdam and FedYogi move every weight by up to the rate in a round.
_SERVER_RATE = Auto('server_optimizer.name', {'sgd': 1.0, 'adam': 0.01, 'yogi': 0.01})

Count = Annotated[int, _at_least(1), _AT_MOST]
PositiveFloat = Annotated[float, _ABOVE_ZERO]
NonNegativeFloat = Annotated[float, _at_least(0)]

ALGORITHMS = (
  'fedavg',
  'fedprox',
  'scaffold',
  'moon',
  'sa_moon',
  'dco_moon',
  'decentralized_fedavg',
  'decentralized_moon',
  'solo',
  'centralized',
)
DECENTRALIZED = ('decentralized_fedavg', 'decentralized_moon')
# Those whose server averages what the clients send.
SERVED = tuple(
  name for name in ALGORITHMS if name not in (*DECENTRALIZED, 'solo', 'centralized')
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
# Those with batch normalisation.
NORMALISED = ('cnn_transformer', 'resnet18', 'resnet50')
SOURCES = ('digits', 'tfds', 'npz')
PARTITIONS = ('iid', 'dirichlet', 'shards', 'quantity', 'noise')
AUGMENTATIONS = ('none', 'flip', 'crop_flip')
PADDINGS = ('reflect', 'zero')
OPTIMIZERS = ('sgd', 'adam', 'adamw')
SCHEDULES = ('constant', 'cosine', 'exponential', 'step')
SERVER_OPTIMIZERS = ('sgd', 'adam', 'yogi')
CLIENT_WEIGHTS = ('samples', 'uniform')
STATISTICS = ('averaged', 'local')
TOPOLOGIES = ('ring', 'grid', 'complete', 'erdos_renyi')
ON_NONFINITE = ('stop', 'skip_client')
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
  nesterov: bool
  weight_decay: NonNegativeFloat
  schedule: Annotated[str, Choice(SCHEDULES)]
  decay: Annotated[float, _PROBABILITY]
  decay_every: Count


@dataclasses.dataclass(frozen=True)
class ServerOptimizerConfig:
  name: Annotated[str, Choice(SERVER_OPTIMIZERS)]
  learning_rate: Annotated[float, _ABOVE_ZERO, _SERVER_RATE]
  momentum: Annotated[float, _BELOW_ONE]


@dataclasses.dataclass(frozen=True)
class TopologyConfig:
  name: Annotated[str, Choice(TOPOLOGIES)]
  degree: Annotated[int, _EVEN]
  edge_probability: Annotated[float, _PROBABILITY]


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
  deterministic: bool
  compile_cache: str
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
  drop_last: bool
  client_weight: Annotated[str, Choice(CLIENT_WEIGHTS)]
  batch_norm: Annotated[str, Choice(STATISTICS)]
  eval_every_rounds: Count
  checkpoint_every_rounds: Count
  on_nonfinite: Annotated[str, Choice(ON_NONFINITE)]
  data: DataConfig
  partition: PartitionConfig
  augmentation: AugmentationConfig
  optimizer: OptimizerConfig
  server_optimizer: ServerOptimizerConfig
  topology: TopologyConfig
  moon: MoonConfig
  sa_moon: SaMoonConfig
  dco_moon: DcoMoonConfig
  fedprox: FedProxConfig
  mlp: MlpConfig
  cnn_transformer: CnnTransformerConfig
  execution: ExecutionConfig

  def options(self, group: str) -> dict[str, Any]:
    """The knobs of an algorithm or a model; {} if it has none."""
    group = group.removeprefix('decentralized_')
    return dataclasses.asdict(getattr(self, group)) if hasattr(self, group) else {}


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """{'moon': {'mu': 1.0}} -> {'moon.mu': 1.0}."""
  flat = {}
  for key, value in tree.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


@functools.cache
def knobs(cls: type = Config, prefix: str = '') -> Mapping[str, Any]:
  """Every knob's dotted name -> its annotated type, in the order of definition."""
  types = {}
  for name, kind in typing.get_type_hints(cls, include_extras=True).items():
    if dataclasses.is_dataclass(kind):
      types |= knobs(kind, f'{prefix}{name}.')
    else:
      types[prefix + name] = kind
  return types
