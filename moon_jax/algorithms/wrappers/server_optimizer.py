"""An optimizer on the server: the step that the mean of the uploads suggests."""

from typing import NamedTuple

from moon_jax.algorithms import server_optimizers
from moon_jax.algorithms.base import Algorithm
from moon_jax.types import PyTree

# The optimizer's numbers among those of the algorithm.
_PREFIX = 'server_'


class Optimized(NamedTuple):
  """What the server keeps: the algorithm's memory, and its optimizer's state."""

  inner: PyTree
  optimizer: PyTree


def with_server_optimizer(
  inner: Algorithm, name: str, numbers: dict[str, float]
) -> Algorithm:
  """The algorithm whose new global model is reached by a step of an optimizer.

  The algorithm's own next model less the last one is the mean update, and the step's
  pseudo-gradient is minus that; see `server_optimizers.step`.

  Args:
    inner: an algorithm with a server.
    name: a key of `server_optimizers.OPTIMIZERS`.
    numbers: learning_rate, of sgd also momentum.
  """
  build = server_optimizers.OPTIMIZERS[name]
  hyperparameters = {_PREFIX + key: value for key, value in numbers.items()}

  def to_inner(server):
    return server._replace(memory=server.memory.inner)

  def init_server(variables):
    state = build(**numbers).init(variables['params'])
    return Optimized(inner.init_server(variables), state)

  def scalars(given, memory):
    mine = {key: given[key] for key in hyperparameters}
    return mine | inner.scalars(
      {k: given[k] for k in given if k not in mine}, memory.inner
    )

  def aggregate(server, mean, participation):
    new = inner.aggregate(to_inner(server), mean, participation)
    return new._replace(memory=server.memory._replace(inner=new.memory))

  def server_step(server, new, scalars):
    optimizer = build(**{key: scalars[_PREFIX + key] for key in numbers})
    variables, state = server_optimizers.step(
      optimizer,
      server.memory.optimizer,
      variables=server.variables,
      mean=new.variables,
    )
    return new._replace(
      variables=variables, memory=new.memory._replace(optimizer=state)
    )

  return inner._replace(
    hyperparameters=dict(inner.hyperparameters) | hyperparameters,
    init_server=init_server,
    scalars=scalars,
    broadcast=lambda server: inner.broadcast(to_inner(server)),
    aggregate=aggregate,
    server_step=server_step,
    evaluated=lambda server, clients: inner.evaluated(to_inner(server), clients),
  )
