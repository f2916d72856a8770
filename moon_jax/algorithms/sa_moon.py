"""SA-MOON: MOON whose temperature is found by simulated annealing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, temperature
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import seen_through
from moon_jax.core import tree
from moon_jax.core.keys import Purpose, for_purpose
from moon_jax.core.types import PyTree, Server, Upload


class Tempered(NamedTuple):
  """What a client keeps.

  Attributes:
    content: what a client of MOON keeps.
    temperature: [] float32; None if the server keeps it.
  """

  content: PyTree
  temperature: jax.Array | None


def sa_moon(
  *,
  mu: float,
  initial_temperature: float,
  min_temperature: float,
  sigma: float,
  scope: str,
  acceptance: str = 'steps',
) -> base.Algorithm:
  """MOON whose temperature simulated annealing changes in each local step.

  After a step Metropolis' rule may replace T by

  T' = max(T (1 - sigma |g - g_prev| / (g_prev + eps)), T_min).

  `temperature.py` has the rule. g is the norm of the gradient of the whole loss, before
  weight decay. The first step of a local training only records g and the loss. A client
  without a previous model anneals too, though it has no contrastive term.

  Args:
    mu: weight of the contrastive term, at least 0.
    initial_temperature: T before a client's first step, above 0.
    min_temperature: T_min, above 0.
    sigma: cooling rate, at least 0; 0 is MOON with tau = T.
    scope: owner of T: 'client': T persists from round to round; 'server': T is averaged
      over the cohort like the model, and all clients start with it.
    acceptance: the losses that Metropolis' rule compares: 'steps': of this step and of
      the step before; 'temperatures': of this step's batch at T and at T'.
  """
  inner = moon(mu=mu, tau=initial_temperature)
  # T is sent with the model, or stays with the client's previous model.
  travels = scope == 'server'

  through = seen_through(
    inner,
    lambda received, memory: (received.variables, memory.content),
    lambda task: task.scalars | {'tau': task.local.temperature},
  )

  def kept(value):
    """A temperature as server and upload have it, and as a client keeps it."""
    value = jnp.asarray(value, jnp.float32)
    return (value, None) if travels else ((), value)

  def init_client(variables):
    return Tempered(inner.init_client(variables), kept(initial_temperature)[1])

  def begin(received, memory):
    return temperature.start(received.memory if travels else memory.temperature)

  def after_step(task, loss, grads, key):
    def loss_at(proposed):
      return task.loss_with(task.local._replace(temperature=proposed))

    return temperature.step(
      task.local,
      for_purpose(key, Purpose.ANNEALING),
      grad_norm=jnp.sqrt(tree.squared_norm(grads)),
      loss=loss,
      sigma=task.scalars['sigma'],
      min_temperature=task.scalars['min_temperature'],
      loss_at=loss_at if acceptance == 'temperatures' else None,
    )

  def upload(trained, task):
    sent, memory = through.upload(trained, task)
    by_server, by_client = kept(task.local.temperature)
    return Upload(Server(sent.weighted, by_server)), Tempered(memory, by_client)

  return through._replace(
    hyperparameters={'mu': mu, 'sigma': sigma, 'min_temperature': min_temperature},
    init_server=lambda variables: kept(initial_temperature)[0],
    init_client=init_client,
    broadcast=lambda server: server,
    begin=begin,
    after_step=after_step,
    upload=upload,
    report=lambda trained, task: {'temperature': task.local.temperature},
    # Clients send a Server like this one: the model, and the temperature or ().
    aggregate=lambda server, mean, participation, scalars: mean.weighted,
  )
