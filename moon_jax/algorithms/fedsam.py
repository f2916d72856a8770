"""FedSAM, FedASAM and MoFedSAM: local training that looks for flat minima.

FedSAM and FedASAM: Caldarola et al., ECCV 2022, arXiv:2203.11834. MoFedSAM: Qu et al.,
ICML 2022, arXiv:2206.02618. docs/algorithms.md names the deviations of public code.
"""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.algorithms.sgd_path import no_path, path_after
from moon_jax.core import tree
from moon_jax.core.types import Server, Upload


def fedsam(*, rho: float, adaptive: bool = False, xi: float = 0.2) -> base.Algorithm:
  """FedAvg whose local steps take the gradient at weights moved uphill.

  g = grad L(y), and on the same batch y <- y - eta grad L(y + e), with

  e = rho g / ||g||,  or adaptive  e = rho T^2 g / ||T g||,  T = |y| + xi.

  The norm is over all parameters together; where it is 0, so is e. Weight decay is not
  in L: it enters the step. Both gradients see the same dropout.

  Args:
    rho: length of the move, at least 0; 0 is FedAvg.
    adaptive: whether each weight moves in proportion to its size (FedASAM).
    xi: number that is added to |y| in T, at least 0.
  """

  def perturb(grads, params, task):
    def size(y):
      return jnp.abs(y) + task.scalars['xi'] if adaptive else jnp.ones_like(y)

    scale = jax.tree.map(size, params)
    scaled = jax.tree.map(jnp.multiply, scale, grads)
    square = tree.squared_norm(scaled)
    length = task.scalars['rho'] * jax.lax.rsqrt(jnp.where(square > 0, square, 1.0))
    return jax.tree.map(lambda t, tg: length * t * tg, scale, scaled)

  hyperparameters = {'rho': rho, 'xi': xi} if adaptive else {'rho': rho}
  return base.Algorithm(hyperparameters=hyperparameters, perturb=perturb)


def mofedsam(
  *, rho: float, beta: float, adaptive: bool = False, xi: float = 0.2
) -> base.Algorithm:
  """FedSAM whose steps also follow the last round's change of the model.

  y <- y - eta [beta grad L(y + e) + (1 - beta) G],  G = (w_before - w) / (eta a(K)),

  with the mean change and the mean eta a(K) of the last round's clients, both weighted
  like their models. a(K) is the number of steps; with momentum it is the length of the
  steps at rate 1 along a gradient of 1, as in SCAFFOLD, because the optimizer lengthens
  G again. The server keeps G, of the trainable parameters. G is 0 in the first round,
  whose steps are shorter by the factor beta. The local optimizer must be SGD, as in
  SCAFFOLD.

  Args:
    rho: as in FedSAM.
    beta: weight of the client's own gradient, in (0, 1]; 1 is FedSAM.
    adaptive: as in FedSAM.
    xi: as in FedSAM.
  """
  inner = fedsam(rho=rho, adaptive=adaptive, xi=xi)

  def correct(grads, task):
    beta, direction = task.scalars['beta'], task.received.memory
    return jax.tree.map(lambda g, d: beta * g + (1.0 - beta) * d, grads, direction)

  def upload(trained, task):
    length = task.optimizer['learning_rate'] * task.local.length
    return Upload((trained, length)), task.memory

  def aggregate(server, mean, participation, scalars):
    model, length = mean.weighted
    moved = tree.subtract(server.variables['params'], model['params'])
    safe = jnp.where(length > 0, length, 1.0)
    return Server(model, jax.tree.map(lambda leaf: leaf / safe, moved))

  return inner._replace(
    hyperparameters=dict(inner.hyperparameters) | {'beta': beta},
    init_server=lambda variables: jax.tree.map(jnp.zeros_like, variables['params']),
    broadcast=lambda server: server,
    begin=no_path,
    correct=correct,
    after_step=path_after,
    upload=upload,
    aggregate=aggregate,
  )
