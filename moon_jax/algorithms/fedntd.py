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
    example_losses = not_true_distillation(
      outputs.logits,
      teacher_logits=references['global'],
      labels=batch.labels,
      tau=task.scalars['tau'],
    )
    distillation = losses.masked_mean(example_losses, batch.mask)
    total = supervised + task.scalars['beta'] * distillation
    return total, parts | {'distillation_loss': distillation}

  return base.Algorithm(
    hyperparameters={'beta': beta, 'tau': tau},
    frozen=lambda received, memory: {'global': received},
    represented=lambda outputs: outputs.logits,
    loss=loss,
  )


def not_true_distillation(
  logits: jax.Array, teacher_logits: jax.Array, labels: jax.Array, tau: jax.Array
) -> jax.Array:
  """tau^2 KL(q || r) of `fedntd`, from both logits [B, Y] and labels [B]: [B], nats."""
  is_true = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)

  def log_shares(logits):
    lowest = jnp.finfo(logits.dtype).min
    return jax.nn.log_softmax(jnp.where(is_true, lowest, logits / tau))

  log_q, log_r = log_shares(teacher_logits), log_shares(logits)
  terms = jnp.where(is_true, 0.0, jnp.exp(log_q) * (log_q - log_r))
  return jnp.square(tau) * jnp.sum(terms, axis=1)
