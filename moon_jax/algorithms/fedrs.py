"""FedRS: Li, Zhan 2021, KDD, https://doi.org/10.1145/3447548.3467254."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base


def fedrs(*, alpha: float, graded: bool = False) -> base.Algorithm:
  """FedAvg whose clients scale the logits of the classes that they do not have.

  The local loss is CE(r z, c). With m_k the client's training examples of class k,

    r_k = 1 if m_k > 0 else alpha                     ("restricted softmax")
    r_k = alpha + (1 - alpha) m_k / max_j m_j         graded, in the authors' code

  The factor is for training; evaluation uses z. It multiplies the whole logit, with its
  bias; the classifier of the authors' code has no bias.

  Args:
    alpha: factor of a class that the client does not have, in [0, 1]; 1 is FedAvg. The
      authors try 0.9, 0.5 and 0.1.
    graded: whether classes that the client has few of are scaled too.
  """

  def loss(outputs, references, params, task, batch):
    factors = restricted(task.class_counts, task.scalars['alpha'], graded)
    outputs = outputs._replace(logits=outputs.logits * factors[None])
    return base.supervised(outputs, references, params, task, batch)

  return base.Algorithm(
    hyperparameters={'alpha': alpha}, needs=frozenset({'class_counts'}), loss=loss
  )


def restricted(counts: jax.Array, alpha: jax.Array, graded: bool) -> jax.Array:
  """[Y] counts of a client's classes, [] -> r [Y], see `fedrs`."""
  if graded:
    return alpha + (1.0 - alpha) * counts / jnp.maximum(jnp.max(counts), 1.0)
  return jnp.where(counts > 0, 1.0, alpha)
