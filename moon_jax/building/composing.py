"""The algorithm that a configuration asks for, with its wrappers."""

import jax
import jax.numpy as jnp

from moon_jax import catalog, models
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.attack import with_attack
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer
from moon_jax.config import Config, flatten, used_value
from moon_jax.round import examined

_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}


def make_algorithm(config: Config, network: models.Network) -> Algorithm:
  """The algorithm, wrapped in what else is configured."""
  part, flat = catalog.part('algorithm', config.algorithm), flatten(config)
  given = {'network_layers': network.layers()} if part.has('layered') else {}
  algorithm = part.build(Algorithm, **catalog.options('algorithm', flat), **given)
  if part.registered:  # its memory may have Python's numbers
    algorithm = algorithm._replace(init_client=_in_arrays(algorithm.init_client))
  algorithm = examined.bound(algorithm, network)
  if used_value(config, 'batch_norm') == 'local' and 'batch_stats' in network.shapes:
    algorithm = with_local_statistics(algorithm)
  attack = catalog.chosen('attack', flat)
  if part.has('served') and attack.has('sending'):
    numbers = catalog.options('attack', flat)
    del numbers['fraction']
    algorithm = with_attack(algorithm, attack.name, numbers)
  server = config.server_optimizer
  if not part.has('served') or server.to_dict() == _PLAIN_AVERAGE:
    return algorithm
  numbers = catalog.options('server_optimizer', flat)
  numbers['learning_rate'] = server.learning_rate
  return with_server_optimizer(algorithm, server.name, numbers)


def _in_arrays(function):
  return lambda variables: jax.tree.map(jnp.asarray, function(variables))
