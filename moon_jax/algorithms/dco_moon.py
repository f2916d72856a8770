"""DCO-MOON: MOON whose two loss weights follow the share of clients that stray.

In each round a client either strays from the model it received or does not. The share
of clients that stray estimates a Bernoulli parameter, and sets the next round's
weights. Before the first round the share is chosen: 0 or 1.
"""

import chex
import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import with_view
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server


def dco_moon(
  *, mu: float, tau: float, theta: float, normalise: bool, initial: str = 'plain'
) -> Algorithm:
  """The local loss is (2 mu - mu_t) l_sup + (mu + mu_t) l_con, with mu_t = mu p_t.

  p_t is the share of the last round's clients whose deviation from the received model,
  d_i, was above theta (`deviation`, `weights`). The server keeps p_t and sends it.

  Args:
    mu: weight of both terms, at least 0; above 0 with `normalise`.
    tau: temperature of the contrastive term, above 0.
    theta: threshold of d_i, above 0. If it is larger than every d_i, p_t = 0: the loss
      is 2 mu (with `normalise` 2) times that of MOON with mu = 1/2, with `initial` =
      'mu' from the second round on.
    normalise: whether both weights are divided by mu, so that they are 2 - p_t and
      1 + p_t. Otherwise mu also multiplies the step.
    initial: p_t of the first round, in which the paper's coefficient is "a predefined
      value mu": 'plain': p_0 = 0, so mu_0 = 0; 'mu': p_0 = 1, so mu_0 = mu.
  """
  adapted = with_view(
    moon(mu=mu, tau=tau), lambda received, memory: (received.variables, memory)
  )

  def scalars(hyperparameters, p):
    return hyperparameters | {'p_t': p, 'mu_t': hyperparameters['mu'] * p}

  def loss(outputs, references, params, task, batch):
    _, parts = adapted.loss(outputs, references, params, task, batch)
    weight_sup, weight_con = weights(
      mu=task.scalars['mu'], mu_t=task.scalars['mu_t'], normalise=normalise
    )
    total = (
      weight_sup * parts['supervised_loss'] + weight_con * parts['contrastive_loss']
    )
    return total, parts

  def deviation_of_client(trained, task):
    return deviation(trained['params'], task.received.variables['params'])

  def upload(trained, task):
    sent, memory = adapted.upload(trained, task)
    strays = deviation_of_client(trained, task) > task.scalars['theta']
    return sent._replace(uniform=jnp.float32(strays)), memory

  def aggregate(server, mean, participation, scalars):
    # The mean of the outcomes over the cohort is the maximum-likelihood estimate of the
    # Bernoulli parameter; rounding may bring the sum above 1.
    return Server(mean.weighted, jnp.minimum(mean.uniform, 1.0))

  return adapted._replace(
    hyperparameters={'mu': mu, 'tau': tau, 'theta': theta},
    init_server=lambda variables: jnp.float32(initial == 'mu'),
    scalars=scalars,
    broadcast=lambda server: server,
    loss=loss,
    upload=upload,
    report=lambda trained, task: {'deviation': deviation_of_client(trained, task)},
    aggregate=aggregate,
  )


def deviation(trained: PyTree, received: PyTree) -> jax.Array:
  """d_i = ||w_i - w||_2 / ||w||_2 over all parameters (DCO-MOON).

  Args:
    trained: w_i, a client's parameters after its local training.
    received: w, the parameters it received, not all 0.

  Returns:
    [] float32, no unit.
  """
  chex.assert_trees_all_equal_shapes(trained, received)
  squared_distance = tree.squared_norm(tree.subtract(trained, received))
  return jnp.sqrt(squared_distance) / jnp.sqrt(tree.squared_norm(received))


def weights(
  *, mu: jax.Array, mu_t: jax.Array, normalise: bool
) -> tuple[jax.Array, jax.Array]:
  """The loss is (2 mu - mu_t) L_sup + (mu + mu_t) L_con (DCO-MOON).

  The weights sum to 3 mu, so mu scales the whole loss and acts like a factor of the
  learning rate. Divided by mu they are 2 - p and 1 + p, and no longer depend on mu.

  Args:
    mu: [] at least 0; above 0 with `normalise`, or else the weights are NaN.
    mu_t: [] in [0, mu].
    normalise: whether to divide both weights by mu.

  Returns:
    [] weight of the supervised loss, and [] weight of the contrastive one.
  """
  supervised, contrastive = 2.0 * mu - mu_t, mu + mu_t
  if normalise:
    return supervised / mu, contrastive / mu
  return supervised, contrastive
