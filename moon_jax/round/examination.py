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


def with_empty_sums(algorithm: Algorithm, network: Network) -> Algorithm:
  """The algorithm; `examined_zeros` and `init_server` know the shapes of the sums."""
  if algorithm.examine is None:
    return algorithm

  def examine_one_image(variables):
    images = jnp.zeros((1, *network.image_shape), network.input_dtype)
    batch = Batch(images, labels=jnp.zeros(1, jnp.int32), mask=jnp.ones(1))
    return algorithm.examine(network.apply(variables, images), batch)

  shapes = jax.eval_shape(examine_one_image, network.shapes)
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  init_server = functools.partial(algorithm.init_server, zeros=zeros)
  return algorithm._replace(examined_zeros=zeros, init_server=init_server)


def of_leaving_clients(
  training: LocalTraining, work: Work
) -> Callable[[Progress, jax.Array], PyTree]:
  """Builds the function that examines the networks of clients that are done.

  An example belongs to one client, and counts once, also if `drop_last` or a fraction
  of an epoch left it out of the training.

  Returns:
    (lanes, leaves [L, ...], and the slots [L] that leave, or -1) -> the sums [L, ...]
    over all examples that each client owns; zeros where the slot is -1. () without
    `examine`.
  """
  algorithm, split = training.algorithm, work.data
  if algorithm.examine is None:
    return lambda lanes, leaving: ()
  owners = split.owners(work.cohort.clients)
  batch_size = work.schedule.example_rows.shape[-1]

  def examine_client(progress, slot):
    owner = owners[slot]
    first, end = split.offsets[owner], split.offsets[owner + 1]

    def add_batch(index, sums):
      num_examined = index * batch_size
      positions = first + num_examined + jnp.arange(batch_size)
      rows = split.rows_by_owner[jnp.minimum(positions, end - 1)]
      batch = split.examples.batch(rows, num_real=end - first - num_examined)
      outputs = training.network.apply(progress.variables, batch.images)
      return tree.add(sums, algorithm.examine(outputs, batch))

    num_batches = jnp.where(slot < 0, 0, -((first - end) // batch_size))
    return jax.lax.fori_loop(0, num_batches, add_batch, algorithm.examined_zeros)

  return jax.named_scope('examined')(jax.vmap(examine_client))
