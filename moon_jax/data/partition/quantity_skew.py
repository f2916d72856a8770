"""Clients with equal or unequal numbers of examples, whose labels are random."""

import functools

import numpy as np

from moon_jax.core.flags import flag
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.data.partition import base
from moon_jax.data.partition.base import Partition


def iid(
  labels: np.ndarray, *, num_clients: int, min_size: int = 0, seed: int
) -> Partition:
  """Deals the examples at random; sizes differ by at most one.

  Args:
    labels: [M] int.
    num_clients: N.
    min_size: fewest examples a client may own.
    seed: the run's seed.

  Raises:
    UsageError: there are fewer than num_clients * min_size examples.
  """
  base.require_enough(len(labels), num_clients, min_size)
  owners = np.arange(len(labels)) % num_clients
  rng = host_rng(seed, Purpose.PARTITION)
  return base.grouped(rng.permutation(owners), num_clients)


def quantity(
  labels: np.ndarray, *, num_clients: int, beta: float, min_size: int, seed: int
) -> Partition:
  """Draws the clients' shares of all examples from a symmetric Dirichlet distribution.

  Quantity skew of NIID-Bench (Li et al. 2022, arXiv:2102.02079): which examples a
  client owns is random. All is redrawn until each client has min_size. If no draw
  succeeds (`base.first_large_enough`; among many clients some own next to nothing),
  min_size are reserved for each, and the Dirichlet shares divide the rest.

  Args:
    labels: [M] int.
    num_clients: N.
    beta: concentration, above 0; small is skewed.
    min_size: fewest examples a client may own.
    seed: the run's seed.

  Raises:
    UsageError: there are fewer than num_clients * min_size examples.
  """

  def draw(rng, reserved=0):
    num_shared = len(labels) - num_clients * reserved
    sizes = reserved + base.dirichlet_counts(rng, num_clients, beta, num_shared)
    return sizes, lambda: rng.permutation(np.repeat(np.arange(num_clients), sizes))

  return base.first_large_enough(
    flag('partition.beta', beta),
    draw,
    len(labels),
    num_clients=num_clients,
    min_size=min_size,
    seed=seed,
    fallback=functools.partial(draw, reserved=min_size),
  )
