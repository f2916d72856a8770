"""The graphs and their mixing matrices: small ones by hand, any by their properties."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moon_jax import catalog
from moon_jax.algorithms.wrappers import topology
from moon_jax.errors import UsageError

KNOBS = {'degree': 2, 'edge_probability': 0.5, 'seed': 0}


def make(name, num_clients, **changes):
  knobs = KNOBS | changes
  unused = {'ring': ['edge_probability'], 'erdos_renyi': ['degree']}
  for knob in unused.get(name, ['degree', 'edge_probability']):
    del knobs[knob]
  return catalog.part('topology', name).function(num_clients=num_clients, **knobs)


def edges(graph):
  """Pairs i < j that are linked."""
  return {(int(i), int(j)) for i, j in np.argwhere(graph) if i < j}


def from_edges(num_clients, pairs):
  graph = np.zeros((num_clients, num_clients), bool)
  for i, j in pairs:
    graph[i, j] = graph[j, i] = True
  return graph


@st.composite
def graphs(draw):
  """Any connected graph of the kinds that there are, of 2 to 20 clients."""
  name = draw(st.sampled_from(catalog.names('topology')))
  size = draw(st.integers(2, 20))
  degree = 2 * draw(st.integers(1, 9))
  assume(name != 'ring' or degree < size)
  return make(
    name,
    size,
    degree=degree,
    # Half of the smallest is connected: 100 draws find one.
    edge_probability=draw(st.floats(0.3, 1)),
    seed=draw(st.integers(0, 2**31 - 1)),
  )


def assert_doubly_stochastic(weights):
  assert weights.dtype == np.float64
  assert weights.min() >= 0
  np.testing.assert_array_equal(weights, weights.T)
  np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-14)
  np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-14)


def paths_reach_everybody(graph):
  """Connected, by powers of the matrix: N - 1 steps, each may rest."""
  may_rest = (graph | np.eye(len(graph), dtype=bool)).astype(float)
  return np.all(np.linalg.matrix_power(may_rest, len(graph) - 1) > 0)


def test_ring_of_five():
  assert edges(make('ring', 5)) == {(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)}


def test_ring_of_seven_with_four_neighbours():
  nearest = {(i, i + 1) for i in range(6)} | {(0, 6)}
  second = {(i, i + 2) for i in range(5)} | {(0, 5), (1, 6)}
  assert edges(make('ring', 7, degree=4)) == nearest | second


def test_ring_with_all_neighbours_is_complete():
  np.testing.assert_array_equal(make('ring', 7, degree=6), make('complete', 7))


def test_grid_of_six():
  # 0 1 2
  # 3 4 5
  beside = {(0, 1), (1, 2), (3, 4), (4, 5)}
  above = {(0, 3), (1, 4), (2, 5)}
  assert edges(make('grid', 6)) == beside | above


@pytest.mark.parametrize(
  ('num_clients', 'rows'), [(1, 1), (4, 2), (7, 1), (9, 3), (12, 3), (36, 6), (100, 10)]
)
def test_grid_is_as_square_as_can_be(num_clients, rows):
  # r rows of c have r (c - 1) links beside and (r - 1) c above.
  columns = num_clients // rows
  count = rows * (columns - 1) + (rows - 1) * columns
  assert len(edges(make('grid', num_clients))) == count


def test_one_client_alone():
  for name in ('grid', 'complete', 'erdos_renyi'):
    graph = make(name, 1)
    np.testing.assert_array_equal(graph, [[False]])
    np.testing.assert_array_equal(topology.metropolis_hastings(graph), [[1.0]])


def test_random_graph_has_about_its_share_of_the_edges():
  # 45 pairs of 10, half of them linked, in 400 graphs of which hardly one is redrawn:
  # 22.5 with standard deviation sqrt(45 / 4) / 20 = 0.168.
  counts = [len(edges(make('erdos_renyi', 10, seed=seed))) for seed in range(400)]
  assert abs(np.mean(counts) - 22.5) < 5 * 0.168
  assert len(edges(make('erdos_renyi', 10, edge_probability=1.0))) == 45


def test_random_graph_is_a_function_of_the_seed():
  one, again, other = (make('erdos_renyi', 12, seed=s) for s in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert edges(one) != edges(other)


def test_random_graph_is_redrawn_until_connected():
  # Three clients at p = 0.2 are connected with 3 p^2 (1 - p) + p^3 = 0.104.
  for seed in range(20):
    graph = make('erdos_renyi', 3, edge_probability=0.2, seed=seed)
    assert paths_reach_everybody(graph)


def test_random_graph_gives_up():
  with pytest.raises(UsageError, match=r'raise --config\.topology\.edge_probability='):
    make('erdos_renyi', 50, edge_probability=0.001)


def test_unknown_name():
  with pytest.raises(UsageError, match="There is no topology 'star'"):
    make('star', 5)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_every_graph_is_symmetric_loopless_and_connected(graph):
  assert graph.dtype == bool
  np.testing.assert_array_equal(graph, graph.T)
  assert not graph.diagonal().any()
  assert paths_reach_everybody(graph)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 7), st.data())
def test_is_connected_agrees_with_the_powers_of_the_matrix(size, data):
  pairs = [(i, j) for j in range(size) for i in range(j)]
  chosen = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
  graph = from_edges(size, chosen)
  assert topology.is_connected(graph) == paths_reach_everybody(graph)


def test_weights_of_a_star_with_a_tail():
  # 0 - 1, 0 - 2, 0 - 3, 3 - 4; degrees 3, 1, 1, 2, 1.
  # W_01 = W_02 = W_03 = 1 / (1 + 3), W_34 = 1 / (1 + 2).
  graph = from_edges(5, [(0, 1), (0, 2), (0, 3), (3, 4)])
  expected = [
    [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0],
    [1 / 4, 3 / 4, 0, 0, 0],
    [1 / 4, 0, 3 / 4, 0, 0],
    [1 / 4, 0, 0, 5 / 12, 1 / 3],
    [0, 0, 0, 1 / 3, 2 / 3],
  ]
  np.testing.assert_allclose(topology.metropolis_hastings(graph), expected, rtol=1e-14)


def test_weights_of_the_complete_graph_are_uniform():
  weights = topology.metropolis_hastings(make('complete', 7))
  np.testing.assert_allclose(weights, 1 / 7, rtol=1e-14)


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_weights_average_towards_the_mean(graph):
  weights = topology.metropolis_hastings(graph)
  assert_doubly_stochastic(weights)
  np.testing.assert_array_equal(weights > 0, graph | np.eye(len(graph), dtype=bool))
  # Largest eigenvalue 1, of the constant vector, and all others inside (-1, 1).
  sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
  np.testing.assert_allclose(sizes[-1], 1, rtol=1e-12)
  assert sizes[-2] < 1 - 1e-3


def test_without_client_zero_of_the_star():
  graph = from_edges(5, [(0, 1), (0, 2), (0, 3), (3, 4)])
  weights = topology.metropolis_hastings(graph)
  # What 1, 2 and 3 gave to client 0 they keep: 3/4 + 1/4, 5/12 + 1/4 = 2/3.
  expected = np.eye(5)
  expected[3:, 3:] = [[2 / 3, 1 / 3], [1 / 3, 2 / 3]]
  present = np.array([False, True, True, True, True])
  np.testing.assert_allclose(
    topology.restrict(weights, present), expected, rtol=1e-14, atol=1e-15
  )


@settings(max_examples=100, deadline=None)
@given(graphs(), st.data())
def test_absence_keeps_the_mean_over_all_clients(graph, data):
  size = len(graph)
  weights = topology.metropolis_hastings(graph)
  present = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
  restricted = topology.restrict(weights, present)
  assert_doubly_stochastic(restricted)
  np.testing.assert_array_equal(restricted[~present], np.eye(size)[~present])
  models = np.random.default_rng(0).normal(size=(size, 3))
  mixed = restricted @ models
  np.testing.assert_allclose(mixed.mean(0), models.mean(0), atol=1e-12)
  # Between two who are there nothing changes.
  pair = present & present[:, None] & ~np.eye(size, dtype=bool)
  np.testing.assert_array_equal(restricted[pair], weights[pair])


def test_with_everybody_present_nothing_changes():
  weights = topology.metropolis_hastings(make('grid', 12))
  np.testing.assert_array_equal(topology.restrict(weights, np.ones(12, bool)), weights)
