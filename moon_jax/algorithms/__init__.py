"""The algorithms by name; each file holds one."""

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.centralized import centralized
from moon_jax.algorithms.dco_moon import dco_moon
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.fedprox import fedprox
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.sa_moon import sa_moon
from moon_jax.algorithms.scaffold import scaffold
from moon_jax.algorithms.solo import solo
from moon_jax.algorithms.wrappers.decentralized import (
  decentralized_fedavg,
  decentralized_moon,
)
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer

__all__ = [
  'ALGORITHMS',
  'Algorithm',
  'make',
  'with_local_statistics',
  'with_server_optimizer',
]

ALGORITHMS = {
  'fedavg': fedavg,
  'fedprox': fedprox,
  'scaffold': scaffold,
  'moon': moon,
  'sa_moon': sa_moon,
  'dco_moon': dco_moon,
  'decentralized_fedavg': decentralized_fedavg,
  'decentralized_moon': decentralized_moon,
  'solo': solo,
  'centralized': centralized,
}


def make(name: str, **options: float | int | str | bool) -> Algorithm:
  """Builds an algorithm from its name and the knobs of its group."""
  return ALGORITHMS[name](**options)
