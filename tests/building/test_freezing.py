"""Frozen layers do not move; the body may have a learning rate of its own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax
from moon_jax import models
from moon_jax.algorithms.private import named_paths
from moon_jax.algorithms.wrappers.frozen_layers import algorithm_with_frozen_layers
from moon_jax.core import weights
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Server
from moon_jax.models.freezing import network_with_frozen_layers
from tests import world
from tests.building.test_experiment import after_a_round, build
from tests.refusals import refused
from tests.run_directories import TINY

pytestmark = pytest.mark.usefixtures('quick_runs')
SEED, IMAGE_SHAPE = 1, (8, 8, 1)
KNOBS = TINY | {
  'algorithm': 'fedavg',
  'num_rounds': 2,
  'seed': SEED,
  'optimizer.learning_rate': 0.1,
  'optimizer.weight_decay': 0.1,
}
# The ways in which models move: a mean, corrections, a server's optimizer, a second
# training, what clients keep or train along, neighbours, a choice, no server.
WAYS = {
  'fedavg': {'optimizer.name': 'adamw'},
  'fedprox': {'server_optimizer.name': 'yogi'},
  'ditto': {'data.local_test': 0.25},
  'apfl': {'data.local_test': 0.25, 'apfl.alpha': 0.3},
  'decentralized_fedavg': {'participation': 1.0},
  'scaffold': {},
  'feddyn': {},
  'fednova': {},
  'fedper': {},
  'moon': {},
  'median': {},
  'solo': {},
}
SLOW = (
  *('apfl', 'fedavg', 'feddyn', 'fednova', 'fedper', 'fedprox', 'median', 'moon'),
  *('ditto', 'scaffold', 'solo'),
)


def trained(folder, changes):
  """A run."""
  config = moon_jax.load_config('configs/base.py', KNOBS | changes)
  return moon_jax.run(config, folder / 'run')


def client_of(algorithm):
  """A client, if there is no global model."""
  return 0 if algorithm in ('fedper', 'solo', 'decentralized_fedavg') else None


def models_of(run, algorithm):
  """The models that a run has learned, each path -> array."""
  clients = [None]
  if algorithm in ('ditto', 'apfl', 'fedper', 'solo', 'decentralized_fedavg'):
    clients = run.metrics[-1]['clients'][:2]
    clients += [None] if algorithm in ('ditto', 'apfl') else []
  for client in clients:
    yield weights.flat(moon_jax.load(run.workdir, client=client).variables)


@functools.cache
def first_weights():
  """What all runs start from, each path -> array."""
  network = models.make(
    'mlp', image_shape=IMAGE_SHAPE, num_classes=10, width=128, representation=64
  )
  return weights.flat(jax.device_get(network.init(SEED)))


def check_only_moved(after, before, frozen):
  """All variables differ, but for those of frozen layers, which are equal."""
  for name, array in after.items():
    layer = '/'.join(name.split('/')[1:-1])
    assert np.array_equal(array, before[name]) == (layer in frozen), name


@pytest.mark.parametrize(
  'algorithm',
  [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in WAYS
  ],
)
def test_frozen_layers_keep_their_bits(algorithm, tmp_path):
  changes = {'algorithm': algorithm, 'frozen_layers': 'body'} | WAYS[algorithm]
  run = trained(tmp_path, changes)
  before = first_weights()
  for after in models_of(run, algorithm):
    check_only_moved(after, before, frozen={'encoder'})
  # A frozen layer is not sent.
  num_bytes = sum(before[name].nbytes for name in before if 'encoder' not in name)
  if algorithm == 'fedavg':
    assert run.metrics[-1]['bytes_up'] == 5 * num_bytes
  if algorithm == 'scaffold':  # nor is its control variate
    assert run.metrics[-1]['bytes_up'] == 2 * 5 * num_bytes
  # The network of a loaded run is that of the training.
  frozen = moon_jax.load(run.workdir, client=client_of(algorithm)).network.frozen
  assert {path[1] for path in frozen} == {'encoder'}


@pytest.mark.slow
def test_frozen_layers_in_lanes_of_several_clients(tmp_path):
  """The ten clients of a round are trained five side by side, or all in turn."""
  algorithm = 'decentralized_fedavg'
  changes = {'algorithm': algorithm, 'frozen_layers': 'body'} | WAYS[algorithm]
  in_turn = trained(tmp_path / 'in_turn', changes)
  apart = trained(tmp_path / 'apart', changes | {'execution.lanes': 5})
  pairs = zip(
    *(models_of(run, algorithm) for run in (apart, in_turn)),
    strict=True,
  )
  for after, expected in pairs:
    check_only_moved(after, first_weights(), frozen={'encoder'})
    for name, array in after.items():
      np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_frozen_batch_normalisation_computes_as_in_tests():
  network = models.make(
    'moon_cnn', image_shape=(16, 16, 1), num_classes=3, norm='batch', head='none'
  )
  variables = network.init(0)
  images = jax.random.normal(jax.random.key(0), (4, 16, 16, 1))
  mask, key = jnp.ones(4), jax.random.key(1)
  norm1_frozen = network_with_frozen_layers(
    network, named_paths('frozen_layers', 'norm1', network.layers().paths)
  )
  _, statistics = jax.jit(norm1_frozen.train)(variables, images, mask, key)
  moved = {
    name: bool(np.any(statistics['batch_stats'][name]['mean'] != 0))
    for name in ('norm1', 'norm2')
  }
  assert moved == {'norm1': False, 'norm2': True}
  all_frozen = network_with_frozen_layers(network, network.layers().paths)
  outputs, _ = jax.jit(all_frozen.train)(variables, images, mask, key)
  expected = jax.jit(network.apply)(variables, images)
  np.testing.assert_allclose(outputs.logits, expected.logits, rtol=1e-6)
  in_training, _ = jax.jit(network.train)(variables, images, mask, key)
  assert np.abs(in_training.logits - expected.logits).max() > 1e-3


def test_frozen_flax_batch_normalisation_computes_as_in_tests():
  """As docs/parts.md has it: the attribute of the module says whether it trains."""

  class Normed(nn.Module):
    @nn.compact
    def __call__(self, images, train, mask=None):
      real = None if mask is None else mask[:, None] > 0
      x = nn.Dense(4)(images.reshape(len(images), -1))
      x = nn.BatchNorm(use_running_average=not train)(x, mask=real)
      x = nn.BatchNorm()(x, not train, mask=real)
      return nn.Dense(3)(x)

  network = models.of_module(Normed(), (4, 4, 1))
  variables = network.init(0)
  images = jax.random.normal(jax.random.key(0), (4, 4, 4, 1))
  mask, key = jnp.ones(4), jax.random.key(1)
  frozen = network_with_frozen_layers(
    network, named_paths('frozen_layers', 'BatchNorm_0,BatchNorm_1', all_paths(network))
  )
  outputs, statistics = frozen.train(variables, images, mask, key)
  expected = network.apply(variables, images)
  np.testing.assert_allclose(outputs.logits, expected.logits, rtol=1e-6)
  jax.tree.map(
    np.testing.assert_array_equal, statistics['batch_stats'], variables['batch_stats']
  )
  in_training, statistics = network.train(variables, images, mask, key)
  assert np.abs(in_training.logits - expected.logits).max() > 1e-3
  # Where only one is frozen, the other one trains as ever.
  first_frozen = network_with_frozen_layers(
    network, named_paths('frozen_layers', 'BatchNorm_0', all_paths(network))
  )
  _, statistics = first_frozen.train(variables, images, mask, key)
  moved = {
    name: bool(np.any(statistics['batch_stats'][name]['mean'] != 0))
    for name in ('BatchNorm_0', 'BatchNorm_1')
  }
  assert moved == {'BatchNorm_0': False, 'BatchNorm_1': True}


def all_paths(network):
  """The paths of all variables of a network."""
  return network.layers().paths


def test_frozen_layers_keep_their_bits_in_models_that_only_tests_see():
  values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
  frozen = frozenset({('params', 'body', 'kernel')})

  def model(kernel):
    return {'params': {'body': {'kernel': kernel}, 'head': {'kernel': values}}}

  def kernel_of(algorithm, tested):
    server = Server(model(values), algorithm.init_server(model(values)))
    variables = tested(algorithm, server)
    return variables['params']['body']['kernel']

  def mixture(algorithm, server):
    return algorithm.personal(server, algorithm.init_client(model(values)))

  def mean_of_clients(algorithm, server):
    memory = server.memory._replace(mean=model(np.nextafter(values, 9))['params'])
    models = algorithm.evaluated(server._replace(memory=memory), ())
    return world.of_client(models, 0)

  for inner, tested in (
    (world.algorithm_of('apfl', alpha=0.3), mixture),
    (world.algorithm_of('feddyn', alpha=0.1, evaluate='mean'), mean_of_clients),
  ):
    wrapped = algorithm_with_frozen_layers(inner, frozen)
    assert np.any(kernel_of(inner, tested) != values)
    np.testing.assert_array_equal(kernel_of(wrapped, tested), values)


def test_attackers_do_not_reach_frozen_layers():
  """FedDyn's server keeps the mean of what the clients send."""
  built = build(
    'algorithm=feddyn feddyn.evaluate=mean seed=1 local_epochs=1 batch_size=200 '
    'frozen_layers=body attack.name=gaussian attack.fraction=0.3 attack.sigma=1.0'
  )
  mean = weights.flat({'params': after_a_round(built, of_server='memory').mean})
  before = first_weights()
  for name, array in mean.items():
    is_frozen = 'encoder' in name
    assert (np.abs(array - before[name]).max() < 1e-6) == is_frozen, name


def test_the_body_has_its_own_learning_rate():
  """One step of plain SGD: the body moves by a tenth, the head as without the knob."""
  one_step = (
    'algorithm=fedavg seed=1 local_epochs=1 batch_size=200 optimizer.momentum=0 '
    'optimizer.learning_rate=0.1 optimizer.weight_decay=0.1'
  )
  before = first_weights()
  plain, after = (
    weights.flat(after_a_round(build(f'{one_step} {body}')))
    for body in ('', 'optimizer.body_learning_rate=0.01')
  )
  for name in before:
    factor = 0.1 if 'encoder' in name else 1
    step = plain[name] - before[name]
    np.testing.assert_allclose(after[name] - before[name], factor * step, atol=3e-8)


REFUSED = [
  (
    {'frozen_layers': 'encoder,clasifier'},
    "names 'clasifier', which is no layer of the network; it has classifier, encoder, "
    "head_hidden, head_output. Did you mean 'classifier'?",
  ),
  (
    {'frozen_layers': 'encoder,head_hidden,head_output,classifier'},
    'must be .* but not all',
  ),
  (
    {'frozen_layers': 'encoder,head_hidden,head_output', 'algorithm': 'fedbabu'},
    'leaves nothing to train but the output layer',
  ),
  (
    {'frozen_layers': 'classifier', 'algorithm': 'fedper'},
    'has all layers that fedper keeps',
  ),
  (
    {'frozen_layers': 'classifier', 'algorithm': 'fedrep'},
    'has the output layer, which fedrep trains by itself',
  ),
  (
    {
      'frozen_layers': 'classifier',
      'algorithm': 'fedala',
      'data.local_test': 0.25,
    },
    'has all layers that fedala blends',
  ),
  (
    {'frozen_layers': 'encoder,head_hidden,head_output', 'algorithm': 'moon'},
    'has all layers that compute the representation, which moon is about',
  ),
  (
    {'frozen_layers': 'encoder,head_hidden,head_output', 'algorithm': 'fedproto'},
    'has all layers that compute the representation, which fedproto is about',
  ),
  (
    {
      'frozen_layers': 'body',
      'algorithm': 'decentralized_moon',
      'participation': 1.0,
      'moon.similarity_on': 'features',
    },
    'has all layers that compute the features, which decentralized_moon is about',
  ),
  (
    {'frozen_layers': 'body', 'optimizer.body_learning_rate': 0.1},
    r'body_learning_rate=0\.1 needs layers that train both',
  ),
  (
    {'algorithm': 'scaffold', 'optimizer.body_learning_rate': 0.1},
    r"body_learning_rate=0\.1 must be auto with --config\.algorithm='scaffold'",
  ),
]


@pytest.mark.parametrize(('changes', 'words'), REFUSED)
def test_what_would_have_no_effect_is_refused(changes, words, tmp_path):
  with refused(UsageError, words):
    trained(tmp_path, changes)
  assert not (tmp_path / 'run').exists()
