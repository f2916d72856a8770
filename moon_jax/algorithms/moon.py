"""MOON: Li, He, Song 2021, arXiv:2103.16257, algorithm 1."""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, losses
from moon_jax.core.types import PyTree, Upload

# Parts that are recorded, but are no terms of the loss; see `Algorithm.measured`.
MEASURED = {
  'contrasted_fraction': '',
  'positive_cosine': 'contrasted_fraction',
  'negative_cosine': 'contrasted_fraction',
}


class Previous(NamedTuple):
  """What a MOON client keeps: the last models that it trained, however long ago.

  Attributes:
    models: variables of each, the newest first; the initial model stands in for those
      that the client has not trained yet.
    count: [] float32, how many of the models the client has trained.
  """

  models: tuple[PyTree, ...]
  count: jax.Array


def moon(
  *,
  mu: float,
  tau: float,
  negative: str = 'none',
  similarity_on: str = 'representation',
  num_previous: int = 1,
  frozen_mode: str = 'evaluation',
) -> base.Algorithm:
  """FedAvg with mu times the contrastive term added to the local loss (eq. 4).

  Args:
    mu: weight of the contrastive term, at least 0; 0 is FedAvg.
    tau: temperature, above 0.
    negative: the negative of a client without a previous model: 'none': its contrastive
      term is 0; 'global': the received model; 'init': the initial model.
    similarity_on: field of Outputs that is compared, 'representation' or 'features'.
    num_previous: number of a client's last models that are negatives, at least 1.
    frozen_mode: mode of the frozen networks: 'evaluation' or 'training'.
  """

  represented = operator.attrgetter(similarity_on)

  def init_client(variables):
    return Previous(models=(variables,) * num_previous, count=jnp.zeros(()))

  def frozen(received, memory):
    networks = {'global': received}
    for age, model in enumerate(memory.models):
      networks[f'previous_{age}'] = model
    return networks

  def negatives(references, count):
    """The negatives [M, B, D], and [M] bool, which of them exist; M is `num_previous`.

    `references` are the batch's representations under the networks of `frozen`.
    """
    stacked = jnp.stack([references[f'previous_{age}'] for age in range(num_previous)])
    if negative == 'global':
      newest = jnp.where(count > 0, stacked[0], references['global'])
      stacked = stacked.at[0].set(newest)
    if negative != 'none':
      count = jnp.maximum(count, 1.0)
    return stacked, jnp.arange(num_previous, dtype=jnp.float32) < count

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    z_previous, exists = negatives(references, task.memory.count)
    contrast = losses.model_contrastive(
      z=represented(outputs),
      z_global=references['global'],
      z_previous=z_previous,
      exists=exists,
      temperature=task.scalars['tau'],
      mask=batch.mask,
    )
    total = supervised + task.scalars['mu'] * contrast['contrastive_loss']
    return total, parts | contrast

  def upload(trained, task):
    """Sends the model, and keeps it as the newest negative of the next round."""
    models = (trained, *task.memory.models[:-1])
    count = jnp.minimum(task.memory.count + 1.0, float(num_previous))
    return Upload(weighted=trained), Previous(models, count)

  return base.Algorithm(
    hyperparameters={'mu': mu, 'tau': tau},
    init_client=init_client,
    frozen=frozen,
    represented=represented,
    frozen_in_training=frozen_mode == 'training',
    loss=loss,
    measured=MEASURED,
    upload=upload,
  )
