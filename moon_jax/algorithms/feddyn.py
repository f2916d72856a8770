"""FedDyn: Acar et al. 2021, algorithm 1, arXiv:2111.04263."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, losses
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server, Upload


class ServerMemory(NamedTuple):
  """What the server keeps.

  Attributes:
    h: like the parameters, -alpha / N times the sum of all moves of clients so far.
    mean: the last cohort's mean parameters; () if they are not evaluated.
  """

  h: PyTree
  mean: PyTree


def feddyn(
  *, alpha: float, by_size: bool = False, evaluate: str = 'server'
) -> base.Algorithm:
  """FedAvg that bends each client's loss until its minimum is that of the mean loss.

  Client i of the cohort S, of N clients, minimises from the received model w on

    L_i(y) - <g_i, y> + alpha_i / 2 ||y - w||^2,   g_i <- g_i - alpha_i (y_i - w)

  where it ends at y_i. The server weights its clients equally:

    h <- h - alpha / N sum_{i in S} (y_i - w),   w <- mean_{i in S} y_i - h / alpha

  All g_i and h start at 0; at a minimum g_i is the gradient of L_i at the client's last
  model. The equations are for the parameters; running statistics are averaged plainly.

  Args:
    alpha: weight of the regularisation, above 0. 0.01 in the authors' CIFAR-10 example.
    by_size: whether alpha_i is alpha / (n_i / mean n), as in the authors' code, so that
      the mean of the losses is weighted by examples; otherwise it is alpha.
    evaluate: the model to test: 'server': w; 'mean': the last cohort's mean of y_i.
  """
  keeps_mean = evaluate == 'mean'

  def alpha_of(task):
    if by_size:
      return task.scalars['alpha'] / task.relative_size
    return task.scalars['alpha']

  def zeros(variables):
    return jax.tree.map(jnp.zeros_like, variables['params'])

  def init_server(variables):
    # Copied, because a round writes its new state into the memory of the old one.
    mean = jax.tree.map(jnp.copy, variables['params']) if keeps_mean else ()
    return ServerMemory(h=zeros(variables), mean=mean)

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    products = jax.tree.map(lambda g, y: jnp.sum(g * y), task.memory, params)
    linear = -sum(jax.tree.leaves(products))
    proximal = losses.proximal(params, task.received['params'])
    total = supervised + linear + alpha_of(task) * proximal
    return total, parts | {'linear_loss': linear, 'proximal_loss': proximal}

  def upload(trained, task):
    moved = tree.subtract(trained['params'], task.received['params'])
    alpha = alpha_of(task)
    gradient = jax.tree.map(lambda g, m: g - alpha * m, task.memory, moved)
    return Upload(uniform=trained), gradient

  def aggregate(server, mean, participation, scalars):
    alpha, model = scalars['alpha'], mean.uniform
    # 1/N sum over S is |S| / N times the mean.
    moved = tree.subtract(model['params'], server.variables['params'])
    h = jax.tree.map(lambda h, m: h - alpha * participation * m, server.memory.h, moved)
    params = jax.tree.map(lambda y, h: y - h / alpha, model['params'], h)
    memory = ServerMemory(h=h, mean=model['params'] if keeps_mean else ())
    return Server(model | {'params': params}, memory)

  def evaluated(server, clients):
    variables = server.variables
    if keeps_mean:
      variables = variables | {'params': server.memory.mean}
    return tree.repeat(variables, 1)

  return base.Algorithm(
    hyperparameters={'alpha': alpha},
    needs=frozenset({'relative_size'} if by_size else ()),
    init_server=init_server,
    init_client=zeros,
    loss=loss,
    upload=upload,
    aggregate=aggregate,
    evaluated=evaluated,
  )
