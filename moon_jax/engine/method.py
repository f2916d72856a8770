"""The algorithm, network and optimizer that a configuration asks for."""

import functools
from collections.abc import Callable

import jax
import numpy as np
import optax

from moon_jax import algorithms, catalog, models
from moon_jax.algorithms.wrappers import server_optimizer, topology
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.config import Config, changed, flatten
from moon_jax.types import Scalars

_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}


def with_its_clients(config: Config) -> Config:
  """The configuration; of an algorithm for one client with that, who owns all data."""
  if catalog.part('algorithm', config.algorithm).has('several_clients'):
    return config
  one = {'num_clients': 1, 'participation': 1.0}
  return changed(config, one | {'partition.name': 'iid', 'partition.min_size': 1})


def options(config: Config, kind: str) -> dict[str, float | int | str | bool]:
  """What the chosen part of a kind is called with."""
  return catalog.options(kind, flatten(config))


def make_network(
  config: Config, image_shape: tuple[int, int, int], num_classes: int
) -> models.Network:
  """The network for images [H, W, C] of so many classes.

  Raises:
    ModelError: the network does not fit the images.
  """
  return models.make(
    config.model,
    image_shape=image_shape,
    num_classes=num_classes,
    convolution=config.execution.convolution,
    dtype=config.execution.dtype,
    **options(config, 'model'),
  )


def make_algorithm(config: Config, network: models.Network) -> algorithms.Algorithm:
  """The algorithm with what is configured beside it."""
  algorithm = algorithms.make(config.algorithm, **options(config, 'algorithm'))
  if config.batch_norm == 'local' and 'batch_stats' in network.shapes:
    algorithm = with_local_statistics(algorithm)
  served = catalog.part('algorithm', config.algorithm).has('served')
  server = config.server_optimizer.to_dict()
  if not served or server == _PLAIN_AVERAGE:
    return algorithm
  numbers = options(config, 'server_optimizer')
  numbers['learning_rate'] = config.server_optimizer.learning_rate
  return server_optimizer.with_server_optimizer(algorithm, server['name'], numbers)


def mixing(config: Config) -> np.ndarray:
  """[N, N] float64, who averages with whom when all clients are present."""
  graph = topology.adjacency(
    config.topology.name,
    num_clients=config.num_clients,
    seed=config.seed,
    **options(config, 'topology'),
  )
  return topology.metropolis_hastings(graph)


def local_optimizer(config: Config) -> Callable[..., optax.GradientTransformation]:
  """The numbers of the local optimizer -> its two functions."""
  words = options(config, 'optimizer')
  fixed = {name: word for name, word in words.items() if not isinstance(word, float)}
  build = catalog.part('optimizer', config.optimizer.name).function
  return functools.partial(build, **fixed)


def round_scalars(
  config: Config, algorithm: algorithms.Algorithm, round_index: int
) -> Scalars:
  """The numbers of a round, each a float32 array; round_index counts from 0."""
  schedule = catalog.part('schedule', config.optimizer.schedule).function
  factor = schedule(round_index, config.num_rounds, **options(config, 'schedule'))
  own = options(config, 'optimizer')
  optimizer = {
    'learning_rate': config.optimizer.learning_rate * factor,
    'weight_decay': config.optimizer.weight_decay,
    **{name: number for name, number in own.items() if isinstance(number, float)},
  }
  numbers = jax.tree.map(np.float32, (dict(algorithm.hyperparameters), optimizer))
  return Scalars(*numbers, seed=np.int32(config.seed))
