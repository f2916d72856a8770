"""The server's optimizers against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


ADAPTIVE = {'learning_rate': 0.1, 'beta1': 0.5, 'beta2': 0.75, 'tau': 1.0}


@pytest.mark.parametrize(
  ('name', 'numbers', 'start', 'means', 'expected'),
  [
    # Rate 1 without momentum takes the mean, rate 1/2 goes half of the way.
    ('sgd', {'learning_rate': 1.0, 'momentum': 0.0}, 1, [5, 2], [5, 2]),
    ('sgd', {'learning_rate': 0.5, 'momentum': 0.0}, 1, [5, 2], [3, 2.5]),
    # v: 0 - 2 = -2, -1 - 1 = -2, -1 + 0 = -1; w: 1, 2, 2.5
    ('sgd', {'learning_rate': 0.5, 'momentum': 0.5}, 0, [2, 2, 2], [1, 2, 2.5]),
    # g = 1 - 3 = -2: m = -1, v = 3/4 + 4/4 = 1.75,
    #   w = 1 + 0.1 / (sqrt(1.75) + 1) = 1.043050
    # g = 1.043050: m = -0.5 + 0.521525 = 0.021525,
    #   v = 3/4 1.75 + 1.087953 / 4 = 1.584488,
    #   w = 1.043050 - 0.1 * 0.021525 / (1.258765 + 1) = 1.042097
    ('adam', ADAPTIVE, 1, [3, 0], [1.043050, 1.042097]),
    # g = -2: m = -1, v = 1 + 4/4 = 2 because 1 < 4,
    #   w = 1 + 0.1 / (sqrt(2) + 1) = 1.041421
    # g = 1.041421: m = -0.5 + 0.520711 = 0.020711,
    #   v = 2 - 1.084559 / 4 = 1.728860 because 2 > 1.084559,
    #   w = 1.041421 - 0.1 * 0.020711 / (1.314861 + 1) = 1.040527
    ('yogi', ADAPTIVE, 1, [3, 0], [1.041421, 1.040527]),
    # By default m = -0.1, v = 0.99e-6 + 0.01: 0.1 * 0.1 / (0.1000050 + 0.001); of yogi
    # v = 1e-6 + 0.01, the same to seven digits.
    ('adam', {'learning_rate': 0.1}, 0, [1], [0.0990050]),
    ('yogi', {'learning_rate': 0.1}, 0, [1], [0.0990050]),
  ],
)
def test_paths_by_hand(name, numbers, start, means, expected):
  start, *means = ({'params': jnp.float32(value)} for value in (start, *means))
  found = after_each_round(name, numbers, start, means)
  np.testing.assert_allclose([m['params'] for m in found], expected, rtol=2e-6)


def test_running_statistics_are_averaged_plainly():
  start = {'params': jnp.zeros(2), 'batch_stats': jnp.zeros(3)}
  mean = {'params': jnp.ones(2), 'batch_stats': jnp.arange(3.0)}
  (new,) = after_each_round('adam', {'learning_rate': 0.1}, start, [mean])
  assert set(new) == set(start)
  np.testing.assert_array_equal(new['batch_stats'], mean['batch_stats'])
  np.testing.assert_allclose(new['params'], 0.0990050, rtol=2e-6)
