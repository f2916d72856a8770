"""Runs one communication round: gather, mix, train, aggregate, scatter. Pure."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.data.device import TrainSplit
from moon_jax.engine import aggregation
from moon_jax.engine.client_training import Common, Finished, Work
from moon_jax.engine.planning import Plan
from moon_jax.errors import UsageError
from moon_jax.types import ClientMetrics, PyTree, Scalars, Server, State, Uploads

Round = Callable[[State, Plan, Scalars, TrainSplit], tuple[State, ClientMetrics]]


class _Ready(NamedTuple):
  """What a cohort begins a round with.

  Attributes:
    common: to all clients; its algorithm's numbers are complete.
    memories: leaves [K, ...].
    table: leaves [N or K, ...], of which the memories are some rows.
    rows: [K] int32, which; () if they are all, in this order.
    computed: name -> [] float32, of the numbers those that the algorithm computed.
  """

  common: Common
  memories: PyTree
  table: PyTree
  rows: jax.Array | tuple[()]
  computed: dict[str, jax.Array]


def make_round(
  algorithm: Algorithm, train: Callable[[Work], Finished], num_clients: int
) -> Round:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort; see `lanes.cohort_training`.
    num_clients: N.
  """
  begin, end = _begin(algorithm, num_clients), _end(algorithm, num_clients)

  def run_round(state, plan, scalars, data):
    ready = begin(state, plan, scalars)
    work = Work(ready.common, ready.memories, plan._replace(arrivals=()), data)
    return end(state, plan, ready, train(work))

  return run_round


def _begin(algorithm: Algorithm, num_clients: int) -> Callable[..., _Ready]:
  """Builds (state, plan, scalars) -> what the cohort begins with."""

  def begin(state, plan, scalars):
    numbers = algorithm.scalars(scalars.algorithm, state.server.memory)
    computed = {name: numbers[name] for name in numbers.keys() - scalars.algorithm}
    table, rows = _memories(state, plan, num_clients)
    memories = table if isinstance(rows, tuple) else tree.gather(table, rows)
    if algorithm.share:
      present = jnp.float32(len(plan.clients) / num_clients)
      averages = tree.mix(jax.vmap(algorithm.share)(memories), plan.mixing)
      mixed = functools.partial(algorithm.mixed, participation=present, scalars=numbers)
      memories = jax.vmap(mixed)(memories, averages)
    received = algorithm.broadcast(state.server)
    given = scalars._replace(algorithm=numbers)
    return _Ready(Common(received, state.round, given), memories, table, rows, computed)

  return begin


def _end(
  algorithm: Algorithm, num_clients: int
) -> Callable[..., tuple[State, ClientMetrics]]:
  """Builds (state, plan, how it began, Finished) -> (state, metrics [K])."""

  def end(state, plan, ready, done):
    finite, numbers = done.metrics.finite, ready.common.scalars.algorithm
    if algorithm.needs_all_uploads:
      sent = Uploads(done.upload, plan.weights, counted=finite)
    else:
      sent = aggregation.mean_of_finite(done.upload, finite, plan.weights)
    participation = jnp.sum(finite, dtype=jnp.float32) / num_clients
    server = algorithm.aggregate(state.server, sent, participation, numbers)
    if not isinstance(server, Server):
      raise UsageError(f'aggregate must return a Server, not {type(server).__name__}.')
    if isinstance(ready.rows, tuple):
      clients = tree.where(finite, done.memory, ready.table)
    else:
      rows = jnp.where(finite, ready.rows, -1)
      clients = tree.scatter(ready.table, rows, done.memory)
    server_finite = tree.all_finite(server)
    metrics = done.metrics._replace(numbers=ready.computed, server_finite=server_finite)
    return State(server, clients, state.round + 1), metrics

  return end


def _memories(
  state: State, plan: Plan, num_clients: int
) -> tuple[PyTree, jax.Array | tuple[()]]:
  """A table of memories, leaves [N or K, ...], and the cohort's rows of it, [K] int32.

  The table is that of all clients, or what a client store brings of the cohort. If it
  has nobody else's, the rows are ().
  """
  if not plan.arrivals:
    return state.clients, () if len(plan.clients) == num_clients else plan.clients
  memories, staying = plan.arrivals
  stayed = tree.gather(state.clients, jnp.maximum(staying, 0))
  return tree.where(staying >= 0, stayed, memories), ()
