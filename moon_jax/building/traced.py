"""The values that a compiled program takes as arguments: a change compiles nothing."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm
from moon_jax.building import learning_rate
from moon_jax.config import Config, flatten
from moon_jax.core.types import Scalars


def split(options: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
  """The floats of the options, which are traced; and the others, which are built in."""
  traced = {name: one for name, one in options.items() if isinstance(one, float)}
  return traced, {name: options[name] for name in options.keys() - traced}


def scalars(config: Config, algorithm: Algorithm, round_index: int) -> Scalars:
  """The scalars of a round, each a float32 array; round_index counts from 0."""
  of_optimizer, _ = split(catalog.options('optimizer', flatten(config)))
  optimizer = {'weight_decay': config.optimizer.weight_decay, **of_optimizer}
  optimizer['learning_rate'] = learning_rate.of_round(config, round_index)
  found = jax.tree.map(np.float32, (dict(algorithm.hyperparameters), optimizer))
  return Scalars(*found, seed=np.int32(config.seed))
