"""The server's optimizers against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import base
from moon_jax.algorithms.fedavg import fedavg
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer
from moon_jax.core.types import Server, Upload


def after_each_round(name, numbers, start, means):
  """The global models of FedAvg with this optimizer, if uploads have these means."""
  chosen = with_server_optimizer(fedavg(), name, numbers)
  scalars = jax.tree.map(jnp.float32, dict(chosen.hyperparameters))
  server, models = Server(start, chosen.init_server(start)), []
  for mean in means:
    server = jax.jit(chosen.aggregate)(server, Upload(mean), 1.0, scalars)
    models.append(server.variables)
  return models


@pytest.mark.parametrize(
  ('name', 'numbers', 'start', 'means', 'expected'),
  [
    # Rate 1 without momentum takes the mean, rate 1/2 goes half of the way.
    ('sgd', {'learning_rate': 1.0, 'momentum': 0.0}, 1, [5, 2], [5, 2]),
    ('sgd', {'learning_rate': 0.5, 'momentum': 0.0}, 1, [5, 2], [3, 2.5]),
    # v: 0 - 2 = -2, -1 - 1 = -2, -1 + 0 = -1; w: 1, 2, 2.5
    ('sgd', {'learning_rate': 0.5, 'momentum': 0.5}, 0, [2, 2, 2], [1, 2, 2.5]),
    # g = 1 - 3 = -2: m = -0.2, v = 0.99 1e-6 + 0.01 4 = 0.04000099,
    #   w = 1 + 0.1 * 0.2 / (0.20000247 + 0.001) = 1.0995013
    # g = 1.0995013 - 1: m = -0.18 + 0.0099501 = -0.1700499,
    #   v = 0.99 0.04000099 + 0.01 0.0099005 = 0.0396999,
    #   w = 1.0995013 + 0.1 * 0.1700499 / (0.1992486 + 0.001) = 1.1844207
    ('adam', {'learning_rate': 0.1}, 1, [3, 1], [1.0995013, 1.1844207]),
    # g = -2: m = -0.2, v = 1e-6 + 0.01 4 = 0.040001 because 1e-6 < 4,
    #   w = 1 + 0.1 * 0.2 / (0.2000025 + 0.001) = 1.0995013
    # g = 0.0995013: m = -0.1700499,
    #   v = 0.040001 - 0.01 0.0099005 = 0.0399020 because 0.040001 > 0.0099005,
    #   w = 1.0995013 + 0.1 * 0.1700499 / (0.1997548 + 0.001) = 1.1842065
    ('yogi', {'learning_rate': 0.1}, 1, [3, 1], [1.0995013, 1.1842065]),
  ],
)
def test_paths_by_hand(name, numbers, start, means, expected):
  start, *means = ({'params': jnp.float32(value)} for value in (start, *means))
  models = after_each_round(name, numbers, start, means)
  params = [model['params'] for model in models]
  np.testing.assert_allclose(params, expected, rtol=2e-6)


def test_running_statistics_are_averaged_plainly():
  start = {'params': jnp.zeros(2), 'batch_stats': jnp.zeros(3)}
  mean = {'params': jnp.ones(2), 'batch_stats': jnp.arange(3.0)}
  (new,) = after_each_round('adam', {'learning_rate': 0.1}, start, [mean])
  assert set(new) == set(start)
  np.testing.assert_array_equal(new['batch_stats'], mean['batch_stats'])
  # m = -0.1, v = 0.99e-6 + 0.01: 0.1 * 0.1 / (0.1000050 + 0.001)
  np.testing.assert_allclose(new['params'], 0.0990050, rtol=2e-6)


def test_a_personal_model_may_depend_on_the_servers_memory():
  inner = base.Algorithm(
    init_server=lambda variables: 7.0,
    personal=lambda server, client: server.memory + client,
  )
  numbers = {'learning_rate': 1.0, 'momentum': 0.9}
  chosen = with_server_optimizer(inner, 'sgd', numbers)
  variables = {'params': {'w': np.ones(2)}}
  server = Server(variables, chosen.init_server(variables))
  assert chosen.personal(server, 1.0) == 8.0
