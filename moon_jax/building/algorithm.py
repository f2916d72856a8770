"""The algorithm of an experiment, with its wrappers, and what it sends and keeps."""

import jax
import jax.numpy as jnp

from moon_jax import catalog, models
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.attack import with_attack
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer
from moon_jax.building import traced
from moon_jax.catalog.blaming import blamed
from moon_jax.config import Config, flatten, used_value
from moon_jax.platform import tiers
from moon_jax.round import examined
from moon_jax.round.traffic import exchanged

_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}


def make_algorithm(config: Config, network: models.Network) -> Algorithm:
  """The configured algorithm, wrapped in what else is configured."""
  flat = flatten(config)
  part = catalog.part('algorithm', config.algorithm)
  options = catalog.options('algorithm', flat)
  if part.has('layered'):
    options['network_layers'] = network.layers()
  algorithm = part.build(Algorithm, **options)
  if part.registered:  # its memory may have Python's numbers
    algorithm = algorithm._replace(init_client=_in_arrays(algorithm.init_client))
  algorithm = examined.bound(algorithm, network)
  if used_value(config, 'batch_norm') == 'local' and 'batch_stats' in network.shapes:
    algorithm = with_local_statistics(algorithm)
  attack = catalog.chosen('attack', flat)
  if part.has('served') and attack.has('sending'):
    attack_options = catalog.options('attack', flat)
    del attack_options['fraction']
    algorithm = with_attack(algorithm, attack.name, attack_options)
  server = config.server_optimizer
  if not part.has('served') or server.to_dict() == _PLAIN_AVERAGE:
    return algorithm
  server_options = catalog.options('server_optimizer', flat)
  server_options['learning_rate'] = server.learning_rate
  return with_server_optimizer(algorithm, server.name, server_options)


def _in_arrays(init_client):
  return lambda variables: jax.tree.map(jnp.asarray, init_client(variables))


def traffic_of(
  config: Config, algorithm: Algorithm, network: models.Network, num_classes: int
) -> tuple[int, int]:
  """Bytes that one client receives, and sends, in a round of a real deployment.

  Without a server, they go from and to each of its neighbours.
  """
  scalars = traced.scalars(config, algorithm, 0)
  with blamed(catalog.part('algorithm', config.algorithm)):
    return exchanged(algorithm, network.shapes, scalars, num_classes)


def has_client_models(
  config: Config, algorithm: Algorithm, network: models.Network
) -> bool:
  """Whether the models that are tested are the clients' own, not a global one."""
  if config.num_clients == 1:
    return False
  with blamed(catalog.part('algorithm', config.algorithm)):
    return tiers.has_own_models(algorithm, network.shapes)
