"""The local optimizers against PyTorch's steps, the schedules by hand."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moon_jax import catalog
from moon_jax.core import tree

GOLDEN = json.loads(
  (pathlib.Path(__file__).parents[1] / 'golden/optimizers.json').read_text()
)
A, B = np.float32(GOLDEN['a']), np.float32(GOLDEN['b'])

NAMES = catalog.names('optimizer')


def optimizer(name):
  return catalog.part('optimizer', name).function


def schedule(name, t, num_rounds, **knobs):
  part = catalog.part('schedule', name)
  return part.function(t, num_rounds, **knobs if part.has('decaying') else {})


def traced(options):
  """The golden case's numbers by our names, as arrays, and what is no number."""
  flags = {name: value for name, value in options.items() if value is True}
  numbers = {'lr': 'learning_rate'}
  return {
    numbers.get(name, name): np.float32(value)
    for name, value in options.items()
    if name not in flags
  }, flags


def local_step(name, **flags):
  """(numbers, params, state) -> (params, state), as local training does it."""

  def step(numbers, params, state):
    chosen = optimizer(name)(**numbers, **flags)
    grads = jax.tree.map(lambda w: A.T @ (A @ w - B), params)
    updates, state = chosen.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return step


@pytest.mark.parametrize(
  'case', GOLDEN['cases'], ids=lambda case: '-'.join([case['name'], *case['options']])
)
def test_ten_steps_of_pytorch(case):
  numbers, flags = traced(case['options'])
  step = jax.jit(local_step(case['name'], **flags))
  params = {'w': jnp.float32(GOLDEN['start'])}
  state = optimizer(case['name'])(**numbers, **flags).init(params)
  for expected in case['weights']:
    params, state = step(numbers, params, state)
    # In float32 Adam's 1 - 0.999 is off by a hundred-thousandth, a step by half that.
    np.testing.assert_allclose(params['w'], expected, rtol=1e-5, atol=1e-5)


def test_the_golden_cases_differ():
  last = np.array([case['weights'][-1] for case in GOLDEN['cases']])
  apart = np.abs(last - last[:, None]).max(-1) + np.eye(len(last))
  assert {case['name'] for case in GOLDEN['cases']} == set(NAMES)
  assert apart.min() > 1e-2


@pytest.mark.parametrize('name', NAMES)
def test_another_number_compiles_nothing(name):
  count = 0

  def step(numbers, params):
    nonlocal count
    count += 1
    state = optimizer(name)(**numbers).init(params)
    return local_step(name)(numbers, params, state)[0]

  compiled = jax.jit(step)
  wanted = ('learning_rate', 'weight_decay')
  wanted += ('momentum',) if name == 'sgd' else ()
  start = {'w': jnp.float32(GOLDEN['start'])}
  ends = [
    compiled({knob: np.float32(value) for knob in wanted}, start)['w']
    for value in (0.1, 0.2)
  ]
  assert count == 1
  assert np.abs(ends[0] - ends[1]).max() > 1e-3


@pytest.mark.parametrize('name', NAMES)
def test_lanes_can_be_at_different_steps(name):
  numbers = {'learning_rate': np.float32(0.1), 'weight_decay': np.float32(0.1)}
  numbers |= {'momentum': np.float32(0.9)} if name == 'sgd' else {}
  one_step = jax.jit(local_step(name))
  starts = {'w': jnp.float32([GOLDEN['start'], [1.0, 1.0, 1.0]])}
  init = optimizer(name)(**numbers).init
  begun = starts, jax.vmap(init)(starts)
  all_step = jax.jit(jax.vmap(one_step, (None, 0, 0)))
  stepped = all_step(numbers, *begun)
  # Lane 0 goes on, lane 1 begins anew.
  lanes = tree.where(jnp.array([True, False]), stepped, begun)
  ends, _ = all_step(numbers, *lanes)
  for lane, num_steps in ((0, 2), (1, 1)):
    params = {'w': starts['w'][lane]}
    state = init(params)
    for _ in range(num_steps):
      params, state = one_step(numbers, params, state)
    np.testing.assert_allclose(ends['w'][lane], params['w'], rtol=1e-5)


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
  values = [
    schedule(name, t, num_rounds=4, decay=0.25, decay_every=2) for t in range(4)
  ]
  np.testing.assert_allclose(values, factors, rtol=1e-5)
  assert {type(value) for value in values} == {float}


def test_every_schedule_is_tested_and_starts_at_one():
  for name in catalog.names('schedule'):
    factor = schedule(name, 0, num_rounds=1, decay=0.1, decay_every=1)
    assert factor == 1
  assert set(catalog.names('schedule')) == {'constant', 'cosine', 'exponential', 'step'}
