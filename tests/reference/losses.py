"""The terms of the local objectives, and their gradient."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tests.reference import rivals
from tests.reference.networks import Model, squared_distance


class Losses(NamedTuple):
  """The terms of the loss, each a mean over the examples it covers, in nats.

  total = a * supervised + b * contrastive + c * proximal + d * rival, with Weights.
  """

  total: float
  supervised: float
  contrastive: float  # 0 without MOON's term, and for a client without a negative
  proximal: float  # ||w - w_received||^2 / 2, for every algorithm
  positive_cosine: float  # mean sim(z, z_global); NaN where contrastive is 0 by rule
  negative_cosine: float  # mean sim(z, z_previous), over all negatives; NaN likewise
  accuracy: float  # share of the examples whose highest logit is their label's
  rival: float = 0.0  # the term of rivals.rival_term; 0 without one
  nearest: float = jnp.nan  # FedProto: share whose nearest prototype is their class's


class Weights(NamedTuple):
  """Factors of the terms of the loss."""

  supervised: float
  contrastive: float
  proximal: float
  rival: float = 0.0


def cross_entropy(logits, labels):
  """[B, Y], [B] -> [B]: -log softmax(logits)[label]."""
  own_logit = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  return jax.nn.logsumexp(logits, axis=1) - own_logit


def cosine_similarity(a, b):
  """[B, D], [B, D] -> [B]: a.b / (||a|| ||b||)."""
  dot = jnp.sum(a * b, axis=1)
  return dot / (jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1))


def model_contrastive(z, z_global, z_previous, tau):
  """L_con of MOON, eq. 3 (arXiv:2103.16257), with any number of negatives.

  -log(exp(sim(z, z_global) / tau)
       / (exp(sim(z, z_global) / tau) + sum_j exp(sim(z, z_previous_j) / tau)))

  Args:
    z: [B, D] under the weights being trained.
    z_global: [B, D] under the received weights.
    z_previous: list of [B, D], one per negative.
    tau: [] temperature.

  Returns:
    [B] in nats.
  """
  positive = cosine_similarity(z, z_global) / tau
  exponents = [positive] + [cosine_similarity(z, n) / tau for n in z_previous]
  return jax.nn.logsumexp(jnp.stack(exponents), axis=0) - positive


def batch_loss(
  params,
  stats,
  received,
  negatives,
  images,
  labels,
  weights,
  numbers,
  *,
  network,
  similarity_on,
  rival,
):
  """The local objective on one batch.

  Args:
    params: the weights being trained.
    stats: their running statistics.
    received: the Model local training started from.
    negatives: list of Models to be pushed away from; without any, L_con is 0.
    images: [B, H, W, C].
    labels: [B] class indices.
    weights: Weights of the terms.
    numbers: tau, the temperature of L_con and of FedNTD, and what the rivals use.
    network: a Network.
    similarity_on: 'representation' or 'features', what L_con compares.
    rival: what `rivals.chosen` returns.

  Returns:
    [] total loss, and (Losses, running statistics afterwards).
  """

  def compared(model):
    features, z, _, _ = network.forward(model, images, training=False)
    return {'features': features, 'representation': z}[similarity_on]

  model = Model(params, stats)
  features, z, logits, stats = network.forward(model, images, training=True)
  frozen = network.forward(received, images, training=False)[1:3]
  term = rivals.rival_term(rival, (z, logits), frozen, labels, numbers, params)
  nearest = rivals.nearest_share(rival, z, labels, numbers)
  z = {'features': features, 'representation': z}[similarity_on]
  scored = rivals.scored(rival, logits, labels, numbers)
  supervised = jnp.mean(cross_entropy(logits, labels) if scored is None else scored)
  contrastive = 0.0
  cosines = (jnp.nan, jnp.nan)
  if negatives:
    z_global = compared(received)
    z_previous = [compared(model) for model in negatives]
    contrastive = jnp.mean(model_contrastive(z, z_global, z_previous, numbers['tau']))
    to_previous = jnp.stack([cosine_similarity(z, n) for n in z_previous])
    cosines = (jnp.mean(cosine_similarity(z, z_global)), jnp.mean(to_previous))
  proximal = 0.5 * squared_distance(params, received.params)
  accuracy = jnp.mean(jnp.where(jnp.argmax(logits, axis=1) == labels, 1.0, 0.0))
  total = (
    weights.supervised * supervised
    + weights.contrastive * contrastive
    + weights.proximal * proximal
    + weights.rival * term
  )
  losses = Losses(
    total, supervised, contrastive, proximal, *cosines, accuracy, term, nearest
  )
  return total, (losses, stats)


# Only the first argument is trained: the other models are frozen, in evaluation mode.
_compiled = jax.jit(
  jax.grad(batch_loss, argnums=0, has_aux=True),
  static_argnames=('network', 'similarity_on', 'rival'),
)


def gradient_and_losses(*inputs, **settings):
  """The gradient of `batch_loss`, and what it returns beside the total, in numpy."""
  return jax.device_get(_compiled(*inputs, **settings))
