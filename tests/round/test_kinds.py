"""Every algorithm on a table, signals, volumes or words, some against the reference.

Each has one of these kinds, and each kind several algorithms: a round sees examples
only through the network. Other files have every algorithm on pictures.
"""

import itertools

import jax
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax.core.errors import UsageError
from tests import world
from tests.algorithms import test_personal
from tests.round.test_round import assert_equal_to_reference, reference_run
from tests.selection import few

NUM_ROUNDS = 2
KINDS = ('table', 'signal', 'volume', 'words')
COMPARED = ('fedavg', 'fedprox', 'scaffold', 'moon', 'sa_moon', 'dco_moon')
# Signals have a test of their own; an `mlp` takes the numbers of a table like pixels.
PLAIN = [
  ('fedavg', 'volume'),
  ('fedprox', 'words'),
  ('fedbn', 'words'),
]


def history_of(algorithm, kind):
  """The state and the metrics after each round, in NumPy."""
  if algorithm in world.PERSONAL:
    chosen = world.make(algorithm, kind)
    return test_personal.run(chosen, kind, num_rounds=NUM_ROUNDS)
  plans = world.planner()
  if algorithm == 'centralized':
    plans = world.planner(num_lanes=1, cohort_size=1, sizes=(sum(world.SIZES),))
  return world.run(algorithm, NUM_ROUNDS, model=kind, plans=plans)


def numbers_of(tree):
  """The leaves that hold numbers with a fraction."""
  leaves = map(np.asarray, jax.tree.leaves(tree))
  return [leaf for leaf in leaves if leaf.dtype.kind == 'f']


@pytest.mark.parametrize(
  ('algorithm', 'kind'),
  few(PLAIN, list(zip(catalog.names('algorithm'), itertools.cycle(KINDS)))),
)
def test_two_rounds(algorithm, kind):
  if algorithm == 'fedbn':
    with pytest.raises(UsageError, match=r'keeps batch normalisation.*has none'):
      world.make(algorithm, kind)
    return
  history = history_of(algorithm, kind)
  for state, metrics in history:
    of_state, of_metrics = numbers_of(state), numbers_of(metrics.sums)
    assert of_state
    assert of_metrics
    assert all(np.isfinite(leaf).all() for leaf in [*of_state, *of_metrics])
    assert metrics.num_seen.all()
    assert (metrics.drift > 0).all()
  if algorithm in COMPARED:
    expected = reference_run(algorithm, NUM_ROUNDS, model=kind)
    assert_equal_to_reference(algorithm, history, expected)


def test_batch_normalisation_of_signals_is_that_of_each_clients_examples():
  chosen = world.make('fedbn', 'signal_bn')
  # No batch of a single example, whose unbiased variance the two take differently.
  plans = test_personal.planner(sizes=(2, 16, 34, 18))
  history = test_personal.run(chosen, 'signal_bn', plans)
  private = ['norm1', 'norm2']
  expected = test_personal.reference_history('signal_bn', plans, private=private)
  test_personal.assert_equal(chosen, history, expected)


@pytest.mark.slow
def test_dropout_in_words_does_not_depend_on_the_lanes():
  states = []
  for num_lanes in (1, 3):
    plans = world.planner(num_lanes)
    state, _ = world.run('fedavg', 1, model='words_transformer', plans=plans)[-1]
    states.append(state.server.variables['params'])
  in_one_lane, in_three_lanes = states
  assert world.largest_difference(in_one_lane, in_three_lanes) < 1e-6
