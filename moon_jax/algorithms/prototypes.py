"""Prototypes: for each class, the mean representation of its examples. Pure."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.core.types import Batch


class Prototypes(NamedTuple):
  """What the server keeps.

  Attributes:
    vectors: [Y, D] float32, the mean representation of each class.
    there: [Y] float32, 1.0 for a class that some client has had, otherwise 0.0.
  """

  vectors: jax.Array
  there: jax.Array


class Sums(NamedTuple):
  """What a client sends.

  Attributes:
    vectors: [Y, D] float32, for each class, the sum over the client's examples.
    counts: [Y] float32, number of these examples.
  """

  vectors: jax.Array
  counts: jax.Array


def sums_of(representation: jax.Array, batch: Batch, num_classes: int) -> Sums:
  """The sums over the real examples of a batch, whose representation is [B, D]."""
  classes = jax.nn.one_hot(batch.labels, num_classes) * batch.mask[:, None]
  shown = jnp.where(batch.mask[:, None] > 0, representation, 0.0)
  return Sums(classes.T @ shown, jnp.sum(classes, axis=0))


def updated(before: Prototypes, mean: Sums) -> Prototypes:
  """The new prototypes; a class that no client of the cohort has keeps its prototype.

  Args:
    before: prototypes of the last round.
    mean: mean of the clients' sums, with equal weights; vector / count is the mean over
      all their examples of the class.
  """
  found = mean.counts > 0
  means = mean.vectors / jnp.where(found, mean.counts, 1.0)[:, None]
  vectors = jnp.where(found[:, None], means, before.vectors)
  return Prototypes(vectors, jnp.where(found, 1.0, before.there))
