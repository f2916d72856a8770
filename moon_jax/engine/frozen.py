"""Computes the frozen networks' representations, in each step or once a round. Pure."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax import tree
from moon_jax.engine.client_training import LocalTraining, Progress, Work
from moon_jax.types import Batch

# (the client, rows [B], Batch, key of the step) -> name -> [B, D] under the frozen
# networks.
Represent = Callable[[Progress, jax.Array, Batch, jax.Array], dict[str, jax.Array]]


def every_batch(local: LocalTraining, work: Work) -> Represent:
  """The frozen networks run in every step, on its batch."""

  def represent(client, rows, batch, key):
    given = work.common.received, client.memory
    return local.represent(*given, batch.images, batch.mask, key)

  return represent


def once(local: LocalTraining, work: Work) -> Represent:
  """The frozen networks run now, over all that the lanes' clients own; steps look up.

  The same result in less time, for memory, if there are several epochs and nothing is
  augmented. An example belongs to one client, so its row alone finds what is known of
  it.
  """
  split, rows, offsets = work.data
  received, clients = work.common.received, work.plan.clients
  at_a_time = work.plan.examples[0].size  # as many as a step of all lanes trains on
  slots = work.plan.load.ravel()

  def fill(index, table):
    slot = jnp.maximum(slots[index], 0)
    memory = tree.gather(work.memories, slot)
    # By slot, if the examples are the cohort's alone; where all take part, both agree.
    owner = slot if len(offsets) == len(clients) + 1 else clients[slot]
    first, end = offsets[owner], offsets[owner + 1]

    def add(index, table):
      at = first + index * at_a_time + jnp.arange(at_a_time)
      # Past the end the last row stands again, with the same representations.
      seen = rows[jnp.minimum(at, end - 1)]
      images = split.normalised(seen)
      found = local.represent(received, memory, images, None, None)
      return {name: table[name].at[seen].set(found[name]) for name in table}

    num_passes = jnp.where(slots[index] < 0, 0, -((first - end) // at_a_time))
    return jax.lax.fori_loop(0, num_passes, add, table)

  memory = tree.gather(work.memories, 0)
  images = split.normalised(rows[:1])
  shapes = jax.eval_shape(local.represent, received, memory, images, None, None)
  empty = {
    name: jnp.zeros((len(rows), one.shape[1]), one.dtype)
    for name, one in shapes.items()
  }
  with jax.named_scope('frozen'):
    table = jax.lax.fori_loop(0, len(slots), fill, empty)

  def represent(client, rows, batch, key):
    return {name: table[name][rows] for name in table}

  return represent
