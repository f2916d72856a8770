"""FedVARP and FedCM as registered parts: by plain numpy, by hand and by reduction."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.core.types import Server, Task
from moon_jax.data import sources
from moon_jax.engine import experiment as experiment_lib
from moon_jax.engine import programs
from tests.examples import plain
from tests.world import largest_difference as apart

pytestmark = pytest.mark.usefixtures('own_parts_of_the_file')

LAYERS = ('encoder', 'head_hidden', 'head_output', 'classifier')
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


def as_plain(variables):
  """The parameters of an mlp as a list of (kernel, bias), float64."""
  layers = (variables['params'][name] for name in LAYERS)
  return [
    tuple(np.asarray(layer[leaf], np.float64) for leaf in ('kernel', 'bias'))
    for layer in layers
  ]


@functools.cache
def built(example):
  """An example's experiment on a small part of the digits, and its compiled round."""
  settings = config_lib.load(f'examples/{example}.py') | NUMBERS
  made = experiment_lib.build(config_lib.validate(settings))
  state = experiment_lib.initial_state(made)
  inputs = programs.round_inputs(made, 0, made.planner.plan(0))
  return made, programs.lower_programs(made, state, inputs)[0].compile()


@pytest.fixture(autouse=True, scope='module')
def forget_experiments():
  """The experiments hold the examples' parts, which are forgotten too."""
  yield
  built.cache_clear()


def engine(example, **numbers):
  """The package's global models, from the initial one on, and each round's reports."""
  made, run_round = built(example)
  state = experiment_lib.initial_state(made)
  models, told = [as_plain(state.server.variables)], []
  for index in range(NUM_ROUNDS):
    plan, scalars = programs.round_inputs(made, index, made.planner.plan(index))
    changed = {name: np.float32(number) for name, number in numbers.items()}
    assert set(changed) <= set(scalars.algorithm)
    scalars = scalars._replace(algorithm=scalars.algorithm | changed)
    state, metrics = run_round(state, plan, scalars, made.train)
    models.append(as_plain(jax.device_get(state.server.variables)))
    told.append({name: float(number) for name, number in metrics.computed.items()})
  return models, told


def world(example):
  """The same federation for the plain loops."""
  made, _ = built(example)
  data = sources.load('digits', limit=NUMBERS['data.limit'])
  images = (data.train_images / 255 - data.mean) / data.std
  images = images.reshape(len(images), -1).astype(np.float64)
  sizes = dict(enumerate(made.split.sizes.tolist()))
  rounds = list(plain.drawn(made.planner, NUM_ROUNDS))
  names = ('learning_rate', 'momentum', 'weight_decay')
  sgd = (NUMBERS[f'optimizer.{name}'] for name in names)
  return plain.World(images, data.train_labels, sizes, rounds, *sgd)


def test_the_world_has_what_the_tests_are_about():
  here = world('fedcm')
  steps = [len(steps) for cohort in here.rounds for steps in cohort.values()]
  assert max(steps) >= 5 * min(steps)
  first, second, third = (set(cohort) for cohort in here.rounds)
  # Some client comes back after a round's absence, and some client joins late.
  assert first & third - second
  assert third - first


@pytest.mark.parametrize('alpha', [0.25, 1.0])
def test_fedcm_is_the_papers(alpha):
  models, told = engine('fedcm', alpha=alpha)
  expected = list(plain.fedcm(world('fedcm'), models[0], alpha))
  for ours, (theirs, _) in zip(models[1:], expected, strict=True):
    assert apart(ours, theirs) < 1e-5
  # A round reports the direction of the round before.
  norms = [0.0] + [norm for _, norm in expected]
  found = [one['direction_norm'] for one in told]
  np.testing.assert_allclose(found, norms[:-1], rtol=1e-4)


def test_fedvarp_is_the_papers():
  models, _ = engine('fedvarp', rate=0.8)
  expected = plain.fedvarp(world('fedvarp'), models[0], 0.8)
  for ours, theirs in zip(models[1:], expected, strict=True):
    assert apart(ours, theirs) < 1e-5


def algorithm(example, **knobs):
  """An example's algorithm, from its registration."""
  config_lib.load(f'examples/{example}.py')
  return catalog.part('algorithm', example).function(**knobs)


def one_weight(value):
  return {'params': {'w': jnp.float32(value)}}


def test_fedcm_of_one_client_by_hand():
  # alpha = 1/4, G = 8, g = 4: 1/4 * 4 + 3/4 * 8 = 7. From 5 to 2 in two steps at rate
  # 1/2: G = 3 / (1/2 * 2) = 3.
  cm = algorithm('fedcm', alpha=0.25)
  server = Server(one_weight(5), one_weight(8)['params'])
  received, scalars = cm.broadcast(server), cm.scalars({'alpha': 0.25}, server.memory)
  assert scalars['direction_norm'] == 8
  optimizer = {'learning_rate': jnp.float32(0.5)}
  task = Task(received, (), cm.begin(received, ()), scalars, optimizer)
  assert cm.correct({'w': jnp.float32(4)}, task)['w'] == 7
  for _ in range(2):
    task = task._replace(local=cm.after_step(task, None, None, None))
  sent, _ = cm.upload(one_weight(2), task)
  new = cm.aggregate(server, sent, jnp.float32(0.5), scalars)
  assert (new.variables['params']['w'], new.memory['w']) == (2, 3)


def test_fedvarp_of_one_client_by_hand():
  # w = 2, m_i = 3, m = 1. One of four clients takes part and ends at 4: D = 2, and m_i
  # changes by -1. At rate 1/2, w = 2 + 1/2 (1 - 1) = 2 and m = 1 - 1/4.
  varp = algorithm('fedvarp', rate=0.5)
  scalars = {'rate': jnp.float32(0.5)}
  server = Server(one_weight(2), one_weight(1)['params'])
  task = Task(varp.broadcast(server), one_weight(3)['params'], (), scalars, {})
  sent, memory = varp.upload(one_weight(4), task)
  assert memory['w'] == 2
  new = varp.aggregate(server, sent, jnp.float32(0.25), scalars)
  assert (new.variables['params']['w'], new.memory['w']) == (2, 0.75)


@pytest.mark.parametrize(
  ('example', 'knobs', 'end'),
  [('fedcm', {'alpha': 0.5}, 3), ('fedvarp', {'rate': 0.5}, 2)],
)
def test_running_statistics_can_stay_with_the_clients(example, knobs, end):
  # All clients move from 1 to 3 in one step.
  wrapped = with_local_statistics(algorithm(example, **knobs))
  start, trained = (
    one_weight(w) | {'batch_stats': {'mean': jnp.float32(mean)}}
    for w, mean in ((1, 50), (3, 90))
  )
  server = Server(start, wrapped.init_server(start))
  received, memory = wrapped.broadcast(server), wrapped.init_client(start)
  scalars = {name: jnp.float32(number) for name, number in knobs.items()}
  optimizer = {'learning_rate': jnp.float32(1)}
  task = Task(received, memory, wrapped.begin(received, memory), scalars, optimizer)
  task = task._replace(local=wrapped.after_step(task, None, None, None))
  sent, kept = wrapped.upload(trained, task)
  assert not {50.0, 90.0} & {float(leaf) for leaf in jax.tree.leaves(sent)}
  assert kept.statistics == {'mean': 90}
  new = wrapped.aggregate(server, sent, jnp.float32(1), scalars)
  assert new.variables == {'params': {'w': end}, 'batch_stats': {'mean': 50}}
