"""One communication round: gather the cohort, train, aggregate, scatter. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.cohort import Plan
from moon_jax.data.device import TrainSplit
from moon_jax.lanes import Work, train_cohort
from moon_jax.local import LocalTraining
from moon_jax.types import Scalars, State, Task


class RoundMetrics(NamedTuple):
  """What a round tells about each client of its cohort.

  Attributes:
    sums: name -> [K] float32, the loss and its parts, summed over the examples seen.
    num_seen: [K] float32 examples seen; an example counts once an epoch.
    drift: [K] float32, ||w_trained - w_start||_2 over all parameters.
  """

  sums: dict[str, jax.Array]
  num_seen: jax.Array
  drift: jax.Array


Round = Callable[[State, Plan, Scalars, TrainSplit], tuple[State, RoundMetrics]]


def make_round(
  algorithm: Algorithm, local: LocalTraining, *, represent_once: bool
) -> Round:
  """Builds the function (state, plan, scalars, training split) -> (state, metrics).

  Args:
    algorithm: its pure functions.
    local: local training of one client.
    represent_once: see `lanes.train_cohort`.
  """

  def run_round(state, plan, scalars, data):
    received = algorithm.broadcast(state.server)
    memories = tree.gather(state.clients, plan.clients)
    work = Work(received, memories, plan, scalars, data)
    trained = train_cohort(local, work, represent_once=represent_once)

    def finish(variables, memory):
      return algorithm.upload(variables, Task(received, memory, scalars.algorithm))

    def drift(variables, memory):
      start = algorithm.download(received, memory)
      moved = tree.subtract(variables['params'], start['params'])
      return jnp.sqrt(tree.squared_norm(moved))

    drifts = jax.vmap(drift)(trained.variables, memories)
    uploads, memories = jax.vmap(finish)(trained.variables, memories)
    new_state = State(
      server=algorithm.aggregate(state.server, uploads, plan.num_examples),
      clients=tree.scatter(state.clients, plan.clients, memories),
      round=state.round + 1,
    )
    return new_state, RoundMetrics(trained.sums, trained.num_seen, drifts)

  return run_round
