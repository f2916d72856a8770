"""One communication round: gather the cohort, train, aggregate, scatter. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.algorithms.base import Algorithm
from moon_jax.cohort import Plan
from moon_jax.data.device import DeviceSplit
from moon_jax.local import LocalTraining
from moon_jax.types import PyTree, Scalars, State, Task


class Trained(NamedTuple):
  """What stays of a client's Progress after its last step."""

  variables: PyTree
  sums: dict[str, jax.Array]
  num_seen: jax.Array


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


Round = Callable[[State, Plan, Scalars, DeviceSplit], tuple[State, RoundMetrics]]


def make_round(algorithm: Algorithm, local: LocalTraining) -> Round:
  """Builds the function (state, plan, scalars, training split) -> (state, metrics)."""

  def run_round(state, plan, scalars, data):
    received = algorithm.broadcast(state.server)
    memories = tree.gather(state.clients, plan.clients)
    trained = train_cohort(local, received, memories, plan, scalars, data)

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


def train_cohort(
  local: LocalTraining,
  received: PyTree,
  memories: PyTree,
  plan: Plan,
  scalars: Scalars,
  data: DeviceSplit,
) -> Trained:
  """Trains every client of the cohort, L at a time.

  Args:
    local: start and step of one client.
    received: what the server sent, the same for all.
    memories: leaves [K, ...].
    plan: the round's lanes, segments and batches.
    scalars: the round's numbers.
    data: the training split.

  Returns:
    leaves [K, ...]; a client without a step keeps its start.
  """

  def batches(step):
    return jax.vmap(data.batch)(plan.examples[step], plan.num_real[step])

  def begin(slots):
    one_batch = jax.tree.map(lambda leaf: leaf[0], batches(0))

    def one(slot):
      return local.start(received, tree.gather(memories, slot), scalars, one_batch)

    return jax.vmap(one)(slots)

  def step(index, lanes):
    # A lane whose last client is stored trains on filler: nothing reads it any more.
    return jax.vmap(lambda lane, batch: local.step(lane, received, scalars, batch))(
      lanes, batches(index)
    )

  def segment(index, carry):
    lanes, finished = carry
    load, store = plan.load[index], plan.store[index]
    entering = begin(jnp.maximum(load, 0))
    lanes = tree.where(load >= 0, entering, lanes)
    lanes = jax.lax.fori_loop(plan.bounds[index], plan.bounds[index + 1], step, lanes)
    return lanes, tree.scatter(finished, store, keep(lanes))

  def keep(progress):
    return Trained(progress.variables, progress.sums, progress.num_seen)

  untrained = begin(jnp.arange(plan.clients.shape[0]))
  lanes = begin(jnp.arange(plan.load.shape[1]))
  carry = (lanes, keep(untrained))
  _, finished = jax.lax.fori_loop(0, plan.num_segments, segment, carry)
  return finished
