"""Prototypes: for each class, the mean representation of its examples. Pure."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from moon_jax.core.types import Batch


class Prototypes(NamedTuple):
  """The prototypes, which the server keeps.

  Attributes:
    vectors: [Y, D] float32, the mean representation of each class.
    there: [Y] float32, 1.0 for a class that has a prototype, because some client had
      examples of it; otherwise 0.0.
  """

  vectors: jax.Array
  there: jax.Array


class ClassSums(NamedTuple):
  """What a client sends.

  Attributes:
    vectors: [Y, D] float32, for each class, the sum over the client's examples.
    counts: [Y] float32, number of these examples.
  """

  vectors: jax.Array
  counts: jax.Array


def empty_prototypes(zeros: ClassSums) -> Prototypes:
  """No prototypes yet; zeros: sums of the right shapes, all 0."""
  return Prototypes(vectors=zeros.vectors, there=zeros.counts)


def class_sums(representation: jax.Array, batch: Batch, num_classes: int) -> ClassSums:
  """The sums over the real examples of a batch, whose representation is [B, D]."""
  classes = jax.nn.one_hot(batch.labels, num_classes) * batch.mask[:, None]
  real = jnp.where(batch.mask[:, None] > 0, representation, 0.0)
  return ClassSums(vectors=classes.T @ real, counts=jnp.sum(classes, axis=0))


def updated(before: Prototypes, mean: ClassSums) -> Prototypes:
  """The new prototypes; a class that no client of the cohort has keeps its prototype.

  Args:
    before: prototypes of the last round.
    mean: mean of the clients' sums, with equal weights; vector / count is the mean over
      all their examples of the class.
  """
  has_examples = mean.counts > 0
  means = mean.vectors / jnp.where(has_examples, mean.counts, 1.0)[:, None]
  return Prototypes(
    vectors=jnp.where(has_examples[:, None], means, before.vectors),
    there=jnp.where(has_examples, 1.0, before.there),
  )
