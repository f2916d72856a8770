"""Options that are not the algorithm's, against the reference and by reduction."""

import functools

import jax
import numpy as np
import pytest

from tests import reference, world
from tests.round.test_round import TOLERANCE, assert_equal_to_reference, reference_run
from tests.selection import few

# No client has a batch of one example, which the reference normalises differently.
NORMALISED_SIZES = (7, 16, 23, 16)


@pytest.mark.parametrize('name', few(['nesterov'], ['adam', 'adamw']))
def test_local_optimizers_equal_the_reference(name):
  # Adam's first steps have the size of the rate, however small the gradient is, and
  # rounding decides the sign of gradients near 0. So there are few steps at a small
  # rate. The large decay tells Adam from AdamW.
  optimizer = {'learning_rate': 0.002, 'weight_decay': 0.5} if 'adam' in name else {}
  history = world.run('fedavg', 1, local_optimizer=name, optimizer=optimizer)
  expected = reference_run('fedavg', 1, optimizer=name, **optimizer)
  assert_equal_to_reference('fedavg', history, expected)
  of_sgd = reference_run('fedavg', 1, **optimizer)[0]
  assert world.largest_difference(of_sgd.params, expected[0].params) > 1e-3


# Name of a server optimizer -> its learning rate and momentum.
SERVER = {
  'sgd': {'server_learning_rate': 0.7, 'server_momentum': 0.9},
  'adam': {'server_learning_rate': 0.02},
  'yogi': {'server_learning_rate': 0.02},
}


@pytest.mark.parametrize(
  ('algorithm', 'name'),
  few(
    [('scaffold', 'yogi')],
    [('fedavg', 'sgd'), ('fedavg', 'adam'), ('fedavg', 'yogi'), ('scaffold', 'sgd')],
  ),
)
def test_server_optimizers_equal_the_reference(algorithm, name):
  history = world.run(algorithm, 3, server_optimizer=name, **SERVER[name])
  # The memory of the algorithm's own server is inside the optimizer's.
  inner_history = []
  for state, metrics in history:
    server = state.server._replace(memory=state.server.memory.inner)
    inner_history.append((state._replace(server=server), metrics))
  numbers = {key.replace('learning_rate', 'rate'): n for key, n in SERVER[name].items()}
  expected = reference_run(algorithm, 3, server_optimizer=name, **numbers)
  assert_equal_to_reference(algorithm, inner_history, expected)


# SCAFFOLD's own paper averages uniformly.
@pytest.mark.parametrize('algorithm', few(['fedavg'], ['scaffold']))
def test_uniform_weights_equal_the_reference(algorithm):
  plans = world.planner(uniform_weights=True)
  history = world.run(algorithm, 2, plans=plans)
  expected = reference_run(algorithm, 2, plans=plans, client_weight='uniform')
  assert_equal_to_reference(algorithm, history, expected)
  by_size = reference_run(algorithm, 2)[-1]
  assert world.largest_difference(by_size.params, expected[-1].params) > 1e-3


def test_dropped_batches_equal_the_reference():
  sizes = (16, 17, 38, 0)
  plans = world.planner(sizes=sizes, drop_last=True)
  assert plans.cohort(0).tolist() == [0, 1, 2]
  # Each has LOCAL_EPOCHS * floor(n / 16) batches, all full.
  batches = plans.training.batches(0, np.arange(3))
  for (_, num_real), num_full in zip(batches, (1, 1, 2), strict=True):
    assert num_real.tolist() == [16] * num_full * world.LOCAL_EPOCHS
  history = world.run('fedavg', 1, plans=plans)
  expected = reference_run('fedavg', 1, plans=plans)
  assert_equal_to_reference('fedavg', history, expected)
  undropped = reference_run('fedavg', 1, plans=world.planner(sizes=sizes))[-1]
  assert world.largest_difference(undropped.params, expected[-1].params) > 1e-3


@functools.cache
def normalised_run(algorithm, batch_norm):
  """Three rounds of the engine, by the network with batch normalisation."""
  return world.run(
    algorithm,
    num_rounds=3,
    model='mlp_bn',
    plans=world.planner(sizes=NORMALISED_SIZES),
    represent_once=False,
    batch_norm=batch_norm,
  )


@functools.cache
def normalised_reference(algorithm, batch_norm):
  """The same rounds of the reference."""
  return reference_run(
    algorithm,
    num_rounds=3,
    model='mlp_bn',
    plans=world.planner(sizes=NORMALISED_SIZES),
    batch_norm=batch_norm,
  )


@pytest.mark.parametrize('algorithm', few(['fedavg'], ['moon']))
def test_averaged_statistics_equal_the_reference(algorithm):
  history = normalised_run(algorithm, 'averaged')
  expected = normalised_reference(algorithm, 'averaged')
  assert_equal_to_reference(algorithm, history, expected)
  for (state, _), truth in zip(history, expected, strict=True):
    statistics = state.server.variables['batch_stats']
    assert world.largest_difference(statistics, truth.stats) < TOLERANCE


@pytest.mark.parametrize('algorithm', few(['fedavg'], ['moon', 'decentralized_moon']))
def test_local_statistics_equal_the_reference(algorithm):
  history = normalised_run(algorithm, 'local')
  expected = normalised_reference(algorithm, 'local')
  inner_history = [
    (state._replace(clients=state.clients.inner), metrics) for state, metrics in history
  ]
  assert_equal_to_reference(algorithm, inner_history, expected)
  for (state, _), truth in zip(history, expected, strict=True):
    assert truth.client_stats
    for client, true_statistics in truth.client_stats.items():
      statistics = world.of_client(state.clients.statistics, client)
      assert world.largest_difference(statistics, true_statistics) < TOLERANCE
  averaged = normalised_reference(algorithm, 'averaged')[-1]
  statistics = expected[-1].client_stats
  assert world.largest_difference(averaged.client_stats, statistics) > 1e-3


def test_local_statistics_never_leave_and_are_what_is_tested():
  state, _ = normalised_run('fedavg', 'local')[-1]
  truth = normalised_reference('fedavg', 'local')[-1]
  algorithm = world.make('fedavg', 'mlp_bn', batch_norm='local')
  assert set(algorithm.broadcast(state.server)) == {'params'}
  first = world.variables('mlp_bn')['batch_stats']
  assert world.largest_difference(state.server.variables['batch_stats'], first) == 0
  tested = algorithm.evaluated(state.server, state.clients)
  images = world.data('mlp_bn')[1]
  apply = jax.jit(world.network('mlp_bn').apply)
  forward = jax.jit(reference.mlp_bn.forward, static_argnames='training')
  for client in range(4):
    model = world.of_client(tested, client)
    logits = apply(model, images).logits
    stats = truth.client_stats.get(client, first)
    true_model = reference.Model(truth.params, stats)
    true_logits = forward(true_model, images, training=False)[2]
    np.testing.assert_allclose(logits, true_logits, atol=1e-4)
