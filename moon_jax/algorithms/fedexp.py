"""FedExP: Jhunjhunwala et al. 2023, arXiv:2301.09604, with clients weighted."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server, Upload


class ServerMemory(NamedTuple):
  """What the server keeps.

  Attributes:
    eta_g: [] float32, eta_g of the last round; 1 before the first.
    decayed: [] float32, eps of the next round / eps of the first.
    last: parameters before the last round; () if they are not evaluated.
  """

  eta_g: jax.Array
  decayed: jax.Array
  last: PyTree


def fedexp(
  *, eps: float, eps_decay: float = 1.0, evaluate: str = 'last'
) -> base.Algorithm:
  """FedAvg whose server takes longer steps if the clients' updates differ more.

    w <- w + eta_g D,   D = sum_i p_i D_i over the cohort
    eta_g = max{1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + eps))}

  The equations are for the parameters; running statistics are averaged plainly. With
  `client_weight=uniform`, p_i = 1 / K.

  Args:
    eps: number that guards the division, above 0; with infinity it is FedAvg. The
      authors' code has 0.001.
    eps_decay: factor of eps after each round, in (0, 1].
    evaluate: the model to test: 'last': the server's model; 'mean_of_two': the mean of
      this model and the one before, as in the authors' code.
  """
  tests_mean = evaluate == 'mean_of_two'

  def init_server(variables):
    # Copied, because a round writes its new state into the memory of the old one.
    last = jax.tree.map(jnp.copy, variables['params']) if tests_mean else ()
    return ServerMemory(eta_g=jnp.ones(()), decayed=jnp.ones(()), last=last)

  def upload(trained, task):
    moved = tree.subtract(trained['params'], task.received['params'])
    return Upload(weighted=(trained, tree.squared_norm(moved))), task.memory

  def aggregate(server, mean, participation, scalars):
    model, mean_square = mean.weighted  # mean_square is sum_i p_i ||D_i||^2
    start, memory = server.variables['params'], server.memory
    step = tree.subtract(model['params'], start)
    guarded_square = tree.squared_norm(step) + scalars['eps'] * memory.decayed
    eta_g = jnp.maximum(1.0, mean_square / (2.0 * guarded_square))
    params = jax.tree.map(lambda w, d: w + eta_g * d, start, step)
    memory = ServerMemory(
      eta_g=eta_g,
      decayed=memory.decayed * scalars['eps_decay'],
      last=start if tests_mean else (),
    )
    return Server(model | {'params': params}, memory)

  def evaluated(server, clients):
    variables = server.variables
    if tests_mean:
      mean = jax.tree.map(
        lambda w, before: (w + before) / 2, variables['params'], server.memory.last
      )
      variables = variables | {'params': mean}
    return tree.repeat(variables, 1)

  return base.Algorithm(
    hyperparameters={'eps': eps, 'eps_decay': eps_decay},
    init_server=init_server,
    # eta_g of the round before, because this round's is known only at its end.
    scalars=lambda hyperparameters, memory: hyperparameters | {'eta_g': memory.eta_g},
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )
