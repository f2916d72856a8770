"""The algorithms: each file holds one, the catalog tells of all."""

from moon_jax import catalog
from moon_jax.algorithms.base import Algorithm

__all__ = ['Algorithm', 'make']


def make(name: str, **options: float | int | str | bool) -> Algorithm:
  """Builds an algorithm from its name and its knobs."""
  return catalog.part('algorithm', name).function(**options)
