"""Training without a server: against the reference and by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from moon_jax.round.traffic import Traffic
from moon_jax.runner import round_records
from tests import world
from tests.round.test_round import TOLERANCE, reference_run


def test_every_peer_is_tested_with_its_own_model():
  chosen = world.make('decentralized_moon')
  state = world.state_of(chosen)
  own_models = jax.tree.map(
    lambda leaf: np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape),
    state.clients.model,
  )
  tested = chosen.evaluated(state.server, state.clients._replace(model=own_models))
  assert world.largest_difference(tested, own_models) == 0
  assert len(jax.tree.leaves(tested)[0]) == world.NUM_CLIENTS


@pytest.mark.parametrize(
  ('clients', 'transfers'),
  [
    ((0, 1, 2, 3), 8),  # each receives from its 2 neighbours
    ((0, 1, 2), 4),  # 0 - 1 - 2: 1, 2 and 1
    ((0, 2), 0),  # opposite each other
  ],
)
def test_traffic_on_a_ring_of_four(clients, transfers):
  plan = world.planner(cohort_size=len(clients)).plan(0)
  mixing = world.ring(4)(np.array(clients))
  cohort = plan.cohort._replace(clients=np.array(clients))
  plan = dataclasses.replace(plan, cohort=cohort, mixing=mixing)
  assert plan.num_transfers() == transfers
  _, metrics = world.run('fedavg', 1)[0]
  record = round_records.round_record(1, plan, metrics, traffic=Traffic(100, 40))
  assert (record['bytes_down'], record['bytes_up']) == (100 * transfers, 40 * transfers)
  with_server = dataclasses.replace(plan, mixing=None)
  assert with_server.num_transfers() == len(clients)


@pytest.mark.slow
def test_centralized_is_one_client_with_all_the_data():
  plans = world.planner(num_lanes=1, cohort_size=1, sizes=(75,))
  history = world.run('centralized', 2, plans=plans)
  expected = reference_run('centralized', 2, plans=plans)
  for (state, metrics), truth in zip(history, expected, strict=True):
    params = world.of_client(state.clients['params'], 0)
    assert world.largest_difference(params, truth.params) < TOLERANCE
    loss = metrics.sums['train_loss'].sum() / metrics.num_seen.sum()
    np.testing.assert_allclose(loss, truth.train_loss, atol=TOLERANCE)
