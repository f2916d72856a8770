"""The server's optimizers against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax.algorithms.wrappers import server_optimizer
from moon_jax.core import tree


def make(name, **numbers):
  return catalog.part('server_optimizer', name).function(**numbers)


def server_path(optimizer, start, means):
  """The global model, a single number, after each round."""
  variables = {'params': jnp.float32(start)}
  state = optimizer.init(variables['params'])

  @jax.jit
  def step(state, variables, mean):
    return server_optimizer.step(optimizer, state, variables=variables, mean=mean)

  path = []
  for mean in means:
    variables, state = step(state, variables, {'params': jnp.float32(mean)})
    path.append(float(variables['params']))
  return path


def test_server_with_rate_one_takes_the_mean():
  stacked = {'params': {'w': jax.random.normal(jax.random.key(0), (3, 4))}}
  mean = tree.weighted_sum(stacked, jnp.array([0.125, 0.25, 0.625]))
  variables = {'params': {'w': jnp.arange(4.0)}}
  ends = {}
  for rate in (1.0, 0.5):
    optimizer = server_optimizer.sgd(learning_rate=rate, momentum=0.0)
    state = optimizer.init(variables['params'])
    ends[rate], _ = server_optimizer.step(
      optimizer, state, variables=variables, mean=mean
    )
  wanted, start = mean['params']['w'], variables['params']['w']
  np.testing.assert_allclose(ends[1.0]['params']['w'], wanted, rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(ends[0.5]['params']['w'], (wanted + start) / 2, rtol=1e-5)


def test_server_momentum():
  # v: 0 - 2 = -2, -1 - 1 = -2, -1 + 0 = -1; w: 1, 2, 2.5
  optimizer = server_optimizer.sgd(learning_rate=0.5, momentum=0.5)
  assert server_path(optimizer, 0, [2, 2, 2]) == [1, 2, 2.5]


def test_fed_adam_of_two_rounds():
  # g = 1 - 3 = -2: m = -1, v = 3/4 + 4/4 = 1.75,
  #   w = 1 + 0.1 / (sqrt(1.75) + 1) = 1.043050
  # g = 1.043050: m = -0.5 + 0.521525 = 0.021525,
  #   v = 3/4 1.75 + 1.087953 / 4 = 1.584488,
  #   w = 1.043050 - 0.1 * 0.021525 / (1.258765 + 1) = 1.042097
  optimizer = server_optimizer.adam(learning_rate=0.1, beta1=0.5, beta2=0.75, tau=1.0)
  path = server_path(optimizer, 1, [3, 0])
  np.testing.assert_allclose(path, [1.043050, 1.042097], rtol=1e-6)


def test_fed_yogi_of_two_rounds():
  # g = -2: m = -1, v = 1 + 4/4 = 2 because 1 < 4,
  #   w = 1 + 0.1 / (sqrt(2) + 1) = 1.041421
  # g = 1.041421: m = -0.5 + 0.520711 = 0.020711,
  #   v = 2 - 1.084559 / 4 = 1.728860 because 2 > 1.084559,
  #   w = 1.041421 - 0.1 * 0.020711 / (1.314861 + 1) = 1.040527
  optimizer = server_optimizer.yogi(learning_rate=0.1, beta1=0.5, beta2=0.75, tau=1.0)
  path = server_path(optimizer, 1, [3, 0])
  np.testing.assert_allclose(path, [1.041421, 1.040527], rtol=1e-6)


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    # m = -0.1, v = 0.99e-6 + 0.01: 0.1 * 0.1 / (0.1000050 + 0.001) = 0.0990050
    ('adam', 0.0990050),
    # v = 1e-6 + 0.01, the same to seven digits
    ('yogi', 0.0990050),
  ],
)
def test_defaults_of_the_adaptive_servers(name, expected):
  optimizer = make(name, learning_rate=0.1)
  np.testing.assert_allclose(server_path(optimizer, 0, [1]), expected, rtol=2e-6)


@pytest.mark.parametrize('name', catalog.names('server_optimizer'))
def test_an_unmoved_mean_moves_nothing(name):
  numbers = {'momentum': 0.9} if name == 'sgd' else {}
  optimizer = make(name, learning_rate=1.0, **numbers)
  assert server_path(optimizer, 3, [3, 3]) == [3, 3]


@pytest.mark.parametrize('name', catalog.names('server_optimizer'))
def test_running_statistics_are_averaged_plainly(name):
  numbers = {'momentum': 0.9} if name == 'sgd' else {}
  optimizer = make(name, learning_rate=0.1, **numbers)
  variables = {'params': jnp.zeros(2), 'batch_stats': jnp.zeros(3)}
  mean = {'params': jnp.ones(2), 'batch_stats': jnp.arange(3.0)}
  state = optimizer.init(variables['params'])
  new, _ = server_optimizer.step(optimizer, state, variables=variables, mean=mean)
  np.testing.assert_array_equal(new['batch_stats'], mean['batch_stats'])
  assert set(new) == set(variables)
  # Of the parameters only a tenth of the way, or less.
  assert 0 < float(new['params'][0]) < 0.11


@pytest.mark.parametrize('name', catalog.names('server_optimizer'))
def test_another_number_compiles_nothing(name):
  count = 0

  @jax.jit
  def two_rounds(numbers):
    nonlocal count
    count += 1
    optimizer = make(name, **numbers)
    variables = {'params': jnp.zeros(())}
    state = optimizer.init(variables['params'])
    for mean in (1.0, 3.0):
      mean = {'params': jnp.float32(mean)}
      variables, state = server_optimizer.step(
        optimizer, state, variables=variables, mean=mean
      )
    return variables['params']

  knobs = ('momentum',) if name == 'sgd' else ('beta1', 'beta2', 'tau')
  numbers = dict.fromkeys(('learning_rate', *knobs), np.float32(0.5))
  first = two_rounds(numbers)
  for knob in numbers:
    assert abs(two_rounds(numbers | {knob: np.float32(0.25)}) - first) > 1e-3
  assert count == 1
