"""SA-MOON: MOON whose temperature is found by simulated annealing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms import base, temperature
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import with_view
from moon_jax.core import tree
from moon_jax.core.device_keys import for_purpose
from moon_jax.core.keys import Purpose
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

  adapted = with_view(
    inner,
    lambda received, memory: (received.variables, memory.content),
    lambda task: task.scalars | {'tau': task.local.temperature},
  )

  def sent_temperature(value):
    """What the server keeps of a temperature, and a client sends."""
    return jnp.asarray(value, jnp.float32) if travels else ()

  def client_temperature(value):
    """What a client keeps of a temperature."""
    return None if travels else jnp.asarray(value, jnp.float32)

  def init_client(variables):
    return Tempered(
      content=inner.init_client(variables),
      temperature=client_temperature(initial_temperature),
    )

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
    inner_upload, inner_memory = adapted.upload(trained, task)
    value = task.local.temperature
    sent = Server(inner_upload.weighted, sent_temperature(value))
    return Upload(weighted=sent), Tempered(inner_memory, client_temperature(value))

  return adapted._replace(
    hyperparameters={'mu': mu, 'sigma': sigma, 'min_temperature': min_temperature},
    init_server=lambda variables: sent_temperature(initial_temperature),
    init_client=init_client,
    broadcast=lambda server: server,
    begin=begin,
    after_step=after_step,
    upload=upload,
    report=lambda trained, task: {'temperature': task.local.temperature},
    # Clients send a Server like this one: the model, and the temperature or ().
    aggregate=lambda server, mean, participation, scalars: mean.weighted,
  )
