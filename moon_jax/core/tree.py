"""Algebra on pytrees: the few operations that federated averaging is made of."""

import functools
import math
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

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


def checked(tree: PyTree, template: PyTree, tree_name: str) -> PyTree:
  """The tree, if it has the structure of the template, and its shapes and dtypes.

  Args:
    tree: any tree.
    template: the tree that it must resemble.
    tree_name: name of the tree in messages.

  Raises:
    UsageError: the trees differ; the message has the first leaf that differs.
  """
  forms, template_forms = _leaf_forms(tree), _leaf_forms(template)
  for leaf_name in {**template_forms, **forms}:
    form = forms.get(leaf_name, 'nothing')
    required_form = template_forms.get(leaf_name, 'nothing')
    if form != required_form:
      raise UsageError(f'{tree_name}: {leaf_name} must be {required_form}, not {form}.')
  structure = jax.tree.structure(tree)
  required_structure = jax.tree.structure(template)
  if structure != required_structure:
    raise UsageError(
      f'{tree_name} must have the structure {required_structure}, not {structure}.'
    )
  return tree


def float_scalars(numbers: dict[str, jax.Array], name: str) -> dict[str, jax.Array]:
  """The numbers as [] float32; raises UsageError as `checked` does."""
  numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), dict(numbers))
  return checked(numbers, dict.fromkeys(numbers, np.float32(0.0)), name)


def _leaf_forms(tree: PyTree) -> dict[str, str]:
  """Name of a leaf -> its dtype and shape, such as 'float32[3]'."""
  forms = {}
  for path, leaf in jax.tree.leaves_with_path(tree):
    leaf_name = jax.tree_util.keystr(path, simple=True, separator='.') or 'it'
    forms[leaf_name] = f'{jnp.result_type(leaf)}{list(jnp.shape(leaf))}'
  return forms


def concatenated(tree: PyTree) -> list[jax.Array]:
  """All numbers of a tree, one vector for each dtype: fewer operations to compile."""
  leaves_by_dtype = {}
  for leaf in jax.tree.leaves(tree):
    leaves_by_dtype.setdefault(leaf.dtype, []).append(leaf.ravel())
  return [jnp.concatenate(leaves) for leaves in leaves_by_dtype.values()]


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
  zeros = jax.tree.map(jnp.zeros_like, stacked)
  weighted = where(weights != 0, stacked, zeros)
  return jax.tree.map(functools.partial(_dot, weights), weighted)


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
  finite = [jnp.all(jnp.isfinite(vector)) for vector in concatenated(tree)]
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

  def scatter_leaf(leaf, new_rows):
    # JAX counts a negative index from the end, and drops an index past the end. The
    # indices past the end differ: with equal ones a GPU would sort all indices, to be
    # deterministic.
    past_end = leaf.shape[0] + jnp.arange(len(index), dtype=index.dtype)
    unique = jnp.where(index < 0, past_end, index)
    return leaf.at[unique].set(new_rows, mode='drop', unique_indices=True)

  return jax.tree.map(scatter_leaf, stacked, values)


def repeat(tree: PyTree, count: int) -> PyTree:
  """`count` copies of every leaf along a new first axis."""
  return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (count, *x.shape)), tree)


def merged_axes(stacked: PyTree) -> PyTree:
  """Leaves [N, M, ...] -> [N * M, ...]."""
  return jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), stacked)


def map_models(function: Callable[[PyTree], PyTree], message: PyTree) -> PyTree:
  """The message, with the function's result in place of every model in it.

  A model is a dict with 'params', like the variables of a flax network.
  """

  def map_node(node):
    return function(node) if _is_model(node) else node

  return jax.tree.map(map_node, message, is_leaf=_is_model)


def models_in(message: PyTree) -> list[PyTree]:
  """The models in a message, as `map_models` finds them."""
  nodes = jax.tree.leaves(message, is_leaf=_is_model)
  return [node for node in nodes if _is_model(node)]


def _is_model(node: PyTree) -> bool:
  return isinstance(node, dict) and 'params' in node


def kept_at(paths: frozenset[tuple[str, ...]], new: PyTree, before: PyTree) -> PyTree:
  """The new tree, with the leaves from before at these paths.

  Args:
    paths: paths of variables, such as ('params', 'conv1', 'kernel'). A leaf counts if
      its own path ends in one: a tree may hold several models.
    new: any tree.
    before: a tree of the same structure.
  """

  def choose(path, new_leaf, leaf_before):
    return leaf_before if is_at(paths, path) else new_leaf

  return jax.tree_util.tree_map_with_path(choose, new, before)


def is_at(paths: frozenset[tuple[str, ...]], path: tuple) -> bool:
  """Whether the path of a leaf ends in one of these.

  Args:
    paths: see `kept_at`.
    path: the path of a leaf, as JAX has it.
  """
  names = tuple(getattr(key, 'key', None) for key in path)
  return any(names[start:] in paths for start in range(len(names)))


def num_bytes(tree: PyTree) -> int:
  """Bytes of all leaves; arrays or ShapeDtypeStructs."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def num_parameters(tree: PyTree) -> int:
  """Number of parameters in all leaves."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
