"""FedLC: Zhang et al. 2022, arXiv:2209.00189, with the denominator of public code."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, losses


def fedlc(
  *, tau: float, least_count: float = 0.0, true_class: bool = True
) -> base.Algorithm:
  """FedAvg whose clients raise the margins of classes of which they have few examples.

  With m_k the client's training examples of class k and c an example's class,

    u_k = z_k - tau m_k^(-1/4),   loss = -log(exp(u_c) / sum_k exp(u_k))

  over the classes that the client has. Margins are for training; evaluation uses z.

  Args:
    tau: weight of the margins, at least 0; 0 is FedAvg, if `true_class`. Most public
      code has 1.
    least_count: lower bound of m_k. With 0 a class that the client does not have is
      left out of the sum, unless tau is 0.
    true_class: whether k = c is in the sum. In the paper's form it is not, and the loss
      is unbounded below.
  """

  def loss(outputs, references, params, task, batch):
    counts = jnp.maximum(task.class_counts, task.scalars['least_count'])
    logits = calibrated(outputs.logits, counts, task.scalars['tau'])
    if true_class:
      outputs = outputs._replace(logits=logits)
      return base.supervised(outputs, references, params, task, batch)
    example_losses = without_true_class(logits, batch.labels)
    supervised = losses.masked_mean(example_losses, batch.mask)
    return supervised, {'supervised_loss': supervised}

  return base.Algorithm(
    hyperparameters={'tau': tau, 'least_count': least_count},
    needs=frozenset({'class_counts'}),
    loss=loss,
  )


def calibrated(logits: jax.Array, counts: jax.Array, tau: jax.Array) -> jax.Array:
  """The logits u of `fedlc`; a class that is left out has the lowest number.

  Args:
    logits: [B, Y] z.
    counts: [Y] m_k.
    tau: [] weight of the margins.

  Returns:
    [B, Y].
  """
  present = counts > 0
  margins = tau * jax.lax.rsqrt(jnp.sqrt(jnp.where(present, counts, 1.0)))
  left_out = ~present & (tau > 0)
  lowest = jnp.finfo(logits.dtype).min
  return jnp.where(left_out[None], lowest, logits - margins[None])


def without_true_class(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """[B, Y], [B] -> [B]: log sum_{k != c} exp(u_k) - u_c; an empty sum counts as 1."""
  lowest = jnp.finfo(logits.dtype).min
  is_true = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)
  wrong_logits = jnp.where(is_true, lowest, logits)
  has_wrong_class = jnp.max(wrong_logits, axis=1) > lowest
  log_sum = jnp.where(has_wrong_class, jax.nn.logsumexp(wrong_logits, axis=1), 0.0)
  return log_sum - jnp.sum(jnp.where(is_true, logits, 0.0), axis=1)
