"""The algorithm of an experiment, with its wrappers."""

from collections.abc import Mapping
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
from moon_jax.core import tree
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import PyTree, Server
from moon_jax.round.examination import with_empty_sums

_PLAIN_AVERAGE = {'name': 'sgd', 'learning_rate': 1.0, 'momentum': 0.0}
# The number of clients for which models are counted: nothing else comes in 997s.
_COUNTED_CLIENTS = 997


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
  if part.registered:
    _check_registered(part, algorithm)
    # Its memory may have Python's numbers.
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


def evaluates_client_models(algorithm: Algorithm, variables: PyTree) -> bool:
  """Whether the models that are tested are the clients' own: N clients have N models.

  Args:
    algorithm: its pure functions.
    variables: variables of the network; their shapes are enough.
  """

  def tested_models(variables):
    memory = algorithm.init_client(variables)
    clients = tree.repeat(memory, _COUNTED_CLIENTS)
    server = Server(variables, algorithm.init_server(variables))
    return algorithm.evaluated(server, clients)

  shapes = jax.eval_shape(tested_models, variables)
  return len(jax.tree.leaves(shapes)[0]) == _COUNTED_CLIENTS


def _check_registered(part: catalog.Part, algorithm: Algorithm) -> None:
  """Checks what the engine takes for granted of an algorithm.

  Raises:
    UsageError: it has neighbours and is not registered so, or the other way round; or
      `measured` is no dict.
  """
  if bool(algorithm.share) != part.has('decentralized'):
    raise UsageError(
      f'The algorithm {part.name!r} must have both or neither: the function `share`, '
      "and the trait 'decentralized' where it is registered, which gives it the knobs "
      'of `topology`.'
    )
  if not isinstance(algorithm.measured, Mapping):
    raise UsageError(
      f'The algorithm {part.name!r}: measured must be a dict, name -> name of the part '
      "with the fraction of the examples that it covers, or '' if it covers all, not "
      f'{type(algorithm.measured).__name__}.'
    )


def _in_arrays(init_client):
  return lambda variables: jax.tree.map(jnp.asarray, init_client(variables))
