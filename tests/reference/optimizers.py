"""The optimizers of clients and server, written out."""

from typing import NamedTuple

import jax
import numpy as np


class Moments(NamedTuple):
  """What an optimizer remembers: a mean of gradients, and one of their squares."""

  first: dict  # SGD: the velocity
  second: dict


def zeros(params):
  """Zeros: the optimizer remembers no gradient yet."""
  empty = jax.tree.map(np.zeros_like, params)
  return Moments(empty, empty)


def sgd_step(
  params, velocity, gradient, *, learning_rate, momentum, weight_decay, nesterov=False
):
  """SGD as in torch.optim.SGD.

  g = grad + weight_decay w;  v = momentum v + g;  w = w - learning_rate v, with
  Nesterov w - learning_rate (g + momentum v).
  """
  gradient = jax.tree.map(lambda g, w: g + weight_decay * w, gradient, params)
  velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, gradient)
  step = velocity
  if nesterov:
    step = jax.tree.map(lambda g, v: g + momentum * v, gradient, velocity)
  params = jax.tree.map(lambda w, s: w - learning_rate * s, params, step)
  return params, velocity


def adam_step(
  params, moments, gradient, count, *, rate, betas, epsilon, coupled=0.0, decoupled=0.0
):
  """Step number `count` (from 1) of Adam (arXiv:1412.6980) or AdamW (arXiv:1711.05101).

  w = w - rate decoupled w;  g = grad + coupled w;  m = b1 m + (1 - b1) g;
  v = b2 v + (1 - b2) g^2;  w = w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + e)
  """
  b1, b2 = betas
  gradient = jax.tree.map(lambda g, w: g + coupled * w, gradient, params)
  params = jax.tree.map(lambda w: w - rate * decoupled * w, params)
  m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, moments.first, gradient)
  v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, moments.second, gradient)
  m_scale, v_scale = 1 - b1**count, 1 - b2**count
  params = jax.tree.map(
    lambda w, m, v: w - rate * (m / m_scale) / (np.sqrt(v / v_scale) + epsilon),
    params,
    m,
    v,
  )
  return params, Moments(m, v)


def local_step(params, moments, gradient, count, rate, options):
  """Step number `count` (from 1) of a client's optimizer at learning rate `rate`."""
  if options.optimizer in ('sgd', 'nesterov'):
    params, velocity = sgd_step(
      params,
      moments.first,
      gradient,
      learning_rate=rate,
      momentum=options.momentum,
      weight_decay=options.weight_decay,
      nesterov=options.optimizer == 'nesterov',
    )
    return params, moments._replace(first=velocity)
  decay_kind = {'adam': 'coupled', 'adamw': 'decoupled'}[options.optimizer]
  return adam_step(
    params,
    moments,
    gradient,
    count,
    rate=rate,
    betas=(options.adam_beta1, options.adam_beta2),
    epsilon=options.adam_epsilon,
    **{decay_kind: options.weight_decay},
  )


def server_zeros(params, options):
  """m = 0 and v = tau^2, the least that Algorithm 2 of Reddi et al. allows."""
  least = options.server_tau**2
  return Moments(
    jax.tree.map(np.zeros_like, params),
    jax.tree.map(lambda w: np.full_like(w, least), params),
  )


def server_step(params, moments, update, options):
  """The server's step along `update`, the average of (w_trained - w_received).

  sgd (FedAvgM, arXiv:1909.06335): v = momentum v + update;  w = w + rate v.
  adam, yogi (FedAdam, FedYogi, arXiv:2003.00295, Algorithm 2, no bias correction):
    m = b1 m + (1 - b1) update
    v = b2 v + (1 - b2) update^2                          adam
    v = v - (1 - b2) update^2 sign(v - update^2)          yogi
    w = w + rate m / (sqrt(v) + tau)
  """
  rate = options.server_rate
  if options.server_optimizer == 'sgd':
    beta = options.server_momentum
    velocity = jax.tree.map(lambda v, u: beta * v + u, moments.first, update)
    params = jax.tree.map(lambda w, v: w + rate * v, params, velocity)
    return params, moments._replace(first=velocity)
  b1, b2 = options.server_beta1, options.server_beta2

  def adam(v, u):
    return b2 * v + (1 - b2) * u**2

  def yogi(v, u):
    return v - (1 - b2) * u**2 * np.sign(v - u**2)

  m = jax.tree.map(lambda m, u: b1 * m + (1 - b1) * u, moments.first, update)
  rule = {'adam': adam, 'yogi': yogi}[options.server_optimizer]
  v = jax.tree.map(rule, moments.second, update)
  tau = options.server_tau
  params = jax.tree.map(lambda w, m, v: w + rate * m / (np.sqrt(v) + tau), params, m, v)
  return params, Moments(m, v)
