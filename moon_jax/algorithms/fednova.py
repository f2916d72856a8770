"""FedNova: Wang et al. 2020, arXiv:2007.07481."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base
from moon_jax.core import tree
from moon_jax.core.types import Server, Upload


class Path(NamedTuple):
  """The length of the steps so far, at learning rate 1 along a constant gradient of 1.

  Attributes:
    velocity: [] float32 v, the optimizer's momentum.
    length: [] float32 A, which is a_i after the last step.
    steps: [] float32, number of steps.
  """

  velocity: jax.Array
  length: jax.Array
  steps: jax.Array


def fednova(*, mu: float, tau_eff: str = 'norm') -> base.Algorithm:
  """Normalised averaging: a client with more steps does not pull the mean further.

    d_i = (w - y_i) / a_i              client i moved from w to y_i in s_i steps
    w  <- w - tau_eff sum_i p_i d_i    with the learning rate eta inside d_i

  a_i is the length of the client's steps along a constant gradient: each step sets
  v <- rho v + 1 and A <- (1 - eta mu) A + v, with the momentum rho of the local
  optimizer, and a_i = A after s_i steps. Each step also moves by -eta mu (y - w),
  without entering the momentum: the paper's proximal variant. p_i are the shares of the
  cohort's examples. Running statistics are averaged plainly. The local optimizer must
  be SGD, without Nesterov's momentum, for which a_i would differ.

  Args:
    mu: weight of the pull to the received model, at least 0.
    tau_eff: 'norm': sum_i p_i a_i; 'steps': sum_i p_i s_i, which the paper has for the
      proximal variant.
  """

  def begin(received, memory):
    return Path(velocity=jnp.zeros(()), length=jnp.zeros(()), steps=jnp.zeros(()))

  def after_update(updated, params, task):
    strength = -task.optimizer['learning_rate'] * task.scalars['mu']
    distance = tree.subtract(params, task.received['params'])
    return tree.add(updated, jax.tree.map(lambda leaf: strength * leaf, distance))

  def after_step(task, loss, grads, key):
    path, optimizer = task.local, task.optimizer
    velocity = optimizer['momentum'] * path.velocity + 1.0
    shrinkage = 1.0 - optimizer['learning_rate'] * task.scalars['mu']
    return Path(
      velocity=velocity,
      length=shrinkage * path.length + velocity,
      steps=path.steps + 1.0,
    )

  def upload(trained, task):
    path = task.local
    moved = tree.subtract(task.received['params'], trained['params'])
    direction = jax.tree.map(lambda leaf: leaf / path.length, moved)
    pace = path.steps if tau_eff == 'steps' else path.length
    return Upload(weighted=(trained | {'params': direction}, pace)), task.memory

  def aggregate(server, mean, participation, scalars):
    model, pace = mean.weighted
    step = jax.tree.map(lambda leaf: pace * leaf, model['params'])
    params = tree.subtract(server.variables['params'], step)
    return Server(model | {'params': params}, pace)

  return base.Algorithm(
    hyperparameters={'mu': mu},
    init_server=lambda variables: jnp.zeros(()),
    # tau_eff of the round before, because this round's is known only at its end. In the
    # first round it is 0.
    scalars=lambda hyperparameters, pace: hyperparameters | {'tau_eff': pace},
    begin=begin,
    after_update=after_update,
    after_step=after_step,
    upload=upload,
    aggregate=aggregate,
  )
