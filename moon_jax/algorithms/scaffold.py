"""SCAFFOLD: Karimireddy et al. 2020, algorithm 1, option II, arXiv:1910.06378."""

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.algorithms.sgd_path import no_path, path_after
from moon_jax.core import tree
from moon_jax.core.types import Server, Upload


def scaffold() -> base.Algorithm:
  """Every local step is corrected for the client's drift: g - c_i + c.

  c_i <- c_i - c + (x - y_i) / (eta a(K)) after K steps from x to y_i (option II), with
  a(K) = sum_{k=1..K} (1 - momentum^k) / (1 - momentum). This is the distance that K
  steps at learning rate 1 cover along a gradient of 1; without momentum it is K. Weight
  decay is part of the drift. The model is the mean weighted by examples, and
  c <- c + |S| / N mean_i (c_i's change) over the cohort S, so that c stays the mean of
  all N clients' c_i. In a round with eta = 0, c_i and c stay as they are. All start at
  0 and have the shape of the trainable parameters. The server sends all that it keeps:
  x, and c, which is its memory.

  The local optimizer must be SGD, without Nesterov's momentum, for which a(K) would
  differ.
  """

  def zeros(variables):
    return jax.tree.map(jnp.zeros_like, variables['params'])

  def correct(grads, task):
    return tree.add(tree.subtract(grads, task.memory), task.received.memory)

  def upload(trained, task):
    divisor = task.optimizer['learning_rate'] * task.local.length
    # At rate 0, with which a warm-up may begin, the client has not moved.
    has_rate = divisor != 0
    safe = jnp.where(has_rate, divisor, 1.0)
    moved = tree.subtract(task.received.variables['params'], trained['params'])
    slope = jax.tree.map(lambda leaf: leaf / safe, moved)
    change = tree.subtract(slope, task.received.memory)
    change = jax.tree.map(lambda leaf: jnp.where(has_rate, leaf, 0.0), change)
    return Upload(trained, uniform=change), tree.add(task.memory, change)

  def aggregate(server, mean, participation, scalars):
    moved = jax.tree.map(lambda leaf: participation * leaf, mean.uniform)
    return Server(mean.weighted, tree.add(server.memory, moved))

  return base.Algorithm(
    init_server=zeros,
    init_client=zeros,
    broadcast=lambda server: server,
    begin=no_path,
    correct=correct,
    after_step=path_after,
    upload=upload,
    aggregate=aggregate,
  )
