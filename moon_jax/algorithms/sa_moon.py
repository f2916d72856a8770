"""SA-MOON: MOON whose temperature is found by simulated annealing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms import base, temperature
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.wrappers.view import seen_through
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

  def view(received, memory):
    return received.content, memory.content

  def at_temperature(task):
    return task.scalars | {'tau': task.local.temperature}

  through = seen_through(inner, view, at_temperature)

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

  def map_content(function, tempered):
    return tempered._replace(content=function(tempered.content))

  def map_uploaded(function, upload):
    return upload._replace(weighted=map_content(function, upload.weighted))

  def begin(received, memory):
    return temperature.start((received if travels else memory).temperature)

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
    sent, memory = through.upload(trained, task)
    return (
      Upload(weighted=tempered(sent.weighted, end, here=travels)),
      tempered(memory, end, here=not travels),
    )

  def report(trained, task):
    del trained
    return {'temperature': task.local.temperature}

  def aggregate(server, mean, participation, scalars):
    del server, participation, scalars
    return Server(mean.weighted.content, mean.weighted.temperature)

  return through._replace(
    hyperparameters={'mu': mu, 'sigma': sigma, 'min_temperature': min_temperature},
    init_server=init_server,
    init_client=init_client,
    broadcast=broadcast,
    map_received=map_content,
    map_uploaded=map_uploaded,
    begin=begin,
    after_step=after_step,
    upload=upload,
    report=report,
    aggregate=aggregate,
  )
