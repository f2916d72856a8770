"""Centralised training: all data in one place; the upper bound of every table."""

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.solo import solo


def centralized() -> Algorithm:
  """SOLO of a single client, which owns all the data: `method` makes it so.

  A round is `local_epochs` passes over everything. Nothing is communicated. The local
  optimizer starts anew each round, as everybody's does.
  """
  return solo()
