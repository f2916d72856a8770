"""APFL: Deng, Kamani, Mahdavi 2020, arXiv:2003.13461: a mixture of two models."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms import base
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Upload


class Personal(NamedTuple):
  """What a client keeps.

  Attributes:
    model: v, with the running statistics of the mixture.
    alpha: [] float32, share of v in the mixture.
  """

  model: PyTree
  alpha: jax.Array


class _Step(NamedTuple):
  """The client's own track in the middle of its local training.

  Attributes:
    personal: what the client will keep.
    velocity: momentum of v, like the params.
  """

  personal: Personal
  velocity: PyTree


def apfl(*, alpha: float, adaptive: bool = False) -> base.Algorithm:
  """FedAvg; each client mixes the global model with one that it trains along.

  The client's model is m = alpha v + (1 - alpha) w_i. In each local step all gradients
  are taken on the same batch, at the weights before the step:

  w_i <- w_i - eta grad L(w_i);  v <- v - eta alpha grad L(m), the gradient with respect
  to v;  if adaptive, alpha <- alpha - eta <v - w_i, grad L(m)>, clipped to [0, 1].

  w_i is sent, and the global model is FedAvg's, up to rounding. A client keeps v and
  alpha; v starts as the first global model. The model that is tested is m with the
  global w. v has the momentum of the local optimizer, which must be SGD without
  Nesterov, and its weight decay, which counts as part of L(m): with alpha = 0, v never
  moves. The step of alpha leaves weight decay out, as the paper's formula (10) does.
  Running statistics of batch normalisation are those of m.

  Args:
    alpha: first share of v, in [0, 1]; 0: m is the global model; 1: v is SOLO's model.
    adaptive: whether alpha is learned.
  """

  def begin(received, memory):
    zeros = jax.tree.map(jnp.zeros_like, memory.model['params'])
    return _Step(personal=memory, velocity=zeros)

  def descent(gradient, gradient_at, variables, task):
    (model, share), velocity = task.local
    numbers, v, w = task.optimizer, model['params'], variables['params']
    mixture = mixed(v, w, share)
    slope, statistics = gradient_at(model | {'params': mixture})
    slope_of_v = jax.tree.map(lambda g: share * g, slope)
    if 'clip_norm' in numbers:
      clip = optax.clip_by_global_norm(numbers['clip_norm'])
      slope_of_v, _ = clip.update(slope_of_v, clip.init(v))
    decay = share * numbers['weight_decay']
    with_decay = jax.tree.map(lambda g, m: g + decay * m, slope_of_v, mixture)
    velocity = jax.tree.map(
      lambda u, g: numbers['momentum'] * u + g, velocity, with_decay
    )
    next_v = jax.tree.map(lambda v, u: v - numbers['learning_rate'] * u, v, velocity)
    if adaptive:
      apart = tree.subtract(v, w)
      products = jax.tree.map(jnp.vdot, apart, slope)
      slope_of_share = sum(jax.tree.leaves(products))
      share = jnp.clip(share - numbers['learning_rate'] * slope_of_share, 0.0, 1.0)
    personal = Personal({'params': next_v} | statistics, share)
    return gradient, _Step(personal=personal, velocity=velocity)

  def own_model(server, memory):
    params = mixed(memory.model['params'], server.variables['params'], memory.alpha)
    return memory.model | {'params': params}

  return base.Algorithm(
    init_client=lambda variables: Personal(variables, jnp.float32(alpha)),
    begin=begin,
    descent=descent,
    upload=lambda trained, task: (Upload(weighted=trained), task.local.personal),
    report=lambda trained, task: (
      {'alpha': task.local.personal.alpha} if adaptive else {}
    ),
    personal=own_model,
  )


def mixed(v: PyTree, w: PyTree, alpha: jax.Array) -> PyTree:
  """alpha v + (1 - alpha) w; exactly w if alpha is 0, and v if it is 1."""
  return jax.tree.map(lambda v, w: alpha * v + (1.0 - alpha) * w, v, w)
