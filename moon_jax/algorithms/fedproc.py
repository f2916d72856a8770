"""FedProc: Mu et al. 2023, arXiv:2109.12273, with the loss of the authors' code."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, losses
from moon_jax.algorithms.prototypes import (
  Prototypes,
  class_sums,
  empty_prototypes,
  updated,
)
from moon_jax.core.types import Server, Upload


class ServerMemory(NamedTuple):
  """What the server keeps: the prototypes, and [] float32 how many rounds are done."""

  prototypes: Prototypes
  rounds: jax.Array


def fedproc(*, tau: float, rise: float) -> base.Algorithm:
  """FedAvg that also pulls a representation to the global prototype of its class.

  The local loss is a_t CE + (1 - a_t) L, with

  L = -log(exp(sim(f, C_c) / tau) / sum_k exp(sim(f, C_k) / tau)) and

  a_t = min(t / rise, 1).

  f is the representation, c its class, sim the cosine, t the number of rounds before
  this one. The first round has no prototypes, and a_t = 1. The sum is over the classes
  with a prototype, and an example of a class without one has L = 0.

  After its last step a client shows all its examples to its trained network, in
  evaluation mode. For each class it sends the sum of f / ||f|| and the count; C_k is
  the cohort's sum over its count. A class that no client of the cohort has keeps its
  prototype. (Sums over the last epoch's steps would be free, but no equation has them,
  because the weights change meanwhile.)

  Args:
    tau: temperature, above 0. The authors' code has none, so 1.
    rise: number of rounds until only the cross entropy counts, above 0; 1 is FedAvg.
      The authors' code has 100, its number of rounds.
  """

  def scalars(hyperparameters, memory):
    weight = jnp.minimum(memory.rounds / hyperparameters['rise'], 1.0)
    return hyperparameters | {'a_t': jnp.where(memory.rounds == 0, 1.0, weight)}

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    example_losses = prototype_loss(
      outputs.representation,
      prototypes=task.received.memory,
      labels=batch.labels,
      tau=task.scalars['tau'],
    )
    pull = losses.masked_mean(example_losses, batch.mask)
    weight = task.scalars['a_t']
    total = weight * supervised + (1.0 - weight) * pull
    return total, parts | {'prototype_loss': pull}

  def examine(outputs, batch):
    z = outputs.representation
    length = jnp.linalg.norm(z, axis=1, keepdims=True)
    unit = z / jnp.where(length > 0, length, 1.0)
    return class_sums(unit, batch, outputs.logits.shape[1])

  def aggregate(server, mean, participation, scalars):
    memory = ServerMemory(
      prototypes=updated(server.memory.prototypes, mean.uniform),
      rounds=server.memory.rounds + 1.0,
    )
    return Server(mean.weighted, memory)

  return base.Algorithm(
    hyperparameters={'tau': tau, 'rise': rise},
    init_server=lambda variables, zeros: ServerMemory(
      prototypes=empty_prototypes(zeros), rounds=jnp.zeros(())
    ),
    scalars=scalars,
    broadcast=lambda server: server._replace(memory=server.memory.prototypes),
    loss=loss,
    examine=examine,
    upload=lambda trained, task: (Upload(trained, task.examined), task.memory),
    aggregate=aggregate,
  )


def prototype_loss(
  z: jax.Array, prototypes: Prototypes, labels: jax.Array, tau: jax.Array
) -> jax.Array:
  """L of `fedproc`, of representations [B, D] of classes [B]: [B], in nats."""
  cosines = losses.cosine_similarity(z[:, None], prototypes.vectors[None])
  exists = prototypes.there > 0
  # Finite: without any prototype the gradient through the logarithm must not be NaN.
  scores = jnp.where(exists[None], cosines / tau, jnp.finfo(z.dtype).min)
  log_shares = jax.nn.log_softmax(scores)
  of_true_class = jnp.take_along_axis(log_shares, labels[:, None], axis=1)[:, 0]
  return jnp.where(exists[labels], -of_true_class, 0.0)
