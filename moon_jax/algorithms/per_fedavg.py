"""Per-FedAvg: Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv:2002.07948."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.core import tree
from moon_jax.core.keys import Purpose
from moon_jax.core.types import Upload


def per_fedavg(*, alpha: float, hessian: str, delta: float = 1e-3) -> base.Algorithm:
  """FedAvg of models that are a good start for one step: mean L(w - alpha grad L(w)).

  A local step has independent batches b1, b2 (and b3), of `batch_size` each:

  u = w - alpha grad L(w; b1);  g = grad L(u; b2);  w <- w - eta (g - alpha H(w; b3) g),

  from the original w, where eta is the rate of the local optimizer. FO (`hessian` =
  'none') leaves H g out; HF ('difference') takes

  H g = [grad L(w + delta g; b3) - grad L(w - delta g; b3)] / (2 delta).

  The losses and the statistics of batch normalisation of a step are those of w on b1.
  Nothing is kept. A client's own model is the global one after one step of rate alpha
  on a batch of its training data. The local optimizer must be SGD without Nesterov.

  Args:
    alpha: rate of the inner step, at least 0; 0 is FedAvg on b2.
    hessian: 'none' or 'difference'.
    delta: length of the difference, above 0.
  """
  is_hessian_free = hessian == 'difference'

  def moved(params, length, direction):
    return jax.tree.map(lambda w, d: w + length * d, params, direction)

  def descent(gradient, gradient_at, variables, task):
    params, alpha = variables['params'], task.scalars['alpha']
    adapted = moved(params, -alpha, gradient)
    outer, _ = gradient_at(variables | {'params': adapted}, batch=1)
    if not is_hessian_free:
      return outer, task.local
    delta = task.scalars['delta']
    ahead, behind = (
      gradient_at(variables | {'params': moved(params, length, outer)}, batch=2)[0]
      for length in (delta, -delta)
    )
    hessian_product = jax.tree.map(
      lambda leaf: leaf / (2.0 * delta), tree.subtract(ahead, behind)
    )
    return moved(outer, -alpha, hessian_product), task.local

  def inner_optimizer(scalars, optimizer):
    zero = jnp.zeros((), jnp.float32)
    return {'learning_rate': scalars['alpha'], 'momentum': zero, 'weight_decay': zero}

  hyperparameters = {'alpha': alpha}
  if is_hessian_free:
    hyperparameters['delta'] = delta
  return base.Algorithm(
    hyperparameters=hyperparameters,
    num_batches=3 if is_hessian_free else 2,
    descent=descent,
    adapted=base.SecondTraining(
      algorithm=base.Algorithm(upload=lambda trained, task: (Upload(), trained)),
      epochs=1,
      max_steps=1,
      optimizer_scalars=inner_optimizer,
      purpose=Purpose.ADAPT,
    ),
  )
