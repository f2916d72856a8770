"""The representations under frozen networks, which losses refer to. Pure.

The networks see a batch in its own step (`every_batch`), the batches of several steps
together, ahead of these steps (`several_steps_ahead`), or all examples of the cohort
once a round (`once_a_round`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.types import PyTree
from moon_jax.round.client_training import LocalTraining, Progress, Work


class FrozenNetworks(NamedTuple):
  """How representations come to the steps of a segment.

  Attributes:
    references: (represented, progress, example_rows, batch, key) -> name -> [B, D], the
      representations of one step's batch. `represented` is the step's part of what
      `represent_ahead` returns, `progress` the client's, `example_rows` [B] the rows of
      the batch, and `key` the key of the step.
    models_of: lanes, leaves [L, ...] -> the models that `represent_ahead` needs in
      their segment.
    represent_ahead: (what `models_of` returns, images [L, steps, B, H, W, C] of a group
      of steps) -> leaves [steps, L, ...], the representations of these images. It and
      `models_of` return None if the networks see no images ahead.
  """

  references: Callable[..., dict[str, jax.Array]]
  models_of: Callable[[Progress], PyTree] = lambda lanes: None
  represent_ahead: Callable[[PyTree, jax.Array], PyTree] = lambda models, images: None


def every_batch(training: LocalTraining, work: Work) -> FrozenNetworks:
  """The frozen networks run in every step, on its batch."""

  def references(represented, progress, example_rows, batch, key):
    return training.represent(
      work.received, progress.memory, batch.images, batch.mask, key
    )

  return FrozenNetworks(references)


def several_steps_ahead(training: LocalTraining, work: Work) -> FrozenNetworks:
  """The frozen networks see the images of several steps together, ahead of these steps.

  This is for segments of a known length, and not for training mode.
  """
  algorithm = training.algorithm
  model_names = jax.eval_shape(
    lambda: algorithm.frozen(work.received, tree.gather(work.memories, 0))
  ).keys()
  if not model_names:
    return every_batch(training, work)

  def models_of(lanes):
    # A model that all clients have received is copied too: a product with one matrix
    # for all lanes would first copy their windows side by side.
    models = jax.vmap(lambda lane: algorithm.frozen(work.received, lane.memory))(lanes)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *models.values())

  def represent_ahead(models, images):
    def represent(variables, images):
      return algorithm.represented(training.network.apply(variables, images))

    num_lanes, num_steps, batch_size = images.shape[:3]
    images_of_lane = images.reshape((num_lanes, -1, *images.shape[3:]))
    with jax.named_scope('frozen'):
      represent_by_all = jax.vmap(represent, (0, None))
      representations = jax.vmap(represent_by_all)(models, images_of_lane)
    # One array, so that the same operation on all representations is one kernel.
    representations = representations.reshape(
      *representations.shape[:2], num_steps, batch_size, -1
    )
    return representations.transpose(2, 0, 1, 3, 4)

  def references(represented, progress, example_rows, batch, key):
    return {name: represented[index] for index, name in enumerate(model_names)}

  return FrozenNetworks(
    references=references, models_of=models_of, represent_ahead=represent_ahead
  )


def once_a_round(
  training: LocalTraining, work: Work, max_examples: int
) -> FrozenNetworks:
  """The frozen networks run now, over all examples of the lanes' clients.

  The steps look up the representations. The result is the same in less time, and takes
  memory, if there are several epochs and no augmentation.

  Args:
    training: local training of one client.
    work: the work of the round.
    max_examples: rows of the table, at least as many as a cohort owns examples.
  """
  split, cohort = work.data, work.cohort
  batch_size = work.schedule.example_rows[0].size  # as large as a step of all lanes
  slots = work.schedule.entering.ravel()
  owners = split.owners(cohort.clients)
  first, end = split.offsets[owners], split.offsets[owners + 1]
  sizes = end - first
  first_in_table = jnp.cumsum(sizes) - sizes

  def represent(memory, images):
    return training.represent(work.received, memory, images, mask=None, key=None)

  def add_slot(index, table):
    slot = jnp.maximum(slots[index], 0)
    memory = tree.gather(work.memories, slot)

    def add_batch(batch_index, table):
      # Past the end the last row is repeated, with the same representations.
      positions = batch_index * batch_size + jnp.arange(batch_size)
      positions = jnp.minimum(positions, sizes[slot] - 1)
      rows = split.rows_by_owner[first[slot] + positions]
      representations = represent(memory, split.examples.normalised(rows))
      rows_of_table = first_in_table[slot] + positions
      return {
        name: table[name].at[rows_of_table].set(representations[name]) for name in table
      }

    num_batches = jnp.where(slots[index] < 0, 0, -(-sizes[slot] // batch_size))
    return jax.lax.fori_loop(0, num_batches, add_batch, table)

  memory = tree.gather(work.memories, 0)
  images = split.examples.normalised(split.rows_by_owner[:1])
  empty = {
    name: jnp.zeros((max_examples, shape.shape[1]), shape.dtype)
    for name, shape in jax.eval_shape(represent, memory, images).items()
  }
  with jax.named_scope('frozen'):
    table = jax.lax.fori_loop(0, len(slots), add_slot, empty)

  def references(represented, progress, example_rows, batch, key):
    slot = jnp.sum(cohort.clients < progress.client)
    rows = split.position_of_row[example_rows] - first[slot] + first_in_table[slot]
    return {name: table[name][rows] for name in table}

  return FrozenNetworks(references)
