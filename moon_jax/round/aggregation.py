"""Averages what clients send: summed as they finish, joined over devices. Pure.

The algorithm's `aggregate`, which `round` calls, makes the new server from the mean; by
default it is `algorithms.base.average`.
"""

import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.types import LANES, Upload
from moon_jax.round.client_training import Finished, Work


def collecting(all_uploads: bool, weights: jax.Array):
  """How the loop collects the uploads and memories of finished clients.

  Args:
    all_uploads: whether each upload is kept, by slot, instead of their mean.
    weights: [K] float32 of the slots, on any scale.

  Returns:
    collect: (Finished of the cohort, slots to store [L] or -1, Finished [L, ...] of the
      lanes) -> Finished of the cohort.
    empty: (shapes of Finished [L, ...], memories [K, ...]) -> Finished of a cohort of
      which no client has finished.
  """
  size, weights = len(weights), weights / jnp.sum(weights)

  def add(mean, upload, share):
    return tree.add(mean, tree.weighted_sum(upload, share))

  def collect(collected, store, done):
    slots, counts = jnp.maximum(store, 0), (store >= 0) & done.metrics.finite
    shares = Upload(weights[slots], jnp.full(slots.shape, 1 / size))
    if all_uploads:
      sent = tree.scatter(collected.upload, store, done.upload)
    else:
      shares = (jnp.where(counts, share, 0.0) for share in shares)
      sent = Upload(*map(add, collected.upload, done.upload, shares))
    return Finished(sent, *tree.scatter(collected[1:], store, done[1:]))

  def zeros(shapes, *lead):
    return jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape[1:]), x.dtype), shapes)

  def empty(shapes, memories):
    sent = zeros(shapes.upload, *[size] * all_uploads)
    return Finished(sent, memories, zeros(shapes.metrics, size))

  return collect, empty


def exchange(mine: Finished, work: Work) -> Finished:
  """Joins what the devices collected, by one sum; one device adds each client."""
  slots = work.plan.store.ravel()
  trained = tree.scatter(
    jnp.zeros(len(work.plan.clients), bool), slots, jnp.ones(slots.shape, bool)
  )
  # The device that trained a client supplies its memory. If no device trained it, the
  # memory becomes zeros, which nobody reads, because its `finite` is False.
  hidden = jax.tree.map(jnp.zeros_like, mine.memory)
  shown = mine._replace(memory=tree.where(trained, mine.memory, hidden))
  total = jax.lax.psum(shown, LANES)
  return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, shown)


def mean_of_finite(mean: Upload, finite: jax.Array, weights: jax.Array) -> Upload:
  """The mean over the finite uploads, from the mean in which the others count as zeros.

  Args:
    mean: mean over the whole cohort.
    finite: [K] bool, whether an upload is finite.
    weights: [K] float32, on any scale.
  """
  total = jnp.sum(jnp.where(finite, weights, 0.0)) / jnp.sum(weights)

  def rescale(part, share):
    # Exactly 1 if all uploads are finite, in whatever order the sums are taken.
    share = jnp.where(jnp.all(finite), 1.0, share)
    return jax.tree.map(lambda leaf: leaf / share, part)

  counting_alike = jnp.mean(finite, dtype=jnp.float32)
  return Upload(rescale(mean.weighted, total), rescale(mean.uniform, counting_alike))
