"""Some variables of the model stay with the client and are never sent."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from moon_jax import catalog
from moon_jax.algorithms import base
from moon_jax.core import tree
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.types import Layers, PyTree, Upload

Paths = frozenset[tuple[str, ...]]


def layer_names(paths: Paths) -> list[str]:
  """The names of the modules that have variables, sorted."""
  return sorted({name for path in paths for name in path[1:-1]})


def named_paths(knob: str, names: str, paths: Paths) -> Paths:
  """The paths of every variable below a module of these names.

  Args:
    knob: the knob that names them, in messages.
    names: the names, separated by commas.
    paths: the paths of all variables of the network.

  Raises:
    KnobError: a name is that of no module.
  """
  known_names = layer_names(paths)
  wanted_names = {name.strip() for name in names.split(',')} - {''}
  for name in sorted(wanted_names.difference(known_names)):
    raise KnobError(
      knob,
      names,
      f'names {name!r}, which is no layer of the network; it has '
      f'{", ".join(known_names)}.{catalog.did_you_mean(name, known_names)}',
    )
  return frozenset(path for path in paths if wanted_names.intersection(path[1:-1]))


def divided(variables: PyTree, private: Paths) -> tuple[PyTree, PyTree]:
  """variables -> the shared ones, and those at the private paths; nested dicts."""
  shared = flatten_dict(variables)
  at_private_paths = {path: shared.pop(path) for path in private}
  return unflatten_dict(shared), unflatten_dict(at_private_paths)


def joined(shared: PyTree, private: PyTree) -> PyTree:
  """Undoes `divided`."""
  return unflatten_dict(flatten_dict(shared) | flatten_dict(private))


def output_layer(network_layers: Layers, algorithm: str, treatment: str) -> Paths:
  """The paths of the output layer.

  Args:
    network_layers: the layers of the network.
    algorithm: its name, for the message.
    treatment: what it does with the output layer: 'never trains the output layer'.

  Raises:
    KnobError: the output layer of the network is not known.
  """
  if not network_layers.output:
    raise KnobError(
      'algorithm',
      algorithm,
      f'{treatment}, which cannot be found in this network: return '
      'moon_jax.Outputs(representation=..., logits=...) from a network of your own, or '
      f'choose another {flag("model")}.',
    )
  return network_layers.output


def keeping(fixed: Paths) -> Callable:
  """The `after_update` with which nothing moves the parameters at these paths.

  They are set back after the local optimizer, so neither weight decay nor momentum
  moves them.
  """

  def after_update(updated, params, task):
    return tree.kept_at(fixed, {'params': updated}, {'params': params})['params']

  return after_update


def without_gradient(set_back: Callable) -> Callable:
  """The `correct` with which parameters that do not train have a gradient of zero.

  They do not move in any case; this keeps their gradient out of the norm that
  `optimizer.clip_norm` limits.

  Args:
    set_back: the `after_update` that sets these parameters back.
  """

  def correct(grads, task):
    return set_back(grads, jax.tree.map(jnp.zeros_like, grads), task)

  return correct


def with_private(private: Paths) -> base.Algorithm:
  """FedAvg of the variables that are not private.

  A client keeps its private variables. All clients begin with the same ones, which the
  server keeps, and an absent client does not change its own. The models that are tested
  are the clients': the shared variables with the client's private ones.
  """

  def shared_part(variables):
    shared, _ = divided(variables, private)
    return shared

  def private_part(variables):
    _, at_private_paths = divided(variables, private)
    return at_private_paths

  def upload(trained, task):
    return Upload(weighted=shared_part(trained)), private_part(trained)

  def aggregate(server, mean, participation, scalars):
    first_private = private_part(server.variables)
    return server._replace(variables=joined(mean.weighted, first_private))

  def evaluated(server, clients):
    shared = shared_part(server.variables)
    return jax.vmap(lambda memory: joined(shared, memory))(clients)

  return base.Algorithm(
    init_client=private_part,
    broadcast=lambda server: shared_part(server.variables),
    download=joined,
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )
