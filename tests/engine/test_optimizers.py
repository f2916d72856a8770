"""The local optimizers against PyTorch's steps, the schedules by hand."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moon_jax import catalog

FILE = pathlib.Path(__file__).parents[1] / 'golden/optimizers.json'
GOLDEN = json.loads(FILE.read_text())
A, B = np.float32(GOLDEN['a']), np.float32(GOLDEN['b'])

NAMES = catalog.names('optimizer')


def optimizer(name):
  return catalog.part('optimizer', name).function


def schedule(name, t, num_rounds, **knobs):
  part = catalog.part('schedule', name)
  return part.function(t, num_rounds, **knobs if part.has('decaying') else {})


def local_step(name, **flags):
  """(numbers, params, state) -> (params, state), like local training."""

  def step(numbers, params, state):
    chosen = optimizer(name)(**numbers, **flags)
    grads = jax.tree.map(lambda w: A.T @ (A @ w - B), params)
    with jax.numpy_dtype_promotion('standard'):
      updates, state = chosen.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return step


@pytest.mark.parametrize(
  'case', GOLDEN['cases'], ids=lambda case: '-'.join([case['name'], *case['options']])
)
def test_ten_steps_of_pytorch(case):
  flags = {k: v for k, v in case['options'].items() if v is True}
  numbers = {k: np.float32(v) for k, v in case['options'].items() if k not in flags}
  numbers['learning_rate'] = numbers.pop('lr')
  step = jax.jit(local_step(case['name'], **flags))
  params = {'w': jnp.float32(GOLDEN['start'])}
  state = optimizer(case['name'])(**numbers, **flags).init(params)
  for expected in case['weights']:
    params, state = step(numbers, params, state)
    # In float32 Adam's 1 - 0.999 is off by 1e-5 of itself, and a step by half of that.
    np.testing.assert_allclose(params['w'], expected, rtol=1e-5, atol=1e-5)


def test_the_golden_cases_differ():
  last = np.array([case['weights'][-1] for case in GOLDEN['cases']])
  apart = np.abs(last - last[:, None]).max(-1) + np.eye(len(last))
  assert {case['name'] for case in GOLDEN['cases']} == set(NAMES)
  assert apart.min() > 1e-2


@pytest.mark.parametrize(
  ('name', 'factors'),
  [
    ('constant', [1, 1, 1, 1]),
    ('cosine', [1, 0.853553, 0.5, 0.146447]),  # (1 + cos 45 degrees) / 2, ...
    ('exponential', [1, 0.5, 0.25, 0.125]),  # 0.25^(t / 2)
    ('step', [1, 1, 0.25, 0.25]),
  ],
)
def test_schedule(name, factors):
  rates = [schedule(name, t, num_rounds=4, decay=0.25, decay_every=2) for t in range(4)]
  np.testing.assert_allclose(rates, factors, rtol=1e-5)
  assert {type(rate) for rate in rates} == {float}


def test_every_schedule_is_tested():
  assert set(catalog.names('schedule')) == {'constant', 'cosine', 'exponential', 'step'}
