"""The graphs of training without a server, and their mixing weights. Plain numpy.

A graph of N >= 1 clients is [N, N] bool, symmetric, False on the diagonal: who is a
neighbour of whom. Every graph is connected; the seed is the run's.
"""

import chex
import numpy as np
from scipy.sparse.csgraph import connected_components

from moon_jax.errors import UsageError
from moon_jax.keys import Purpose, host_rng

MAX_ATTEMPTS = 100


def ring(*, num_clients: int, degree: int, seed: int = 0) -> np.ndarray:
  """[N, N] bool: clients in a circle, each linked to its degree / 2 nearest a side.

  The degree is even, at least 2 and below num_clients.
  """
  ids = np.arange(num_clients)
  clockwise = (ids - ids[:, None]) % num_clients
  apart = np.minimum(clockwise, num_clients - clockwise)
  return (apart > 0) & (apart <= degree // 2)


def grid(*, num_clients: int, seed: int = 0) -> np.ndarray:
  """[N, N] bool: a rectangle of clients, linked to those beside, above and below.

  The borders are not joined. Rows times columns is N, as square as that allows; a
  prime N is a line. Clients are numbered row by row.
  """
  rows = next(r for r in range(int(num_clients**0.5), 0, -1) if num_clients % r == 0)
  row, column = np.divmod(np.arange(num_clients), num_clients // rows)
  steps = np.abs(row - row[:, None]) + np.abs(column - column[:, None])
  return steps == 1


def complete(*, num_clients: int, seed: int = 0) -> np.ndarray:
  """[N, N] bool: everybody is linked to everybody else."""
  return ~np.eye(num_clients, dtype=bool)


def erdos_renyi(*, num_clients: int, edge_probability: float, seed: int) -> np.ndarray:
  """[N, N] bool: each pair is linked with the same probability, independently.

  (Erdos, Renyi 1959, in Gilbert's form G(N, p).) Drawn anew until it is connected.

  Raises:
    UsageError: none of MAX_ATTEMPTS draws was connected.
  """
  for attempt in range(MAX_ATTEMPTS):
    rng = host_rng(seed, Purpose.TOPOLOGY, attempt)
    drawn = rng.random((num_clients, num_clients)) < edge_probability
    above = np.triu(drawn, k=1)
    graph = above | above.T
    if is_connected(graph):
      return graph
  raise UsageError(
    f'None of {MAX_ATTEMPTS} random graphs of {num_clients} clients was connected: '
    f'raise --config.topology.edge_probability={edge_probability}; above '
    f'log(N) / N = {np.log(num_clients) / num_clients:.3g} most are.'
  )


def is_connected(adjacency: np.ndarray) -> bool:
  """Whether a path leads from each client to every other; [N, N] bool, symmetric."""
  return connected_components(adjacency, directed=False)[0] == 1


def metropolis_hastings(adjacency: np.ndarray) -> np.ndarray:
  """W_ij = 1 / (1 + max(d_i, d_j)) between neighbours, W_ii = 1 - sum_{j != i} W_ij.

  (Xiao, Boyd 2004, Fast linear iterations for distributed averaging; d_i is the number
  of neighbours.) Row i tells how client i averages: w_i <- sum_j W_ij w_j. On the
  complete graph every weight is 1 / N. On a connected graph repeated averaging leads
  every client to the mean of all.

  Args:
    adjacency: [N, N] bool, symmetric, False on the diagonal.

  Returns:
    [N, N] float64, symmetric, at least 0, rows and columns sum to 1.
  """
  chex.assert_shape(adjacency, (len(adjacency),) * 2)
  degrees = adjacency.sum(axis=1)
  larger = np.maximum(degrees, degrees[:, None])
  return _keep_the_rest(np.where(adjacency, 1.0 / (1.0 + larger), 0.0))


def restrict(weights: np.ndarray, present: np.ndarray) -> np.ndarray:
  """The weights of a round in which some clients are absent.

  What an absent neighbour would have weighed goes to the client itself, and an absent
  client keeps its model. Rows and columns still sum to 1, so the mean over all clients
  is kept; dropping the neighbour and scaling the row up would not keep it.

  Args:
    weights: [N, N] float64, symmetric, rows sum to 1.
    present: [N] bool.

  Returns:
    [N, N] float64, symmetric, at least 0, rows and columns sum to 1.
  """
  chex.assert_shape(weights, (len(present),) * 2)
  both = present & present[:, None] & ~np.eye(len(present), dtype=bool)
  return _keep_the_rest(np.where(both, weights, 0.0))


def _keep_the_rest(shares: np.ndarray) -> np.ndarray:
  """[N, N] weights of others, 0 on the diagonal -> the diagonal completes each row."""
  return shares + np.diag(1.0 - shares.sum(axis=1))
