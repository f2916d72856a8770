"""Federated training as the papers write it: plain loops, for checking the engine.

Slow on purpose. Every batch has its own size, so there is no filler and no mask. It
shares no code with the package. Notation: client i owns n_i examples, w is a model,
w_received the model local training starts from, z the output of the projection head.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ALGORITHMS = ('fedavg', 'fedprox', 'moon', 'solo')

# Accelerators round the factors of a float32 product unless told not to.
FULL_PRECISION = lax.Precision.HIGHEST


class Losses(NamedTuple):
  """The terms of the loss, each a mean over the examples it covers, in nats.

  total = supervised + mu * (contrastive or proximal, as the algorithm says).
  """

  total: float
  supervised: float
  contrastive: float  # 0 unless MOON, and for a client without a previous model
  proximal: float  # ||w - w_received||^2 / 2; 0 unless FedProx


class RoundResult(NamedTuple):
  """What one communication round leaves behind."""

  params: dict  # the global model; SOLO: the initial one
  clients: dict  # client id -> model it trained when it last took part
  train_loss: float  # the four losses are means over all examples processed
  supervised_loss: float
  contrastive_loss: float
  proximal_loss: float
  drift: dict  # client id -> ||w_trained - w_received||_2, this round's clients


# Networks.


def dense(layer, x):
  """[B, D_in] -> [B, D_out]: x kernel + bias."""
  product = jnp.dot(x, layer['kernel'], precision=FULL_PRECISION)
  return product + layer['bias'][None, :]


def convolution(layer, x):
  """[B, H, W, C_in] -> [B, H - kh + 1, W - kw + 1, C_out], stride 1, no padding."""
  product = lax.conv_general_dilated(
    x,
    layer['kernel'],
    window_strides=(1, 1),
    padding='VALID',
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    precision=FULL_PRECISION,
  )
  return product + layer['bias'][None, None, None, :]


def relu(x):
  """max(x, 0), with derivative 0 at 0."""
  return jnp.where(x > 0, x, 0.0)


def max_pool(x):
  """[B, H, W, C] -> [B, H // 2, W // 2, C]: 2x2 windows, stride 2."""
  window = (1, 2, 2, 1)
  return lax.reduce_window(x, -jnp.inf, lax.max, window, window, 'VALID')


def projection_and_classifier(params, features):
  """MOON's projection head, then the classifier on the head's output."""
  hidden = relu(dense(params['head_hidden'], features))
  representation = dense(params['head_output'], hidden)
  return representation, dense(params['classifier'], representation)


def mlp(params, images):
  """One hidden layer, projection head, classifier.

  Args:
    params: encoder, head_hidden, head_output, classifier; kernels [in, out].
    images: [B, H, W, C] normalised pixels.

  Returns:
    [B, D] representation, [B, Y] logits.
  """
  flat = jnp.reshape(images, (images.shape[0], -1))
  return projection_and_classifier(params, relu(dense(params['encoder'], flat)))


def moon_cnn(params, images):
  """The CNN of MOON (arXiv:2103.16257): two convolutions, two layers, head.

  Args:
    params: conv1, conv2 (kernels [kh, kw, C_in, C_out]), fc1, fc2, head_hidden,
      head_output, classifier (kernels [in, out]).
    images: [B, H, W, C] normalised pixels.

  Returns:
    [B, D] representation, [B, Y] logits.
  """
  x = max_pool(relu(convolution(params['conv1'], images)))
  x = max_pool(relu(convolution(params['conv2'], x)))
  x = jnp.reshape(x, (x.shape[0], -1))
  x = relu(dense(params['fc1'], x))
  x = relu(dense(params['fc2'], x))
  return projection_and_classifier(params, x)


# Losses.


def cross_entropy(logits, labels):
  """[B, Y], [B] -> [B]: -log softmax(logits)[label]."""
  own_logit = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
  return jax.nn.logsumexp(logits, axis=1) - own_logit


def cosine_similarity(a, b):
  """[B, D], [B, D] -> [B]: a.b / (||a|| ||b||)."""
  dot = jnp.sum(a * b, axis=1)
  return dot / (jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1))


def model_contrastive(z, z_global, z_previous, tau):
  """[B, D] three times -> [B]: L_con of MOON, eq. 3 (arXiv:2103.16257).

  -log(exp(sim(z, z_global) / tau)
       / (exp(sim(z, z_global) / tau) + exp(sim(z, z_previous) / tau)))
  """
  positive = cosine_similarity(z, z_global) / tau
  negative = cosine_similarity(z, z_previous) / tau
  return -(positive - jnp.logaddexp(positive, negative))


def squared_distance(a, b):
  """||a - b||^2 over all parameters of two models."""
  squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
  return sum(jax.tree.leaves(squares))


def batch_loss(
  params, received, previous, images, labels, mu, tau, *, algorithm, network
):
  """The local objective on one batch.

  FedAvg and SOLO: L_sup. FedProx (arXiv:1812.06127, eq. 2): L_sup + mu/2 *
  ||w - w_received||^2. MOON (arXiv:2103.16257): L_sup + mu * mean L_con.

  Args:
    params: the weights being trained.
    received: the weights local training started from.
    previous: the weights this client trained when it last took part, or None.
    images: [B, H, W, C].
    labels: [B] class indices.
    mu: [] weight of the second term.
    tau: [] temperature of L_con.
    algorithm: one of ALGORITHMS.
    network: mlp or moon_cnn.

  Returns:
    [] total loss, and the Losses it is made of.
  """
  z, logits = network(params, images)
  supervised = jnp.mean(cross_entropy(logits, labels))
  contrastive = 0.0
  proximal = 0.0
  if algorithm == 'moon' and previous is not None:
    z_global, _ = network(received, images)
    z_previous, _ = network(previous, images)
    contrastive = jnp.mean(model_contrastive(z, z_global, z_previous, tau))
  if algorithm == 'fedprox':
    proximal = 0.5 * squared_distance(params, received)
  total = supervised + mu * contrastive + mu * proximal
  return total, Losses(total, supervised, contrastive, proximal)


# Only the first argument is trained: the other two models are frozen.
gradient_and_losses = jax.jit(
  jax.grad(batch_loss, argnums=0, has_aux=True),
  static_argnames=('algorithm', 'network'),
)


# Training.


def sgd_step(params, velocity, gradient, *, learning_rate, momentum, weight_decay):
  """g = grad + weight_decay w;  v = momentum v + g;  w = w - learning_rate v."""
  gradient = jax.tree.map(lambda g, w: g + weight_decay * w, gradient, params)
  velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, gradient)
  params = jax.tree.map(lambda w, v: w - learning_rate * v, params, velocity)
  return params, velocity


def weighted_mean(models, weights):
  """sum_i n_i w_i / sum_i n_i."""
  total = sum(weights)
  mean = jax.tree.map(jnp.zeros_like, models[0])
  for model, weight in zip(models, weights, strict=True):
    share = float(weight / total)
    mean = jax.tree.map(lambda m, w, share=share: m + share * w, mean, model)
  return mean


def run(
  *,
  algorithm,
  network,
  params,
  images,
  labels,
  sizes,
  rounds,
  num_clients,
  learning_rate,
  momentum,
  weight_decay,
  mu,
  tau,
):
  """Federated training: every round, train each participant, then average.

  w^{t+1} = sum_i n_i w_i^{t+1} / sum_i n_i over the round's participants. SOLO does
  not average: each client starts from the model it trained last.

  Args:
    algorithm: one of ALGORITHMS.
    network: mlp or moon_cnn.
    params: the initial model.
    images: [M, H, W, C] normalised pixels of all clients together.
    labels: [M] class indices.
    sizes: {client id: n_i}, the number of examples the client owns.
    rounds: per round, {client id: [[B] indices into images, ...]}: the batches in
      order, all local epochs. A client that is not a key is absent.
    num_clients: N; ids are 0..N-1.
    learning_rate: of SGD.
    momentum: of SGD; the velocity starts at zero every round.
    weight_decay: coupled, on all parameters.
    mu: weight of the proximal or of the contrastive term.
    tau: temperature of the contrastive term.

  Returns:
    One RoundResult per round.
  """
  if algorithm not in ALGORITHMS:
    raise ValueError(f'algorithm={algorithm!r} must be one of {ALGORITHMS}.')
  images = np.asarray(images, np.float32)
  labels = np.asarray(labels, np.int32)
  global_params = jax.tree.map(jnp.asarray, params)
  latest = {}  # client id -> the model it trained when it last took part
  results = []

  for batches in rounds:
    if not set(batches) <= set(range(num_clients)):
      raise ValueError(f'clients {sorted(batches)} must be in 0..{num_clients - 1}.')
    trained = {}
    drift = {}
    loss_sums = np.zeros(len(Losses._fields))
    examples = 0

    for client in sorted(batches):
      previous = latest.get(client) if algorithm == 'moon' else None
      received = global_params
      if algorithm == 'solo':
        received = latest.get(client, global_params)
      local = received
      velocity = jax.tree.map(jnp.zeros_like, received)

      for indices in batches[client]:
        gradient, losses = gradient_and_losses(
          local,
          received,
          previous,
          images[indices],
          labels[indices],
          mu,
          tau,
          algorithm=algorithm,
          network=network,
        )
        local, velocity = sgd_step(
          local,
          velocity,
          gradient,
          learning_rate=learning_rate,
          momentum=momentum,
          weight_decay=weight_decay,
        )
        loss_sums += np.array([float(loss) for loss in losses]) * len(indices)
        examples += len(indices)

      trained[client] = local
      drift[client] = float(jnp.sqrt(squared_distance(local, received)))

    latest = {**latest, **trained}
    if algorithm != 'solo':
      global_params = weighted_mean(
        list(trained.values()), [sizes[client] for client in trained]
      )
    losses = Losses(*(float(total) for total in loss_sums / examples))
    results.append(
      RoundResult(
        params=global_params,
        clients=latest,
        train_loss=losses.total,
        supervised_loss=losses.supervised,
        contrastive_loss=losses.contrastive,
        proximal_loss=losses.proximal,
        drift=drift,
      )
    )
  return results


def accuracy_and_loss(network, params, images, labels):
  """One forward pass over everything.

  Args:
    network: mlp or moon_cnn.
    params: its weights.
    images: [M, H, W, C] normalised pixels.
    labels: [M] class indices.

  Returns:
    Accuracy in [0, 1], mean cross entropy in nats.
  """
  labels = np.asarray(labels, np.int32)
  _, logits = network(params, jnp.asarray(images, jnp.float32))
  correct = np.argmax(np.asarray(logits), axis=1) == labels
  return float(np.mean(correct)), float(jnp.mean(cross_entropy(logits, labels)))
