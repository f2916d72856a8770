"""What a configuration builds, and the programs that are compiled."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.algorithms import base
from moon_jax.building import experiment, programs, round_scalars
from moon_jax.building.algorithm import evaluates_client_models
from moon_jax.config import cli
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Upload
from moon_jax.data import sources
from moon_jax.data.partition import feature_skew, label_skew
from moon_jax.platform import devices, gpu
from moon_jax.round.examination import with_empty_sums
from moon_jax.round.traffic import traffic_of_client
from moon_jax.runner import run_directory
from tests import world
from tests.selection import few


def build(flags=''):
  """The experiment of these flags, without `--config.`, on 200 examples, one device."""
  words = ['data.limit=200', 'execution.devices=1', *flags.split()]
  if 'algorithm=centralized' not in words:  # which has no partition
    words.insert(1, 'partition.min_size=1')
  return experiment.build(cli.parse([f'--config.{word}' for word in words]).config)


def first_inputs(built):
  return programs.round_inputs(built, 0, built.planner.plan(0).for_device())


@functools.cache
def lowered(flags):
  """The experiment of these flags and the program of its round, see `lower_round`."""
  built = build(flags)
  return built, lower_round(built)


def lower_round(built):
  """The program of a round, traced but not compiled."""
  inputs, state = first_inputs(built), experiment.initial_state_shapes(built)
  return programs._lower_round(built, state, inputs, donate=False)


def after_a_round(built, of_server='variables'):
  """The server's variables, or its memory, after a round."""
  state, inputs = experiment.initial_state(built), first_inputs(built)
  run_round = lower_round(built).compile()
  state, _ = run_round(state, inputs.plan, inputs.scalars, built.data.train)
  return jax.device_get(getattr(state.server, of_server))


def replicated(built, number):
  """A number that takes the place of one of a round's scalars."""
  return devices.replicate(np.float32(number), built.placement.mesh)


def test_the_first_state_is_a_function_of_the_seed():
  def leaves(seed):
    return jax.tree.leaves(experiment.initial_state(build(f'seed={seed}')))

  jax.tree.map(np.testing.assert_array_equal, leaves(3), leaves(3))
  assert world.largest_difference(leaves(3), leaves(4)) > 0


def test_the_partition_may_have_a_seed_of_its_own():
  def owners(built):
    return built.data.partition.indices.tolist()

  seed_3, seed_4 = build('seed=3'), build('seed=4')
  fixed = build('seed=4 partition.seed=3')
  assert owners(fixed) == owners(seed_3) != owners(seed_4)
  # The first weights and the batches depend on the run's own seed.
  first_state = experiment.initial_state(seed_4)
  assert world.largest_difference(first_state, experiment.initial_state(fixed)) == 0
  assert seed_4.config.partition.seed == 'auto'
  assert fixed.config.partition.seed == 3
  for built in (seed_4, fixed):
    assert round_scalars.scalars_of_round(built.config, built.algorithm, 0).seed == 4


# Algorithm -> numbers that one client receives and sends in a round: one figure if they
# are equal, else a pair.
MODEL = 33_738
TRAFFIC = dict.fromkeys(catalog.names('algorithm'), MODEL) | {
  'fedper': MODEL - 650,  # the classifier stays: 64 * 10 + 10
  'fedbabu': (MODEL, MODEL - 650),  # sent without the classifier
  'fedrep': MODEL - 650,
  'scaffold': 2 * MODEL,  # with the control variate or its change
  'fedproc': MODEL + 10 * 64 + 10,  # with 10 prototypes, and which of them exist
  'fedproto': 10 * 64 + 10,  # only the prototypes
  # received: the last change; sent: the total length of the steps
  'mofedsam': (2 * MODEL, MODEL + 1),
  'dco_moon': MODEL + 1,  # received: p_t; sent: whether the client strayed
  'fedexp': (MODEL, MODEL + 1),  # sent: how far the client moved
  'fednova': (MODEL, MODEL + 1),  # sent: the steps' total length
  'solo': 0,
  'centralized': 0,
  'sa_moon --scope': MODEL + 1,  # with the temperature
}
del TRAFFIC['fedbn']  # it needs a network with batch normalisation


@pytest.mark.parametrize('algorithm', TRAFFIC)
def test_traffic_is_what_a_real_deployment_would_move(algorithm):
  # mlp on 8x8 images: 64*128 + 128 + 128*128 + 128 + 128*64 + 64 + 64*10 + 10
  # = 33,738 parameters of 4 bytes. MOON's previous model never leaves the client.
  name, _, scope = algorithm.partition(' ')
  flags = f'algorithm={name}'
  if scope:
    flags += ' sa_moon.scope=server'
  if name in ('ditto', 'apfl', 'pfedme', 'per_fedavg', 'fedala'):
    flags += ' data.local_test=0.2'
  traffic = build(flags).traffic
  assert traffic == tuple((4 * np.ones(2, int) * TRAFFIC[algorithm]).tolist())


def test_scalars_are_float32_arrays_of_every_number():
  built = build('moon.mu=0.25 seed=7')
  numbers = first_inputs(built).scalars
  assert numbers.seed == 7
  assert numbers.algorithm == {'mu': 0.25, 'tau': 0.5}
  sgd = {'learning_rate': 0.01, 'momentum': 0.9, 'weight_decay': 1e-5}
  assert numbers.optimizer == pytest.approx(sgd)
  floats = jax.tree.leaves((numbers.algorithm, numbers.optimizer))
  assert all(leaf.dtype == np.float32 for leaf in floats)


def test_one_program_serves_cohorts_of_every_size_and_other_numbers():
  built = build('participation=0.3 local_epochs=1 execution.devices=2')
  state = experiment.initial_state(built)
  run_round = programs.lower_programs(built, state, first_inputs(built))[0].compile()
  sizes, first_state = set(), state
  for index in range(4):
    plan = built.planner.plan(index)
    sizes.add(int(plan.cohort.weights.sum()))
    inputs = programs.round_inputs(built, index, plan.for_device())
    inputs.scalars.algorithm['mu'] = replicated(built, index)
    # A compiled program refuses other shapes: it cannot compile again.
    with jax.transfer_guard('disallow'):
      state, metrics = run_round(state, inputs.plan, inputs.scalars, built.data.train)
    assert metrics.num_seen.sum() == plan.cohort.weights.sum()
  assert len(sizes) == 4
  assert int(state.round) == 4
  # A round writes its state where the old one was.
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first_state.clients))


@pytest.mark.parametrize('server', few(['adam'], ['sgd']))
def test_an_attack_changes_the_round(server):
  flags = f'algorithm=fedavg server_optimizer.name={server} local_epochs=1'
  attacked = build(f'{flags} attack.name=sign_flip attack.fraction=0.4')
  assert attacked.algorithm.needs_all_uploads
  assert attacked.algorithm.hyperparameters['attack.scale'] == 1.0
  run_round, state = lower_round(attacked).compile(), experiment.initial_state(attacked)
  ends = []
  for scale in (1.0, -1.0):  # with -1 attackers send what they have trained
    inputs = first_inputs(attacked)
    inputs.scalars.algorithm['attack.scale'] = replicated(attacked, scale)
    end, _ = run_round(state, inputs.plan, inputs.scalars, attacked.data.train)
    ends.append(end.server.variables)
  by_attack, by_training = ends
  assert world.largest_difference(by_attack, by_training) > 1e-4


def test_every_knob_reaches_the_part_it_is_for():
  built = build(
    'seed=3 batch_size=7 local_epochs=2 execution.lanes=2 participation=0.25 '
    'partition.beta=0.3 num_clients=6 partition.balance=false'
  )
  data = sources.load('digits', limit=200)
  expected = label_skew.dirichlet(
    data.train_labels, num_clients=6, beta=0.3, balance=False, min_size=1, seed=3
  )
  client_data = built.planner.training.data
  assert client_data.sizes.tolist() == expected.sizes.tolist()
  for client, rows in enumerate(client_data.rows_of(range(6))):
    np.testing.assert_array_equal(rows, expected.client(client))
  work = built.planner.training.work
  assert (built.planner.seed, work.batch_size, work.local_epochs) == (3, 7, 2)
  # Draws on the device depend on the seed too.
  assert round_scalars.scalars_of_round(built.config, built.algorithm, 0).seed == 3
  assert build('batch_size=1000000000').planner.training.work.batch_size < 200
  # 6 * 0.25 = 1.5, and halves are rounded up.
  assert built.planner.participation.cohort_size == 2
  assert built.planner.training.layout.num_lanes == 2
  train, test = built.data.train, built.tests.examples
  np.testing.assert_array_equal(train.examples.images, data.train_images)
  np.testing.assert_array_equal(train.examples.labels, data.train_labels)
  np.testing.assert_array_equal(train.rows_by_owner, expected.indices)
  np.testing.assert_array_equal(train.offsets, expected.offsets)
  np.testing.assert_array_equal(test.images, data.test_images)
  np.testing.assert_array_equal(test.labels, data.test_labels)
  for split in (train.examples, test):
    np.testing.assert_array_equal(split.mean, data.mean)
    np.testing.assert_array_equal(split.std, data.std)


@pytest.mark.parametrize('name', ['iid', 'dirichlet', 'shards', 'quantity', 'noise'])
def test_every_partition_reaches_the_device(name, tmp_path):
  built = build(f'partition.name={name} num_clients=6')
  data = sources.load('digits', limit=200)
  class_counts = built.data.class_counts
  assert class_counts.sum(0).tolist() == np.bincount(data.train_labels).tolist()
  assert class_counts.sum(1).tolist() == built.data.partition.sizes.tolist()
  run_directory.save_partition(tmp_path, built)
  if name == 'shards':
    assert (class_counts > 0).sum(1).tolist() == [2] * 6
  # Clients train on noisy images; the test images and the statistics are clean.
  images = data.train_images
  if name == 'noise':
    sigma = built.config.partition.noise_sigma
    images = feature_skew.add_noise(
      images, built.data.partition, noise_sigma=sigma, seed=0
    )
    assert (images != data.train_images).any()
  np.testing.assert_array_equal(built.data.train.examples.images, images)
  np.testing.assert_array_equal(built.tests.examples.images, data.test_images)
  np.testing.assert_array_equal(built.data.train.examples.mean, data.mean)
  assert built.data.digest == sources.digest(data)


def test_a_clients_own_test_has_its_noise():
  flags = 'partition.name=noise num_clients=6 data.local_test='
  without_tests, with_tests = build(f'{flags}0.0'), build(f'{flags}0.2')
  num_training = with_tests.data.partition.sizes.sum()
  assert num_training < without_tests.data.partition.sizes.sum()
  np.testing.assert_array_equal(
    with_tests.data.train.examples.images, without_tests.data.train.examples.images
  )


FULL = 'partition.name=iid batch_size=16 drop_last=true'


@pytest.mark.parametrize(
  ('flags', 'num_examples'),
  [
    ('local_epochs=2', 200),
    ('local_epochs=1', 0),  # each is looked up once, so keeping gains nothing
    ('local_epochs=2 execution.cache_mib=0', 0),
    # The largest two of ten clients own 25 and 32 examples: a step of 32 for each.
    ('local_epochs=2 participation=0.2', 64),
    # Two clients own 40 examples, of which full batches of 16 leave out 8.
    (f'local_epochs=2 participation=0.2 {FULL}', 64),
    # 200 examples * 64 numbers * 4 bytes fit 1 MiB 20 times: the global model's, and
    # those of 19 previous ones.
    ('local_epochs=2 execution.cache_mib=1', 200),
    ('local_epochs=2 execution.cache_mib=1 moon.num_previous=19', 200),
    ('local_epochs=2 execution.cache_mib=1 moon.num_previous=20', 0),
    ('local_epochs=2 algorithm=fedavg', 0),  # no frozen network
    ('local_epochs=2 augmentation.name=flip', 0),  # new images every epoch
  ],
)
def test_representations_are_kept_when_it_pays_and_they_fit(flags, num_examples):
  built = build(flags)
  training = programs.local_training(built)
  state = experiment.initial_state_shapes(built)
  assert programs.max_table_examples(built, training, state) == num_examples


COHORT = 'local_epochs=2 participation=0.3 moon.tau=0.1 execution.lanes=2'


@pytest.mark.parametrize('batches', few([''], [f' {FULL}']))
def test_what_is_kept_of_a_cohort_is_what_is_computed_in_each_step(batches):
  def losses(cache_mib):
    built, program = lowered(f'{COHORT} execution.cache_mib={cache_mib}{batches}')
    run_round, state = program.compile(), experiment.initial_state(built)
    losses_of_clients = []
    for index in range(3):
      plan = built.planner.plan(index).for_device()
      inputs = programs.round_inputs(built, index, plan)
      state, metrics = run_round(state, inputs.plan, inputs.scalars, built.data.train)
      losses_of_clients.append(metrics.sums['contrastive_loss'])
    return np.array(losses_of_clients)

  represented_once = losses(cache_mib=1)
  assert represented_once[2].max() > represented_once[0].max() == 0
  np.testing.assert_allclose(represented_once, losses(cache_mib=0), rtol=1e-5)


@functools.cache
def fedprox(dtype):
  """The experiment of this type, and the result of a round."""
  # There are several steps, so that the second one starts from the first one's weights.
  built = build(f'algorithm=fedprox local_epochs=2 execution.dtype={dtype}')
  return built, after_a_round(built)


@pytest.mark.slow
def test_bfloat16_computes_with_fewer_bits_and_keeps_float32():
  float32, bfloat16 = (fedprox(dtype)[1] for dtype in ('float32', 'bfloat16'))
  for leaf in jax.tree.leaves((float32, bfloat16)):
    assert leaf.dtype == np.float32
    # The weights are not just bfloat16 numbers stored as float32.
    assert (leaf != leaf.astype('bfloat16').astype('float32')).any()
  difference = world.largest_difference(float32, bfloat16)
  # 8 bits of mantissa: rounding by 1/256 of weights below 0.2 and their changes.
  assert 1e-5 < difference < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_another_local_memory_is_tried_on_the_weights_of_the_step(dtype):
  pairs = []

  def after_step(task, loss, grads, key):
    tried = task.loss_with(task.local)
    jax.debug.callback(lambda loss, tried: pairs.append((loss, tried)), loss, tried)
    return task.local

  built = build(f'algorithm=fedprox execution.dtype={dtype}')
  algorithm = built.algorithm._replace(after_step=after_step)
  after_a_round(built._replace(algorithm=algorithm))
  jax.effects_barrier()
  assert len(pairs) > 1
  losses, tried = np.transpose(pairs)
  np.testing.assert_allclose(losses, tried, rtol=1e-6)


@pytest.mark.parametrize('precision', ['default', 'highest'])
def test_the_precision_of_products_reaches_the_program(precision):
  _, program = lowered(f'algorithm=fedavg execution.matmul_precision={precision}')
  # The average over the clients always has the highest precision.
  assert ('[DEFAULT, DEFAULT]' in program.as_text()) == (precision == 'default')


@pytest.mark.parametrize(
  ('flags', 'rates'),
  [
    (
      'optimizer.schedule=step optimizer.decay=0.5 optimizer.decay_every=2',
      [1, 1, 0.5, 0.5],
    ),
    ('optimizer.schedule=cosine', [1, 0.853553, 0.5, 0.146447]),
    (
      'optimizer.name=adam optimizer.schedule=exponential optimizer.decay_every=1',
      [1, 0.1, 0.01, 0.001],
    ),
  ],
)
def test_the_learning_rate_of_a_round_follows_the_schedule(flags, rates):
  built = build(f'num_rounds=4 optimizer.learning_rate=1 {flags}')
  plan = built.planner.plan(0)
  for index, rate in enumerate(rates):
    scalars = programs.round_inputs(built, index, plan.for_device()).scalars.optimizer
    assert scalars['learning_rate'] == pytest.approx(rate, rel=1e-5)
    assert ('momentum' in scalars) == ('name=adam' not in flags)


def test_the_local_optimizer_is_the_configured_one():
  for name in ('sgd', 'adam', 'adamw'):
    built = build(f'optimizer.name={name}')
    make_optimizer = programs.local_training(built).make_optimizer
    assert make_optimizer.func == catalog.part('optimizer', name).build
    assert not make_optimizer.keywords.get('nesterov', False)
  nesterov = build('optimizer.nesterov=true')
  assert programs.local_training(nesterov).make_optimizer.keywords['nesterov']


@pytest.mark.slow
def test_gradients_are_clipped_if_asked():
  flags = (
    'algorithm=fedavg optimizer.momentum=0 optimizer.weight_decay=0 local_epochs=1 '
    'optimizer.learning_rate=0.5 optimizer.clip_norm='
  )
  built = build(f'{flags}0.01')
  inputs, state = first_inputs(built), experiment.initial_state(built)
  assert inputs.scalars.optimizer['clip_norm'] == np.float32(0.01)
  run_round = lower_round(built).compile()
  end, metrics = run_round(state, inputs.plan, inputs.scalars, built.data.train)
  clipped, drifts = end.server.variables, np.asarray(metrics.drift)
  steps = built.planner.training.real_steps(built.planner.cohort(0))
  # No client moves further than its steps of length 0.5 * 0.01; most reach it.
  assert (drifts <= 0.5 * 0.01 * steps * (1 + 1e-5)).all()
  assert np.median(drifts / steps) > 0.9 * 0.5 * 0.01
  inputs.scalars.optimizer['clip_norm'] = replicated(built, 1e9)
  end, _ = run_round(state, inputs.plan, inputs.scalars, built.data.train)
  unlimited = end.server.variables
  without_clipping = build(f'{flags}0.0')
  assert 'clip_norm' not in first_inputs(without_clipping).scalars.optimizer
  plain = after_a_round(without_clipping)
  assert world.largest_difference(plain, unlimited) < 1e-6
  assert world.largest_difference(plain, clipped) > 1e-3


def test_the_default_server_is_the_plain_average():
  assert build('algorithm=fedavg').algorithm == world.algorithm_of('fedavg')
  built = build(
    'algorithm=fedavg server_optimizer.name=adam server_optimizer.learning_rate=0.5'
  )
  assert built.algorithm.hyperparameters == {'server_optimizer.learning_rate': 0.5}
  momentum = build('server_optimizer.momentum=0.5').algorithm
  numbers = {
    'server_optimizer.learning_rate': 1.0,
    'server_optimizer.momentum': 0.5,
  }
  assert momentum.hyperparameters == {'mu': 1.0, 'tau': 0.5} | numbers


@pytest.mark.parametrize('algorithm', ['krum', 'fedavg'])
def test_a_gpu_is_told_of_all_data_and_of_the_uploads_that_it_keeps(
  algorithm, monkeypatch
):
  told = []

  def free_bytes(data_bytes, client_memory, *, bytes_per_upload, **counts):
    told.append((data_bytes, bytes_per_upload))
    return math.inf

  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(gpu, 'free_bytes', free_bytes)
  built = build(f'algorithm={algorithm} data.validation=0.1')
  splits = built.data.train.examples, built.tests.examples, built.tests.validation
  data_bytes = sum(split.images.nbytes for split in splits)
  model_bytes = tree.num_bytes(built.network.shapes)
  assert set(told) == {(data_bytes, model_bytes if algorithm == 'krum' else 0)}


def test_a_knob_that_is_not_used_changes_nothing():
  flat = {'algorithm': 'feddyn', 'client_weight': 'uniform', 'data.limit': 200}
  assert not experiment.build(
    config_lib.validate(flat)
  ).planner.averaging.uniform_weights


def test_what_an_algorithm_of_ones_own_may_send_keep_and_test():
  built = build()
  network, scalars = (
    built.network,
    round_scalars.scalars_of_round(built.config, base.Algorithm(), 0),
  )

  def upload(trained, task):
    return Upload({'sums': task.class_counts[:, None] * jnp.ones((10, 4))}, ()), ()

  counting_classes = base.Algorithm(upload=upload, needs={'class_counts'})
  counted = traffic_of_client(counting_classes, network.shapes, scalars, 10)
  assert counted.bytes_sent == 4 * 10 * 4
  two_groups = lambda server, clients: tree.repeat(server.variables, 2)  # noqa: E731
  grouped = base.Algorithm(evaluated=two_groups)
  assert not evaluates_client_models(grouped, network.shapes)
  counting = base.Algorithm(examine=lambda outputs, batch: batch.mask.sum())
  assert with_empty_sums(counting, network).init_server(network.shapes) == ()


def test_peers_get_the_graph_and_others_none():
  built = build('algorithm=decentralized_fedavg num_clients=6 topology.degree=4')
  # Each of 6 has 4 neighbours, weighs each of them 1/5 and itself 1/5.
  weights = built.planner.averaging.mixing(np.arange(6))
  assert np.count_nonzero(weights, axis=1).tolist() == [5] * 6
  np.testing.assert_allclose(weights[weights > 0], 0.2)
  assert build().planner.averaging.mixing is None


def test_options_of_the_average_and_the_batches():
  assert not build().planner.training.work.drop_last
  assert not build().planner.averaging.uniform_weights
  plan = build(
    'client_weight=uniform drop_last=true batch_size=10 partition.name=iid '
    'num_clients=7'
  ).planner.plan(0)
  # 28 or 29 examples each: two batches of 10 an epoch.
  assert plan.schedule.num_real[plan.step_real].tolist() == [10] * 2 * 5 * 7
  assert plan.cohort.weights.tolist() == [1] * 7


def test_a_client_smaller_than_a_batch_is_refused_if_batches_are_dropped():
  flags = 'partition.name=iid num_clients=7 batch_size='
  assert build(f'{flags}29')
  # 200 = 4 * 29 + 3 * 28.
  message = r'Client \d owns 28 examples, less than a batch of .*=29'
  with pytest.raises(UsageError, match=message):
    build(f'{flags}29 drop_last=true')
  assert build(f'{flags}28 drop_last=true')


def test_statistics_stay_local_if_told():
  averaged = build('model=resnet18 algorithm=fedavg')
  local_ = build('model=resnet18 algorithm=fedavg batch_norm=local')
  shapes = averaged.network.shapes
  params, statistics = map(tree.num_bytes, (shapes['params'], shapes['batch_stats']))
  assert averaged.traffic == (params + statistics,) * 2
  assert local_.traffic == (params,) * 2
  # A network without batch normalisation is not changed by a config file's choice.
  config = config_lib.changed(build().config, {'batch_norm': 'local'})
  assert experiment.build(config).traffic == build().traffic


def test_what_is_kept_and_what_is_augmented_reaches_the_program():
  for cache_mib in (0, 1):
    _, program = lowered(f'{COHORT} execution.cache_mib={cache_mib}')
    assert ('frozen/while' in program.as_text(debug_info=True)) == cache_mib
  # Debug information is left out: it names the caller, which always differs.
  fedavg = 'algorithm=fedavg execution.matmul_precision=default'
  crop_flip = f'{fedavg} augmentation.name=crop_flip'
  texts = {
    lowered(flags)[1].as_text()
    for flags in (fedavg, crop_flip, f'{crop_flip} augmentation.padding=zero')
  }
  assert len(texts) == 3


# The result types of a collective in a compiled program, each with its shape.
_COLLECTIVE = re.compile(
  r'= (.*?) (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-\w+)'
  r'(?:-start)?\('
)
_ARRAY = re.compile(r'([a-z]+)(\d*)\[([\d,]*)\]')


def exchanged_bytes(program):
  """Bytes that a device gives to the collectives of a compiled program.

  If P devices sum them in a ring, each sends 2 (P - 1) / P times as many bytes.
  """
  total = 0
  for result_types in _COLLECTIVE.findall(program.as_text()):
    for _, bits, shape in _ARRAY.findall(
      result_types
    ):  # pred[3] has no number: a byte each
      total += int(bits or 8) // 8 * math.prod(map(int, filter(None, shape.split(','))))
  return total


@pytest.mark.parametrize(
  ('algorithm', 'models'),
  # An algorithm with a server exchanges a model; if clients remember models, the
  # cohort's memories too.
  few([('scaffold', 2 + 3)], [('fedavg', 1), ('moon', 1 + 3), ('solo', 3)]),
)
def test_devices_exchange_the_aggregate_and_the_memories_that_change(algorithm, models):
  built = build(
    f'algorithm={algorithm} participation=0.3 execution.devices=2 local_epochs=1'
  )
  state = experiment.initial_state_shapes(built)
  run_round = programs.lower_programs(built, state, first_inputs(built))[0].compile()
  summed = exchanged_bytes(run_round)
  assert models <= summed / (4 * MODEL) < models + 0.01
