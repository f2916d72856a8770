"""Some variables of the model stay with the client and are never sent."""

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from moon_jax.algorithms import base
from moon_jax.core.types import PyTree, Upload

Paths = frozenset[tuple[str, ...]]


def divided(variables: PyTree, private: Paths) -> tuple[PyTree, PyTree]:
  """variables -> the shared ones, and those at the private paths; nested dicts."""
  flat = flatten_dict(variables)
  own = {path: flat.pop(path) for path in private}
  return unflatten_dict(flat), unflatten_dict(own)


def joined(some: PyTree, others: PyTree) -> PyTree:
  """Undoes `divided`."""
  return unflatten_dict(flatten_dict(some) | flatten_dict(others))


def with_private(private: Paths) -> base.Algorithm:
  """FedAvg of the variables that are not private.

  A client keeps its private variables. All clients begin with the same ones, which the
  server keeps, and an absent client does not change its own. The models that are tested
  are the clients': the shared variables with the client's private ones.
  """

  def shared(variables):
    return divided(variables, private)[0]

  def own(variables):
    return divided(variables, private)[1]

  def aggregate(server, mean, participation, scalars):
    return server._replace(variables=joined(mean.weighted, own(server.variables)))

  def evaluated(server, clients):
    of_all = shared(server.variables)
    return jax.vmap(lambda memory: joined(of_all, memory))(clients)

  return base.Algorithm(
    init_client=own,
    broadcast=lambda server: shared(server.variables),
    download=joined,
    upload=lambda trained, task: (Upload(shared(trained)), own(trained)),
    aggregate=aggregate,
    evaluated=evaluated,
  )
