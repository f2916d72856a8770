"""MOON's ablation with an l2 term: Li, He, Song 2021, arXiv:2103.16257, section 4.7."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, losses


def moon_l2(*, mu: float, squared: bool = False) -> base.Algorithm:
  """FedAvg with mu ||z - z_global||_2 added to the local loss, a mean over the batch.

  z and z_global are the representations of an image under the weights being trained and
  under the received ones, which are frozen.

  Args:
    mu: weight of the distance, at least 0; 0 is FedAvg. The paper tries 0.001 to 10.
    squared: whether the term is the square of the norm.
  """

  def loss(outputs, references, params, task, batch):
    supervised, parts = base.supervised(outputs, references, params, task, batch)
    squares = jnp.square(outputs.representation - references['global']).sum(axis=1)
    distances = squares if squared else root(squares)
    distance = losses.masked_mean(distances, batch.mask)
    total = supervised + task.scalars['mu'] * distance
    return total, parts | {'distance_loss': distance}

  return base.Algorithm(
    hyperparameters={'mu': mu},
    frozen=lambda received, memory: {'global': received},
    loss=loss,
  )


def root(squares: jax.Array) -> jax.Array:
  """[B] -> [B] square roots; at 0, where a round may begin, 0 with gradient 0."""
  positive = squares > 0
  # Guarded inside too: the branch not taken must not give a NaN gradient.
  return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)
