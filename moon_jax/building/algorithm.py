"""The algorithm of an experiment, with its wrappers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import catalog, models
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.attack import with_attack
from moon_jax.algorithms.wrappers.frozen_layers import algorithm_with_frozen_layers
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer
from moon_jax.config import Config, flatten, used_value
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.round.examination import with_empty_sums

_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}


class Wrapper(NamedTuple):
  """A part of the catalog that is wrapped around an algorithm.

  Attributes:
    name: its name in the catalog.
    options: its knobs.
  """

  name: str
  options: dict[str, Any]


class AlgorithmOptions:
  """What a configuration says about the algorithm.

  Attributes:
    part: the algorithm in the catalog.
    options: its knobs.
    has_local_statistics: whether statistics of batch normalisation stay with clients.
    attack: the attack on what clients send; None without one.
    server_optimizer: the optimizer of the server; None for the plain average.
  """

  def __init__(self, config: Config):
    flat = flatten(config)
    self.part = catalog.part('algorithm', config.algorithm)
    self.options = catalog.options('algorithm', flat)
    self.has_local_statistics = used_value(config, 'batch_norm') == 'local'
    self.attack = None
    self.server_optimizer = None
    if not self.part.has('served'):
      return
    attack = catalog.chosen('attack', flat)
    if attack.has('sending'):
      attack_options = catalog.options('attack', flat)
      del attack_options['fraction']
      self.attack = Wrapper(attack.name, attack_options)
    server = config.server_optimizer
    if server.to_dict() != _PLAIN_AVERAGE:
      server_options = catalog.options('server_optimizer', flat)
      server_options['learning_rate'] = server.learning_rate
      self.server_optimizer = Wrapper(server.name, server_options)


def make_algorithm(options: AlgorithmOptions, network: models.Network) -> Algorithm:
  """The algorithm, wrapped in what else is configured.

  Raises:
    UsageError: `batch_norm=local` is not for this algorithm, or its function fails.
  """
  part = options.part
  part_options = dict(options.options)
  if part.has('layered'):
    part_options['network_layers'] = network.layers()
  algorithm = part.build(Algorithm, **part_options)
  if part.registered:  # its memory may have Python's numbers
    algorithm = algorithm._replace(init_client=_in_arrays(algorithm.init_client))
  algorithm = with_empty_sums(algorithm, network)
  if options.has_local_statistics and 'batch_stats' in network.shapes:
    if algorithm.personal or algorithm.adapted or algorithm.second_training:
      raise KnobError(
        'batch_norm',
        'local',
        f'is not for {flag("algorithm", part.name)}, whose clients train or keep a '
        'further model.',
      )
    algorithm = with_local_statistics(algorithm)
  if attack := options.attack:
    algorithm = with_attack(
      algorithm, attack.name, attack.options, frozen=network.frozen
    )
  if server := options.server_optimizer:
    algorithm = with_server_optimizer(algorithm, server.name, server.options)
  if network.frozen:
    algorithm = algorithm_with_frozen_layers(algorithm, network.frozen)
  return algorithm


def _in_arrays(init_client):
  return lambda variables: jax.tree.map(jnp.asarray, init_client(variables))
