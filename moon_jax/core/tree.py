"""Algebra on pytrees: the few operations that federated averaging is made of."""

import functools
import math
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree

# The default precision would round a product to fewer bits on a GPU.
_dot = functools.partial(jnp.tensordot, axes=1, precision=jax.lax.Precision.HIGHEST)


def subtract(a: PyTree, b: PyTree) -> PyTree:
  """a - b, leaf by leaf."""
  return jax.tree.map(jnp.subtract, a, b)


def squared_norm(tree: PyTree) -> jax.Array:
  """[] sum of the squares of all numbers in the tree."""
  return sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))


def checked(tree: PyTree, like: PyTree, told: str) -> PyTree:
  """The tree, if both have the same structure, and leaves of equal shape and dtype.

  Raises:
    UsageError: they do not; the first place where they differ is named after `told`.
  """
  found, wanted = map(_forms, (tree, like))
  for place in {**wanted, **found}:
    if found.get(place) != wanted.get(place):
      one, other = (forms.get(place, 'nothing') for forms in (found, wanted))
      raise UsageError(f'{told}: {place} must be {other}, not {one}.')
  one, other = map(jax.tree.structure, (tree, like))
  if one != other:
    raise UsageError(f'{told} must have the structure {other}, not {one}.')
  return tree


def numbers(made: dict[str, jax.Array], told: str) -> dict[str, jax.Array]:
  """The numbers as [] float32; raises UsageError as `checked` does."""
  made = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), dict(made))
  return checked(made, dict.fromkeys(made, 0.0), told)


def _forms(tree: PyTree) -> dict[str, str]:
  """Place of a leaf -> its form, such as 'float32[3]'."""
  named = functools.partial(jax.tree_util.keystr, simple=True, separator='.')
  return {
    named(path) or 'it': f'{jnp.result_type(leaf)}{list(jnp.shape(leaf))}'
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def rows(tree: PyTree) -> list[jax.Array]:
  """All numbers of a tree, one row for each dtype: fewer operations to compile."""
  found = {}
  for leaf in jax.tree.leaves(tree):
    found.setdefault(leaf.dtype, []).append(leaf.ravel())
  return [jnp.concatenate(leaves) for leaves in found.values()]


def add(a: PyTree, b: PyTree) -> PyTree:
  """a + b, leaf by leaf."""
  return jax.tree.map(jnp.add, a, b)


def weighted_sum(stacked: PyTree, weights: jax.Array) -> PyTree:
  """sum_l weights[l] * stacked[l], in full float32; a weight of 0 hides even a NaN.

  Args:
    stacked: leaves [L, ...].
    weights: [L] float32.

  Returns:
    Leaves [...].
  """
  chex.assert_rank(weights, 1)
  chex.assert_tree_shape_prefix(stacked, weights.shape)
  shown = where(weights != 0, stacked, jax.tree.map(jnp.zeros_like, stacked))
  return jax.tree.map(functools.partial(_dot, weights), shown)


def mix(stacked: PyTree, mixing: jax.Array) -> PyTree:
  """Row k of the result is sum_j mixing[k, j] * stacked[j], in full float32.

  Args:
    stacked: leaves [K, ...].
    mixing: [K, K] float32.
  """
  chex.assert_rank(mixing, 2)
  chex.assert_tree_shape_prefix(stacked, mixing.shape[1:])
  return jax.tree.map(functools.partial(_dot, mixing), stacked)


def where(condition: jax.Array, a: PyTree, b: PyTree) -> PyTree:
  """a[l] where condition[l], else b[l].

  Args:
    condition: [L] bool.
    a: leaves [L, ...].
    b: leaves [L, ...].
  """
  chex.assert_rank(condition, 1)
  chex.assert_trees_all_equal_shapes(a, b)

  def select(x, y):
    return jnp.where(condition.reshape((-1,) + (1,) * (x.ndim - 1)), x, y)

  return jax.tree.map(select, a, b)


def all_finite(tree: PyTree) -> jax.Array:
  """[] bool, whether no number in the tree is NaN or infinite."""
  finite = [jnp.all(jnp.isfinite(row)) for row in rows(tree)]
  return functools.reduce(jnp.logical_and, finite, jnp.array(True))


def gather(stacked: PyTree, index: jax.Array) -> PyTree:
  """stacked[index]; leaves [N, ...] and [K] int32 -> [K, ...]."""
  return jax.tree.map(lambda leaf: leaf[index], stacked)


def scatter(stacked: PyTree, index: jax.Array, values: PyTree) -> PyTree:
  """A copy of `stacked` with `values` at `index`; an index of -1 writes nothing.

  Args:
    stacked: leaves [N, ...].
    index: [K] int32 in [-1, N), without repetition except of -1.
    values: leaves [K, ...].
  """

  def put(leaf, value):
    # JAX counts a negative index from the end, and drops an index past the end. The
    # indices differ: with equal ones a GPU would sort all of them, to be deterministic.
    beyond = leaf.shape[0] + jnp.arange(len(index), dtype=index.dtype)
    unique = jnp.where(index < 0, beyond, index)
    return leaf.at[unique].set(value, mode='drop', unique_indices=True)

  return jax.tree.map(put, stacked, values)


def repeat(tree: PyTree, count: int) -> PyTree:
  """`count` copies of every leaf along a new first axis."""
  return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (count, *x.shape)), tree)


def flatten(stacked: PyTree) -> PyTree:
  """Leaves [N, M, ...] -> [N * M, ...]."""
  return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stacked)


def map_models(function: Callable[[PyTree], PyTree], sent: PyTree) -> PyTree:
  """What is sent, with the function's result in place of every model in it.

  A model is a dict with 'params', like the variables of a flax network.
  """

  def is_model(node):
    return isinstance(node, dict) and 'params' in node

  def mapped(node):
    return function(node) if is_model(node) else node

  return jax.tree.map(mapped, sent, is_leaf=is_model)


def num_bytes(tree: PyTree) -> int:
  """Bytes of all leaves; arrays or ShapeDtypeStructs."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def num_parameters(tree: PyTree) -> int:
  """Number of parameters in all leaves."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
