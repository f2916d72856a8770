"""Trains lanes through one segment, of any length or of a known length.

Segments of any length are right for CPUs: no step is wasted. On a GPU, the host reads
at every step of such a loop whether there is another one, and starts a hundred kernels
for it. With a known length, a group of steps at a time,

  1. the images of all steps of a group are gathered and augmented together,
  2. all frozen networks see them together,
  3. these steps run without the host; steps past a client's end change nothing.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.device_keys import for_purpose, step_key
from moon_jax.core.keys import Purpose
from moon_jax.data.augment import Augment
from moon_jax.data.device_split import RowView, masked
from moon_jax.round.client_training import LocalTraining, Progress, Work
from moon_jax.round.frozen_networks import FrozenNetworks

# (index of the segment, lanes: leaves [L, ...]) -> the lanes after it.
TrainSegment = Callable[[jax.Array, Progress], Progress]

# Limits of what frozen networks see together on one device.
MAX_IMAGES_TOGETHER = 8192
MAX_STEPS_TOGETHER = 16


def steps_together(num_steps: int, num_lanes: int, batch_size: int) -> int:
  """The steps of a group, a divisor of a segment's, for the lanes of one device."""
  max_steps = MAX_IMAGES_TOGETHER // (num_lanes * batch_size)
  max_steps = min(max(max_steps, 1), MAX_STEPS_TOGETHER)
  return next(steps for steps in range(max_steps, 0, -1) if num_steps % steps == 0)


def _view_of_step(augment: Augment | None, key: jax.Array) -> RowView | None:
  """How a step with this key sees its images: augmented, or None: as they are."""
  if augment is None:
    return None
  return functools.partial(augment, for_purpose(key, Purpose.AUGMENT))


def of_any_length(
  training: LocalTraining, frozen: FrozenNetworks, work: Work, augment: Augment | None
) -> TrainSegment:
  """Runs the steps that the schedule's bounds give the segment."""
  scalars, schedule, examples = work.scalars, work.schedule, work.data.examples
  bounds = schedule.segment_bounds[0]

  def train_client(progress, example_rows, num_real):
    key = step_key(scalars.seed, work.round, progress.client, progress.num_steps)
    batch = examples.batch(example_rows, num_real, _view_of_step(augment, key))
    references = frozen.references(
      represented=None,
      progress=progress,
      example_rows=example_rows,
      batch=batch,
      key=key,
    )
    return training.step(progress, references, work.received, scalars, batch, key)

  def step(index, lanes):
    # A lane whose last client has left trains on filler, and nothing reads the result.
    return jax.vmap(train_client)(
      lanes, schedule.example_rows[index], schedule.num_real[index]
    )

  def train_segment(index, lanes):
    return jax.lax.fori_loop(bounds[index], bounds[index + 1], step, lanes)

  return train_segment


def of_known_length(
  training: LocalTraining,
  frozen: FrozenNetworks,
  work: Work,
  augment: Augment | None,
  segment_steps: int,
) -> TrainSegment:
  """Runs a fixed number of steps in each segment; the schedule marks some as filler.

  Args:
    training: local training of one client.
    frozen: how the frozen networks' representations come to the steps.
    work: what the lanes train on.
    augment: function that augments the images of a batch.
    segment_steps: steps of a segment.
  """
  scalars, schedule, examples = work.scalars, work.schedule, work.data.examples
  _, num_lanes, batch_size = schedule.example_rows.shape
  group_steps = steps_together(segment_steps, num_lanes, batch_size)

  def gather_images(progress, example_rows, step_of_group):
    num_steps = progress.num_steps + step_of_group
    key = step_key(scalars.seed, work.round, progress.client, num_steps)
    return examples.normalised(example_rows, _view_of_step(augment, key))

  def train_client(progress, example_rows, num_real, images, labels, represented):
    key = step_key(scalars.seed, work.round, progress.client, progress.num_steps)
    # [C, H, W, B] -> [B, H, W, C]
    batch = masked(jnp.swapaxes(images, 0, -1), labels, num_real)
    references = frozen.references(
      represented=represented,
      progress=progress,
      example_rows=example_rows,
      batch=batch,
      key=key,
    )
    return training.step(progress, references, work.received, scalars, batch, key)

  def step(lanes, inputs):
    example_rows, num_real, images, labels, represented = inputs
    trained = jax.vmap(train_client)(
      lanes, example_rows, num_real, images, labels, represented
    )
    # The result of a filler step, which has no real example, may be NaN.
    return tree.where(num_real > 0, trained, lanes), None

  def train_segment(index, lanes):
    models = frozen.models_of(lanes)

    def train_group(lanes, schedule_of_group):
      example_rows, num_real = schedule_of_group
      gather_steps = jax.vmap(gather_images, (None, 0, 0))
      gather_lanes = jax.vmap(gather_steps, (0, 1, None))
      images = gather_lanes(lanes, example_rows, jnp.arange(group_steps))
      represented = frozen.represent_ahead(models, images)
      # [L, steps, B, H, W, C] -> [steps, L, C, H, W, B]: the batch comes last, as
      # convolutions want it, and is not moved in each step.
      images = jnp.swapaxes(jnp.swapaxes(images, 2, -1), 0, 1)
      labels = examples.labels[example_rows]
      inputs = example_rows, num_real, images, labels, represented
      return jax.lax.scan(step, lanes, inputs)

    def in_groups(schedule_of_round):
      """[S, L, ...] -> the steps of this segment, [groups, group_steps, L, ...]."""
      steps = jax.lax.dynamic_slice_in_dim(
        schedule_of_round, index * segment_steps, segment_steps
      )
      return steps.reshape((-1, group_steps, *steps.shape[1:]))

    groups = in_groups(schedule.example_rows), in_groups(schedule.num_real)
    lanes, _ = jax.lax.scan(train_group, lanes, groups)
    return lanes

  return train_segment
