"""The schedules of the learning rate, and the clipping of gradients, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moon_jax import catalog
from moon_jax.round import optimizers


def schedule(name, t, num_rounds, **knobs):
  part = catalog.part('schedule', name)
  return part.function(t, num_rounds, **knobs if part.has('decaying') else {})


FACTORS = {
  'constant': [1, 1, 1, 1],
  'cosine': [1, 0.853553, 0.5, 0.146447],  # (1 + cos 45 degrees) / 2, ...
  'exponential': [1, 0.5, 0.25, 0.125],  # 0.25^(t / 2)
  'step': [1, 1, 0.25, 0.25],
}


@pytest.mark.parametrize('name', catalog.names('schedule'))
def test_schedule(name):
  rates = [schedule(name, t, num_rounds=4, decay=0.25, decay_every=2) for t in range(4)]
  np.testing.assert_allclose(rates, FACTORS[name], rtol=1e-5)
  assert {type(rate) for rate in rates} == {float}


@pytest.mark.parametrize(
  ('clip_norm', 'after'),
  # g = (3, 0) and (0, 4), whose norm is 5: clipped to 2.5 it is (1.5, 0) and (0, 2).
  # w - 0.1 (g + 0.5 w), with w = 1, 1 and 2, 0: weight decay is not clipped.
  [
    (2.5, ([0.8, 0.95], [1.9, -0.2])),
    (10.0, ([0.65, 0.95], [1.9, -0.4])),
    (None, None),
  ],
)
def test_a_gradient_is_clipped_by_the_norm_over_all_parameters(clip_norm, after):
  make_optimizer = optimizers.with_clipping(optimizers.sgd)
  params = {'a': jnp.array([1.0, 1.0]), 'b': jnp.array([2.0, 0.0])}
  gradient = {'a': jnp.array([3.0, 0.0]), 'b': jnp.array([0.0, 4.0])}
  optimizer = make_optimizer(
    learning_rate=0.1, momentum=0.0, weight_decay=0.5, clip_norm=clip_norm
  )
  updates, _ = optimizer.update(gradient, optimizer.init(params), params)
  updated = optax.apply_updates(params, updates)
  expected = after or ([0.65, 0.95], [1.9, -0.4])
  np.testing.assert_allclose(updated['a'], expected[0], rtol=1e-6)
  np.testing.assert_allclose(updated['b'], expected[1], rtol=1e-6)
  # A gradient of 0 stays 0.
  zeros = jax.tree.map(jnp.zeros_like, gradient)
  updates, _ = optimizer.update(zeros, optimizer.init(params), zeros)
  assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(updates))
