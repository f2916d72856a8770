"""FedBN: Li et al., ICLR 2021, arXiv:2102.07623: batch normalisation stays local."""

from moon_jax.algorithms import base
from moon_jax.algorithms.private import with_private
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.types import Layers


def fedbn(*, network_layers: Layers) -> base.Algorithm:
  """FedAvg of all variables but batch normalisation's, which never leave the client.

  These are its scale, bias, running mean and variance: w <- sum_k (n_k / n) w_k for
  every other weight w. The type of a layer decides whether it is batch normalisation.
  `batch_norm=local` keeps only the running statistics local.

  Args:
    network_layers: the layers of the network.

  Raises:
    KnobError: the network has no batch normalisation.
  """
  if not network_layers.batch_norm:
    raise KnobError(
      'algorithm',
      'fedbn',
      'keeps batch normalisation with the clients, and the network has none: choose '
      f'another {flag("model")}, for example {flag("model", "moon_cnn")} with '
      f'{flag("moon_cnn.norm", "batch")}, for signals cnn_1d with '
      f'{flag("cnn_1d.norm", "batch")}, for volumes cnn_3d with '
      f'{flag("cnn_3d.norm", "batch")}, or {flag("algorithm", "fedavg")}.',
    )
  return with_private(network_layers.batch_norm)
