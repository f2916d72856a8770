"""Trains a cohort in L lanes side by side; each has a queue of clients. Pure."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from moon_jax.core import tree
from moon_jax.core.types import LANES
from moon_jax.data.augment import Augment
from moon_jax.planning.plan import DevicePlan, LaneSchedule
from moon_jax.round import aggregation, examination, frozen_networks, segments
from moon_jax.round.client_training import Finished, LocalTraining, Work
from moon_jax.round.segments import TrainSegment

_ON_EVERY_DEVICE = PartitionSpec()


def make_cohort_training(
  training: LocalTraining,
  *,
  max_table_examples: int,
  mesh: Mesh,
  augment: Augment | None = None,
  segment_steps: int = 0,
) -> Callable[[Work], Finished]:
  """Builds the function that trains every client of a cohort, L at a time.

  Args:
    training: local training of one client.
    max_table_examples: rows of the table of representations of
      `frozen_networks.once_a_round`, at least as many as a cohort can own examples; 0:
      there is no table, and the frozen networks see the images of several steps
      together if they can, otherwise those of each step.
    mesh: the devices among which the lanes are split, in equal parts. They exchange
      nothing until all have finished, and then what they collected.
    augment: function that augments the images of a batch.
    segment_steps: steps of a segment; 0: it ends when a client does.
  """
  if max_table_examples:
    make_frozen_networks = functools.partial(
      frozen_networks.once_a_round, max_examples=max_table_examples
    )
  elif segment_steps and not training.algorithm.frozen_in_training:
    make_frozen_networks = frozen_networks.several_steps_ahead
  else:
    make_frozen_networks = frozen_networks.every_batch

  def train(work):
    frozen = make_frozen_networks(training, work)
    if segment_steps:
      train_segment = segments.of_known_length(
        training, frozen, work, augment, segment_steps
      )
    else:
      train_segment = segments.of_any_length(training, frozen, work, augment)
    return _train_lanes(training, train_segment, work)

  if mesh.size == 1:
    return train

  def train_and_exchange(work):
    return aggregation.exchange(train(work), work)

  work_spec = Work(
    received=_ON_EVERY_DEVICE,
    round=_ON_EVERY_DEVICE,
    scalars=_ON_EVERY_DEVICE,
    memories=_ON_EVERY_DEVICE,
    cohort=_ON_EVERY_DEVICE,
    schedule=schedule_spec(),
    data=_ON_EVERY_DEVICE,
  )
  return jax.shard_map(
    train_and_exchange,
    mesh=mesh,
    in_specs=(work_spec,),
    out_specs=_ON_EVERY_DEVICE,
    check_vma=False,
  )


def schedule_spec() -> LaneSchedule:
  """How the devices split a schedule: each has its lanes of it."""
  by_lane = PartitionSpec(None, LANES)
  by_device = PartitionSpec(LANES)
  return LaneSchedule(
    example_rows=by_lane,
    num_real=by_lane,
    entering=by_lane,
    leaving=by_lane,
    segment_bounds=by_device,
    num_segments=by_device,
  )


def plan_spec(plan: DevicePlan) -> DevicePlan:
  """How the devices split a plan: the schedules by lanes; every device has the rest."""
  has_second_training = plan.second_schedule is not None
  return DevicePlan(
    cohort=_ON_EVERY_DEVICE,
    schedule=schedule_spec(),
    second_schedule=schedule_spec() if has_second_training else None,
    mixing=_ON_EVERY_DEVICE,
    attack_seeds=_ON_EVERY_DEVICE,
    arrivals=_ON_EVERY_DEVICE,
  )


# One round on one device with two lanes, whose queues are the slots A, B and C, D. When
# the client of any lane is done, a segment ends. Inside a segment no client comes or
# goes, so its steps are a plain loop over all lanes at once.
#
#   step       0   1   2 | 3   4 | 5   6
#   lane 0     A   A   A | B   B | B   B      A has 3 steps, B 4
#   lane 1     C   C   C | C   C | D   .      C has 5 steps, D 1 and then filler
#   segment        0     |   1   |   2
#   entering     A, C    |  B, - |  -, D      before the segment
#   leaving      A, -    |  -, C |  B, D      after it, with their uploads and memories
def _train_lanes(
  training: LocalTraining, train_segment: TrainSegment, work: Work
) -> Finished:
  """Trains the lanes of one device; clients of other devices keep their memories.

  Below, `lanes` is the Progress of the client in each lane, leaves [L, ...].

  Args:
    training: local training of one client.
    train_segment: trains the lanes through a segment.
    work: what the lanes train on.
  """
  cohort, schedule = work.cohort, work.schedule

  def start_clients(slots, memories):
    # Only the shapes of the batch matter.
    batch = work.data.examples.batch(
      schedule.example_rows[0, 0], schedule.num_real[0, 0]
    )

    def start_client(slot):
      client, memory = cohort.clients[slot], tree.gather(memories, slot)
      client_facts = tree.gather(cohort.client_facts, slot)
      return training.start(
        client, work.received, memory, work.scalars, batch, client_facts
      )

    return jax.vmap(start_client)(slots)

  examine = examination.of_leaving_clients(training, work)
  collector = aggregation.make_collector(
    cohort.weights, keeps_all_uploads=training.algorithm.needs_all_uploads
  )

  def finish_clients(lanes, leaving):
    def finish_client(progress, examined):
      return training.finish(progress, work.received, work.scalars, examined)

    return jax.vmap(finish_client)(lanes, examine(lanes, leaving))

  def run_segment(index, carry):
    lanes, collected = carry
    lanes = train_segment(index, lanes)
    leaving = schedule.leaving[index]
    collected = collector.collect(collected, leaving, finish_clients(lanes, leaving))
    # Read `collected.memory`, not `work.memories`: both are the same for a client that
    # has not left, and one copy of all memories suffices. A client that enters after
    # the last segment (JAX clamps the index) never leaves.
    entering = schedule.entering[index + 1]
    started = start_clients(jnp.maximum(entering, 0), collected.memory)
    return tree.where(entering >= 0, started, lanes), collected

  # Segment 0 begins before the loop, which brings in the clients of the next segment.
  lanes = start_clients(jnp.maximum(schedule.entering[0], 0), work.memories)
  shapes = jax.eval_shape(finish_clients, lanes, schedule.leaving[0])
  empty = collector.empty(shapes, work.memories)
  num_segments = schedule.num_segments[0]  # of this device
  _, collected = jax.lax.fori_loop(0, num_segments, run_segment, (lanes, empty))
  return collected
