"""Trains lanes through one segment, of any length or of a known length.

Any length is right for CPUs, because no step is computed in vain. On a GPU, the host
reads at every step of such a loop whether there is another one, and starts a hundred
kernels for it. With a known length, G steps at a time,

  1. the images of all G steps are looked up and augmented together,
  2. all frozen networks see them together,
  3. G steps run without the host; steps past a client's end change nothing.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.keys import Purpose, for_purpose, step_key
from moon_jax.data.augment import Augment
from moon_jax.data.device import masked
from moon_jax.round.client_training import LocalTraining, Progress, Work
from moon_jax.round.frozen import Frozen

# (segment, lanes: leaves [L, ...]) -> the lanes after it.
Segment = Callable[[jax.Array, Progress], Progress]

# Limits of what frozen networks see together on one device: images, and steps.
MOST_IMAGES = 8192
MOST_STEPS = 16


def steps_together(num_steps: int, num_lanes: int, batch_size: int) -> int:
  """G, a divisor of a segment's steps, for the lanes of one device."""
  most = min(max(MOST_IMAGES // (num_lanes * batch_size), 1), MOST_STEPS)
  return next(steps for steps in range(most, 0, -1) if num_steps % steps == 0)


def of_any_length(
  training: LocalTraining, frozen: Frozen, work: Work, augment: Augment | None
) -> Segment:
  """Runs the steps that `bounds` of the plan gives the segment."""
  scalars, plan, examples = work.scalars, work.plan, work.data.examples
  bounds = plan.bounds[0]

  def one_step(lane, rows, num_real):
    key = step_key(scalars.seed, work.round, lane.client, lane.num_steps)
    view = augment and functools.partial(augment, for_purpose(key, Purpose.AUGMENT))
    batch = examples.batch(rows, num_real, view)
    references = frozen.references(None, lane, rows, batch, key)
    return training.step(lane, references, work.received, scalars, batch, key)

  def step(index, lanes):
    # A lane whose last client is stored trains on filler, and nothing reads the result.
    return jax.vmap(one_step)(lanes, plan.rows[index], plan.num_real[index])

  def segment(index, lanes):
    return jax.lax.fori_loop(bounds[index], bounds[index + 1], step, lanes)

  return segment


def of_known_length(
  training: LocalTraining,
  frozen: Frozen,
  work: Work,
  augment: Augment | None,
  num_steps: int,
) -> Segment:
  """Runs a fixed number of steps in each segment; the plan marks some as filler.

  Args:
    training: local training of one client.
    frozen: how the frozen networks' representations come to the steps.
    work: what the lanes train on.
    augment: function that augments the images of a batch.
    num_steps: steps of a segment.
  """
  scalars, plan, examples = work.scalars, work.plan, work.data.examples
  together = steps_together(num_steps, *plan.rows.shape[1:])

  def look(lane, rows, number):
    key = step_key(scalars.seed, work.round, lane.client, lane.num_steps + number)
    key = for_purpose(key, Purpose.AUGMENT)
    return examples.normalised(rows, augment and functools.partial(augment, key))

  def one_step(lane, rows, num_real, images, labels, known):
    key = step_key(scalars.seed, work.round, lane.client, lane.num_steps)
    batch = masked(images.transpose(3, 1, 2, 0), labels, num_real)
    references = frozen.references(known, lane, rows, batch, key)
    return training.step(lane, references, work.received, scalars, batch, key)

  def step(lanes, given):
    stepped = jax.vmap(one_step)(lanes, *given)
    # The result of a filler step, which has no real example, may be NaN.
    return tree.where(given[1] > 0, stepped, lanes), None

  def segment(index, lanes):
    entered = frozen.enter(lanes)

    def group(lanes, given):
      rows, num_real = given
      in_steps = jax.vmap(look, (None, 0, 0))
      in_lanes = jax.vmap(in_steps, (0, 1, None))
      images = in_lanes(lanes, rows, jnp.arange(together))
      known = frozen.see(entered, images)
      # The batch comes last, as convolutions want it, and is not moved in each step.
      images = images.transpose(1, 0, 5, 3, 4, 2)
      given = rows, num_real, images, examples.labels[rows], known
      return jax.lax.scan(step, lanes, given)

    def of_segment(array):
      mine = jax.lax.dynamic_slice_in_dim(array, index * num_steps, num_steps)
      return mine.reshape(-1, together, *array.shape[1:])

    given = of_segment(plan.rows), of_segment(plan.num_real)
    return jax.lax.scan(group, lanes, given)[0]

  return segment
