"""The graphs of training without a server, and their mixing weights. On the host.

A graph of N >= 1 clients is a sparse [N, N] bool, symmetric, without entries on the
diagonal: it is true for neighbours. Every graph is connected; the seed is the run's.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.shares import num_rows_of_grid

MAX_ATTEMPTS = 100


def ring(*, num_clients: int, degree: int, seed: int = 0) -> sparse.csr_array:
  """A circle: each client has its `degree` / 2 nearest neighbours on each side.

  The degree is even, at least 2 and below num_clients.
  """
  ids = np.arange(num_clients)[:, None]
  neighbours = (ids + np.arange(1, degree // 2 + 1)) % num_clients
  ids, neighbours = np.broadcast_arrays(ids, neighbours)
  return _linked(num_clients, ids.ravel(), neighbours.ravel())


def grid(*, num_clients: int, seed: int = 0) -> sparse.csr_array:
  """A rectangle; a client is linked to those beside, above and below it.

  The borders are not joined. Rows times columns is N, as square as that allows; a
  prime N is a line. Clients are numbered row by row.
  """
  ids = np.arange(num_clients).reshape(num_rows_of_grid(num_clients), -1)
  return _linked(
    num_clients,
    np.concatenate([ids[:, :-1].ravel(), ids[:-1].ravel()]),
    np.concatenate([ids[:, 1:].ravel(), ids[1:].ravel()]),
  )


def complete(*, num_clients: int, seed: int = 0) -> sparse.csr_array:
  """Every client is linked to every other."""
  return sparse.csr_array(~np.eye(num_clients, dtype=bool))


def erdos_renyi(
  *, num_clients: int, edge_probability: float, seed: int
) -> sparse.csr_array:
  """Each pair is linked with the same probability, independently.

  (Erdos, Renyi 1959, in Gilbert's form G(N, p).) It is redrawn until it is connected.

  Raises:
    UsageError: none of MAX_ATTEMPTS draws was connected.
  """
  for attempt in range(MAX_ATTEMPTS):
    rng = host_rng(seed, Purpose.TOPOLOGY, attempt)
    later_neighbours = []
    for client in range(num_clients):
      is_linked = rng.random(num_clients) < edge_probability
      later_neighbours.append(client + 1 + np.flatnonzero(is_linked[client + 1 :]))
    num_later = [len(neighbours) for neighbours in later_neighbours]
    earlier = np.repeat(np.arange(num_clients), num_later)
    graph = _linked(num_clients, earlier, np.concatenate(later_neighbours))
    if connected_components(graph, directed=False)[0] == 1:
      return graph
  raise UsageError(
    f'None of {MAX_ATTEMPTS} random graphs of {num_clients} clients was connected: '
    f'raise {flag("topology.edge_probability", edge_probability)}; most are connected '
    f'above log(N) / N = {np.log(num_clients) / num_clients:.3g}.'
  )


def _linked(
  num_clients: int, clients: np.ndarray, neighbours: np.ndarray
) -> sparse.csr_array:
  """The graph in which clients[i] and neighbours[i] are linked, for each i."""
  rows = np.concatenate([clients, neighbours])
  columns = np.concatenate([neighbours, clients])
  linked = np.ones(len(rows), bool)
  shape = num_clients, num_clients
  return sparse.coo_array((linked, (rows, columns)), shape).tocsr()


def metropolis_hastings(graph: sparse.csr_array) -> sparse.csr_array:
  """W_ij = 1 / (1 + max(d_i, d_j)) between neighbours, W_ii = 1 - sum_{j != i} W_ij.

  (Xiao, Boyd 2004, Fast linear iterations for distributed averaging; d_i is the number
  of neighbours.) Row i holds the weights of client i: w_i <- sum_j W_ij w_j. On the
  complete graph every weight is 1 / N. On a connected graph repeated averaging leads
  every client to the mean of all clients.

  Returns:
    [N, N] float64, symmetric, at least 0, rows and columns sum to 1.
  """
  degrees, links = np.diff(graph.indptr), graph.tocoo()
  weights = 1.0 / (1.0 + np.maximum(degrees[links.row], degrees[links.col]))
  shares = sparse.coo_array((weights, (links.row, links.col)), graph.shape).tocsr()
  return shares + sparse.diags_array(1.0 - shares.sum(axis=1)).tocsr()


def among(weights: sparse.csr_array, present: np.ndarray) -> np.ndarray:
  """The weights among the clients of a round in which the others are absent.

  The weight of an absent neighbour goes to the client itself, and an absent client
  keeps its model. Rows and columns still sum to 1, so the mean over all clients does
  not change; dropping the neighbour and scaling the row up would change it.

  Args:
    weights: [N, N] float64, symmetric, rows sum to 1.
    present: [K] ids of the clients that take part, ascending.

  Returns:
    [K, K] float32, symmetric, at least 0, rows and columns sum to 1.
  """
  shares = weights[present][:, present].toarray()
  np.fill_diagonal(shares, 0.0)
  np.fill_diagonal(shares, 1.0 - shares.sum(axis=1))
  return shares.astype(np.float32)
