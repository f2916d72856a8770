"""Trains lanes through one segment: of any length, or of a length the compiler knows.

Of any length is right for CPUs: nothing is computed in vain. On a GPU the host reads at
every step of such a loop whether there is another one, and starts a hundred kernels for
it. Of a known length, G steps at a time,

  1. the images of all G steps are looked up and augmented together,
  2. all frozen networks see them together,
  3. G steps run without the host; those past a client's end change nothing.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.data.augment import Augment
from moon_jax.data.device import masked
from moon_jax.engine.client_training import LocalTraining, Progress, Work
from moon_jax.engine.frozen import Represent
from moon_jax.keys import Purpose, for_purpose, step_key
from moon_jax.types import PyTree

# (segment, lanes: leaves [L, ...]) -> the lanes after it.
Segment = Callable[[jax.Array, Progress], Progress]

# What the frozen networks see together, on one device, and in how many steps at most.
MOST_IMAGES = 8192
MOST_STEPS = 16


def steps_together(num_steps: int, num_lanes: int, batch_size: int) -> int:
  """G, a divisor of a segment's steps, for the lanes of one device."""
  most = min(max(MOST_IMAGES // (num_lanes * batch_size), 1), MOST_STEPS)
  return next(steps for steps in range(most, 0, -1) if num_steps % steps == 0)


def of_any_length(
  local: LocalTraining, represent: Represent, work: Work, augment: Augment | None
) -> Segment:
  """Runs the steps that `bounds` of the plan gives the segment."""
  common, plan, examples = work.common, work.plan, work.data.examples
  scalars, bounds = common.scalars, plan.bounds[0]

  def one_step(lane, rows, num_real):
    key = step_key(scalars.seed, common.round, lane.client, lane.num_steps)
    view = augment and functools.partial(augment, for_purpose(key, Purpose.AUGMENT))
    batch = examples.batch(rows, num_real, view)
    known = represent(lane, rows, batch, key)
    return local.step(lane, known, common.received, scalars, batch, key)

  def step(index, lanes):
    # A lane whose last client is stored trains on filler: nothing reads it any more.
    return jax.vmap(one_step)(lanes, plan.examples[index], plan.num_real[index])

  def segment(index, lanes):
    return jax.lax.fori_loop(bounds[index], bounds[index + 1], step, lanes)

  return segment


def of_known_length(
  local: LocalTraining,
  represent: Represent | None,
  work: Work,
  augment: Augment | None,
  num_steps: int,
) -> Segment:
  """Runs so many steps in each segment, of which the plan marks some as filler.

  Args:
    local: local training of one client.
    represent: the frozen networks; None sees with them ahead of the steps.
    work: what the lanes train on.
    augment: what is done to the images of a batch.
    num_steps: of a segment.
  """
  common, plan, examples = work.common, work.plan, work.data.examples
  together = steps_together(num_steps, *plan.examples.shape[1:])

  def look(lane, rows, ahead):
    number = lane.num_steps + ahead
    key = step_key(common.scalars.seed, common.round, lane.client, number)
    key = for_purpose(key, Purpose.AUGMENT)
    return examples.normalised(rows, augment and functools.partial(augment, key))

  def one_step(lane, rows, num_real, images, labels, known):
    key = step_key(common.scalars.seed, common.round, lane.client, lane.num_steps)
    batch = masked(images.transpose(3, 1, 2, 0), labels, num_real)
    if represent:
      known = represent(lane, rows, batch, key)
    return local.step(lane, known, common.received, common.scalars, batch, key)

  def segment(index, lanes):
    names, models = ([], None) if represent else _stacked(local, lanes, work)

    def step(lanes, given):
      *batch, known = given
      batch.append({name: known[:, i] for i, name in enumerate(names)})
      stepped = jax.vmap(one_step)(lanes, *batch)
      # What comes of a filler step, without a single example, may be no number.
      return tree.where(given[1] > 0, stepped, lanes), None

    def group(lanes, given):
      rows, num_real = given
      in_steps = jax.vmap(look, (None, 0, 0))
      in_lanes = jax.vmap(in_steps, (0, 1, None))
      images = in_lanes(lanes, rows, jnp.arange(together))
      known = _represent_ahead(local, models, images) if names else None
      # The batch last, as convolutions want it, and not anew in each step.
      images = images.transpose(1, 0, 5, 3, 4, 2)
      given = rows, num_real, images, examples.labels[rows], known
      return jax.lax.scan(step, lanes, given)

    def of_segment(array):
      mine = jax.lax.dynamic_slice_in_dim(array, index * num_steps, num_steps)
      return mine.reshape(-1, together, *array.shape[1:])

    given = of_segment(plan.examples), of_segment(plan.num_real)
    return jax.lax.scan(group, lanes, given)[0]

  return segment


def _stacked(
  local: LocalTraining, lanes: Progress, work: Work
) -> tuple[list[str], PyTree]:
  """Names of the lanes' frozen networks, and variables [L, models, ...]; of none None.

  A model that all have received is copied too: a product with one matrix for all lanes
  would first copy their windows side by side.
  """

  def of_lane(lane):
    return local.algorithm.frozen(work.common.received, lane.memory)

  models = jax.vmap(of_lane)(lanes)
  if not models:
    return [], None
  join = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves, 1))
  return list(models), join(*models.values())


def _represent_ahead(
  local: LocalTraining, variables: PyTree, images: jax.Array
) -> jax.Array:
  """[G, L, models, B, D], of images [L, G, B, H, W, C] under each lane's networks.

  As one array: what steps do alike with all of them is then one kernel.
  """
  num_lanes, steps, size = images.shape[:3]

  def one(variables, images):
    return local.algorithm.represented(local.network.apply(variables, images))

  each = images.reshape(num_lanes, -1, *images.shape[3:])
  with jax.named_scope('frozen'):
    found = jax.vmap(jax.vmap(one, (0, None)))(variables, each)
  found = found.reshape(*found.shape[:2], steps, size, -1)
  return found.transpose(2, 0, 1, 3, 4)
