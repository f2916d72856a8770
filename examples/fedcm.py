"""FedCM, a registered algorithm whose server and clients send more than a model.

  python launch.py --config=examples/fedcm.py --config.fedcm.alpha=0.2

Every local step follows a weighted mean of the client's own gradient and of G, the
direction in which the clients moved in the last round (Xu et al. 2021,
arXiv:2106.10874):

  y   <- y - eta (alpha grad L_i(y) + (1 - alpha) G)
  G_i  = (w - y_i) / (eta s_i)     client i moved from w to y_i in s_i steps
  G   <- mean over the cohort of G_i

G starts at 0. The server sends G beside the model, and each client sends its G_i back.
Clients have equal weights in G, and weights by numbers of examples in the model. The
local optimizer must be plain SGD: with momentum, the length of the steps is not
eta s_i.

The command above reaches a test accuracy of about 0.93 on the digits (seed 0).
"""

import jax
import jax.numpy as jnp

import moon_jax
from moon_jax.config import defaults
from moon_jax.core import tree


def fedcm(*, alpha: float) -> moon_jax.Algorithm:
  """Client-level momentum; the head of this file has the equations.

  Args:
    alpha: weight of a client's own gradient, in (0, 1]; 1 is FedAvg.
  """

  def zeros(variables):
    return jax.tree.map(jnp.zeros_like, variables['params'])

  def scalars(hyperparameters, direction):
    # `direction` is that of the previous round, because this round's is known only at
    # its end; it is 0 in the first round.
    norm = jnp.sqrt(tree.squared_norm(direction))
    return hyperparameters | {'direction_norm': norm}

  def correct(grads, task):
    alpha = task.scalars['alpha']
    return jax.tree.map(
      lambda g, d: alpha * g + (1.0 - alpha) * d, grads, task.received.memory
    )

  def upload(trained, task):
    length = task.optimizer['learning_rate'] * task.local
    moved = tree.subtract(task.received.variables['params'], trained['params'])
    direction = jax.tree.map(lambda leaf: leaf / length, moved)
    return moon_jax.Upload(weighted=trained, uniform=direction), task.memory

  def aggregate(server, mean, participation, scalars):
    return moon_jax.Server(mean.weighted, mean.uniform)

  return moon_jax.Algorithm(
    hyperparameters={'alpha': alpha},
    init_server=zeros,
    scalars=scalars,
    broadcast=lambda server: server,
    begin=lambda received, memory: jnp.zeros(()),
    correct=correct,
    after_step=lambda task, loss, grads, key: task.local + 1.0,  # counts the steps
    upload=upload,
    aggregate=aggregate,
  )


def _plain_sgd(valid):
  """Complains of an optimizer other than plain SGD, which the formula of G_i needs."""
  if valid['optimizer.name'] != 'sgd' or valid['optimizer.momentum'] > 0:
    yield 'fedcm needs --config.optimizer.name=sgd with --config.optimizer.momentum=0.'


moon_jax.register_algorithm(
  'fedcm',
  fedcm,
  title='FedCM',
  knobs={
    'alpha': moon_jax.knob(
      float, 0.1, "weight of a client's own gradient", moon_jax.between(0, 1, '(]')
    )
  },
  metrics={'direction_norm': moon_jax.Metric('Norm of G of the round before', 'norm')},
  check=_plain_sgd,
)


def get_config():
  """The digits; the largest client owns 2.4 times as many examples as the smallest."""
  config = defaults()
  config.algorithm = 'fedcm'
  config.partition.beta = 0.3
  config.num_rounds = 20
  config.local_epochs = 3
  config.batch_size = 32
  config.optimizer.learning_rate = 0.1
  config.optimizer.momentum = 0.0
  return config
