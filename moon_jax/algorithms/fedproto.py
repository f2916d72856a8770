"""FedProto: Tan et al. 2022, arXiv:2105.00243, with the loss of the authors' code."""

import jax.numpy as jnp

from moon_jax.algorithms import base, losses, prototypes
from moon_jax.core.types import Upload


def fedproto(*, lam: float, distance: str = 'mean') -> base.Algorithm:
  """SOLO whose clients share prototypes of the classes, but no weights.

  The local loss is CE + lambda D. D of an example is the squared distance of its
  representation f to the global prototype C_c of its class, as a mean (or sum) over
  dimensions. It is 0 for a class without a prototype. In the first round no class
  has one.

  After its last step a client shows all its examples to its trained network, in
  evaluation mode. For each class it sends the sum of f and the count; C_k is the
  cohort's sum over its count. A class that no client of the cohort has keeps its
  prototype. (Sums over the last epoch's steps, as in the authors' code, would be free,
  but the weights change meanwhile, and C_k is a mean under one network.)

  The records also have the fraction of training examples whose nearest prototype is
  that of their class: the paper predicts by the nearest prototype. The models that are
  tested are the clients' own, by their classifiers.

  Args:
    lam: lambda, weight of D, at least 0; 0 is SOLO. The authors have 1 for MNIST.
    distance: 'mean' as in the authors' code, or 'sum', over the dimensions.
  """
  reduce_dimensions = {'mean': jnp.mean, 'sum': jnp.sum}[distance]

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    vectors, exists = task.received.vectors, task.received.there > 0
    z, labels = outputs.representation, batch.labels
    distances = reduce_dimensions(jnp.square(z - vectors[labels]), axis=1)
    pull = losses.masked_mean(jnp.where(exists[labels], distances, 0.0), batch.mask)

    squares = jnp.sum(jnp.square(z[:, None] - vectors[None]), axis=2)
    nearness = jnp.where(exists, -squares, -jnp.inf)
    accuracy = losses.accuracy(nearness, labels, batch.mask)
    any_exists = jnp.any(exists).astype(z.dtype)
    return supervised + task.scalars['lam'] * pull, parts | {
      'prototype_loss': pull,
      'prototype_accuracy': any_exists * accuracy,
      'prototyped_fraction': any_exists,
    }

  return base.Algorithm(
    hyperparameters={'lam': lam},
    init_server=lambda variables, zeros: prototypes.empty_prototypes(zeros),
    init_client=lambda variables: variables,
    broadcast=lambda server: server.memory,
    download=lambda received, memory: memory,
    loss=loss,
    measured={'prototype_accuracy': 'prototyped_fraction', 'prototyped_fraction': ''},
    examine=lambda outputs, batch: prototypes.class_sums(
      outputs.representation, batch, outputs.logits.shape[1]
    ),
    upload=lambda trained, task: (Upload(uniform=task.examined), trained),
    aggregate=lambda server, mean, participation, scalars: server._replace(
      memory=prototypes.updated(server.memory, mean.uniform)
    ),
    evaluated=lambda server, clients: clients,
  )
