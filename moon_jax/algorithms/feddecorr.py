"""FedDecorr: Shi et al. 2023, arXiv:2210.00226, equations 8 and 9, or public code."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base

EPSILON = 1e-8  # added to a variance, as in the authors' code


def feddecorr(*, beta: float, scale: str = 'code') -> base.Algorithm:
  """FedAvg with a penalty on correlated dimensions of the representation.

  The local loss is CE + beta R for the batch's representations [N, D], the input of the
  output layer. With their correlation matrix K,

    scale 'equation'   R = sum_jk K_jk^2 / D^2
    scale 'code'       R = (N - 1)^2 / N sum_{j != k} K_jk^2 / (D (D - 1))

  Args:
    beta: weight of the penalty, at least 0; 0 is FedAvg. 0.1 in the authors' scripts.
    scale: 'code': that of the authors' scripts; 'equation': that of the paper.
  """

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    penalty = correlation(outputs.representation, batch.mask, scale)
    total = supervised + task.scalars['beta'] * penalty
    return total, parts | {'correlation_loss': penalty}

  return base.Algorithm(hyperparameters={'beta': beta}, loss=loss)


def correlation(z: jax.Array, mask: jax.Array, scale: str) -> jax.Array:
  """R, see `feddecorr`: [B, D], mask [B] -> []; 0 with fewer than two real examples."""
  count, width = jnp.sum(mask), z.shape[1]
  real = mask[:, None] > 0
  # Sums over the batch as products: reductions of the outer axis are slow on CPUs.
  mean = mask @ jnp.where(real, z, 0.0) / jnp.maximum(count, 1.0)
  centred = jnp.where(real, z - mean[None], 0.0)
  others = jnp.maximum(count - 1.0, 1.0)
  variance = mask @ jnp.square(centred) / others
  scores = centred * jax.lax.rsqrt(variance + EPSILON)[None]
  # ||Z Z^T|| = ||Z^T Z|| = (N - 1) ||K||, and B is mostly smaller than D.
  squares = jnp.sum(jnp.square(scores @ scores.T))
  if scale == 'equation':
    return jnp.where(count > 1, squares / jnp.square(others * width), 0.0)
  diagonal = jnp.sum(jnp.square(others * variance / (variance + EPSILON)))
  pairs = max(width * (width - 1), 1)
  return jnp.where(count > 1, (squares - diagonal) / (pairs * count), 0.0)
