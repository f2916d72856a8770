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


def make_round(
  algorithm: Algorithm, train: Callable[[Work], Finished], num_clients: int
) -> Round:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort; see `lanes.cohort_training`.
    num_clients: N.
  """

  def run_round(state, plan, scalars, data):
    numbers = algorithm.scalars(scalars.algorithm, state.server.memory)
    computed = {name: numbers[name] for name in numbers.keys() - scalars.algorithm}
    table, rows = _memories(state, plan)
    memories = tree.gather(table, rows)
    if algorithm.share:
      present = jnp.float32(len(plan.clients) / num_clients)
      averages = tree.mix(jax.vmap(algorithm.share)(memories), plan.mixing)
      mixed = functools.partial(algorithm.mixed, participation=present, scalars=numbers)
      memories = jax.vmap(mixed)(memories, averages)
    received = algorithm.broadcast(state.server)
    given = scalars._replace(algorithm=numbers)
    plan = plan._replace(arrivals=())
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
    clients = tree.scatter(table, jnp.where(finite, rows, -1), done.memory)
    server_finite = tree.all_finite(server)
    metrics = done.metrics._replace(numbers=computed, server_finite=server_finite)
    return State(server, clients, state.round + 1), metrics

  return run_round


def _memories(state: State, plan: Plan) -> tuple[PyTree, jax.Array]:
  """A table of memories, leaves [N or K, ...], and the cohort's rows of it, [K] int32.

  The table is that of all clients, or what a client store brings of the cohort.
  """
  if not plan.arrivals:
    return state.clients, plan.clients
  memories, staying = plan.arrivals
  stayed = tree.gather(state.clients, jnp.maximum(staying, 0))
  return tree.where(staying >= 0, stayed, memories), jnp.arange(len(staying))
