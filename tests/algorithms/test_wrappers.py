"""Wrappers call every function of the wrapped algorithm with its own arguments."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import base
from moon_jax.algorithms.wrappers.local_statistics import with_local_statistics
from moon_jax.algorithms.wrappers.server_optimizer import with_server_optimizer
from moon_jax.core import tree
from moon_jax.core.types import PyTree, Server, Upload
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

  Each also checks that it is given the probe's own things, not a wrapper's.
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

  algorithm = base.Algorithm(
    hyperparameters={'pull': 0.5},
    init_server=lambda variables: jnp.zeros(()),
    init_client=lambda variables: ProbeMemory(variables, jnp.zeros(())),
    scalars=scalars,
    broadcast=lambda server: Sent(server.variables, server.memory),
    download=download,
    begin=begin,
    frozen=frozen,
    loss=loss,
    perturb=lambda grads, params, task: of_task(task) and zeros(grads),
    correct=lambda grads, task: of_task(task) and grads,
    after_update=lambda updated, params, task: of_task(task) and updated,
    after_step=lambda task, loss, grads, key: of_task(task).local + 1.0,
    upload=upload,
    report=lambda trained, task: {'steps': of_task(task).local},
    aggregate=aggregate,
    evaluated=evaluated,
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
  'optimized-local': lambda inner: with_sgd(local(inner)),
  'local-optimized': lambda inner: local(with_sgd(inner)),
}
FUNCTIONS = {
  name
  for name, value in base.Algorithm()._asdict().items()
  if callable(value) or name in ('share', 'mixed', 'perturb')
}
# The probe has a server and no neighbours.
NEIGHBOURS = {'share', 'mixed'}


def after_a_round(chosen):
  """The state, and the tested models, after one round on normalised networks."""
  plans = world.planner(num_lanes=1, sizes=(7, 16, 23, 16))
  run_round = world.round_of(
    chosen, world.RoundOptions(model='mlp_bn', represent_once=False)
  )
  plan, data = plans.plan(0).for_device(), world.train_split('mlp_bn')
  first = world.state_of(chosen, 'mlp_bn')
  state, metrics = run_round(first, plan, world.scalars(chosen), data)
  shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (first, state))
  assert shapes[0] == shapes[1]
  return state, metrics, chosen.evaluated(state.server, state.clients)


@pytest.mark.parametrize('name', few(['optimized-local'], WRAPPED))
def test_every_function_is_called(name):
  heard = set()
  state, metrics, tested = after_a_round(WRAPPED[name](probe(heard)))
  assert heard == FUNCTIONS - NEIGHBOURS

  # The calls have had effects.
  assert state.server.memory.inner == 1.0
  assert metrics.computed['rounds'] == 0.0
  for leaf, leaf_of_model in zip(
    jax.tree.leaves(tested), jax.tree.leaves(world.variables('mlp_bn')), strict=True
  ):
    assert leaf.shape == (4, *leaf_of_model.shape)


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
