"""FedAvg: McMahan et al. 2017, algorithm 1, arXiv:1602.05629."""

from moon_jax.algorithms.base import Algorithm


def fedavg() -> Algorithm:
  """Plain local training, then the mean of the models, weighted by examples.

  `round/aggregation.py` takes the mean as clients finish, and `base.average` uses it.
  """
  return Algorithm()
