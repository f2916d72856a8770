"""FedNova, an algorithm of one's own that sends more than a model.

  python launch.py --config=examples/fednova.py --config.fednova.rho=0.5

Clients that own more take more steps, and in a plain mean they pull it further. FedNova
divides what a client moved by how far its steps lead (Wang et al. 2020,
arXiv:2007.07481):

  d_i = (w - y_i) / a_i              client i moved from w to y_i in K_i steps
  a_i = (K_i - rho (1 - rho^K_i) / (1 - rho)) / (1 - rho)
  w  <- w - tau_eff sum_i p_i d_i,   tau_eff = sum_i p_i a_i

with the learning rate inside d_i, and p_i the client's share of the cohort's examples.
a_i is how far a gradient of 1 leads in K_i steps of SGD with momentum rho at a learning
rate of 1: rho should be --config.optimizer.momentum. With rho = 0 it counts the steps.

Some 0.94 test accuracy on the digits (seed 0).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import moon_jax
from configs import base
from moon_jax.core import tree


class Path(NamedTuple):
  """How far the steps so far lead at a learning rate of 1 along a gradient of 1.

  Attributes:
    velocity: [] float32, sum of rho^k over them.
    length: [] float32 a_i, the sum of the velocities: the equation without a division.
  """

  velocity: jax.Array
  length: jax.Array


class Normalised(NamedTuple):
  """What a client sends.

  Attributes:
    model: its variables, with d_i in place of the parameters.
    length: [] float32 a_i.
  """

  model: dict
  length: jax.Array


def fednova(*, rho: float) -> moon_jax.Algorithm:
  """Normalised averaging; see the head of this file.

  Args:
    rho: momentum of local training as a_i sees it, in [0, 1).
  """

  def init_server(variables):
    del variables
    return jnp.zeros(())

  def scalars(hyperparameters, tau_eff):
    # Of the round before: this one's is known at its end. 0 in the first.
    return hyperparameters | {'tau_eff': tau_eff}

  def begin(received, memory):
    del received, memory
    return Path(jnp.zeros(()), jnp.zeros(()))

  def after_step(task, loss, grads, key):
    del loss, grads, key
    velocity = task.scalars['rho'] * task.local.velocity + 1.0
    return Path(velocity, task.local.length + velocity)

  def upload(trained, task):
    length = task.local.length
    moved = tree.subtract(task.received['params'], trained['params'])
    direction = jax.tree.map(lambda leaf: leaf / length, moved)
    sent = Normalised(trained | {'params': direction}, length)
    return moon_jax.Upload(weighted=sent), task.memory

  def map_uploaded(function, upload):
    sent = upload.weighted
    return upload._replace(weighted=sent._replace(model=function(sent.model)))

  def aggregate(server, mean, participation, scalars):
    del participation, scalars
    model, tau_eff = mean.weighted
    step = jax.tree.map(lambda leaf: tau_eff * leaf, model['params'])
    params = tree.subtract(server.variables['params'], step)
    return moon_jax.Server(model | {'params': params}, tau_eff)

  return moon_jax.Algorithm(
    hyperparameters={'rho': rho},
    init_server=init_server,
    scalars=scalars,
    begin=begin,
    after_step=after_step,
    upload=upload,
    map_uploaded=map_uploaded,
    aggregate=aggregate,
  )


def _plain_sgd(valid):
  """a_i is about SGD: complaints about another optimizer."""
  if valid['optimizer.name'] != 'sgd' or valid['optimizer.nesterov']:
    yield 'fednova needs --config.optimizer.name=sgd without nesterov.'


moon_jax.register_algorithm(
  'fednova',
  fednova,
  title='FedNova',
  knobs={
    'rho': moon_jax.knob(
      float, 0.9, 'momentum correction', moon_jax.between(0, 1, '[)')
    )
  },
  metrics={'tau_eff': moon_jax.Metric('Effective steps of the round before', 'steps')},
  check=_plain_sgd,
)


def get_config():
  """The digits, dealt unequally: the largest client owns 2.4 times the smallest."""
  config = base.get_config()
  config.algorithm = 'fednova'
  config.fednova.rho = config.optimizer.momentum
  config.partition.beta = 0.3
  config.num_rounds = 20
  config.local_epochs = 3
  config.batch_size = 32
  return config
