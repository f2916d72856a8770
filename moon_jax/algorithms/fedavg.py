"""FedAvg: McMahan et al. 2017, algorithm 1, arXiv:1602.05629."""

from moon_jax.algorithms.base import Algorithm


def fedavg() -> Algorithm:
  """Plain local training, then the mean weighted by examples: `base.average`.

  `train/aggregation.py` takes the mean as clients finish.
  """
  return Algorithm()
