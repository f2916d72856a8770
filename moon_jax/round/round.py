"""Runs one communication round: gather, mix, train, aggregate, scatter. Pure."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, seed_for
from moon_jax.core.types import ClientMetrics, PyTree, Scalars, Server, State, Uploads
from moon_jax.data.device import TrainSplit
from moon_jax.planning.planner import Plan
from moon_jax.round import aggregation
from moon_jax.round.client_training import Finished, Work

Round = Callable[[State, Plan, Scalars, TrainSplit], tuple[State, ClientMetrics]]


def make_round(
  algorithm: Algorithm,
  train: Callable[[Work], Finished],
  num_clients: int,
  train_second: Callable[[Work], Finished] | None = None,
) -> Round:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort; see `lanes.cohort_training`.
    num_clients: N.
    train_second: trains the cohort by `algorithm.second`, if there is one.
  """

  def mix(memories, plan):
    averages = tree.mix(jax.vmap(algorithm.share)(memories), plan.mixing)
    return jax.vmap(algorithm.mixed)(memories, averages)

  def aggregate(before, done, plan, scalars):
    finite = done.metrics.finite
    if algorithm.needs_all_uploads:
      sent = Uploads(done.upload, plan.weights, finite, plan.attackers)
    else:
      sent = aggregation.mean_of_finite(done.upload, finite, plan.weights)
    participation = jnp.sum(finite, dtype=jnp.float32) / num_clients
    server = algorithm.aggregate(before, sent, participation, scalars)
    if not isinstance(server, Server):
      raise UsageError(f'aggregate must return a Server, not {type(server).__name__}.')
    return tree.checked(server, before, 'aggregate')

  def then_second(done, work, memories, plan):
    seed = seed_for(work.scalars.seed, Purpose.SECOND)
    optimizer = algorithm.second.optimizer(*work.scalars[:2])
    scalars = work.scalars._replace(optimizer=optimizer, seed=seed)
    own = train_second(work._replace(scalars=scalars, memories=memories, plan=plan))
    loss = own.metrics.sums['train_loss'] / jnp.maximum(own.metrics.num_seen, 1.0)
    metrics = done.metrics._replace(
      reports=done.metrics.reports | {'personal_loss': loss},
      finite=done.metrics.finite & own.metrics.finite,
    )
    return Finished(done.upload, own.memory, metrics)

  def run_round(state, plan, scalars, data):
    given = scalars.algorithm
    of_round = dict(algorithm.scalars(given, state.server.memory))
    numbers = {k: jnp.zeros((), jnp.result_type(x)) for k, x in of_round.items()}
    of_round = tree.checked(of_round, numbers, 'scalars')
    scalars = scalars._replace(algorithm=of_round)
    table, rows = _memories(state, plan, num_clients)
    memories = table if rows is None else tree.gather(table, rows)
    if algorithm.share:
      memories = mix(memories, plan)
    alone = dict.fromkeys(('arrivals', 'attackers', 'second'))
    work = Work(
      received=algorithm.broadcast(state.server),
      round=state.round,
      scalars=scalars,
      memories=() if train_second else memories,
      plan=plan._replace(**alone),
      data=data,
    )
    done = train(work)
    server = aggregate(state.server, done, plan, scalars.algorithm)
    if train_second:
      second = plan.second._replace(**alone, known=plan.known)  # of the same clients
      done = then_second(done, work, memories, second)
    finite = done.metrics.finite
    if rows is None:
      clients = tree.where(finite, done.memory, table)
    else:
      clients = tree.scatter(table, jnp.where(finite, rows, -1), done.memory)
    computed = {k: v for k, v in scalars.algorithm.items() if k not in given}
    server_finite = tree.all_finite(server)
    metrics = done.metrics._replace(computed=computed, server_finite=server_finite)
    return State(server, clients, state.round + 1), metrics

  return run_round


def _memories(
  state: State, plan: Plan, num_clients: int
) -> tuple[PyTree, jax.Array | None]:
  """A table of memories, leaves [N or K, ...], and the cohort's rows of it, [K] int32.

  The table has all clients' memories, or those that a client store brings for the
  cohort. If it has only the cohort's, the rows are None: all rows, in order.
  """
  if plan.arrivals is None:
    everybody = len(plan.clients) == num_clients
    return state.clients, None if everybody else plan.clients
  memories, staying = plan.arrivals
  stayed = tree.gather(state.clients, jnp.maximum(staying, 0))
  return tree.where(staying >= 0, stayed, memories), None
