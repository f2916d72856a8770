"""FedPer: Arivazhagan et al. 2019, arXiv:1912.00818: base and personal layers."""

from moon_jax.algorithms import base
from moon_jax.algorithms.private import Paths, layer_names, named_paths, with_private
from moon_jax.core.errors import KnobError
from moon_jax.core.types import Layers


def fedper(*, layers: str, network_layers: Layers) -> base.Algorithm:
  """Trains base and personal layers together, and averages only the base.

  w_B <- sum_k (n_k / n) w_B,k over the cohort, and client k keeps its w_P,k. All start
  from the same first w_P, as in public code; in the paper each client draws its own.

  Args:
    layers: names of the personal layers, separated by commas: every variable below a
      module of that name. '' is the output layer.
    network_layers: the layers of the network.

  Raises:
    KnobError: no layer has that name, no layer is left, or the output layer is
      unknown.
  """
  return with_private(personal_paths(layers, network_layers))


def personal_paths(
  layers: str, network_layers: Layers, knob: str = 'fedper.layers'
) -> Paths:
  """The paths of the variables of the named layers; '' is the output layer.

  `knob` is the one that names them, in messages.
  """
  paths = network_layers.paths
  personal = network_layers.output
  if layers.replace(',', '').strip():
    personal = named_paths(knob, layers, paths)
  if not personal or personal == paths:
    raise KnobError(
      knob,
      layers,
      'must name some layers of the network, but not all; it has '
      f'{", ".join(layer_names(paths))}.',
    )
  return personal
