"""Finds the variables of a network's output layer, and of batch normalisation."""

from collections.abc import Callable

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict
from jax.extend.core import Var

from moon_jax.core.types import Layers, PyTree
from moon_jax.models import layers


def layers_of(module: nn.Module, images: jax.Array, shapes: PyTree) -> Layers:
  """Finds them in what a flax module computes; runs nothing.

  The output layer has the variables that the logits need and the representation does
  not; if the representation is the logits, those that the features do not need.
  """

  def needed(name):
    def output(variables):
      return getattr(module.apply(variables, images), name)

    return _inputs_used(output, shapes)

  norms = _batch_norms(module, images)

  def normalising(path):
    return any(path[1 : len(norm) + 1] == norm for norm in norms)

  logits, *before = map(needed, ('logits', 'representation', 'features'))
  paths = frozenset(flatten_dict(shapes))
  output = logits - before[0] - before[1] or logits - before[1]
  return Layers(paths, output, frozenset(filter(normalising, paths)))


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


def _batch_norms(module, images) -> set[tuple[str, ...]]:
  """The paths of the modules that are batch normalisations, whatever their names."""
  found = set()

  def look(call, given, named, context):
    if isinstance(context.module, layers.BatchNorm | nn.BatchNorm):
      found.add(context.module.path)
    return call(*given, **named)

  with nn.intercept_methods(look):
    jax.eval_shape(module.init, jax.random.key(0), images)
  return found
