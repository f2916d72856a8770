"""FedPer: Arivazhagan et al. 2019, arXiv:1912.00818: base and personal layers."""

from moon_jax.algorithms import base
from moon_jax.algorithms.private import with_private
from moon_jax.core.errors import UsageError
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
    UsageError: no layer has that name, no layer is left, or the output layer is
      unknown.
  """
  return with_private(chosen(layers, network_layers))


def chosen(layers: str, network_layers: Layers) -> frozenset[tuple[str, ...]]:
  """The paths of the variables of some layers; '' is the output layer."""
  paths, names = network_layers.paths, {name.strip() for name in layers.split(',')}
  names, known = names - {''}, {name for path in paths for name in path[1:-1]}
  found = frozenset(path for path in paths if names.intersection(path[1:-1]))
  found = found or network_layers.output
  if names - known or not found or found == paths:
    raise UsageError(
      f'--config.fedper.layers={layers!r} must name some layers of the network, but '
      f'not all; it has {", ".join(sorted(known))}.'
    )
  return found
