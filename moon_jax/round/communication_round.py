"""One communication round. Pure.

It fetches the cohort's memories, mixes the models of neighbours if there is no server,
trains, averages, and stores the memories. `Algorithm.second_training` is called the
personal training here, because it does not always come second: it comes before the main
training, or after the average.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import ClientMetrics, PyTree, Scalars, Server, State, Uploads
from moon_jax.data.device_split import TrainSplit
from moon_jax.planning.plan import DevicePlan
from moon_jax.round import aggregation
from moon_jax.round.client_training import Finished, Work

RoundFunction = Callable[
  [State, DevicePlan, Scalars, TrainSplit], tuple[State, ClientMetrics]
]
TrainCohort = Callable[[Work], Finished]


def make_round(
  algorithm: Algorithm,
  train: TrainCohort,
  num_clients: int,
  train_personal: TrainCohort | None = None,
) -> RoundFunction:
  """Builds (state, plan, scalars, training split) -> (state, metrics [K]).

  Args:
    algorithm: its pure functions.
    train: trains a cohort, and makes what is sent; see `make_cohort_training`.
    num_clients: N.
    train_personal: trains the cohort as `algorithm.second_training` says, if there is
      one; see `second_training.make_second_training`.
  """

  personal_before = bool(train_personal) and algorithm.second_training.comes_first
  personal_after = bool(train_personal) and not personal_before

  def run_round(state, plan, scalars, train_split):
    """Computes the state after the round, and the metrics of its cohort."""
    scalars, computed_scalars = _with_computed_scalars(
      algorithm, scalars, state.server.memory
    )
    device_memories = _device_memories(state, plan, num_clients)
    memories = device_memories.of_cohort()
    if algorithm.share:  # without a server, neighbours average before they train
      memories = _mix(algorithm, memories, plan.mixing)
    work = Work(
      received=algorithm.broadcast(state.server),
      round=state.round,
      scalars=scalars,
      # If the personal training comes after the main training, only the personal one
      # uses the memories; the main training gets ().
      memories=() if personal_after else memories,
      cohort=plan.cohort,
      schedule=plan.schedule,
      data=train_split,
    )
    if personal_before:
      personal = train_personal(work._replace(schedule=plan.second_schedule))
      work = work._replace(memories=personal.memory)
    finished = train(work)
    server = _aggregate(
      algorithm, state.server, finished, plan, scalars.algorithm, num_clients
    )
    if personal_after:
      personal_work = work._replace(memories=memories, schedule=plan.second_schedule)
      personal = train_personal(personal_work)
      finished = finished._replace(memory=personal.memory)
    if train_personal:
      finished = finished._replace(metrics=_metrics_with_personal(finished, personal))
    client_memories = device_memories.updated(finished.memory, finished.metrics.finite)
    metrics = finished.metrics._replace(
      computed=computed_scalars, server_finite=tree.all_finite(server)
    )
    return State(server=server, clients=client_memories, round=state.round + 1), metrics

  return run_round


def _with_computed_scalars(
  algorithm: Algorithm, scalars: Scalars, server_memory: PyTree
) -> tuple[Scalars, dict[str, jax.Array]]:
  """All scalars, including those that the algorithm computes; and only the latter."""
  numbers = dict(algorithm.scalars(scalars.algorithm, server_memory))
  # Each must be one number; its type stays.
  template = {
    name: jnp.zeros((), jnp.result_type(number)) for name, number in numbers.items()
  }
  numbers = tree.checked(numbers, template, 'scalars')
  computed_scalars = {
    name: number for name, number in numbers.items() if name not in scalars.algorithm
  }
  return scalars._replace(algorithm=numbers), computed_scalars


def _mix(algorithm: Algorithm, memories: PyTree, mixing: jax.Array) -> PyTree:
  """The memories [K, ...] after neighbours have averaged what they share.

  Args:
    algorithm: its pure functions.
    memories: leaves [K, ...].
    mixing: [K, K] weights of the averages.
  """
  averages = tree.mix(jax.vmap(algorithm.share)(memories), mixing)
  return jax.vmap(algorithm.mixed)(memories, averages)


def _aggregate(
  algorithm: Algorithm,
  old_server: Server,
  finished: Finished,
  plan: DevicePlan,
  algorithm_scalars: dict[str, jax.Array],
  num_clients: int,
) -> Server:
  """The server after the round, from what the clients sent.

  Args:
    algorithm: its pure functions.
    old_server: the server before the round.
    finished: the cohort after its training.
    plan: the plan of the round.
    algorithm_scalars: the algorithm's scalars of the round.
    num_clients: N.

  Raises:
    UsageError: the algorithm makes no such server of it.
  """
  finite, weights = finished.metrics.finite, plan.cohort.weights
  if algorithm.needs_all_uploads:
    sent = Uploads(
      stacked=finished.upload,
      weights=weights,
      counted=finite,
      attack_seeds=plan.attack_seeds,
    )
  else:
    sent = aggregation.mean_of_finite(finished.upload, finite, weights)
  participation = jnp.sum(finite, dtype=jnp.float32) / num_clients
  server = algorithm.aggregate(old_server, sent, participation, algorithm_scalars)
  if not isinstance(server, Server):
    raise UsageError(f'aggregate must return a Server, not {type(server).__name__}.')
  return tree.checked(server, old_server, 'aggregate')


def _metrics_with_personal(main: Finished, personal: Finished) -> ClientMetrics:
  """The metrics of the main training with those of the personal training."""
  num_summed = jnp.maximum(personal.metrics.num_summed, 1.0)
  personal_loss = personal.metrics.sums['train_loss'] / num_summed
  return main.metrics._replace(
    reports=main.metrics.reports | {'personal_loss': personal_loss},
    finite=main.metrics.finite & personal.metrics.finite,
  )


class _DeviceMemories(NamedTuple):
  """The memories of clients that the device holds before a round.

  Attributes:
    table: leaves [N, ...], or [K, ...] if its rows are slots.
    clients: [K] int32 ids of the cohort.
    rows_are_slots: whether row k is that of the cohort's slot k. Otherwise row i is
      that of client i.
  """

  table: PyTree
  clients: jax.Array
  rows_are_slots: bool

  def of_cohort(self) -> PyTree:
    """Leaves [K, ...], by slot."""
    if self.rows_are_slots:
      return self.table
    return tree.gather(self.table, self.clients)

  def updated(self, memories: PyTree, finite: jax.Array) -> PyTree:
    """The table after the round; a client that is not finite keeps what it had.

    Args:
      memories: leaves [K, ...], new memories.
      finite: [K] bool.
    """
    if self.rows_are_slots:
      return tree.where(finite, memories, self.table)
    return tree.scatter(self.table, jnp.where(finite, self.clients, -1), memories)


def _device_memories(
  state: State, plan: DevicePlan, num_clients: int
) -> _DeviceMemories:
  """The memories of all clients, or those that a client store brings for the cohort."""
  clients = plan.cohort.clients
  if plan.arrivals is None:
    # Ids ascend: if everyone takes part, slot k holds client k.
    all_take_part = len(clients) == num_clients
    return _DeviceMemories(state.clients, clients, rows_are_slots=all_take_part)
  previous_slots = plan.arrivals.previous_slots
  stayed = tree.gather(state.clients, jnp.maximum(previous_slots, 0))
  table = tree.where(previous_slots >= 0, stayed, plan.arrivals.memories)
  return _DeviceMemories(table, clients, rows_are_slots=True)
