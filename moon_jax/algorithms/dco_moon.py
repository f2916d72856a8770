"""DCO-MOON: MOON whose two loss weights follow the share of clients that stray."""

import jax.numpy as jnp

from moon_jax.algorithms import coefficients
from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import seen_through
from moon_jax.core.types import Server


def dco_moon(
  *, mu: float, tau: float, theta: float, normalise: bool, initial: str = 'plain'
) -> Algorithm:
  """The local loss is (2 mu - mu_t) l_sup + (mu + mu_t) l_con, with mu_t = mu p_t.

  p_t is the share of the last round's clients whose deviation
  d_i = ||w_i - w|| / ||w|| from the received model w was above theta.
  `coefficients.py` has the formulas. The server keeps p_t and sends it.

  Args:
    mu: weight of both terms, at least 0; above 0 with `normalise`.
    tau: temperature of the contrastive term, above 0.
    theta: threshold of d_i, above 0. If it is larger than every d_i, p_t = 0, which is
      MOON with mu = 1/2 at 2 mu times the learning rate.
    normalise: whether both weights are divided by mu, so that they are 2 - p_t and
      1 + p_t. Otherwise mu also multiplies the step.
    initial: p_t of the first round, in which the paper's coefficient is "a predefined
      value mu": 'plain': p_0 = 0, so mu_0 = 0; 'mu': p_0 = 1, so mu_0 = mu.
  """
  through = seen_through(
    moon(mu=mu, tau=tau), lambda received, memory: (received.variables, memory)
  )

  def scalars(hyperparameters, p):
    return hyperparameters | {'p_t': p, 'mu_t': hyperparameters['mu'] * p}

  def loss(outputs, references, params, task, batch):
    _, parts = through.loss(outputs, references, params, task, batch)
    supervised, contrastive = coefficients.weights(
      mu=task.scalars['mu'], mu_t=task.scalars['mu_t'], normalise=normalise
    )
    first, second = parts['supervised_loss'], parts['contrastive_loss']
    return supervised * first + contrastive * second, parts

  def deviation(trained, task):
    return coefficients.deviation(trained['params'], task.received.variables['params'])

  def upload(trained, task):
    sent, memory = through.upload(trained, task)
    strayed = coefficients.outcome(deviation(trained, task), task.scalars['theta'])
    return sent._replace(uniform=strayed), memory

  def aggregate(server, mean, participation, scalars):
    # The mean of the outcomes over the cohort is the maximum-likelihood estimate of the
    # Bernoulli parameter; rounding may bring the sum above 1.
    return Server(mean.weighted, jnp.minimum(mean.uniform, 1.0))

  return through._replace(
    hyperparameters={'mu': mu, 'tau': tau, 'theta': theta},
    init_server=lambda variables: jnp.float32(initial == 'mu'),
    scalars=scalars,
    broadcast=lambda server: server,
    loss=loss,
    upload=upload,
    report=lambda trained, task: {'deviation': deviation(trained, task)},
    aggregate=aggregate,
  )
