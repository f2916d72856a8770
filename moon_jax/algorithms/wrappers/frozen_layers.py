"""Layers that keep their bits when models are averaged, because they do not train."""

import jax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.private import Paths, layer_names, named_paths
from moon_jax.core import tree
from moon_jax.core.errors import KnobError
from moon_jax.core.types import Layers

BODY = 'body'


def frozen_paths(names: str, network_layers: Layers) -> Paths:
  """The paths of the variables of frozen layers.

  Args:
    names: names of layers, separated by commas: every variable below a module of that
      name; or 'body': all that computes the features.
    network_layers: the layers of the network.

  Raises:
    KnobError: no layer has that name, or no layer is left to train.
  """
  paths = network_layers.paths
  if names.strip() == BODY:
    frozen = network_layers.body
  else:
    frozen = named_paths('frozen_layers', names, paths)
  trainable = {path for path in paths - frozen if path[0] == 'params'}
  if not frozen or not trainable:
    raise KnobError(
      'frozen_layers',
      names,
      f'must be {BODY!r} or name some layers of the network, but not all; it has '
      f'{", ".join(layer_names(paths))}.',
    )
  return frozen


def algorithm_with_frozen_layers(inner: Algorithm, frozen: Paths) -> Algorithm:
  """The algorithm that leaves frozen layers as they are outside the local optimizer.

  The mean of equal numbers would round them, also in a model that only tests see, and a
  model that is trained along has a weight decay of its own. Local training itself is
  that of `freezing.network_with_frozen_layers`.

  Args:
    inner: the algorithm.
    frozen: paths of the variables.
  """

  def aggregate(server, sent, participation, scalars):
    new_server = inner.aggregate(server, sent, participation, scalars)
    return tree.kept_at(frozen, new_server, server)

  def mixed(memory, average):
    return tree.kept_at(frozen, inner.mixed(memory, average), memory)

  def descent(gradient, gradient_at, variables, task):
    new_gradient, local = inner.descent(gradient, gradient_at, variables, task)
    return new_gradient, tree.kept_at(frozen, local, task.local)

  def evaluated(server, clients):
    tested_models = inner.evaluated(server, clients)
    num_models = len(jax.tree.leaves(tested_models)[0])
    first_models = tree.repeat(server.variables, num_models)
    return tree.kept_at(frozen, tested_models, first_models)

  def personal(server, memory):
    return tree.kept_at(frozen, inner.personal(server, memory), server.variables)

  return inner._replace(
    aggregate=aggregate,
    mixed=mixed if inner.mixed else None,
    descent=descent if inner.descent else None,
    evaluated=evaluated,
    personal=personal if inner.personal else None,
  )
