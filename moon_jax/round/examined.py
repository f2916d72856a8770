"""Shows a trained network all examples of its client once more, and sums up. Pure.

It serves algorithms with `Algorithm.examine`; it adds nothing to other programs.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.core import tree
from moon_jax.core.types import Batch, PyTree
from moon_jax.models import Network
from moon_jax.round.client_training import LocalTraining, Progress, Work


def bound(algorithm: Algorithm, network: Network) -> Algorithm:
  """The algorithm, whose `examined` and `init_server` know the shapes of the sums."""
  if algorithm.examine is None:
    return algorithm

  def of_one(variables):
    images = jnp.zeros((1, *network.image_shape))
    batch = Batch(images, jnp.zeros(1, jnp.int32), jnp.ones(1))
    return algorithm.examine(network.apply(variables, images), batch)

  shapes = jax.eval_shape(of_one, network.shapes)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  init_server = functools.partial(algorithm.init_server, zeros=zeros)
  return algorithm._replace(examined=zeros, init_server=init_server)


def by_store(
  training: LocalTraining, work: Work
) -> Callable[[Progress, jax.Array], PyTree]:
  """How the lanes' networks are examined when their clients are done.

  An example belongs to one client, and counts once, also if `drop_last` or a fraction
  of an epoch left it out of the training.

  Returns:
    (lanes, leaves [L, ...], and slots to store [L] or -1) -> the sums [L, ...] over all
    that each client owns; zeros where the slot is -1. () without `examine`.
  """
  algorithm, (split, rows, offsets, _) = training.algorithm, work.data
  clients, size = work.plan.clients, work.plan.rows.shape[-1]
  if algorithm.examine is None:
    return lambda lanes, store: ()

  def one(lane, slot):
    # By slot, if the split is the cohort's alone; if all clients take part, both agree.
    owner = slot if len(offsets) == len(clients) + 1 else lane.client
    first, end = offsets[owner], offsets[owner + 1]

    def add(index, total):
      at = first + index * size + jnp.arange(size)
      left = end - first - index * size
      batch = split.batch(rows[jnp.minimum(at, end - 1)], left)
      outputs = training.network.apply(lane.variables, batch.images)
      return tree.add(total, algorithm.examine(outputs, batch))

    num_batches = jnp.where(slot < 0, 0, -((first - end) // size))
    return jax.lax.fori_loop(0, num_batches, add, algorithm.examined)

  return jax.named_scope('examined')(jax.vmap(one))
