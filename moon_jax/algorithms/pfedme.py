"""pFedMe: T Dinh, Tran, Nguyen, NeurIPS 2020, arXiv:2006.08848: Moreau envelopes."""

import jax

from moon_jax.algorithms import base
from moon_jax.core import tree
from moon_jax.core.types import Upload


def pfedme(
  *,
  lam: float,
  inner_steps: int,
  inner_learning_rate: float,
  beta: float,
  warm: bool = False,
) -> base.Algorithm:
  """Each client minimises L(theta) + lambda / 2 ||theta - w||^2, and w follows theta.

  A local step has one batch. On it, K times from theta = w_i,

  theta <- theta - eta_p [grad L(theta) + lambda (theta - w_i)],

  and then w_i <- w_i - eta lambda (w_i - theta), which is the local optimizer's step
  along lambda (w_i - theta). The server's is w <- (1 - beta) w + beta sum_k (n_k / n)
  w_k; running statistics of batch normalisation are averaged plainly.

  The client's own model is its last theta, which it keeps for its test alone. Running
  statistics are those of w_i. The inner steps are stable below eta_p (lambda +
  curvature) = 2.

  Args:
    lam: lambda, at least 0; at 0 only weight decay moves w.
    inner_steps: K, at least 1.
    inner_learning_rate: eta_p, above 0.
    beta: length of the server's step, at least 0; it may exceed 1.
    warm: whether theta goes on from its last value within a round, in place of w_i.
  """

  def descent(gradient, gradient_at, variables, task):
    numbers, w = task.scalars, variables['params']

    def inner_step(theta, slope):
      return jax.tree.map(
        lambda t, g, w: (
          t - numbers['inner_learning_rate'] * (g + numbers['lam'] * (t - w))
        ),
        theta,
        slope,
        w,
      )

    def step_from(index, theta):
      slope, _ = gradient_at(variables | {'params': theta})
      return inner_step(theta, slope)

    if warm:
      theta = jax.lax.fori_loop(0, inner_steps, step_from, task.local['params'])
    else:  # the first gradient is known
      first = inner_step(w, gradient)
      theta = jax.lax.fori_loop(1, inner_steps, step_from, first)
    apart = tree.subtract(w, theta)
    direction = jax.tree.map(lambda leaf: numbers['lam'] * leaf, apart)
    return direction, variables | {'params': theta}

  def aggregate(server, mean, participation, scalars):
    beta = scalars['beta']
    params = jax.tree.map(
      lambda w, y: (1.0 - beta) * w + beta * y,
      server.variables['params'],
      mean.weighted['params'],
    )
    return server._replace(variables=mean.weighted | {'params': params})

  return base.Algorithm(
    hyperparameters={
      'lam': lam,
      'inner_learning_rate': inner_learning_rate,
      'beta': beta,
    },
    init_client=lambda variables: variables,
    begin=lambda received, memory: received,
    descent=descent,
    upload=lambda trained, task: (Upload(weighted=trained), task.local),
    aggregate=aggregate,
    personal=lambda server, memory: memory,
  )
