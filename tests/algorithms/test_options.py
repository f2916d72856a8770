"""Options beside the algorithm, against the reference and by reduction."""

import jax
import numpy as np
import pytest

from tests import reference, world
from tests.round.test_round import TOLERANCE, assert_equal_to_reference, reference_run
from tests.selection import few

# No client has a batch of one example, which the reference normalises differently.
NORMALISED_SIZES = (7, 16, 23, 16)


@pytest.mark.parametrize('name', ['nesterov', 'adam', 'adamw'])
def test_local_optimizers_equal_the_reference(name):
  # Adam's first steps have the size of the rate, however small the gradient is, and
  # rounding decides the sign of gradients near 0. So there are few steps at a small
  # rate. The large decay tells Adam from AdamW.
  optimizer = {'learning_rate': 0.002, 'weight_decay': 0.5} if 'adam' in name else {}
  found = world.run('fedavg', 1, local_optimizer=name, optimizer=optimizer)
  expected = reference_run('fedavg', 1, optimizer=name, **optimizer)
  assert_equal_to_reference('fedavg', found, expected)
  other = reference_run('fedavg', 1, **optimizer)[0]
  assert world.largest_difference(other.params, expected[0].params) > 1e-3


# Name of a server optimizer -> its learning rate and momentum.
SERVER = {
  'sgd': {'server_learning_rate': 0.7, 'server_momentum': 0.9},
  'adam': {'server_learning_rate': 0.02},
  'yogi': {'server_learning_rate': 0.02},
}


@pytest.mark.parametrize(
  ('algorithm', 'name'),
  few(
    [('fedavg', 'sgd'), ('scaffold', 'yogi')],
    [('fedavg', 'adam'), ('fedavg', 'yogi'), ('scaffold', 'sgd')],
  ),
)
def test_server_optimizers_equal_the_reference(algorithm, name):
  found = world.run(algorithm, 3, server_optimizer=name, **SERVER[name])
  # The memory of the algorithm's own server is inside the optimizer's.
  inside = [
    (state._replace(server=state.server._replace(memory=state.server.memory.inner)), m)
    for state, m in found
  ]
  numbers = {key.replace('learning_rate', 'rate'): n for key, n in SERVER[name].items()}
  expected = reference_run(algorithm, 3, server_optimizer=name, **numbers)
  assert_equal_to_reference(algorithm, inside, expected)


# SCAFFOLD's own paper averages uniformly.
@pytest.mark.parametrize('algorithm', few(['fedavg'], ['scaffold']))
def test_uniform_weights_equal_the_reference(algorithm):
  plans = world.planner(uniform_weights=True)
  found = world.run(algorithm, 2, plans=plans)
  expected = reference_run(algorithm, 2, plans=plans, client_weight='uniform')
  assert_equal_to_reference(algorithm, found, expected)
  by_size = reference_run(algorithm, 2)[-1]
  assert world.largest_difference(by_size.params, expected[-1].params) > 1e-3


def test_dropped_batches_equal_the_reference():
  sizes = (16, 17, 38)
  plans = world.planner(sizes=sizes, drop_last=True)
  # Each has LOCAL_EPOCHS * floor(n / 16) batches, all full.
  work = plans.training.batches(0, np.arange(3))
  for (_, num_real), whole in zip(work, (1, 1, 2), strict=True):
    assert num_real.tolist() == [16] * whole * world.LOCAL_EPOCHS
  found = world.run('fedavg', 2, plans=plans)
  expected = reference_run('fedavg', 2, plans=plans)
  assert_equal_to_reference('fedavg', found, expected)
  kept = reference_run('fedavg', 2, plans=world.planner(sizes=sizes))[-1]
  assert world.largest_difference(kept.params, expected[-1].params) > 1e-3


def normalised_run(algorithm, batch_norm):
  """(engine, reference) of two rounds of the network with batch normalisation."""
  plans = world.planner(sizes=NORMALISED_SIZES)
  run = {'model': 'mlp_bn', 'plans': plans, 'batch_norm': batch_norm}
  found = world.run(algorithm, 3, represent_once=False, **run)
  return found, reference_run(algorithm, 3, **run)


def test_averaged_statistics_equal_the_reference():
  found, expected = normalised_run('moon', 'averaged')
  assert_equal_to_reference('moon', found, expected)
  for (state, _), truth in zip(found, expected, strict=True):
    statistics = state.server.variables['batch_stats']
    assert world.largest_difference(statistics, truth.stats) < TOLERANCE


@pytest.mark.parametrize('algorithm', ['moon', 'decentralized_moon'])
def test_local_statistics_equal_the_reference(algorithm):
  found, expected = normalised_run(algorithm, 'local')
  inside = [(s._replace(clients=s.clients.inner), metrics) for s, metrics in found]
  assert_equal_to_reference(algorithm, inside, expected)
  for (state, _), truth in zip(found, expected, strict=True):
    assert truth.client_stats
    for client, wanted in truth.client_stats.items():
      mine = world.of_client(state.clients.statistics, client)
      assert world.largest_difference(mine, wanted) < TOLERANCE
  averaged = reference_run(
    algorithm, 3, model='mlp_bn', plans=world.planner(sizes=NORMALISED_SIZES)
  )[-1]
  apart = world.largest_difference(averaged.client_stats, expected[-1].client_stats)
  assert apart > 1e-3


def test_local_statistics_never_leave_and_are_what_is_tested():
  (state, _), truth = (side[-1] for side in normalised_run('moon', 'local'))
  made = world.make('moon', 'mlp_bn', batch_norm='local')
  assert set(made.broadcast(state.server)) == {'params'}
  first = world.variables('mlp_bn')['batch_stats']
  assert world.largest_difference(state.server.variables['batch_stats'], first) == 0
  tested = made.evaluated(state.server, state.clients)
  images = world.data('mlp_bn')[1]
  apply = jax.jit(world.network('mlp_bn').apply)
  forward = jax.jit(reference.mlp_bn.forward, static_argnames='training')
  for client in range(4):
    model = world.of_client(tested, client)
    logits = apply(model, images).logits
    stats = truth.client_stats.get(client, first)
    plain = reference.Model(truth.params, stats)
    wanted = forward(plain, images, training=False)[2]
    np.testing.assert_allclose(logits, wanted, atol=1e-4)
