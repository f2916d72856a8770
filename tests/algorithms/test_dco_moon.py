"""DCO-MOON's coefficients against numbers worked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms.dco_moon import deviation, weights

RECEIVED = {'a': jnp.array([3.0, 0.0]), 'b': jnp.array([[4.0]])}  # norm 5


def scalar(value):
  return jnp.asarray(value, jnp.float32)


def test_deviation_is_relative_and_over_all_parameters():
  # Moved by (0, 1) and (2): sqrt(1 + 4) / 5 = 0.447214. The mean of the two leaves'
  # own ratios would be (1 / 3 + 2 / 4) / 2 = 0.416667.
  trained = {'a': jnp.array([3.0, 1.0]), 'b': jnp.array([[2.0]])}
  value = deviation(trained, RECEIVED)
  np.testing.assert_allclose(value, 0.447214, rtol=1e-5)
  # Relative to the received model: the other way round it is sqrt(5) / sqrt(14).
  value = deviation(RECEIVED, trained)
  np.testing.assert_allclose(value, 0.597614, rtol=1e-5)


@pytest.mark.parametrize(
  ('mu', 'p', 'normalise', 'expected'),
  [
    (5.0, 0.0, False, (10.0, 5.0)),
    (5.0, 0.25, False, (8.75, 6.25)),  # mu_t = 1.25
    (5.0, 1.0, False, (5.0, 10.0)),
    (5.0, 0.25, True, (1.75, 1.25)),
    (0.1, 0.25, True, (1.75, 1.25)),  # mu has dropped out
    (0.0, 0.5, False, (0.0, 0.0)),
    (0.0, 0.5, True, (np.nan, np.nan)),
  ],
)
def test_weights_of_both_terms_by_hand(mu, p, normalise, expected):
  mu_t = scalar(mu) * scalar(p)
  pair = weights(mu=scalar(mu), mu_t=mu_t, normalise=normalise)
  np.testing.assert_allclose(pair, expected, rtol=1e-6)
