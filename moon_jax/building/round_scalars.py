"""The numbers that a round's compiled program takes: a change compiles nothing.

They are the scalars of the round, such as mu and the learning rate (`Scalars`). JAX
calls such arguments traced.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm
from moon_jax.building.learning_rate import LearningRate
from moon_jax.config import Config, flatten
from moon_jax.core.types import Scalars


class SplitOptions(NamedTuple):
  """The options of a part, by what a change of them costs.

  Attributes:
    traced: arguments of the program: a change compiles nothing.
    built_in: constants of the program.
  """

  traced: dict[str, float]
  built_in: dict[str, Any]


class ScalarOptions:
  """What a configuration says about the scalars of its rounds.

  Attributes:
    seed: the run's seed.
    optimizer: numbers of the local optimizer, without the learning rate; 'clip_norm'
      only if gradients are clipped, 'body_factor' only if the body has another rate.
    learning_rate: the learning rate of each round.
  """

  def __init__(self, config: Config):
    options = split_options(catalog.options('optimizer', flatten(config)))
    self.seed = config.seed
    self.optimizer = {'weight_decay': config.optimizer.weight_decay, **options.traced}
    if config.optimizer.clip_norm:
      self.optimizer['clip_norm'] = config.optimizer.clip_norm
    body_rate = config.optimizer.body_learning_rate
    if body_rate != 'auto':
      self.optimizer['body_factor'] = body_rate / config.optimizer.learning_rate
    self.learning_rate = LearningRate(config)

  def of_round(self, algorithm: Algorithm, round_index: int) -> Scalars:
    """The scalars of a round, each a float32 array; round_index counts from 0."""
    rate = self.learning_rate.of_round(round_index)
    algorithm_scalars, optimizer_scalars = jax.tree.map(
      np.float32,
      (dict(algorithm.hyperparameters), {**self.optimizer, 'learning_rate': rate}),
    )
    return Scalars(
      algorithm=algorithm_scalars,
      optimizer=optimizer_scalars,
      seed=np.int32(self.seed),
    )


def split_options(options: Mapping[str, Any]) -> SplitOptions:
  """Divides the options of a part: floats are traced, others are built in."""
  traced, built_in = {}, {}
  for name, option in options.items():
    group = traced if isinstance(option, float) else built_in
    group[name] = option
  return SplitOptions(traced=traced, built_in=built_in)


def scalars_of_round(config: Config, algorithm: Algorithm, round_index: int) -> Scalars:
  """The scalars of a round, each a float32 array; round_index counts from 0."""
  return ScalarOptions(config).of_round(algorithm, round_index)
