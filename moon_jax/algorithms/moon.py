"""MOON: Li, He, Song 2021, arXiv:2103.16257, algorithm 1."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms import base
from moon_jax.types import PyTree, Upload


class Previous(NamedTuple):
  """What a MOON client keeps: the model it trained last, however long ago.

  Attributes:
    variables: that model; before the first one, the initial model as a placeholder.
    exists: [] 1.0 once the client has trained, else 0.0.
  """

  variables: PyTree
  exists: jax.Array


def moon(*, mu: float, tau: float) -> base.Algorithm:
  """FedAvg with mu * l_con added to the local loss (eq. 4).

  A client without a previous model has no negative: its contrastive term is 0.

  Args:
    mu: weight of the contrastive term, at least 0; 0 is FedAvg.
    tau: temperature, above 0.
  """

  def init_client(variables):
    return Previous(variables, exists=jnp.zeros(()))

  def frozen(received, memory):
    return {'global': received, 'previous': memory.variables}

  def loss(outputs, frozen, params, task, batch):
    supervised, parts = base.supervised(outputs, frozen, params, task, batch)
    contrastive = task.memory.exists * losses.model_contrastive(
      z=outputs.representation,
      z_global=frozen['global'],
      z_previous=frozen['previous'],
      temperature=task.scalars['tau'],
      mask=batch.mask,
    )
    total = supervised + task.scalars['mu'] * contrastive
    return total, parts | {'contrastive_loss': contrastive}

  def upload(trained, task):
    del task
    return Upload(weighted=trained), Previous(trained, exists=jnp.ones(()))

  return base.Algorithm(
    hyperparameters={'mu': mu, 'tau': tau},
    init_client=init_client,
    frozen=frozen,
    loss=loss,
    upload=upload,
  )
