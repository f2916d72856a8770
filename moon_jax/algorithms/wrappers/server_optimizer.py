"""Server optimizers: the global model takes the step that the uploads' mean suggests.

The optimizer's state is kept from round to round. Numbers may be traced.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.wrappers.view import scalars_with_inner
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server

# The optimizer's numbers have this prefix among those of the algorithm: with its dot it
# begins no name of a knob, and so none of the algorithm's own numbers.
_PREFIX = 'server_optimizer.'
# The constants of the paper; tau, the degree of adaptivity, has the unit of g.
BETA1, BETA2, TAU = 0.9, 0.99, 1e-3


def sgd(
  *, learning_rate: jax.Array, momentum: jax.Array
) -> optax.GradientTransformation:
  """v <- momentum v + g;  w <- w - learning_rate v, with the pseudo-gradient g.

  FedAvgM (Hsu et al. 2019, arXiv:1909.06335). Rate 1 without momentum is FedAvg, up to
  rounding.
  """
  return optax.sgd(learning_rate, momentum=momentum)


class Moments(NamedTuple):
  """What FedAdam and FedYogi remember: running means of g and of g^2, like params."""

  first: PyTree
  second: PyTree


def _adaptive(
  v_change: Callable[[jax.Array, jax.Array], jax.Array], *, learning_rate: jax.Array
) -> optax.GradientTransformation:
  """m <- beta1 m + (1 - beta1) g;  w <- w - learning_rate m / (sqrt(v) + tau).

  (Reddi et al. 2021, algorithm 2, arXiv:2003.00295, where Delta is -g.) As there, the
  moments are not corrected for their start, m = 0 and v = tau^2; optax's own Adam and
  Yogi correct them and start elsewhere.

  Args:
    v_change: (v, g^2) -> d in v <- v + (1 - beta2) d.
    learning_rate: [] above 0.
  """

  def init(params):
    return Moments(
      first=jax.tree.map(jnp.zeros_like, params),
      second=jax.tree.map(lambda w: jnp.full_like(w, TAU**2), params),
    )

  def next_v(v, g):
    return v + (1.0 - BETA2) * v_change(v, jnp.square(g))

  def update(updates, state, params=None):
    m = jax.tree.map(lambda m, g: BETA1 * m + (1.0 - BETA1) * g, state.first, updates)
    v = jax.tree.map(next_v, state.second, updates)
    scaled = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + TAU), m, v)
    return scaled, Moments(first=m, second=v)

  return optax.chain(
    optax.GradientTransformation(init, update),
    optax.scale_by_learning_rate(learning_rate),
  )


# FedAdam: v <- beta2 v + (1 - beta2) g^2.
adam = functools.partial(_adaptive, lambda v, square: square - v)
# FedYogi: v <- v - (1 - beta2) g^2 sign(v - g^2).
yogi = functools.partial(_adaptive, lambda v, square: square * jnp.sign(square - v))


class Optimized(NamedTuple):
  """What the server keeps: the algorithm's memory, and its optimizer's state."""

  inner: PyTree
  optimizer: PyTree


def with_server_optimizer(
  inner: Algorithm, name: str, numbers: dict[str, float]
) -> Algorithm:
  """The algorithm whose server moves to the next global model by an optimizer's step.

  The step's pseudo-gradient is g = -(next - w), from the algorithm's own next model and
  the last one. (Reddi et al. 2021, algorithm 1.) Only the parameters take the step.
  Running statistics of batch normalisation are no parameters: they are averaged
  plainly.

  Args:
    inner: an algorithm with a server.
    name: name of a server optimizer in the catalog.
    numbers: learning_rate, and for sgd also momentum.
  """
  make_optimizer = catalog.part('server_optimizer', name).function
  optimizer_hyperparameters = {_PREFIX + knob: value for knob, value in numbers.items()}

  def to_inner(server):
    return server._replace(memory=server.memory.inner)

  def init_server(variables):
    optimizer = make_optimizer(**numbers)
    return Optimized(
      inner=inner.init_server(variables), optimizer=optimizer.init(variables['params'])
    )

  def scalars(hyperparameters, memory):
    return scalars_with_inner(inner, hyperparameters, memory.inner)

  def aggregate(server, sent, participation, scalars):
    new = inner.aggregate(to_inner(server), sent, participation, scalars)
    params = server.variables['params']
    pseudo_gradient = tree.subtract(params, new.variables['params'])
    optimizer = make_optimizer(**{knob: scalars[_PREFIX + knob] for knob in numbers})
    updates, state = optimizer.update(pseudo_gradient, server.memory.optimizer, params)
    variables = new.variables | {'params': optax.apply_updates(params, updates)}
    return Server(variables, Optimized(inner=new.memory, optimizer=state))

  def personal(server, client_memory):
    return inner.personal(to_inner(server), client_memory)

  return inner._replace(
    hyperparameters=dict(inner.hyperparameters) | optimizer_hyperparameters,
    init_server=init_server,
    scalars=scalars,
    broadcast=lambda server: inner.broadcast(to_inner(server)),
    aggregate=aggregate,
    evaluated=lambda server, clients: inner.evaluated(to_inner(server), clients),
    personal=personal if inner.personal else None,
  )
