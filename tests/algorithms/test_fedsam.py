"""FedSAM and MoFedSAM by hand, on a loss of two weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.core.types import Batch, Outputs, Scalars, Server
from moon_jax.models import Network
from moon_jax.round import client_training, optimizers
from tests import world

SGD = {'learning_rate': 0.1, 'momentum': 0.0, 'weight_decay': 0.0}
BATCH = Batch(jnp.zeros((2, 1, 1, 1)), jnp.zeros(2, jnp.int32), jnp.array([1.0, 0.0]))


def forward(variables, images, mask=None, key=None):
  """The logits are the weights, and so is the statistic; a key adds noise."""
  y = variables['params']['y'].astype(jnp.float32)
  noise = jax.random.uniform(key) if key is not None else jnp.zeros(())
  logits = jnp.tile(y, (len(images), 1))
  outputs = Outputs(representation=logits + noise, logits=logits, features=logits)
  return outputs, {'batch_stats': {'seen': y}}


NETWORK = Network(None, init=None, apply=None, train=forward)


def quadratic(outputs, references, params, task, batch):
  """(y_1^2 + 4 y_2^2) / 2 of each real example."""
  losses = jnp.sum(jnp.array([[1.0, 4.0]]) * outputs.logits**2, axis=-1) / 2
  return jnp.sum(losses * batch.mask) / jnp.sum(batch.mask), {}


def drawn(outputs, references, params, task, batch):
  """A loss whose gradient is the noise that the step drew."""
  noise = outputs.representation[0] - outputs.logits[0]
  return jnp.sum(jax.lax.stop_gradient(noise) * outputs.logits[0]), {}


def step(
  name,
  y=(3.0, 1.0),
  g=(0.0, 0.0),
  loss=quadratic,
  optimizer=SGD,
  network=NETWORK,
  **numbers,
):
  """The client after one step."""
  algorithm = world.algorithm_of(name, **numbers)._replace(loss=loss)
  scalars = Scalars(
    algorithm=jax.tree.map(jnp.float32, dict(algorithm.hyperparameters)),
    optimizer=jax.tree.map(jnp.float32, optimizer),
    seed=np.int32(0),
  )
  variables = {'params': {'y': jnp.array(y)}, 'batch_stats': {'seen': jnp.zeros(2)}}
  received = algorithm.broadcast(Server(variables, {'y': jnp.array(g)}))
  training = client_training.LocalTraining(algorithm, network, optimizers.sgd)
  start = training.start(jnp.int32(0), received, (), scalars, BATCH, client_facts={})
  return training.step(start, {}, received, scalars, BATCH, jax.random.key(7))


def weights(name, **options):
  """The weights after one step, see `step`."""
  return np.asarray(step(name, **options).variables['params']['y'])


# g = (3, 4) at y = (3, 1), rho = 1/2: e = (0.3, 0.4), gradient (3.3, 4 * 1.4).
@pytest.mark.parametrize(
  ('numbers', 'expected'),
  [
    ({'rho': 0.0}, (2.7, 0.6)),
    ({'rho': 0.5}, (2.67, 0.44)),
    # T = y: T g = (9, 4), e = T^2 g / (2 sqrt(97)) = (27, 4) / (2 sqrt(97))
    ({'rho': 0.5, 'adaptive': True, 'xi': 0.0}, (2.5629282677, 0.5187723068)),
    # T = (3.2, 1.2): T g = (9.6, 4.8), T^2 g = (30.72, 5.76)
    ({'rho': 0.5, 'adaptive': True, 'xi': 0.2}, (2.5568916494, 0.4926687371)),
  ],
)
def test_a_step_by_hand(numbers, expected):
  np.testing.assert_allclose(weights('fedsam', **numbers), expected, rtol=1e-6)


@pytest.mark.parametrize(
  ('g', 'beta', 'expected'),
  [
    ((0.0, 0.0), 0.1, (2.967, 0.944)),
    ((2.0, 2.0), 0.1, (2.787, 0.764)),
    ((2.0, 2.0), 1.0, (2.67, 0.44)),
  ],
)
def test_the_last_change_is_mixed_in(g, beta, expected):
  after = weights('mofedsam', g=g, rho=0.5, beta=beta)
  np.testing.assert_allclose(after, expected, rtol=1e-6)


def test_where_the_gradient_is_zero_nothing_moves():
  np.testing.assert_array_equal(weights('fedsam', y=(0.0, 0.0), rho=0.5), (0.0, 0.0))


def test_both_gradients_see_the_same_draw():
  noise = (3.0, 1.0) - weights('fedsam', loss=drawn, rho=0.0)
  assert noise[0] > 1e-3
  # The weights are near 3 and 1; their last bit depends on the order of the sums.
  noise_after_move = (3.0, 1.0) - weights('fedsam', loss=drawn, rho=9.0)
  np.testing.assert_allclose(noise_after_move, noise, atol=5e-7)


def test_records_and_statistics_are_of_the_weights_before_the_move():
  after = step('fedsam', rho=0.5)
  # (3^2 + 4 * 1^2) / 2; at y + e it would be (3.3^2 + 4 * 1.4^2) / 2 = 9.365.
  assert after.sums['train_loss'] == 6.5
  np.testing.assert_array_equal(after.variables['batch_stats']['seen'], (3.0, 1.0))


def test_weight_decay_enters_the_second_step_alone():
  after = weights('fedsam', rho=0.5, optimizer=SGD | {'weight_decay': 0.5})
  # (2.67, 0.44) - 0.1 * 0.5 * (3, 1)
  np.testing.assert_allclose(after, (2.52, 0.39), rtol=1e-6)
