"""SCAFFOLD: Karimireddy et al. 2020, algorithm 1, option II, arXiv:1910.06378."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms import base
from moon_jax.types import PyTree, Server, Upload


class Received(NamedTuple):
  """What the server sends: the global model x, and its control variate c.

  Attributes:
    variables: x.
    control: c, like x's params.
  """

  variables: PyTree
  control: PyTree


class Path(NamedTuple):
  """How far SGD would have come by now at learning rate 1 along a gradient of 1.

  Attributes:
    velocity: [] float32, the sum of momentum^k over the steps so far.
    length: [] float32 a(K), the sum of the velocities.
  """

  velocity: jax.Array
  length: jax.Array


def scaffold() -> base.Algorithm:
  """Every local step is corrected for the client's drift: g - c_i + c.

  c_i <- c_i - c + (x - y_i) / (eta a(K)) after K steps from x to y_i (option II), with
  a(K) = sum_{k=1..K} (1 - momentum^k) / (1 - momentum), which is K without momentum: as
  far as a gradient of 1 leads at a learning rate of 1. Weight decay is part of the
  drift. The model is the mean by examples, and c <- c + |S| / N mean_i (c_i's change)
  over the cohort S, so that c stays the mean of all N clients' c_i. All start at 0 and
  are about the trainable parameters.

  Local training has to be SGD, without Nesterov's momentum, for which a(K) is another.
  """

  def zeros(variables):
    return jax.tree.map(jnp.zeros_like, variables['params'])

  def broadcast(server):
    return Received(server.variables, server.memory)

  def map_received(function, received):
    return received._replace(variables=function(received.variables))

  def download(received, memory):
    del memory
    return received.variables

  def begin(received, memory):
    del received, memory
    return Path(jnp.zeros(()), jnp.zeros(()))

  def correct(grads, task):
    return tree.add(tree.subtract(grads, task.memory), task.received.control)

  def after_step(task, loss, grads, key):
    del loss, grads, key
    velocity = task.optimizer['momentum'] * task.local.velocity + 1.0
    return Path(velocity, task.local.length + velocity)

  def upload(trained, task):
    divisor = task.optimizer['learning_rate'] * task.local.length
    moved = tree.subtract(task.received.variables['params'], trained['params'])
    slope = jax.tree.map(lambda leaf: leaf / divisor, moved)
    change = tree.subtract(slope, task.received.control)
    return Upload(trained, uniform=change), tree.add(task.memory, change)

  def aggregate(server, mean, participation, scalars):
    del scalars
    moved = jax.tree.map(lambda leaf: participation * leaf, mean.uniform)
    return Server(mean.weighted, tree.add(server.memory, moved))

  return base.Algorithm(
    init_server=zeros,
    init_client=zeros,
    broadcast=broadcast,
    map_received=map_received,
    download=download,
    begin=begin,
    correct=correct,
    after_step=after_step,
    upload=upload,
    aggregate=aggregate,
  )
