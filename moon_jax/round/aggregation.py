"""Averages what clients send: summed as they finish, joined over devices. Pure.

The algorithm's `aggregate`, which `communication_round` calls, makes the new server
from the mean; by default it is `algorithms.base.average`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.core import tree
from moon_jax.core.types import LANES, PyTree, Upload
from moon_jax.round.client_training import Finished, Work


class Collector(NamedTuple):
  """Collects the uploads and memories of clients as they finish.

  Attributes:
    collect: (Finished of the cohort, the slots [L] that leave their lanes, or -1,
      Finished [L, ...] of the lanes) -> Finished of the cohort.
    empty: (shapes of Finished [L, ...], memories [K, ...]) -> Finished of a cohort of
      which no client has finished.
  """

  collect: Callable[[Finished, jax.Array, Finished], Finished]
  empty: Callable[[Finished, PyTree], Finished]


def make_collector(weights: jax.Array, *, keeps_all_uploads: bool) -> Collector:
  """Builds the functions that collect what a cohort's clients send and keep.

  Args:
    weights: [K] float32 of the slots, on any scale.
    keeps_all_uploads: whether each upload is kept, by slot, instead of their mean.
  """
  cohort_size = len(weights)
  weights = weights / jnp.sum(weights)

  def collect(collected, leaving, finished):
    if keeps_all_uploads:
      upload = tree.scatter(collected.upload, leaving, finished.upload)
    else:
      upload = add_to_mean(collected.upload, leaving, finished)
    memory, metrics = tree.scatter(
      (collected.memory, collected.metrics),
      leaving,
      (finished.memory, finished.metrics),
    )
    return Finished(upload=upload, memory=memory, metrics=metrics)

  def add_to_mean(mean, leaving, finished):
    slots = jnp.maximum(leaving, 0)
    counts = (leaving >= 0) & finished.metrics.finite
    weighted_shares = jnp.where(counts, weights[slots], 0.0)
    uniform_shares = jnp.where(counts, jnp.full(slots.shape, 1 / cohort_size), 0.0)
    sent = finished.upload
    return Upload(
      tree.add(mean.weighted, tree.weighted_sum(sent.weighted, weighted_shares)),
      tree.add(mean.uniform, tree.weighted_sum(sent.uniform, uniform_shares)),
    )

  def empty(shapes, memories):
    def zeros(*leading_axes):
      return lambda leaf: jnp.zeros((*leading_axes, *leaf.shape[1:]), leaf.dtype)

    zero_upload = zeros(cohort_size) if keeps_all_uploads else zeros()
    return Finished(
      upload=jax.tree.map(zero_upload, shapes.upload),
      memory=memories,
      metrics=jax.tree.map(zeros(cohort_size), shapes.metrics),
    )

  return Collector(collect, empty)


def exchange(collected: Finished, work: Work) -> Finished:
  """Joins what the devices collected, by one sum; each client comes from one device."""
  slots = work.schedule.leaving.ravel()
  trained_here = tree.scatter(
    jnp.zeros(len(work.cohort.clients), bool), slots, jnp.ones(slots.shape, bool)
  )
  # The device that trained a client supplies its memory. If no device trained it, the
  # memory becomes zeros, which nobody reads, because its `finite` is False.
  zeros = jax.tree.map(jnp.zeros_like, collected.memory)
  memory = tree.where(trained_here, collected.memory, zeros)
  collected = collected._replace(memory=memory)
  joined = jax.lax.psum(collected, LANES)
  return jax.tree.map(lambda total, part: total.astype(part.dtype), joined, collected)


def mean_of_finite(mean: Upload, finite: jax.Array, weights: jax.Array) -> Upload:
  """The mean over the finite uploads, from the mean in which the others count as zeros.

  Args:
    mean: mean over the whole cohort.
    finite: [K] bool, whether an upload is finite.
    weights: [K] float32, on any scale.
  """

  def rescale(part, finite_share):
    # Exactly 1 if all uploads are finite, in whatever order the sums are taken.
    finite_share = jnp.where(jnp.all(finite), 1.0, finite_share)
    return jax.tree.map(lambda leaf: leaf / finite_share, part)

  weighted_share = jnp.sum(jnp.where(finite, weights, 0.0)) / jnp.sum(weights)
  uniform_share = jnp.mean(finite, dtype=jnp.float32)
  return Upload(
    weighted=rescale(mean.weighted, weighted_share),
    uniform=rescale(mean.uniform, uniform_share),
  )
