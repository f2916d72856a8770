"""The schedules of the learning rate by hand."""

import numpy as np
import pytest

from moon_jax import catalog


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
