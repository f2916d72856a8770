"""Runs one communication round: gather, mix, train, aggregate, scatter. Pure."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.data.device import TrainSplit
from moon_jax.engine import aggregation
from moon_jax.engine.client_training import Finished, Work
from moon_jax.engine.planning import Plan
from moon_jax.errors import UsageError
from moon_jax.types import ClientMetrics, PyTree, Scalars, Server, State, Uploads

Round = Callable[[State, Plan, Scalars, TrainSplit], tuple[State, ClientMetrics]]


def make_round(algorithm: Algorithm, train: Callable[[Work], Finished]) -> Round:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort; see `lanes.cohort_training`.
  """

  def run_round(state, plan, scalars, data):
    num_clients = len(data.offsets) - 1
    numbers = algorithm.scalars(scalars.algorithm, state.server.memory)
    computed = {name: numbers[name] for name in numbers.keys() - scalars.algorithm}
    memories = tree.gather(state.clients, plan.clients)
    if algorithm.share:
      present = jnp.float32(len(plan.clients) / num_clients)
      averages = tree.mix(jax.vmap(algorithm.share)(memories), plan.mixing)
      mixed = functools.partial(algorithm.mixed, participation=present, scalars=numbers)
      memories = jax.vmap(mixed)(memories, averages)
    received = algorithm.broadcast(state.server)
    given = scalars._replace(algorithm=numbers)
    done = train(Work(received, memories, plan, state.round, given, data))
    finite = done.metrics.finite
    if algorithm.needs_all_uploads:
      sent = Uploads(done.upload, plan.weights, counted=finite)
    else:
      sent = aggregation.mean_of_finite(done.upload, finite, plan.weights)
    participation = jnp.sum(finite, dtype=jnp.float32) / num_clients
    server = algorithm.aggregate(state.server, sent, participation, numbers)
    if not isinstance(server, Server):
      raise UsageError(f'aggregate must return a Server, not {type(server).__name__}.')
    kept = jnp.where(finite, plan.clients, -1)
    clients = tree.scatter(state.clients, kept, done.memory)
    if algorithm.share:
      params = jax.vmap(algorithm.share)(clients)['params']
      computed['consensus_distance'] = consensus_distance(params)
    server_finite = tree.all_finite(server)
    metrics = done.metrics._replace(numbers=computed, server_finite=server_finite)
    return State(server, clients, state.round + 1), metrics

  return run_round


def consensus_distance(models: PyTree) -> jax.Array:
  """[] float32, the mean over clients of ||w_i - w||_2, with w the mean of all w_i.

  Args:
    models: leaves [N, ...], the parameters of every client, absent ones included.
  """
  apart = jax.tree.map(lambda w: w - jnp.mean(w, axis=0, keepdims=True), models)
  return jnp.mean(jnp.sqrt(jax.vmap(tree.squared_norm)(apart)))
