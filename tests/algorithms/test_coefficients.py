"""The dynamic coefficients against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import coefficients

RECEIVED = {'a': jnp.array([3.0, 0.0]), 'b': jnp.array([[4.0]])}  # norm 5


def scalar(value):
  return jnp.asarray(value, jnp.float32)


def test_deviation_is_relative_and_over_all_parameters():
  # Moved by (0, 1) and (2): sqrt(1 + 4) / 5 = 0.447214. The mean of the two leaves'
  # own ratios would be (1 / 3 + 2 / 4) / 2 = 0.416667.
  trained = {'a': jnp.array([3.0, 1.0]), 'b': jnp.array([[2.0]])}
  value = coefficients.deviation(trained, RECEIVED)
  np.testing.assert_allclose(value, 0.447214, rtol=1e-5)
  # Relative to the received model: the other way round it is sqrt(5) / sqrt(14).
  value = coefficients.deviation(RECEIVED, trained)
  np.testing.assert_allclose(value, 0.597614, rtol=1e-5)


def test_deviation_of_an_unmoved_client_is_zero():
  assert coefficients.deviation(RECEIVED, RECEIVED) == 0


def test_deviation_wants_the_same_parameters():
  with pytest.raises(AssertionError):
    coefficients.deviation({'a': jnp.ones(3)}, {'a': jnp.ones(2)})


def test_outcome_is_strictly_above_the_threshold():
  deviations = jnp.array([0.0, 0.25, 0.5, jnp.inf])
  outcomes = coefficients.outcome(deviations, scalar(0.25))
  np.testing.assert_array_equal(outcomes, [0.0, 0.0, 1.0, 1.0])
  assert outcomes.dtype == jnp.float32
  assert not coefficients.outcome(deviations, scalar(jnp.inf)).any()


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
def test_weights(mu, p, normalise, expected):
  mu_t = coefficients.dynamic_mu(scalar(mu), scalar(p))
  np.testing.assert_allclose(mu_t, mu * p)
  pair = coefficients.weights(mu=scalar(mu), mu_t=mu_t, normalise=normalise)
  np.testing.assert_allclose(pair, expected, rtol=1e-6)


def test_a_cohort_under_jit_with_every_number_traced():
  # Deviations 0.2, 0.6 and 0.447 at theta = 0.3: p = 2 / 3, mu_t = 2 at mu = 3.
  moves = [(0.0, 1.0, 4.0), (0.0, 0.0, 7.0), (0.0, 1.0, 2.0)]
  stacked = {
    'a': jnp.array([[3.0 + x, y] for x, y, _ in moves]),
    'b': jnp.array([[[z]] for *_, z in moves]),
  }

  @jax.jit
  def cohort(stacked, theta, mu):
    deviations = jax.vmap(coefficients.deviation, (0, None))(stacked, RECEIVED)
    p = jnp.mean(coefficients.outcome(deviations, theta))
    mu_t = coefficients.dynamic_mu(mu, p)
    return coefficients.weights(mu=mu, mu_t=mu_t, normalise=False)

  np.testing.assert_allclose(
    cohort(stacked, scalar(0.3), scalar(3.0)), (4.0, 5.0), rtol=1e-6
  )
  # Nobody strays at infinity: the weights of p = 0.
  np.testing.assert_allclose(cohort(stacked, scalar(jnp.inf), scalar(3.0)), (6.0, 3.0))
