"""FedNTD: Lee et al. 2022, arXiv:2106.03097, with the loss of the authors' code."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, losses


def fedntd(*, beta: float, tau: float) -> base.Algorithm:
  """FedAvg that keeps the received model's predictions for the wrong classes.

  The local loss is CE + beta tau^2 KL(q || r). q and r are softmaxes at temperature tau
  over the Y - 1 classes that are not the example's: q of the received model's logits
  (frozen), r of the logits of the model being trained.

  Args:
    beta: weight of the distillation, at least 0; 0 is FedAvg. 1 in the authors' code.
    tau: temperature, above 0. 1 in the authors' configuration.
  """

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    given = outputs.logits, references['global'], batch.labels, task.scalars['tau']
    distilled = losses.masked_mean(not_true_distillation(*given), batch.mask)
    total = supervised + task.scalars['beta'] * distilled
    return total, parts | {'distillation_loss': distilled}

  return base.Algorithm(
    hyperparameters={'beta': beta, 'tau': tau},
    frozen=lambda received, memory: {'global': received},
    represented=lambda outputs: outputs.logits,
    loss=loss,
  )


def not_true_distillation(
  logits: jax.Array, teacher: jax.Array, labels: jax.Array, tau: jax.Array
) -> jax.Array:
  """tau^2 KL(q || r) of `fedntd`, from both logits [B, Y] and labels [B]: [B], nats."""
  true = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)

  def log_shares(logits):
    lowest = jnp.finfo(logits.dtype).min
    return jax.nn.log_softmax(jnp.where(true, lowest, logits / tau))

  log_q, log_r = log_shares(teacher), log_shares(logits)
  terms = jnp.where(true, 0.0, jnp.exp(log_q) * (log_q - log_r))
  return jnp.square(tau) * jnp.sum(terms, axis=1)
