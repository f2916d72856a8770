"""Which algorithm, with which hyperparameters, does the configuration ask for?"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
import optax

from moon_jax import algorithms, models
from moon_jax.algorithms.wrappers import topology
from moon_jax.config import SERVED, Config
from moon_jax.engine import optimizers
from moon_jax.types import Scalars

_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}


def with_its_clients(config: Config) -> Config:
  """The configuration; of `centralized` with one client, who owns all the data."""
  if config.algorithm != 'centralized':
    return config
  everything = dataclasses.replace(config.partition, name='iid', min_size=1)
  return dataclasses.replace(
    config, num_clients=1, participation=1.0, partition=everything
  )


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
    **config.options(config.model),
  )


def make_algorithm(config: Config, network: models.Network) -> algorithms.Algorithm:
  """The algorithm with what is configured beside it."""
  algorithm = algorithms.make(config.algorithm, **config.options(config.algorithm))
  if config.batch_norm == 'local' and 'batch_stats' in network.shapes:
    algorithm = algorithms.with_local_statistics(algorithm)
  server = dataclasses.asdict(config.server_optimizer)
  if config.algorithm not in SERVED or server == _PLAIN_AVERAGE:
    return algorithm
  name = server.pop('name')
  if name != 'sgd':
    del server['momentum']
  return algorithms.with_server_optimizer(algorithm, name, server)


def mixing(config: Config) -> np.ndarray:
  """[N, N] float64, who averages with whom when all clients are present."""
  graph = topology.adjacency(
    **dataclasses.asdict(config.topology),
    num_clients=config.num_clients,
    seed=config.seed,
  )
  return topology.metropolis_hastings(graph)


def local_optimizer(config: Config) -> Callable[..., optax.GradientTransformation]:
  """The numbers of the local optimizer -> its two functions."""
  optimizer = optimizers.OPTIMIZERS[config.optimizer.name]
  if config.optimizer.name != 'sgd':
    return optimizer
  return functools.partial(optimizer, nesterov=config.optimizer.nesterov)


def round_scalars(
  config: Config, algorithm: algorithms.Algorithm, round_index: int
) -> Scalars:
  """The numbers of a round, each a float32 array; round_index counts from 0."""
  knobs = dataclasses.asdict(config.optimizer)
  optimizer = {name: knobs[name] for name in optimizers.NUMBERS[config.optimizer.name]}
  optimizer['learning_rate'] *= optimizers.schedule(
    config.optimizer.schedule,
    round_index,
    num_rounds=config.num_rounds,
    decay=config.optimizer.decay,
    decay_every=config.optimizer.decay_every,
  )
  numbers = jax.tree.map(np.float32, (dict(algorithm.hyperparameters), optimizer))
  return Scalars(*numbers, seed=np.int32(config.seed))
