"""Trains a cohort in L lanes side by side; each has a queue of clients. Pure."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax.core import tree
from moon_jax.core.types import LANES
from moon_jax.data.augment import Augment
from moon_jax.planning.planner import Plan
from moon_jax.round import aggregation, examined, frozen, segments
from moon_jax.round.client_training import Finished, LocalTraining, Work
from moon_jax.round.segments import Segment


def cohort_training(
  training: LocalTraining,
  *,
  represent_once: int,
  mesh: Mesh,
  augment: Augment | None = None,
  segment_steps: int = 0,
) -> Callable[[Work], Finished]:
  """Builds the function that trains every client of a cohort, L at a time.

  Args:
    training: local training of one client.
    represent_once: at least the number of examples that a cohort can own, if the frozen
      networks run as in `frozen.once`; 0: they see the images of several steps together
      if they can, otherwise those of each step.
    mesh: the devices among which the lanes are split, in equal parts. They exchange
      nothing until all have finished, and then what they collected.
    augment: function that augments the images of a batch.
    segment_steps: as in the planner that makes the plans.
  """
  ahead = segment_steps and not training.algorithm.frozen_in_training
  in_step = frozen.ahead if ahead else frozen.every_batch
  once = functools.partial(frozen.once, most=represent_once)
  represent = once if represent_once else in_step

  def train(work):
    given = training, represent(training, work), work, augment
    if segment_steps:
      through = segments.of_known_length(*given, segment_steps)
    else:
      through = segments.of_any_length(*given)
    return _train(training, through, work)

  def train_part(work):
    return aggregation.exchange(train(work), work)

  if mesh.size == 1:
    return train
  everywhere = PartitionSpec()
  work = Work(*[everywhere] * len(Work._fields))._replace(plan=plan_spec())
  return jax.shard_map(
    train_part, mesh=mesh, in_specs=(work,), out_specs=everywhere, check_vma=False
  )


def plan_spec() -> Plan:
  """How the devices split `Plan.for_device()`: by lanes, where it has lanes."""
  by_device = dict.fromkeys(('bounds', 'num_segments'), PartitionSpec(LANES))
  lanes = ('rows', 'num_real', 'load', 'store')
  split = by_device | dict.fromkeys(lanes, PartitionSpec(None, LANES))
  return Plan(**dict.fromkeys(Plan._fields, PartitionSpec()) | split)


# One round on one device with two lanes, whose queues are the slots A, B and C, D. When
# the client of any lane is done, a segment ends. Inside one no client comes or goes, so
# its steps are a plain loop over all lanes at once.
#
#   step       0   1   2 | 3   4 | 5   6
#   lane 0     A   A   A | B   B | B   B      A has 3 steps, B 4
#   lane 1     C   C   C | C   C | D   .      C has 5 steps, D 1 and then filler
#   segment        0     |   1   |   2
#   load         A, C    |  B, - |  -, D      enter the lanes before the segment
#   store        A, -    |  -, C |  B, D      leave them after it: uploads, memories
def _train(training: LocalTraining, through: Segment, work: Work) -> Finished:
  """Trains the lanes of one device; clients of other devices keep their memories.

  Args:
    training: local training of one client.
    through: trains the lanes through a segment.
    work: what the lanes train on.
  """
  plan, received, scalars = work.plan, work.received, work.scalars

  def enter(slots, memories):
    batch = work.data.examples.batch(plan.rows[0, 0], plan.num_real[0, 0])

    def one(slot):
      client, memory = plan.clients[slot], tree.gather(memories, slot)
      known = tree.gather(plan.known, slot)
      return training.start(client, received, memory, scalars, batch, known)

    return jax.vmap(one)(slots)

  examine = examined.by_store(training, work)

  def finish(lanes, store):
    def one(lane, found):
      return training.finish(lane, received, scalars, found)

    return jax.vmap(one)(lanes, examine(lanes, store))

  def segment(index, carry):
    lanes, collected = carry
    lanes = through(index, lanes)
    store = plan.store[index]
    collected = collect(collected, store, finish(lanes, store))
    # The next client reads what has just been written, so that XLA needs no second copy
    # of all memories: a client's memory does not change until the client is stored. A
    # client that comes after the last segment (JAX clamps the index) is never stored.
    load = plan.load[index + 1]
    entered = enter(jnp.maximum(load, 0), collected.memory)
    return tree.where(load >= 0, entered, lanes), collected

  all_uploads = training.algorithm.needs_all_uploads
  collect, empty = aggregation.collecting(all_uploads, plan.weights)
  lanes = enter(jnp.maximum(plan.load[0], 0), work.memories)
  nothing = empty(jax.eval_shape(finish, lanes, plan.store[0]), work.memories)
  return jax.lax.fori_loop(0, plan.num_segments[0], segment, (lanes, nothing))[1]
