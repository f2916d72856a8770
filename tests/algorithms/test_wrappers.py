"""Wrappers call every function of the wrapped algorithm with its own arguments."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax
from moon_jax.algorithms import base
from moon_jax.algorithms.wrappers.attack import with_attack
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer
from moon_jax.building.algorithm import AlgorithmOptions, make_algorithm
from moon_jax.building.experiment import make_initial_state
from moon_jax.config import changed
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree, Server, Upload
from moon_jax.round.examination import with_empty_sums
from tests import world
from tests.selection import few


class Sent(NamedTuple):
  """The probe's broadcast: a model, and the server's count of rounds."""

  model: PyTree
  rounds: jax.Array


class ProbeMemory(NamedTuple):
  """The memory of a client of the probe."""

  last: PyTree
  times: jax.Array


def probe(heard):
  """An algorithm with every function; each adds its name to `heard` when called.

  Each also checks that it is given the probe's own things, not a wrapper's. For
  the second training, its `upload` adds the name.
  """

  def check(received=None, memory=None):
    if received is not None:
      assert isinstance(received, Sent)
      assert set(received.model) == {'params', 'batch_stats'}
    if memory is not None:
      assert isinstance(memory, ProbeMemory)

  def of_task(task):
    check(task.received, task.memory)
    assert set(task.scalars) >= {'pull', 'rounds'}
    return task

  def zeros(leaves):
    return jax.tree.map(jnp.zeros_like, leaves)

  def scalars(hyperparameters, memory):
    assert memory.shape == ()
    assert set(hyperparameters) == {'pull'}
    return {'pull': hyperparameters['pull'], 'rounds': memory}

  def frozen(received, memory):
    check(received, memory)
    return {'global': received.model, 'last': memory.last}

  def begin(received, memory):
    check(received, memory)
    return memory.times

  def download(received, memory):
    check(received, memory)
    return received.model

  def loss(outputs, references, params, task, batch):
    total, parts = base.supervised(outputs, references, params, of_task(task), batch)
    distance = jnp.mean(jnp.square(references['global'] - references['last']))
    return total + 0.0 * distance, parts

  def upload(trained, task):
    return Upload(trained), ProbeMemory(trained, of_task(task).memory.times + 1.0)

  def report(trained, task):
    return {'steps': of_task(task).local, 'num_examined': task.examined}

  def aggregate(server, mean, participation, scalars):
    assert np.shape(participation) == ()
    assert set(scalars) >= {'pull', 'rounds'}
    moved = tree.subtract(mean.weighted, server.variables)
    step = jax.tree.map(lambda leaf: scalars['pull'] * leaf, moved)
    return Server(tree.add(server.variables, step), server.memory + 1.0)

  def evaluated(server, clients):
    check(memory=clients)
    assert server.memory.shape == ()
    return tree.repeat(server.variables, 1)

  def personal(server, memory):
    check(memory=memory)
    assert server.memory.shape == ()
    return memory.last

  def upload_of_second_training(trained, task):
    heard.add('second_training')
    return Upload(), of_task(task).memory

  algorithm = base.Algorithm(
    hyperparameters={'pull': 0.5},
    init_server=lambda variables, zeros: zeros,
    init_client=lambda variables: ProbeMemory(variables, jnp.zeros(())),
    scalars=scalars,
    broadcast=lambda server: Sent(server.variables, server.memory),
    download=download,
    begin=begin,
    frozen=frozen,
    loss=loss,
    perturb=lambda grads, params, task: of_task(task) and zeros(grads),
    descent=lambda grads, gradient_at, variables, task: (grads, of_task(task).local),
    correct=lambda grads, task: of_task(task) and grads,
    after_update=lambda updated, params, task: of_task(task) and updated,
    after_step=lambda task, loss, grads, key: of_task(task).local + 1.0,
    examine=lambda outputs, batch: jnp.sum(batch.mask),
    upload=upload,
    report=report,
    aggregate=aggregate,
    evaluated=evaluated,
    personal=personal,
    adapted=base.SecondTraining(base.Algorithm()),
    second_training=base.SecondTraining(
      algorithm=base.Algorithm(download=download, upload=upload_of_second_training),
      comes_first=True,
    ),
  )

  def recorded(name, function):
    def called(*args, **kwargs):
      heard.add(name)
      return function(*args, **kwargs)

    return called

  recording = {
    name: recorded(name, field)
    for name, field in algorithm._asdict().items()
    if callable(field)
  }
  return algorithm._replace(**recording)


def with_sgd(inner):
  numbers = {'learning_rate': 1.0, 'momentum': 0.0}
  return with_server_optimizer(inner, 'sgd', numbers)


local = with_local_statistics
# Wrappers of algorithms with a server.
WRAPPED = {
  'optimized': with_sgd,
  'optimized-local': lambda inner: with_sgd(local(inner)),
  'local-optimized': lambda inner: local(with_sgd(inner)),
}
# The fields that hold no function and no training.
DATA = {
  'hyperparameters',
  'needs',
  'frozen_in_training',
  'measured',
  'num_batches',
  'examined_zeros',
  'needs_all_uploads',
}
# `adapted` comes after the rounds; a wrapper leaves it as it is.
FUNCTIONS = set(base.Algorithm._fields) - DATA - {'adapted'}
# The probe has a server and no neighbours.
NEIGHBOURS = {'share', 'mixed'}
# Algorithms that `batch_norm=local` refuses, by the field for which it does.
REFUSED = {
  'personal': base.Algorithm(personal=lambda server, memory: server.variables),
  'adapted': base.Algorithm(adapted=base.SecondTraining(base.Algorithm())),
  'second_training': base.Algorithm(
    second_training=base.SecondTraining(base.Algorithm())
  ),
}


def after_a_round(chosen):
  """The state, and the tested models, after one round on normalised networks."""
  plans = world.planner(num_lanes=1, sizes=(7, 16, 23, 16), algorithm=chosen)
  run_round = world.round_of(
    chosen, world.RoundOptions(model='mlp_bn', represent_once=False)
  )
  plan, data = plans.plan(0).for_device(), world.train_split('mlp_bn')
  first = make_initial_state(chosen, world.variables('mlp_bn'), world.NUM_CLIENTS)
  state, metrics = run_round(first, plan, world.scalars(chosen), data)
  shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (first, state))
  assert shapes[0] == shapes[1]
  return state, metrics, chosen.evaluated(state.server, state.clients)


@pytest.mark.parametrize('name', few(['optimized', 'optimized-local'], WRAPPED))
def test_every_function_is_called(name):
  heard, expected, num_models = set(), FUNCTIONS - NEIGHBOURS, 1
  inner = with_empty_sums(probe(heard), world.network('mlp_bn'))
  if 'local' in name:
    inner = inner._replace(personal=None, adapted=None, second_training=None)
    expected, num_models = expected - REFUSED.keys(), 4
  chosen = WRAPPED[name](inner)
  state, metrics, tested = after_a_round(chosen)
  if chosen.personal:
    jax.vmap(chosen.personal, in_axes=(None, 0))(state.server, state.clients)
  assert heard == expected
  assert chosen.adapted is inner.adapted

  # The calls have had effects.
  assert state.server.memory.inner == 1.0
  assert metrics.computed['rounds'] == 0.0
  assert set(metrics.reports['num_examined'].tolist()) <= set(world.SIZES)
  for leaf, leaf_of_model in zip(
    jax.tree.leaves(tested), jax.tree.leaves(world.variables('mlp_bn')), strict=True
  ):
    assert leaf.shape == (num_models, *leaf_of_model.shape)


@pytest.mark.parametrize(
  ('wrap', 'name', 'numbers'),
  [
    (with_server_optimizer, 'sgd', {'learning_rate': 1.0, 'momentum': 0.0}),
    (with_attack, 'sign_flip', {'scale': 1.0}),
  ],
)
def test_numbers_of_a_wrapper_replace_none_of_the_algorithm(wrap, name, numbers):
  inner_numbers = {
    f'{prefix}_{number}': 7.0
    for prefix in ('attack', 'server', 'server_optimizer')
    for number in numbers
  }
  inner = base.Algorithm(hyperparameters=inner_numbers)
  wrapped = wrap(inner, name, numbers)
  assert len(wrapped.hyperparameters) == len(inner_numbers) + len(numbers)
  memory = wrapped.init_server({'params': {}})
  scalars = wrapped.scalars(dict(wrapped.hyperparameters), memory)
  assert scalars.items() >= inner_numbers.items()


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize('field', REFUSED)
def test_local_statistics_are_for_clients_of_one_model(field):
  moon_jax.register_algorithm('own', lambda: REFUSED[field])
  config = changed(world.config_of(batch_norm='local'), {'algorithm': 'own'})
  problem = "^--config.batch_norm='local' is not for --config.algorithm='own', whose "
  with pytest.raises(UsageError, match=problem):
    make_algorithm(AlgorithmOptions(config), world.network('mlp_bn'))


@pytest.mark.parametrize('name', ['scaffold', 'dco_moon', 'sa_moon', 'solo', 'moon'])
def test_models_are_found_in_what_is_sent(name):
  # Doubling every model doubles the parameters, and nothing else.
  chosen = world.make(name, **({'scope': 'server'} if name == 'sa_moon' else {}))
  model = {'params': jnp.float32(3)}
  server = Server(model, chosen.init_server(model))
  received = chosen.broadcast(server)

  def numbers(sent):
    return [float(leaf) for leaf in jax.tree.leaves(sent)]

  def double(model):
    return {'params': 2 * model['params']}

  after = tree.map_models(double, received)
  assert jax.tree.structure(after) == jax.tree.structure(received)
  assert numbers(after) == [2 * x if x == 3 else x for x in numbers(received)]
  assert (3.0 in numbers(received)) == (name != 'solo')
  memory = chosen.init_client(model)
  task = base.Task(
    received=received,
    memory=memory,
    local=chosen.begin(received, memory),
    scalars=jax.tree.map(jnp.float32, dict(chosen.hyperparameters)),
    optimizer=jax.tree.map(jnp.float32, world.OPTIMIZER),
  )
  local = chosen.after_step(task, jnp.float32(0), model['params'], jax.random.key(0))
  task = task._replace(local=local)
  sent, _ = chosen.upload(model, task)
  doubled = tree.map_models(double, sent)
  before = numbers(sent.weighted)
  assert numbers(doubled.weighted) == [2 * x if x == 3 else x for x in before]
  assert numbers(doubled.uniform) == numbers(sent.uniform)
  assert (3.0 in numbers(sent.weighted)) == (name != 'solo')
