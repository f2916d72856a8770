"""FedVARP and FedCM as registered parts, by plain loops."""

import functools

import jax
import numpy as np
import pytest

from moon_jax import config as config_lib
from moon_jax.building import experiment as experiment_lib
from moon_jax.building import programs
from moon_jax.config import cli
from moon_jax.core.errors import UsageError
from moon_jax.data import sources
from tests.examples import plain
from tests.world import batches_of
from tests.world import largest_difference as apart

pytestmark = pytest.mark.usefixtures('own_parts_of_the_file')

NUM_ROUNDS = 3
NUMBERS = {
  'partition.name': 'quantity',
  'partition.beta': 0.3,
  'partition.min_size': 3,
  'participation': 0.6,
  'seed': 3,
  'num_clients': 5,
  'data.limit': 120,
  'batch_size': 8,
  'local_epochs': 2,
  'execution.devices': 1,
  'execution.lanes': 2,
  'mlp.width': 16,
  'mlp.representation': 8,
  'optimizer.learning_rate': 0.05,
  'optimizer.momentum': 0.0,
  'optimizer.weight_decay': 0.01,
}


@functools.cache
def built(example):
  """An example's experiment on a small part of the digits, and its compiled round."""
  settings = config_lib.load(f'examples/{example}.py') | NUMBERS
  experiment = experiment_lib.build(config_lib.validate(settings))
  state = experiment_lib.initial_state(experiment)
  plan = experiment.planner.plan(0).for_device()
  inputs = programs.round_inputs(experiment, 0, plan)
  traced = programs.lower_programs(experiment, state, inputs)
  return experiment, traced.run_round.compile()


@pytest.fixture(autouse=True, scope='module')
def forget_experiments():
  """The experiments hold the examples' parts, which are forgotten too."""
  yield
  built.cache_clear()


def engine(example, **numbers):
  """The package's global models, from the initial one on, and each round's reports."""
  experiment, run_round = built(example)
  state = experiment_lib.initial_state(experiment)
  models, reports = [jax.device_get(state.server.variables['params'])], []
  for index in range(NUM_ROUNDS):
    plan, scalars = programs.round_inputs(
      experiment, index, experiment.planner.plan(index).for_device()
    )
    changed = {name: np.float32(number) for name, number in numbers.items()}
    assert set(changed) <= set(scalars.algorithm)
    scalars = scalars._replace(algorithm=scalars.algorithm | changed)
    state, metrics = run_round(state, plan, scalars, experiment.data.train)
    models.append(jax.device_get(state.server.variables['params']))
    computed = metrics.computed
    reports.append({name: float(number) for name, number in computed.items()})
  return models, reports


def world(example):
  """The same federation for the plain loops."""
  experiment, _ = built(example)
  data = sources.load('digits', limit=NUMBERS['data.limit'])
  images = ((data.train_images / 255 - data.mean) / data.std).astype(np.float32)
  sizes = dict(enumerate(experiment.data.partition.sizes.tolist()))
  rounds = [batches_of(experiment.planner, index) for index in range(NUM_ROUNDS)]
  return plain.World(
    images,
    data.train_labels,
    sizes,
    rounds,
    NUMBERS['optimizer.learning_rate'],
    NUMBERS['optimizer.weight_decay'],
  )


@pytest.mark.parametrize('alpha', [0.25, 1.0])
def test_fedcm_is_the_papers(alpha):
  models, reports = engine('fedcm', alpha=alpha)
  expected = list(plain.fedcm(world('fedcm'), models[0], alpha))
  for ours, (theirs, _) in zip(models[1:], expected, strict=True):
    assert apart(ours, theirs) < 1e-5
  # A round reports the direction of the round before.
  norms = [0.0] + [norm for _, norm in expected]
  recorded = [report['direction_norm'] for report in reports]
  np.testing.assert_allclose(recorded, norms[:-1], rtol=1e-4)


def test_fedvarp_is_the_papers():
  models, _ = engine('fedvarp', rate=0.8)
  expected = plain.fedvarp(world('fedvarp'), models[0], 0.8)
  for ours, theirs in zip(models[1:], expected, strict=True):
    assert apart(ours, theirs) < 1e-5


def test_fedvarp_sends_no_model_that_could_be_attacked():
  words = ('--config=examples/fedvarp.py', '--config.attack.name=ipm')
  with pytest.raises(UsageError, match='=ipm needs models, and FedVARP'):
    cli.parse(words)
