"""Trains a cohort in L lanes side by side; each has a queue of clients. Pure."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax import tree
from moon_jax.data.augment import Augment
from moon_jax.engine import frozen
from moon_jax.engine.client_training import Finished, LocalTraining, Work
from moon_jax.engine.devices import LANES
from moon_jax.engine.frozen import Represent
from moon_jax.engine.schedule import Plan
from moon_jax.keys import Purpose, for_purpose, step_key
from moon_jax.types import Upload


def cohort_training(
  local: LocalTraining,
  *,
  represent_once: bool,
  mesh: Mesh,
  augment: Augment | None = None,
) -> Callable[[Work], Finished]:
  """Builds the function that trains every client of a cohort, L at a time.

  Args:
    local: local training of one client.
    represent_once: whether the frozen networks run as `frozen.once`, or in every step.
    mesh: the devices among which the lanes are split, in equal parts. They exchange
      nothing until all have finished, and then what they collected.
    augment: what is done to the images of a batch.
  """
  prepare = frozen.once if represent_once else frozen.every_batch

  def train(work):
    return _train(local, prepare(local, work), work, augment)

  def train_part(work):
    return _exchange(train(work), work)

  if mesh.size == 1:
    return train
  everywhere = PartitionSpec()
  work = Work(*[everywhere] * len(Work._fields))._replace(plan=plan_spec())
  return jax.shard_map(
    train_part, mesh=mesh, in_specs=(work,), out_specs=everywhere, check_vma=False
  )


def plan_spec() -> Plan:
  """How `Plan.for_device()` is split among the devices: by lanes, where it has any."""
  everywhere, by_lane = PartitionSpec(), PartitionSpec(None, LANES)
  return Plan(*[everywhere] * len(Plan._fields))._replace(
    num_examples=(),
    step_real=(),
    bounds=PartitionSpec(LANES),
    num_segments=PartitionSpec(LANES),
    **dict.fromkeys(('examples', 'num_real', 'load', 'store'), by_lane),
  )


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
def _train(
  local: LocalTraining, represent: Represent, work: Work, augment: Augment | None
) -> Finished:
  """Runs the lanes of one device; other devices' clients keep what they had."""
  plan, examples = work.plan, work.data.examples
  bounds, num_segments = plan.bounds[0], plan.num_segments[0]

  def begin(slots, memories):
    batch = examples.batch(plan.examples[0, 0], plan.num_real[0, 0])

    def one(slot):
      client, memory = plan.clients[slot], tree.gather(memories, slot)
      return local.start(client, work.received, memory, work.scalars, batch)

    return jax.vmap(one)(slots)

  def one_step(lane, rows, num_real):
    key = step_key(work.scalars.seed, work.round, lane.client, lane.num_steps)
    view = augment and functools.partial(augment, for_purpose(key, Purpose.AUGMENT))
    batch = examples.batch(rows, num_real, view)
    known = represent(lane.memory, rows, batch, key)
    return local.step(lane, known, work.received, work.scalars, batch, key)

  def step(index, lanes):
    # A lane whose last client is stored trains on filler: nothing reads it any more.
    return jax.vmap(one_step)(lanes, plan.examples[index], plan.num_real[index])

  def finish(lanes):
    return jax.vmap(lambda lane: local.finish(lane, work.received, work.scalars))(lanes)

  def segment(index, carry):
    lanes, collected = carry
    load, store = plan.load[index], plan.store[index]
    # Read from what is being written, of which only one copy is needed then: a client's
    # memory stays as it was until the client is stored.
    entered = begin(jnp.maximum(load, 0), collected.memory)
    lanes = tree.where(load >= 0, entered, lanes)
    lanes = jax.lax.fori_loop(bounds[index], bounds[index + 1], step, lanes)
    return lanes, collect(collected, store, finish(lanes))

  collect, empty = _collecting(local.algorithm.needs_all_uploads, plan.weights)
  lanes = begin(jnp.zeros(plan.load.shape[1], jnp.int32), work.memories)
  nothing = empty(jax.eval_shape(finish, lanes), work.memories)
  return jax.lax.fori_loop(0, num_segments, segment, (lanes, nothing))[1]


def _collecting(all_uploads: bool, weights: jax.Array):
  """How what clients leave behind is collected, as the loop goes.

  Args:
    all_uploads: whether each upload is kept, by slot, instead of their mean.
    weights: [K] float32 of the slots, on any scale.

  Returns:
    collect: (Finished of the cohort, slots to store [L] or -1, Finished [L, ...] of the
      lanes) -> Finished of the cohort.
    empty: (shapes of Finished [L, ...], memories [K, ...]) -> Finished of a cohort of
      which nobody is done.
  """
  size, weights = len(weights), weights / jnp.sum(weights)

  def add(mean, upload, share):
    return tree.add(mean, tree.weighted_sum(upload, share))

  def collect(collected, store, done):
    slots, counts = jnp.maximum(store, 0), (store >= 0) & done.metrics.finite
    shares = Upload(weights[slots], jnp.full(slots.shape, 1 / size))
    if all_uploads:
      sent = tree.scatter(collected.upload, store, done.upload)
    else:
      shares = (jnp.where(counts, share, 0.0) for share in shares)
      sent = Upload(*map(add, collected.upload, done.upload, shares))
    return Finished(
      sent,
      tree.scatter(collected.memory, store, done.memory),
      tree.scatter(collected.metrics, store, done.metrics),
    )

  def empty(shapes, memories):
    def zeros(shape, *lead):
      return jnp.zeros((*lead, *shape.shape[1:]), shape.dtype)

    by_slot = functools.partial(jax.tree.map, lambda shape: zeros(shape, size))
    sent = by_slot(shapes.upload) if all_uploads else jax.tree.map(zeros, shapes.upload)
    return Finished(sent, memories, by_slot(shapes.metrics))

  return collect, empty


def _exchange(mine: Finished, work: Work) -> Finished:
  """Joins what the devices collected: one sum, to which a client adds on one device."""
  slots = work.plan.store.ravel()
  trained = tree.scatter(
    jnp.zeros(len(work.plan.clients), bool), slots, jnp.ones(slots.shape, bool)
  )
  # One device tells what a client keeps: the one that trained it, or the first if a
  # client owns nothing to train on.
  idle = jax.lax.psum(trained.astype(jnp.int32), LANES) == 0
  tells = trained | (idle & (jax.lax.axis_index(LANES) == 0))
  hidden = jax.tree.map(jnp.zeros_like, mine.memory)
  shown = mine._replace(memory=tree.where(tells, mine.memory, hidden))
  total = jax.lax.psum(shown, LANES)
  return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, shown)
