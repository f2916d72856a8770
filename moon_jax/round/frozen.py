"""The representations under frozen networks, which losses refer to. Pure.

The networks see a batch in its own step (`every_batch`), the batches of several steps
together, ahead of these steps (`ahead`), or all examples of the cohort once a round
(`once`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.types import PyTree
from moon_jax.round.client_training import LocalTraining, Progress, Work


class Frozen(NamedTuple):
  """How representations come to the steps of a segment.

  Attributes:
    references: (what is known ahead of the client's step, the client, rows [B], Batch,
      key of the step) -> name -> [B, D].
    enter: lanes, leaves [L, ...] -> what `see` needs in their segment.
    see: (what `enter` returns, images [L, G, B, H, W, C]) -> leaves [G, L, ...], what
      is known ahead of G steps. Both return None if the networks see no images then.
  """

  references: Callable[..., dict[str, jax.Array]]
  enter: Callable[[Progress], PyTree] = lambda lanes: None
  see: Callable[[PyTree, jax.Array], PyTree] = lambda entered, images: None


def every_batch(training: LocalTraining, work: Work) -> Frozen:
  """The frozen networks run in every step, on its batch."""

  def references(known, client, rows, batch, key):
    given = work.received, client.memory
    return training.represent(*given, batch.images, batch.mask, key)

  return Frozen(references)


def ahead(training: LocalTraining, work: Work) -> Frozen:
  """The frozen networks see the images of several steps together, ahead of these steps.

  This is for segments of a known length, and not for training mode.
  """
  models = training.algorithm.frozen
  of_one = jax.eval_shape(lambda: models(work.received, tree.gather(work.memories, 0)))
  if not of_one:
    return every_batch(training, work)

  def enter(lanes):
    # A model that all clients have received is copied too: a product with one matrix
    # for all lanes would first copy their windows side by side.
    of_lanes = jax.vmap(lambda lane: models(work.received, lane.memory))(lanes)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *of_lanes.values())

  def see(variables, images):
    def one(variables, images):
      return training.algorithm.represented(training.network.apply(variables, images))

    num_lanes, steps, size = images.shape[:3]
    each = images.reshape(num_lanes, -1, *images.shape[3:])
    with jax.named_scope('frozen'):
      found = jax.vmap(jax.vmap(one, (0, None)))(variables, each)
    # One array, so that the same operation on all representations is one kernel.
    found = found.reshape(*found.shape[:2], steps, size, -1)
    return found.transpose(2, 0, 1, 3, 4)

  def references(known, client, rows, batch, key):
    return {name: known[index] for index, name in enumerate(of_one)}

  return Frozen(references, enter, see)


def once(training: LocalTraining, work: Work, most: int) -> Frozen:
  """The frozen networks run now, over all examples of the lanes' clients.

  The steps look up the representations. The result is the same in less time, and takes
  memory, if there are several epochs and no augmentation.

  Args:
    training: local training of one client.
    work: the work of the round.
    most: rows of the table, at least as many as a cohort owns examples.
  """
  split, rows, offsets, places = work.data
  received, clients = work.received, work.plan.clients
  at_a_time = work.plan.rows[0].size  # as many examples as a step of all lanes
  slots = work.plan.load.ravel()
  # By slot, if the split is the cohort's alone; if all clients take part, both agree.
  alone = len(offsets) == len(clients) + 1
  owners = jnp.arange(len(clients)) if alone else clients
  first, sizes = offsets[owners], offsets[owners + 1] - offsets[owners]
  begin = jnp.cumsum(sizes) - sizes  # of each slot in the table

  def fill(index, table):
    slot = jnp.maximum(slots[index], 0)
    memory = tree.gather(work.memories, slot)

    def add(index, table):
      # Past the end the last row is repeated, with the same representations.
      at = jnp.minimum(index * at_a_time + jnp.arange(at_a_time), sizes[slot] - 1)
      images = split.normalised(rows[first[slot] + at])
      found = training.represent(received, memory, images, None, None)
      return {k: table[k].at[begin[slot] + at].set(found[k]) for k in table}

    num_passes = jnp.where(slots[index] < 0, 0, -(-sizes[slot] // at_a_time))
    return jax.lax.fori_loop(0, num_passes, add, table)

  memory = tree.gather(work.memories, 0)
  images = split.normalised(rows[:1])
  shapes = jax.eval_shape(training.represent, received, memory, images, None, None)
  empty = {k: jnp.zeros((most, x.shape[1]), x.dtype) for k, x in shapes.items()}
  with jax.named_scope('frozen'):
    table = jax.lax.fori_loop(0, len(slots), fill, empty)

  def references(known, client, rows, batch, key):
    slot = jnp.sum(clients < client.client)
    at = places[rows] - first[slot] + begin[slot]
    return {name: table[name][at] for name in table}

  return Frozen(references)
