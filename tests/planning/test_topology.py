"""The graphs and their mixing matrices: by hand, and by their definitions."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

from moon_jax import catalog
from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.planning import topology
from tests import reference

KNOBS = {'degree': 2, 'edge_probability': 0.5, 'seed': 0}


def sparse_graph(name, num_clients, **changes):
  knobs = KNOBS | changes
  unused = {'ring': ['edge_probability'], 'erdos_renyi': ['degree']}
  for knob in unused.get(name, ['degree', 'edge_probability']):
    del knobs[knob]
  return catalog.part('topology', name).function(num_clients=num_clients, **knobs)


def paths_reach_everybody(graph):
  """Whether paths of at most N - 1 links reach everybody, by powers of the matrix."""
  may_rest = (graph | np.eye(len(graph), dtype=bool)).astype(float)
  return np.all(np.linalg.matrix_power(may_rest, len(graph) - 1) > 0)


def test_random_graph_is_redrawn_until_connected():
  # Three clients at p = 0.2 are connected with 3 p^2 (1 - p) + p^3 = 0.104.
  for seed in range(20):
    graph = sparse_graph('erdos_renyi', 3, edge_probability=0.2, seed=seed)
    assert paths_reach_everybody(graph.toarray())


def test_random_graph_gives_up():
  with pytest.raises(UsageError, match=r'raise --config\.topology\.edge_probability='):
    sparse_graph('erdos_renyi', 50, edge_probability=0.001)


def test_weights_of_a_star_with_a_tail():
  # 0 - 1, 0 - 2, 0 - 3, 3 - 4; degrees 3, 1, 1, 2, 1.
  graph = np.zeros((5, 5), bool)
  graph[[0, 0, 0, 3], [1, 2, 3, 4]] = True
  weights = topology.metropolis_hastings(sparse.csr_array(graph | graph.T))
  # W_01 = W_02 = W_03 = 1 / (1 + 3), W_34 = 1 / (1 + 2).
  expected = [
    [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0],
    [1 / 4, 3 / 4, 0, 0, 0],
    [1 / 4, 0, 3 / 4, 0, 0],
    [1 / 4, 0, 0, 5 / 12, 1 / 3],
    [0, 0, 0, 1 / 3, 2 / 3],
  ]
  np.testing.assert_allclose(weights.toarray(), expected, rtol=1e-14)
  # Without client 0, clients 1, 2 and 3 keep the weight that they gave to it: client 3
  # has 5/12 + 1/4.
  present = topology.among(weights, np.arange(1, 5))
  expected = np.eye(4)
  expected[2:, 2:] = [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]
  np.testing.assert_allclose(present, expected, rtol=1e-6)


# The same graphs and weights, defined on dense matrices.


def dense_graph(name, num_clients, degree, edge_probability, seed):
  """[N, N] bool; a random graph is its first draw, connected or not."""
  ids = np.arange(num_clients)
  if name == 'ring':
    clockwise = (ids - ids[:, None]) % num_clients
    apart = np.minimum(clockwise, num_clients - clockwise)
    return (apart > 0) & (apart <= degree // 2)
  if name == 'grid':
    rows = next(r for r in range(int(num_clients**0.5), 0, -1) if num_clients % r == 0)
    row, column = np.divmod(ids, num_clients // rows)
    return np.abs(row - row[:, None]) + np.abs(column - column[:, None]) == 1
  if name == 'complete':
    return ~np.eye(num_clients, dtype=bool)
  rng = host_rng(seed, Purpose.TOPOLOGY, 0)
  above = np.triu(rng.random((num_clients, num_clients)) < edge_probability, k=1)
  return above | above.T


@settings(max_examples=50, deadline=None)
@given(
  name=st.sampled_from(catalog.names('topology')),
  size=st.integers(3, 40),
  degree=st.integers(1, 19).map(lambda half: 2 * half),
  edge_probability=st.floats(0.3, 1),
  seed=st.integers(0, 2**31 - 1),
  data=st.data(),
)
def test_sparse_graphs_and_weights_are_those_of_the_dense_definitions(
  name, size, degree, edge_probability, seed, data
):
  assume(name != 'ring' or degree < size)
  knobs = {'degree': degree, 'edge_probability': edge_probability, 'seed': seed}
  dense = dense_graph(name, size, **knobs)
  assume(paths_reach_everybody(dense))  # the dense graph is only the first draw
  graph = sparse_graph(name, size, **knobs)
  assert graph.has_canonical_format
  np.testing.assert_array_equal(graph.toarray(), dense)
  weights = topology.metropolis_hastings(graph)
  everyone = reference.metropolis_hastings(dense)
  np.testing.assert_allclose(weights.toarray(), everyone, rtol=1e-14, atol=1e-15)
  clients = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))))
  expected = reference.without_absent(everyone, clients)[np.ix_(clients, clients)]
  present = topology.among(weights, clients)
  assert present.dtype == np.float32
  # The last bit may differ, because float64 sums are taken in another order.
  np.testing.assert_array_max_ulp(present, np.float32(expected), maxulp=1)
  # Rows and columns sum to 1, so the mean over the present clients is kept.
  np.testing.assert_array_equal(present, present.T)
  np.testing.assert_allclose(present.sum(0), 1, rtol=1e-6)


def test_a_hundred_thousand_clients():
  weights = topology.metropolis_hastings(sparse_graph('ring', 100_000, degree=4))
  assert weights.nnz == 500_000
  np.testing.assert_allclose(weights.data, 0.2)
  clients = np.array([5, 6, 8, 99_999])
  # The links are 5 - 6 and 6 - 8; client 99,999 has no link to the others.
  linked = [[0.8, 0.2, 0, 0], [0.2, 0.6, 0.2, 0], [0, 0.2, 0.8, 0], [0, 0, 0, 1]]
  np.testing.assert_allclose(topology.among(weights, clients), linked, rtol=1e-6)
  assert sparse_graph('grid', 100_000).nnz == 2 * (250 * 399 + 249 * 400)
