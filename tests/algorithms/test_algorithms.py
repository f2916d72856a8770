"""Single functions of the algorithms by hand, on networks that are one number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms.moon import moon
from moon_jax.building import experiment, programs
from moon_jax.config import cli
from moon_jax.core import tree
from moon_jax.core.types import Batch, Outputs, Scalars, Server, Task
from moon_jax.models import Network
from moon_jax.round import client_training, optimizers
from tests import world

X, Y = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
BATCH = Batch(jnp.zeros((1, 1, 1, 1)), jnp.array([0]), jnp.ones(1))
SGD = {'learning_rate': 0.5, 'momentum': 0.5, 'weight_decay': 0.0}


def model(value):
  return {'params': {'w': jnp.array([value])}}


def task(algorithm, memory, received=None, *, server_memory=(), local=()):
  hyperparameters = jax.tree.map(jnp.float32, dict(algorithm.hyperparameters))
  return Task(
    received=received,
    memory=memory,
    local=local,
    scalars=algorithm.scalars(hyperparameters, server_memory),
    optimizer=jax.tree.map(jnp.float32, SGD),
  )


# --- MOON -----------------------------------------------------------------------------


def contrastive_loss(algorithm, num_trained, references):
  """The loss for z = X and features = Y after `num_trained` rounds of the client."""
  memory = algorithm.init_client(model(0.0))
  for value in range(num_trained):
    trained = model(1.0 + value)
    memory = algorithm.upload(trained, task(algorithm, memory))[1]
  outputs = Outputs(representation=X, logits=jnp.zeros((1, 2)), features=Y)
  total, parts = algorithm.loss(
    outputs, references, None, task(algorithm, memory), BATCH
  )
  # Two equal logits: the supervised loss is log 2.
  contrastive = parts['contrastive_loss']
  np.testing.assert_allclose(total, np.log(2) + 2.0 * contrastive, rtol=1e-6)
  return float(parts['contrastive_loss'])


@pytest.mark.parametrize(
  ('options', 'num_trained', 'expected'),
  [
    # z = X: its similarity to the global X is 1, and to previous_0 = Y it is 0; tau =
    # 1.
    ({'negative': 'none'}, 0, 0.0),
    ({'negative': 'global'}, 0, np.log(2)),  # positive and negative are equal
    ({'negative': 'init'}, 0, np.log(1 + np.exp(-1))),  # the placeholder
    ({'negative': 'none'}, 1, np.log(1 + np.exp(-1))),
    ({'negative': 'global'}, 1, np.log(1 + np.exp(-1))),
    ({'negative': 'init'}, 1, np.log(1 + np.exp(-1))),
    # Features = Y: similarity 0 to the global X, 1 to the previous Y.
    ({'similarity_on': 'features'}, 1, np.log(1 + np.exp(1))),
    # previous_1 = -X, similarity -1, counts from the second training on.
    ({'num_previous': 2}, 1, np.log(1 + np.exp(-1))),
    ({'num_previous': 2}, 2, np.log(1 + np.exp(-1) + np.exp(-2))),
    ({'num_previous': 2}, 3, np.log(1 + np.exp(-1) + np.exp(-2))),
    ({'num_previous': 2, 'negative': 'global'}, 0, np.log(2)),
  ],
)
def test_moons_negatives(options, num_trained, expected):
  references = {'global': X, 'previous_0': Y}
  if options.get('num_previous') == 2:
    references['previous_1'] = -X
  algorithm = moon(mu=2.0, tau=1.0, **options)
  term = contrastive_loss(algorithm, num_trained, references)
  np.testing.assert_allclose(term, expected, rtol=1e-6, atol=1e-9)


# The representation of an image is its pixel minus a mean. In evaluation mode it is the
# running mean; in training mode it is the mean of the batch's real examples, and a
# random key adds noise.
def outputs(variables, images, mean, noise=0.0):
  z = (images.reshape(-1, 1) - mean + noise) * variables['params']['w'][None]
  return Outputs(z, z, 10.0 * z)


def evaluate(variables, images):
  return outputs(variables, images, variables['batch_stats']['mean'])


def train(variables, images, mask, key):
  mean = jnp.sum(images.reshape(-1) * mask) / jnp.sum(mask)
  noise = jax.random.uniform(key)
  state = {'batch_stats': {'mean': mean}}
  return outputs(variables, images, mean, noise), state


FAKE = Network(None, init=None, apply=evaluate, train=train)


# Pixels 1, 3 and a filler 100; models whose running mean is -1.
FROZEN_BATCH = Batch(
  jnp.array([1.0, 3.0, 100.0]).reshape(3, 1, 1, 1),
  jnp.zeros(3, jnp.int32),
  jnp.array([1.0, 1.0, 0.0]),
)
BEFORE = {'params': {'w': jnp.ones(1)}, 'batch_stats': {'mean': jnp.float32(-1)}}


def frozen_training(frozen_mode):
  """MOON's local training of FAKE, and the client's memory."""
  algorithm = moon(mu=1.0, tau=1.0, frozen_mode=frozen_mode)
  training = client_training.LocalTraining(algorithm, FAKE, optimizers.sgd)
  return training, algorithm.init_client(BEFORE)


def represented_in_training(key):
  """The representations of the real examples, under both models."""
  training, memory = frozen_training('training')
  images, _, mask = FROZEN_BATCH
  representations = training.represent(BEFORE, memory, images, mask, key)
  return [np.asarray(z[:2, 0]) for z in representations.values()]


def test_frozen_networks_in_training_mode():
  noises = []
  of_first_key = represented_in_training(jax.random.key(0))
  of_second_key = represented_in_training(jax.random.key(1))
  for z in of_first_key + of_second_key:
    # The mean of the real examples is 2; each network draws one noise in each step.
    noises.append(z[0] + 1.0)
    np.testing.assert_allclose(z, [-1.0 + noises[-1], 1.0 + noises[-1]], rtol=1e-5)
  assert len(set(noises)) == 4
  assert all(0 <= noise < 1 for noise in noises)


def test_frozen_networks_in_training_mode_keep_their_running_statistics():
  training, memory = frozen_training('training')
  scalars = Scalars(
    algorithm=jax.tree.map(jnp.float32, {'mu': 1.0, 'tau': 1.0}),
    optimizer=jax.tree.map(jnp.float32, SGD),
    seed=np.int32(0),
  )
  images, _, mask = FROZEN_BATCH

  @jax.jit
  def first_step(key):
    start = training.start(
      jnp.int32(0), BEFORE, memory, scalars, FROZEN_BATCH, client_facts={}
    )
    references = training.represent(BEFORE, memory, images, mask, key)
    return training.step(start, references, BEFORE, scalars, FROZEN_BATCH, key)

  progress = first_step(jax.random.key(0))
  # Only the trained network's running mean has moved to the batch's mean.
  assert progress.variables['batch_stats']['mean'] == 2.0
  assert progress.memory.models[0]['batch_stats']['mean'] == -1.0


def test_training_mode_is_not_computed_ahead():
  flags = ['data.limit=200', 'partition.min_size=1', 'local_epochs=2']
  for mode, num_represented in (('evaluation', 200), ('training', 0)):
    argv = [f'--config.{flag}' for flag in (*flags, f'moon.frozen_mode={mode}')]
    built = experiment.build(cli.parse(argv).config)
    training = programs.local_training(built)
    state = experiment.initial_state_shapes(built)
    assert programs.max_table_examples(built, training, state) == num_represented


# --- SCAFFOLD -------------------------------------------------------------------------


def test_scaffold_by_hand():
  algorithm = world.algorithm_of('scaffold')
  received = algorithm.broadcast(Server(model(7.0), {'w': jnp.array([3.0])}))
  path = algorithm.begin(received, ())
  now = task(algorithm, {'w': jnp.array([1.0])}, received, local=path)
  # g - c_i + c = 10 - 1 + 3
  assert algorithm.correct({'w': jnp.array([10.0])}, now)['w'] == 12.0
  for _ in range(3):
    now = now._replace(local=algorithm.after_step(now, None, None, None))
  # a(3) at momentum 0.5: 1 + (1 + 1/2) + (1 + 1/2 + 1/4)
  assert now.local.length == 4.25
  # At rate 0.5 from 7 to 2.75: (7 - 2.75) / (0.5 * 4.25) = 2; c_i+ = 1 - 3 + 2 = 0.
  sent, memory = algorithm.upload(model(2.75), now)
  assert memory['w'] == 0.0
  assert sent.uniform['w'] == -1.0
  # A quarter of the clients took part: c = 3 + (1 / 4) (-1).
  server = algorithm.aggregate(Server(model(7.0), received.memory), sent, 0.25, {})
  assert server.memory['w'] == 2.75
  assert server.variables['params']['w'] == 2.75


def test_scaffold_keeps_its_variates_in_a_round_of_rate_0():
  algorithm = world.algorithm_of('scaffold')
  received = algorithm.broadcast(Server(model(7.0), {'w': jnp.array([3.0])}))
  path = algorithm.begin(received, ())
  now = task(algorithm, {'w': jnp.array([1.0])}, received, local=path)
  now = now._replace(optimizer=now.optimizer | {'learning_rate': jnp.float32(0)})
  now = now._replace(local=algorithm.after_step(now, None, None, None))
  sent, memory = algorithm.upload(model(7.0), now)
  assert memory['w'] == 1.0
  server = algorithm.aggregate(Server(model(7.0), received.memory), sent, 1.0, {})
  assert server.memory['w'] == 3.0
  assert server.variables['params']['w'] == 7.0


# --- SA-MOON --------------------------------------------------------------------------


@pytest.mark.parametrize('scope', ['client', 'server'])
def test_the_temperature_stays_or_travels(scope):
  options = {'initial_temperature': 0.5, 'min_temperature': 0.1, 'sigma': 0.1}
  algorithm = world.algorithm_of('sa_moon', mu=2.0, scope=scope, **options)
  variables = model(1.0)
  server = Server(variables, algorithm.init_server(variables))
  received, memory = algorithm.broadcast(server), algorithm.init_client(variables)
  begun = algorithm.begin(received, memory)
  assert begun.temperature == 0.5
  end = begun._replace(temperature=jnp.float32(0.25), has_previous=jnp.bool_(True))
  now = task(algorithm, memory, received, local=end)
  assert algorithm.report(variables, now) == {'temperature': 0.25}
  sent, memory = algorithm.upload(variables, now)
  server = algorithm.aggregate(server, sent, 1.0, {})
  # The next local training starts at T = 0.25; its first step only records a loss.
  next_start = algorithm.begin(algorithm.broadcast(server), memory)
  assert next_start.temperature == 0.25
  assert not next_start.has_previous
  assert tree.num_bytes((server.memory, sent.weighted)) == 4 + 8 * (scope == 'server')


# --- DCO-MOON -------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('normalise', 'weights'),
  [
    (False, (5.0, 4.0)),  # (2 - 1/3) 3 and (1 + 1/3) 3
    (True, (5.0 / 3, 4.0 / 3)),
  ],
)
def test_the_weights_of_dco_moon(normalise, weights):
  options = {'mu': 3.0, 'tau': 1.0, 'theta': 0.5}
  algorithm = world.algorithm_of('dco_moon', normalise=normalise, **options)
  memory = algorithm.init_client(model(0.0))._replace(count=jnp.float32(1))
  p = jnp.float32(1 / 3)
  received = algorithm.broadcast(Server(model(0.0), p))
  now = task(algorithm, memory, received, server_memory=p)
  np.testing.assert_allclose(now.scalars['mu_t'], 1.0, rtol=1e-6)
  outputs = Outputs(representation=X, logits=jnp.zeros((1, 2)), features=X)
  references = {'global': X, 'previous_0': Y}
  total, parts = algorithm.loss(outputs, references, None, now, BATCH)
  supervised, contrastive = np.log(2), np.log(1 + np.exp(-1))
  np.testing.assert_allclose(parts['supervised_loss'], supervised, rtol=1e-6)
  np.testing.assert_allclose(parts['contrastive_loss'], contrastive, rtol=1e-6)
  expected = weights[0] * supervised + weights[1] * contrastive
  np.testing.assert_allclose(total, expected, rtol=1e-6)


@pytest.mark.parametrize(('trained', 'strayed'), [(3.0, 1.0), (2.5, 0.0)])
def test_a_client_strays_when_it_moves_far_from_the_received_model(trained, strayed):
  # |3 - 2| / 2 = 0.5 > 0.25; |2.5 - 2| / 2 is equal; statistics are no parameters
  options = {'mu': 1.0, 'tau': 1.0, 'theta': 0.25, 'normalise': False}
  algorithm = world.algorithm_of('dco_moon', **options)
  memory = algorithm.init_client(model(0.0))
  start, end = (
    model(value) | {'batch_stats': {'mean': jnp.array([mean])}}
    for value, mean in ((2.0, 0.0), (trained, 9.0))
  )
  received = algorithm.broadcast(Server(start, jnp.float32(0)))
  now = task(algorithm, memory, received, server_memory=jnp.float32(0))
  sent, memory = algorithm.upload(end, now)
  assert sent.uniform == strayed
  assert memory.models[0]['params']['w'] == trained
  report = algorithm.report(end, now)
  np.testing.assert_allclose(report['deviation'], (trained - 2) / 2, rtol=1e-6)
  server = algorithm.aggregate(Server(model(2.0), jnp.float32(0)), sent, 1.0, {})
  assert server.memory == strayed
