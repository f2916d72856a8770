"""Some variables of the model stay with the client and are never sent."""

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from moon_jax.algorithms import base
from moon_jax.core.types import PyTree, Upload

Paths = frozenset[tuple[str, ...]]


def named_paths(names: str, paths: Paths) -> Paths | None:
  """The paths of every variable below a module of these names.

  Args:
    names: the names, separated by commas.
    paths: the paths of all variables of the network.

  Returns:
    The paths; None if a name is that of no module.
  """
  wanted_names = {name.strip() for name in names.split(',')} - {''}
  if wanted_names - {name for path in paths for name in path[1:-1]}:
    return None
  return frozenset(path for path in paths if wanted_names.intersection(path[1:-1]))


def divided(variables: PyTree, private: Paths) -> tuple[PyTree, PyTree]:
  """variables -> the shared ones, and those at the private paths; nested dicts."""
  shared = flatten_dict(variables)
  at_private_paths = {path: shared.pop(path) for path in private}
  return unflatten_dict(shared), unflatten_dict(at_private_paths)


def joined(shared: PyTree, private: PyTree) -> PyTree:
  """Undoes `divided`."""
  return unflatten_dict(flatten_dict(shared) | flatten_dict(private))


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
