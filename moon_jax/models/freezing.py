"""Layers that do not train: a network that trains without their change."""

import flax.linen as nn
import jax

from moon_jax.core import tree
from moon_jax.models import layers
from moon_jax.models.network import Network


def network_with_frozen_layers(network: Network, frozen: frozenset) -> Network:
  """The network whose `train` leaves some variables alone.

  Their gradient is zero. Batch normalisation that is frozen computes as in evaluation,
  by its running statistics, which do not change; otherwise the frozen layers would
  compute something else in training than in tests.

  Args:
    network: the network.
    frozen: paths of the variables.
  """

  def train(variables, images, mask, key):
    fixed = jax.tree.map(jax.lax.stop_gradient, variables)
    partly_fixed = tree.kept_at(frozen, variables, fixed)
    with nn.intercept_methods(_in_evaluation):
      outputs, statistics = network.train(partly_fixed, images, mask, key)
    return outputs, tree.kept_at(frozen, statistics, _only(statistics, variables))

  def _in_evaluation(call, inputs, options, context):
    module = context.module
    is_frozen = ('batch_stats', *module.path, 'mean') in frozen
    if context.method_name == '__call__' and is_frozen:
      if isinstance(module, layers.BatchNorm):
        return call(inputs[0], None)
      if isinstance(module, nn.BatchNorm):
        return _by_running_statistics(module, call, inputs, options)
    return call(*inputs, **options)

  return network._replace(train=train, frozen=frozen)


def _by_running_statistics(module, call, inputs, options):
  """A call of flax's batch normalisation that uses its running statistics.

  A network may have said otherwise where it made the module, or in the call; flax
  refuses both at once. So the module says it, for this call.
  """
  said_by_network = module.use_running_average
  # A module of flax refuses plain assignments.
  object.__setattr__(module, 'use_running_average', True)
  try:
    return call(*inputs[:1], **options | {'use_running_average': None})
  finally:
    object.__setattr__(module, 'use_running_average', said_by_network)


def _only(statistics, variables):
  """The collections of the variables that the statistics have."""
  return {name: variables[name] for name in statistics}
