"""Finds the variables of a network's output layer, and of batch normalisation."""

from collections.abc import Callable

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict
from jax.extend.core import Var

from moon_jax.core.types import Layers, PyTree


def layers_of(module: nn.Module, images: jax.Array, shapes: PyTree) -> Layers:
  """Finds them in what a flax module computes; runs nothing.

  The output layer has the variables that the logits need and the representation does
  not; if the representation is the logits, those that the features do not need.
  """

  def needed(name):
    def output(variables):
      return getattr(module.apply(variables, images), name)

    return _inputs_used(output, shapes)

  logits, *before = map(needed, ('logits', 'representation', 'features'))
  paths = frozenset(flatten_dict(shapes))
  output = logits - before[0] - before[1] or logits - before[1]
  # Batch normalisation is what has running statistics.
  norms = {path[1:-1] for path in paths if path[0] == 'batch_stats'}
  return Layers(paths, output, frozenset(p for p in paths if p[1:-1] in norms))


def _inputs_used(function: Callable, variables: PyTree) -> frozenset[tuple[str, ...]]:
  """The paths of the variables that an array depends on."""
  traced = jax.make_jaxpr(function)(variables).jaxpr
  used = {one for one in traced.outvars if isinstance(one, Var)}
  for equation in reversed(traced.eqns):
    if used.intersection(equation.outvars):
      used.update(one for one in equation.invars if isinstance(one, Var))
  leaves = jax.tree_util.tree_leaves_with_path(variables)
  paths = [tuple(key.key for key in path) for path, _ in leaves]
  known = zip(paths, traced.invars, strict=True)
  return frozenset(path for path, one in known if one in used)
