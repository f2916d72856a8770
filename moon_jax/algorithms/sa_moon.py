"""SA-MOON: MOON whose temperature is found by simulated annealing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms import base, temperature
from moon_jax.algorithms.moon import moon
from moon_jax.keys import Purpose, for_purpose
from moon_jax.types import PyTree, Server, Upload


class Tempered(NamedTuple):
  """Something, and a temperature with it.

  Attributes:
    content: variables, or a MOON client's memory.
    temperature: [] float32; () if it is not kept or sent here.
  """

  content: PyTree
  temperature: jax.Array | tuple[()]


def sa_moon(
  *,
  mu: float,
  initial_temperature: float,
  min_temperature: float,
  sigma: float,
  scope: str,
) -> base.Algorithm:
  """MOON; after each local step its tau T may become, by Metropolis' rule,

  T' = max(T (1 - sigma |g - g_prev| / (g_prev + eps)), T_min).

  `temperature.py` has the rule. g is the norm of the gradient of the whole loss, before
  weight decay. The first step of a local training only records it and the loss. This
  goes on while a client has no previous model, and no contrastive term.

  Args:
    mu: weight of the contrastive term, at least 0.
    initial_temperature: T before a client's first step, above 0.
    min_temperature: T_min, above 0.
    sigma: cooling rate, at least 0; 0 is MOON with tau = T.
    scope: whose T is: 'client', it persists from round to round; 'server', it is
      averaged over the cohort like the model, and all clients start with it.
  """
  inner = moon(mu=mu, tau=initial_temperature)
  # T travels with the model, or stays with the client's previous model.
  travels = scope == 'server'

  def tempered(content, value, *, here):
    return Tempered(content, value if here else ())

  def init_server(variables):
    del variables
    return jnp.asarray(initial_temperature, jnp.float32) if travels else ()

  def init_client(variables):
    start = jnp.asarray(initial_temperature, jnp.float32)
    return tempered(inner.init_client(variables), start, here=not travels)

  def broadcast(server):
    return Tempered(server.variables, server.memory)

  def download(received, memory):
    del memory
    return received.content

  def begin(received, memory):
    return temperature.start((received if travels else memory).temperature)

  def frozen(received, memory):
    return inner.frozen(received.content, memory.content)

  def to_inner(task):
    """The task as MOON sees it."""
    return task._replace(
      received=task.received.content,
      memory=task.memory.content,
      scalars=task.scalars | {'tau': task.local.temperature},
    )

  def loss(outputs, frozen, params, task, batch):
    return inner.loss(outputs, frozen, params, to_inner(task), batch)

  def after_step(task, loss, grads, key):
    return temperature.step(
      task.local,
      for_purpose(key, Purpose.ANNEALING),
      grad_norm=jnp.sqrt(tree.squared_norm(grads)),
      loss=loss,
      sigma=task.scalars['sigma'],
      min_temperature=task.scalars['min_temperature'],
    )

  def upload(trained, task):
    end = task.local.temperature
    sent, memory = inner.upload(trained, to_inner(task))
    return (
      Upload(weighted=tempered(sent.weighted, end, here=travels)),
      tempered(memory, end, here=not travels),
    )

  def report(trained, task):
    del trained
    return {'temperature': task.local.temperature}

  def aggregate(server, mean, participation):
    del server, participation
    return Server(mean.weighted.content, mean.weighted.temperature)

  return inner._replace(
    hyperparameters={'mu': mu, 'sigma': sigma, 'min_temperature': min_temperature},
    init_server=init_server,
    init_client=init_client,
    broadcast=broadcast,
    download=download,
    begin=begin,
    frozen=frozen,
    loss=loss,
    after_step=after_step,
    upload=upload,
    report=report,
    aggregate=aggregate,
  )
