"""What a configuration freezes of a network, or trains at another rate."""

from moon_jax import models
from moon_jax.algorithms.fedper import personal_paths
from moon_jax.algorithms.private import Paths
from moon_jax.algorithms.wrappers.frozen_layers import frozen_paths
from moon_jax.config import Config, used_value
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.models.freezing import network_with_frozen_layers

# Algorithms whose own term of the loss, or whose prototypes, see an output before the
# output layer.
_SEEING_BEFORE_THE_OUTPUT_LAYER = (
  'moon',
  'sa_moon',
  'dco_moon',
  'decentralized_moon',
  'moon_l2',
  'feddecorr',
  'fedproc',
  'fedproto',
)


class FreezingOptions:
  """What a configuration says about layers that train differently.

  Attributes:
    frozen_layers: names of layers that do not train; '' if all train.
    body_learning_rate: learning rate of the layers before the head; 'auto': the head's.
    algorithm: name of the algorithm.
    personal_layers: names of FedPer's personal layers.
    blended_layers: names of the layers that FedALA blends.
    seen_output: the output that the algorithm is about, 'representation' or
      'features'; '' if it is about neither.
    has_local_statistics: whether statistics of batch normalisation stay with clients.
  """

  def __init__(self, config: Config):
    self.frozen_layers = config.frozen_layers
    self.body_learning_rate = config.optimizer.body_learning_rate
    self.algorithm = config.algorithm
    self.personal_layers = config.fedper.layers
    self.blended_layers = config.fedala.layers
    self.seen_output = ''
    if config.algorithm in _SEEING_BEFORE_THE_OUTPUT_LAYER:
      self.seen_output = used_value(config, 'moon.similarity_on')
    self.has_local_statistics = used_value(config, 'batch_norm') == 'local'


def with_frozen(network: models.Network, options: FreezingOptions) -> models.Network:
  """The network, without training of its frozen layers.

  Raises:
    KnobError: no such layers, or freezing them leaves another part of the configuration
      without effect.
  """
  body_has_own_rate = options.body_learning_rate != 'auto'
  if not options.frozen_layers and not body_has_own_rate:
    return network
  layers = network.layers()
  frozen: Paths = frozenset()
  if options.frozen_layers:
    frozen = frozen_paths(options.frozen_layers, layers)
  if body_has_own_rate:
    _require_body_and_head(options, layers, frozen)
  _require_effect(options, layers, frozen)
  return network_with_frozen_layers(network, frozen) if frozen else network


def _require_body_and_head(options, layers, frozen):
  """Raises KnobError unless body and head have layers that train."""
  params = {path for path in layers.paths if path[0] == 'params'}
  if not (params & layers.body) - frozen or not params - layers.body - frozen:
    raise KnobError(
      'optimizer.body_learning_rate',
      options.body_learning_rate,
      'needs layers that train both before the head and in it.',
    )


def _require_effect(options, layers, frozen):
  """Raises KnobError if what an algorithm is about does not train."""
  trained = {path for path in layers.paths - frozen if path[0] == 'params'}
  statistics = {path for path in layers.batch_norm if path[0] == 'batch_stats'}
  behind_seen_output = _behind(options.seen_output, layers)
  complaint = ''
  if behind_seen_output and not behind_seen_output & trained:
    complaint = (
      f'has all layers that compute the {options.seen_output}, which '
      f'{options.algorithm} is about'
    )
  elif options.algorithm == 'fedbabu' and not trained - layers.output:
    complaint = 'leaves nothing to train but the output layer, which fedbabu never does'
  elif options.algorithm == 'fedper':
    if personal_paths(options.personal_layers, layers) <= frozen:
      complaint = 'has all layers that fedper keeps with the clients'
  elif options.algorithm == 'fedala':
    if not personal_paths(options.blended_layers, layers, 'fedala.layers') & trained:
      complaint = 'has all layers that fedala blends'
  elif options.algorithm == 'fedrep' and not trained & layers.output:
    complaint = 'has the output layer, which fedrep trains by itself'
  elif options.algorithm == 'fedbn' and layers.batch_norm <= frozen:
    complaint = 'has all batch normalisation, which fedbn keeps with the clients'
  elif options.has_local_statistics and statistics <= frozen:
    complaint = (
      f'has all batch normalisation, so {flag("batch_norm", "local")} keeps nothing'
    )
  if complaint:
    raise KnobError('frozen_layers', options.frozen_layers, f'{complaint}.')


def _behind(seen_output, layers):
  """The paths of the parameters that this output depends on."""
  if not seen_output:
    return frozenset()
  paths = layers.body if seen_output == 'features' else layers.paths - layers.output
  return frozenset(path for path in paths if path[0] == 'params')
