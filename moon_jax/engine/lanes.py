"""How is a cohort trained side by side? L lanes, each a queue of clients. Pure."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax import tree
from moon_jax.data.augment import Augment
from moon_jax.data.device import TrainSplit
from moon_jax.engine.client_training import LocalTraining
from moon_jax.engine.devices import LANES
from moon_jax.engine.schedule import Plan
from moon_jax.keys import Purpose, for_purpose, step_key
from moon_jax.types import Batch, ClientMetrics, PyTree, Scalars, Upload


class Work(NamedTuple):
  """What a cohort trains on in one round.

  Attributes:
    received: what the server sent, the same for all.
    memories: leaves [K, ...], what each client kept from earlier rounds.
    plan: the round's lanes, segments and batches.
    round: [] int32, completed rounds.
    scalars: the round's numbers.
    data: the training split.
  """

  received: PyTree
  memories: PyTree
  plan: Plan
  round: jax.Array
  scalars: Scalars
  data: TrainSplit


class Collected(NamedTuple):
  """What a cohort leaves behind; while it trains, what the finished clients do.

  Attributes:
    mean: the mean of the Uploads, summed up as clients finish: none is stored. An
      Upload that is not finite counts as zeros.
    memories: leaves [K, ...], what each client keeps.
    metrics: leaves [K].
  """

  mean: Upload
  memories: PyTree
  metrics: ClientMetrics


# (memory, rows [B], Batch, key of the step) -> name -> [B, D] frozen representations.
Represent = Callable[[PyTree, jax.Array, Batch, jax.Array], dict[str, jax.Array]]


def cohort_training(
  local: LocalTraining,
  *,
  represent_once: bool,
  mesh: Mesh,
  augment: Augment | None = None,
) -> Callable[[Work], Collected]:
  """Builds the function that trains every client of a cohort, L at a time.

  Args:
    local: local training of one client.
    represent_once: whether the frozen networks see every example once, before the
      training, instead of once an epoch: the same result in less time, for memory, if
      nothing is augmented.
    mesh: the devices among which the lanes are split, in equal parts. They exchange
      nothing until all have finished, and then what they collected.
    augment: what is done to the images of a batch.
  """
  represented = _represent_once if represent_once else _represent_batch

  def train(work):
    return _train(local, represented(local, work), work, augment)

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
  """How `Plan.for_device()` is split among them: by lanes, where it has lanes."""
  everywhere, by_lane = PartitionSpec(), PartitionSpec(None, LANES)
  return Plan(
    clients=everywhere,
    num_examples=everywhere,
    weights=everywhere,
    mixing=everywhere,
    examples=by_lane,
    num_real=by_lane,
    step_real=(),
    load=by_lane,
    store=by_lane,
    bounds=PartitionSpec(LANES),
    num_segments=PartitionSpec(LANES),
  )


def _train(
  local: LocalTraining, represent: Represent, work: Work, augment: Augment | None
) -> Collected:
  """Runs the lanes of one device; other devices' clients keep what they had."""
  plan, examples = work.plan, work.data.examples
  bounds, num_segments = plan.bounds[0], plan.num_segments[0]
  weights = plan.weights / jnp.sum(plan.weights)

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
    frozen = represent(lane.memory, rows, batch, key)
    return local.step(lane, frozen, work.received, work.scalars, batch, key)

  def step(index, lanes):
    # A lane whose last client is stored trains on filler: nothing reads it any more.
    return jax.vmap(one_step)(lanes, plan.examples[index], plan.num_real[index])

  def finish(lanes):
    return jax.vmap(lambda lane: local.finish(lane, work.received, work.scalars))(lanes)

  def collect(collected, store, lanes):
    done, slots = finish(lanes), jnp.maximum(store, 0)
    counts = (store >= 0) & done.metrics.finite
    shares = Upload(weights[slots], jnp.full(slots.shape, 1 / len(weights)))
    return Collected(
      Upload(
        *(
          tree.add(mean, tree.weighted_sum(upload, jnp.where(counts, share, 0.0)))
          for mean, upload, share in zip(
            collected.mean, done.upload, shares, strict=True
          )
        )
      ),
      tree.scatter(collected.memories, store, done.memory),
      tree.scatter(collected.metrics, store, done.metrics),
    )

  def segment(index, carry):
    lanes, collected = carry
    load, store = plan.load[index], plan.store[index]
    # Read from what is being written, of which only one copy is needed then: a client's
    # memory stays as it was until the client is stored.
    entered = begin(jnp.maximum(load, 0), collected.memories)
    lanes = tree.where(load >= 0, entered, lanes)
    lanes = jax.lax.fori_loop(bounds[index], bounds[index + 1], step, lanes)
    return lanes, collect(collected, store, lanes)

  lanes = begin(jnp.zeros(plan.load.shape[1], jnp.int32), work.memories)
  shapes = jax.eval_shape(finish, lanes)
  nothing = Collected(
    jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shapes.upload),
    work.memories,
    jax.tree.map(lambda leaf: jnp.zeros(len(weights), leaf.dtype), shapes.metrics),
  )
  return jax.lax.fori_loop(0, num_segments, segment, (lanes, nothing))[1]


def _exchange(mine: Collected, work: Work) -> Collected:
  """Joins what the devices collected: one sum, to which a client adds on one device."""
  slots = work.plan.store.ravel()
  trained = tree.scatter(
    jnp.zeros(len(work.plan.clients), bool), slots, jnp.ones(slots.shape, bool)
  )
  # One device tells what a client keeps: the one that trained it, or the first if a
  # client owns nothing to train on.
  idle = jax.lax.psum(trained.astype(jnp.int32), LANES) == 0
  tells = trained | (idle & (jax.lax.axis_index(LANES) == 0))
  hidden = jax.tree.map(jnp.zeros_like, mine.memories)
  shown = mine._replace(memories=tree.where(tells, mine.memories, hidden))
  total = jax.lax.psum(shown, LANES)
  return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, shown)


def _represent_batch(local: LocalTraining, work: Work) -> Represent:
  """The frozen networks run on every batch."""

  def represent(memory, rows, batch, key):
    del rows
    return local.represent(work.received, memory, batch.images, batch.mask, key)

  return represent


def _represent_once(local: LocalTraining, work: Work) -> Represent:
  """The frozen networks run now, over all that the lanes' clients own; batches look up.

  An example belongs to one client, so its row alone finds its representations.
  """
  split, rows, offsets = work.data
  at_a_time = work.plan.examples[0].size  # as many as a step of all lanes trains on
  slots = work.plan.load.ravel()

  def fill(index, table):
    slot = jnp.maximum(slots[index], 0)
    client, memory = work.plan.clients[slot], tree.gather(work.memories, slot)
    first, end = offsets[client], offsets[client + 1]

    def add(index, table):
      at = first + index * at_a_time + jnp.arange(at_a_time)
      # Past the end the last row stands again, with the same representations.
      mine = rows[jnp.minimum(at, end - 1)]
      images = split.normalised(mine)
      found = local.represent(work.received, memory, images, None, None)
      return {name: table[name].at[mine].set(found[name]) for name in table}

    num_passes = jnp.where(slots[index] < 0, 0, -((first - end) // at_a_time))
    return jax.lax.fori_loop(0, num_passes, add, table)

  memory = tree.gather(work.memories, 0)
  images = split.normalised(rows[:1])
  shapes = jax.eval_shape(local.represent, work.received, memory, images, None, None)
  empty = {
    name: jnp.zeros((len(rows), one.shape[1]), one.dtype)
    for name, one in shapes.items()
  }
  with jax.named_scope('frozen'):
    table = jax.lax.fori_loop(0, len(slots), fill, empty)

  def represent(memory, rows, batch, key):
    del memory, batch, key
    return {name: table[name][rows] for name in table}

  return represent
