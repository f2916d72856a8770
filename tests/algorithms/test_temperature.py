"""Annealing of the temperature against numbers worked by hand and frequencies."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import temperature

NUMBERS = {'sigma': 0.5, 'min_temperature': 0.01}
HUGE = 3e38  # just below the largest float32
FLOOR = np.float32(0.01)


def scalar(value):
  return jnp.asarray(value, jnp.float32)


def candidate(t, g, g_prev, sigma=0.5, floor=0.01):
  state = temperature.start(t)._replace(grad_norm=scalar(g_prev))
  return temperature.candidate(state, *map(scalar, (g, sigma, floor)))


def trained(t=1.0, grad_norm=2.0, loss=1.0):
  """A state after the first step of a local training."""
  state, key = temperature.start(t), jax.random.key(0)
  return step(state, key, grad_norm=grad_norm, loss=loss)


compiled_step = jax.jit(temperature.step)


def step(state, key, **numbers):
  return compiled_step(state, key, **jax.tree.map(scalar, NUMBERS | numbers))


@pytest.mark.parametrize(
  ('g', 'g_prev', 'expected'),
  [
    (3.0, 2.0, 1.5),  # 2 (1 - 0.5 * 1 / 2)
    (1.0, 2.0, 1.5),  # the change counts, not its sign
    (2.0, 4.0, 1.5),  # 2 (1 - 0.5 * 2 / 4): relative to the previous norm
    (2.0, 2.0, 2.0),  # no change
    (7.0, 2.0, 0.01),  # 2 (1 - 0.5 * 5 / 2) = -0.5, below the floor
    (1.0, 0.0, 0.01),  # 1 / eps
    (0.0, 0.0, 2.0),
  ],
)
def test_candidate(g, g_prev, expected):
  np.testing.assert_allclose(candidate(2.0, g, g_prev), expected, rtol=1e-6)


@pytest.mark.parametrize(('g', 'g_prev'), [(3, 2), (0, 5), (HUGE, 0), (jnp.inf, 1)])
def test_no_cooling_rate_keeps_the_temperature(g, g_prev):
  assert candidate(0.7, g, g_prev, sigma=0) == scalar(0.7)


@pytest.mark.parametrize(
  ('loss', 'previous', 'expected'),
  [
    (0.9, 1.0, 1.0),
    (1.0, 1.0, 1.0),
    (1.5, 1.0, 0.367879),  # exp((1 - 1.5) / 0.5) = exp(-1)
    (2.0, 1.0, 0.135335),  # exp(-2)
    (-HUGE, HUGE, 1.0),
    (HUGE, -HUGE, 0.0),
  ],
)
def test_acceptance(loss, previous, expected):
  value = temperature.acceptance(
    loss=scalar(loss), previous_loss=scalar(previous), temperature=scalar(0.5)
  )
  np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_the_first_step_only_records():
  # From the placeholder norm 0 the proposal would be the floor, and be accepted.
  state = step(temperature.start(1.0), jax.random.key(0), grad_norm=2.0, loss=-1.0)
  assert jax.tree.map(float, state) == (1.0, 2.0, -1.0, True)


def test_a_lower_loss_always_cools():
  # 1 (1 - 0.5 |1 - 2| / 2) = 0.75
  keys, state = jax.random.split(jax.random.key(1), 1000), trained()
  new = jax.vmap(lambda key: step(state, key, grad_norm=1.0, loss=0.5))(keys)
  assert [np.unique(leaf).tolist() for leaf in new] == [[0.75], [1.0], [0.5], [True]]


def test_what_is_not_taken_is_recorded_all_the_same():
  state = step(trained(), jax.random.key(1), grad_norm=1.0, loss=1e6)
  assert jax.tree.map(float, state) == (1.0, 1.0, 1e6, True)


@pytest.mark.parametrize(('t', 'rise'), [(0.5, 0.1), (2.0, 0.5)])
def test_a_higher_loss_cools_as_often_as_metropolis_says(t, rise):
  # grad_norm 1 after 2: an accepted proposal is 3/4 of T.
  keys = jax.random.split(jax.random.key(2), 20_000)
  state = trained(t)
  new = jax.vmap(lambda key: step(state, key, grad_norm=1.0, loss=1.0 + rise))(keys)
  assert set(np.unique(new.temperature)) == {np.float32(0.75 * t), np.float32(t)}
  share, expected = np.mean(new.temperature < t), np.exp(-rise / t)
  spread = np.sqrt(expected * (1 - expected) / len(keys))
  assert abs(share - expected) < 5 * spread  # at most 0.018


@pytest.mark.parametrize('loss', [-HUGE, HUGE, jnp.inf, jnp.nan])
def test_huge_and_missing_numbers_leave_a_temperature(loss):
  for g, g_prev in itertools.product([0.0, HUGE, jnp.inf, jnp.nan], repeat=2):
    state = trained(grad_norm=g_prev)
    new = step(state, jax.random.key(1), grad_norm=g, loss=loss)
    assert FLOOR <= new.temperature <= 1, (g, g_prev)
