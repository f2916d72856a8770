"""How is a cohort trained side by side? L lanes, each a queue of clients. Pure."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.cohort import Plan
from moon_jax.data.device import TrainSplit
from moon_jax.local import LocalTraining
from moon_jax.types import PyTree, Scalars


class Work(NamedTuple):
  """What a cohort trains on in one round.

  Attributes:
    received: what the server sent, the same for all.
    memories: leaves [K, ...], what each client kept from earlier rounds.
    plan: the round's lanes, segments and batches.
    scalars: the round's numbers.
    data: the training split.
  """

  received: PyTree
  memories: PyTree
  plan: Plan
  scalars: Scalars
  data: TrainSplit


class Trained(NamedTuple):
  """What stays of a client's Progress after its last step."""

  variables: PyTree
  sums: dict[str, jax.Array]
  num_seen: jax.Array


# (memory, rows [B], images [B, H, W, C]) -> name -> [B, D] frozen representations.
Represent = Callable[[PyTree, jax.Array, jax.Array], dict[str, jax.Array]]


def train_cohort(local: LocalTraining, work: Work, *, represent_once: bool) -> Trained:
  """Trains every client of the cohort, L at a time.

  Args:
    local: local training of one client.
    work: what it trains on.
    represent_once: whether the frozen networks see every example once, before the
      training, instead of once an epoch: the same result in less time, for memory.

  Returns:
    Leaves [K, ...]; a client without a step keeps its start.
  """
  plan, examples = work.plan, work.data.examples
  represent = (_represent_once if represent_once else _represent_batch)(local, work)

  def batches(step):
    return jax.vmap(examples.batch)(plan.examples[step], plan.num_real[step])

  def begin(slots):
    one_batch = jax.tree.map(lambda leaf: leaf[0], batches(0))

    def one(slot):
      memory = tree.gather(work.memories, slot)
      return local.start(work.received, memory, work.scalars, one_batch)

    return jax.vmap(one)(slots)

  def one_step(lane, rows, batch):
    frozen = represent(lane.memory, rows, batch.images)
    return local.step(lane, frozen, work.received, work.scalars, batch)

  def step(index, lanes):
    # A lane whose last client is stored trains on filler: nothing reads it any more.
    return jax.vmap(one_step)(lanes, plan.examples[index], batches(index))

  def segment(index, carry):
    lanes, finished = carry
    load, store = plan.load[index], plan.store[index]
    lanes = tree.where(load >= 0, begin(jnp.maximum(load, 0)), lanes)
    lanes = jax.lax.fori_loop(plan.bounds[index], plan.bounds[index + 1], step, lanes)
    return lanes, tree.scatter(finished, store, keep(lanes))

  def keep(progress):
    return Trained(progress.variables, progress.sums, progress.num_seen)

  untrained = begin(jnp.arange(plan.clients.shape[0]))
  lanes = begin(jnp.arange(plan.load.shape[1]))
  carry = (lanes, keep(untrained))
  _, finished = jax.lax.fori_loop(0, plan.num_segments, segment, carry)
  return finished


def _represent_batch(local: LocalTraining, work: Work) -> Represent:
  """The frozen networks run on every batch."""

  def represent(memory, rows, images):
    del rows
    return local.represent(work.received, memory, images)

  return represent


def _represent_once(local: LocalTraining, work: Work) -> Represent:
  """The frozen networks run now, over all that the cohort owns; batches look it up.

  An example belongs to one client, so its row alone finds its representations.
  """
  split, rows, offsets = work.data
  at_a_time = work.plan.examples[0].size  # as many as a step of all lanes trains on

  def fill(slot, table):
    client, memory = work.plan.clients[slot], tree.gather(work.memories, slot)
    first, end = offsets[client], offsets[client + 1]

    def add(index, table):
      at = first + index * at_a_time + jnp.arange(at_a_time)
      mine = rows[jnp.minimum(at, end - 1)]
      found = local.represent(work.received, memory, split.normalised(mine))
      target = jnp.where(at < end, mine, len(rows))  # past the end: dropped
      return {
        name: table[name].at[target].set(found[name], mode='drop') for name in table
      }

    return jax.lax.fori_loop(0, -((first - end) // at_a_time), add, table)

  memory = tree.gather(work.memories, 0)
  images = split.normalised(rows[:1])
  shapes = jax.eval_shape(local.represent, work.received, memory, images)
  empty = {
    name: jnp.zeros((len(rows), one.shape[1]), one.dtype)
    for name, one in shapes.items()
  }
  table = jax.lax.fori_loop(0, len(work.plan.clients), fill, empty)

  def represent(memory, rows, images):
    del memory, images
    return {name: table[name][rows] for name in table}

  return represent
