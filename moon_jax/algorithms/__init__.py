"""The algorithms by name; each file holds one."""

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.fedprox import fedprox
from moon_jax.algorithms.moon import moon
from moon_jax.algorithms.solo import solo

ALGORITHMS = {'fedavg': fedavg, 'fedprox': fedprox, 'moon': moon, 'solo': solo}


def make(name: str, **options: float) -> Algorithm:
  """Builds an algorithm from its name and the knobs of its group."""
  return ALGORITHMS[name](**options)
