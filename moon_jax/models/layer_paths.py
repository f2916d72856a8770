"""Finds the variables of a network's layers: output, batch normalisation, body."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jax.extend.core import Var

from moon_jax.core.types import Layers, Outputs, PyTree


def layers_of(apply: Callable, images: jax.ShapeDtypeStruct, shapes: PyTree) -> Layers:
  """Finds the kinds of layers in what a network computes, without running it.

  The output layer has the variables that the logits depend on and the representation
  does not. If the representation is the logits, it has those that the features do not
  depend on. Of a network that returns logits alone it is not known. Features that a
  network leaves out are the representation.
  """

  def paths_behind(output_name):
    def output(variables):
      returned = apply(variables, jnp.zeros(images.shape, images.dtype))
      outputs = dict(zip(Outputs._fields, returned, strict=True))
      if outputs['features'] is None:
        outputs['features'] = outputs['representation']
      return outputs[output_name]

    return _paths_behind(output, shapes)

  behind_logits = paths_behind('logits')
  behind_features = paths_behind('features')
  output_paths = behind_logits - paths_behind('representation') - behind_features
  if not output_paths:
    output_paths = behind_logits - behind_features

  paths = frozenset(flatten_dict(shapes))
  # Batch normalisation is what has running statistics.
  norm_layers = {path[1:-1] for path in paths if path[0] == 'batch_stats'}
  return Layers(
    paths=paths,
    output=output_paths,
    batch_norm=frozenset(path for path in paths if path[1:-1] in norm_layers),
    body=behind_features,
  )


def _paths_behind(function: Callable, variables: PyTree) -> frozenset[tuple[str, ...]]:
  """The paths of the variables that the function's result depends on."""
  jaxpr = jax.make_jaxpr(function)(variables).jaxpr
  dependencies = {atom for atom in jaxpr.outvars if isinstance(atom, Var)}
  for equation in reversed(jaxpr.eqns):
    if dependencies.intersection(equation.outvars):
      dependencies.update(atom for atom in equation.invars if isinstance(atom, Var))
  leaves = jax.tree_util.tree_leaves_with_path(variables)
  paths = [tuple(key.key for key in path) for path, _ in leaves]
  path_of_input = dict(zip(jaxpr.invars, paths, strict=True))
  return frozenset(
    path for variable, path in path_of_input.items() if variable in dependencies
  )
