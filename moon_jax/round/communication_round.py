"""One communication round: gather, mix, train, aggregate, scatter. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import ClientMetrics, PyTree, Scalars, Server, State, Uploads
from moon_jax.data.device import TrainSplit
from moon_jax.planning.plan import DevicePlan
from moon_jax.round import aggregation
from moon_jax.round.client_training import Finished, Work

RoundFunction = Callable[
  [State, DevicePlan, Scalars, TrainSplit], tuple[State, ClientMetrics]
]


def make_round(
  algorithm: Algorithm,
  train: Callable[[Work], Finished],
  num_clients: int,
  train_second: Callable[[Work], Finished] | None = None,
) -> RoundFunction:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort; see `lanes.cohort_training`.
    num_clients: N.
    train_second: trains the cohort as `algorithm.second_training` says, if there is
      one; see `second_training.make_second_training`.
  """

  def run_round(state, plan, scalars, data):
    scalars, extra_scalars = with_extra_scalars(scalars, state.server.memory)
    held_memories = _held_memories(state, plan, num_clients)
    memories = held_memories.of_cohort()
    if algorithm.share:  # without a server, neighbours average before they train
      memories = mix(memories, plan.mixing)
    second_comes_first = algorithm.second_training and (
      algorithm.second_training.comes_first
    )
    work = Work(
      received=algorithm.broadcast(state.server),
      round=state.round,
      scalars=scalars,
      # A second training that comes later has the memories to itself.
      memories=() if train_second and not second_comes_first else memories,
      cohort=plan.cohort,
      schedule=plan.schedule,
      data=data,
    )
    if second_comes_first:
      second = train_second(work._replace(schedule=plan.second_schedule))
      work = work._replace(memories=second.memory)
    finished = train(work)
    server = aggregate(state.server, finished, plan, scalars.algorithm)
    if train_second and not second_comes_first:
      second_work = work._replace(memories=memories, schedule=plan.second_schedule)
      second = train_second(second_work)
      finished = finished._replace(memory=second.memory)
    if train_second:
      finished = finished._replace(metrics=with_second(finished, second))
    client_memories = held_memories.updated(finished.memory, finished.metrics.finite)
    metrics = finished.metrics._replace(
      computed=extra_scalars, server_finite=tree.all_finite(server)
    )
    return State(server=server, clients=client_memories, round=state.round + 1), metrics

  def with_extra_scalars(scalars, server_memory):
    """All scalars, including those that the algorithm computes; and only the latter."""
    numbers = dict(algorithm.scalars(scalars.algorithm, server_memory))
    # Each is a single number, of the type that it has.
    template = {
      name: jnp.zeros((), jnp.result_type(number)) for name, number in numbers.items()
    }
    numbers = tree.checked(numbers, template, 'scalars')
    extra_scalars = {
      name: number for name, number in numbers.items() if name not in scalars.algorithm
    }
    return scalars._replace(algorithm=numbers), extra_scalars

  def mix(memories, mixing):
    averages = tree.mix(jax.vmap(algorithm.share)(memories), mixing)
    return jax.vmap(algorithm.mixed)(memories, averages)

  def aggregate(old_server, finished, plan, scalars):
    finite, weights = finished.metrics.finite, plan.cohort.weights
    if algorithm.needs_all_uploads:
      sent = Uploads(
        stacked=finished.upload,
        weights=weights,
        counted=finite,
        attackers=plan.attack_seeds,
      )
    else:
      sent = aggregation.mean_of_finite(finished.upload, finite, weights)
    counted_fraction = jnp.sum(finite, dtype=jnp.float32) / num_clients
    server = algorithm.aggregate(old_server, sent, counted_fraction, scalars)
    if not isinstance(server, Server):
      raise UsageError(f'aggregate must return a Server, not {type(server).__name__}.')
    return tree.checked(server, old_server, 'aggregate')

  def with_second(first, second):
    """The metrics of a cohort with those of its second training."""
    num_seen = jnp.maximum(second.metrics.num_seen, 1.0)
    personal_loss = second.metrics.sums['train_loss'] / num_seen
    return first.metrics._replace(
      reports=first.metrics.reports | {'personal_loss': personal_loss},
      finite=first.metrics.finite & second.metrics.finite,
    )

  return run_round


class _HeldMemories(NamedTuple):
  """The memories of clients that the device holds before a round.

  Attributes:
    table: leaves [N, ...], or [K, ...] if it holds only the cohort.
    clients: [K] int32 ids of the cohort.
    holds_cohort_only: whether the table has a row for each slot of the cohort, and not
      for each client.
  """

  table: PyTree
  clients: jax.Array
  holds_cohort_only: bool

  def of_cohort(self) -> PyTree:
    """Leaves [K, ...], by slot."""
    if self.holds_cohort_only:
      return self.table
    return tree.gather(self.table, self.clients)

  def updated(self, memories: PyTree, finite: jax.Array) -> PyTree:
    """The table after the round; a client that is not finite keeps what it had.

    Args:
      memories: leaves [K, ...], new memories.
      finite: [K] bool.
    """
    if self.holds_cohort_only:
      return tree.where(finite, memories, self.table)
    return tree.scatter(self.table, jnp.where(finite, self.clients, -1), memories)


def _held_memories(state: State, plan: DevicePlan, num_clients: int) -> _HeldMemories:
  """The memories of all clients, or those that a client store brings for the cohort."""
  clients = plan.cohort.clients
  if plan.arrivals is None:
    # Ids ascend: if everyone takes part, slot k holds client k.
    everyone_takes_part = len(clients) == num_clients
    return _HeldMemories(state.clients, clients, holds_cohort_only=everyone_takes_part)
  previous_slot = plan.arrivals.staying
  stayed = tree.gather(state.clients, jnp.maximum(previous_slot, 0))
  table = tree.where(previous_slot >= 0, stayed, plan.arrivals.memories)
  return _HeldMemories(table, clients, holds_cohort_only=True)
