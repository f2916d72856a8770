"""What a configuration builds, and what is compiled."""

import jax
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.data import sources
from moon_jax.data.partition import feature_skew, label_skew
from moon_jax.engine import devices, experiment, programs, traced
from moon_jax.runner import run_directory
from tests import world

TINY = ('--config.data.limit=200', '--config.partition.min_size=1')


def build(*flags):
  # Centralised training has no partition.
  tiny = TINY[:1] if '--config.algorithm=centralized' in flags else TINY
  return experiment.build(cli.parse([*tiny, *flags]).config)


def first_inputs(built):
  return programs.round_inputs(built, 0, built.planner.plan(0))


def lower_round(built):
  state = experiment.initial_state(built)
  return programs.lower_programs(built, state, first_inputs(built))[0]


def test_the_first_state_is_a_function_of_the_seed():
  def leaves(seed):
    return jax.tree.leaves(experiment.initial_state(build(f'--config.seed={seed}')))

  for a, b in zip(leaves(3), leaves(3), strict=True):
    np.testing.assert_array_equal(a, b)
  assert any(
    (np.asarray(a) != b).any() for a, b in zip(leaves(3), leaves(4), strict=True)
  )


def test_the_partition_may_have_a_seed_of_its_own():
  def owners(built):
    return built.split.indices.tolist()

  one, two = build('--config.seed=3'), build('--config.seed=4')
  held = build('--config.seed=4', '--config.partition.seed=3')
  assert owners(held) == owners(one) != owners(two)
  # First weights, and what batches are drawn from, are as of the run's own seed.
  for a, b in zip(
    *(jax.tree.leaves(experiment.initial_state(e)) for e in (two, held)), strict=True
  ):
    np.testing.assert_array_equal(a, b)
  assert [e.config.partition.seed for e in (two, held)] == ['auto', 3]
  seeds = [traced.scalars(e.config, e.algorithm, 0).seed for e in (two, held)]
  assert seeds == [4, 4]


def test_a_run_from_before_the_seed_of_the_partition_goes_on():
  given = cli.parse(['--config.seed=3']).config
  saved = config_lib.flatten(given)
  del saved['partition.seed']
  assert config_lib.changes(config_lib.nest(saved), given) == []
  held = cli.parse(['--config.seed=3', '--config.partition.seed=3']).config
  (told,) = config_lib.changes(config_lib.nest(saved), held)
  assert told == "partition.seed: 'auto' -> 3"


# Algorithm -> numbers that one client receives, and sends, in a round.
MODEL = 33_738
TRAFFIC = {
  'fedavg': (MODEL, MODEL),
  'fedprox': (MODEL, MODEL),
  'scaffold': (2 * MODEL, 2 * MODEL),  # and the control variate, or its change
  'moon': (MODEL, MODEL),
  'sa_moon': (MODEL, MODEL),  # the temperature stays with the client
  'dco_moon': (MODEL + 1, MODEL + 1),  # and p_t, or whether the client strayed
  'decentralized_fedavg': (MODEL, MODEL),  # with each neighbour
  'decentralized_moon': (MODEL, MODEL),
  'median': (MODEL, MODEL),
  'trimmed_mean': (MODEL, MODEL),
  'krum': (MODEL, MODEL),
  'solo': (0, 0),
  'centralized': (0, 0),
}


def test_every_algorithm_has_its_traffic():
  assert set(TRAFFIC) == set(catalog.names('algorithm'))


@pytest.mark.parametrize(
  ('algorithm', 'down', 'up'), [(name, *numbers) for name, numbers in TRAFFIC.items()]
)
def test_traffic_is_what_a_real_deployment_would_move(algorithm, down, up):
  # mlp on 8x8 images: 64*128 + 128 + 128*128 + 128 + 128*64 + 64 + 64*10 + 10
  # = 33,738 parameters of 4 bytes. MOON's previous model never leaves the client.
  traffic = build(f'--config.algorithm={algorithm}').traffic
  assert traffic == (down * 4, up * 4)


def test_a_temperature_of_the_server_travels_with_the_model():
  built = build('--config.algorithm=sa_moon', '--config.sa_moon.scope=server')
  assert built.traffic == ((MODEL + 1) * 4, (MODEL + 1) * 4)


def test_scalars_are_float32_arrays_of_every_number():
  built = build('--config.moon.mu=0.25', '--config.seed=7')
  numbers = first_inputs(built).scalars
  assert numbers.seed == 7
  assert numbers.algorithm == {'mu': 0.25, 'tau': 0.5}
  assert set(numbers.optimizer) == {'learning_rate', 'momentum', 'weight_decay'}
  floats = jax.tree.leaves((numbers.algorithm, numbers.optimizer))
  assert all(leaf.dtype == np.float32 for leaf in floats)


def test_the_device_gets_of_a_plan_what_it_reads():
  built = build()
  plan, given = built.planner.plan(0), first_inputs(built).plan
  assert given.step_real is None
  np.testing.assert_array_equal(given.rows, plan.rows)
  assert plan.step_real.sum() > 0


def test_one_program_serves_cohorts_of_every_size_and_other_numbers():
  built = build('--config.participation=0.3', '--config.local_epochs=1')
  state = experiment.initial_state(built)
  compiled = programs.compile_programs(built, state, first_inputs(built))
  sizes = set()
  for index in range(4):
    plan = built.planner.plan(index)
    sizes.add(int(plan.num_examples.sum()))
    inputs = programs.round_inputs(built, index, plan)
    mu = devices.replicate(np.float32(index), built.mesh)
    inputs.scalars.algorithm['mu'] = mu
    # A compiled program refuses other shapes: it cannot compile again.
    with jax.transfer_guard('disallow'):
      state, metrics = compiled.run_round(state, *inputs, built.train)
    assert metrics.num_seen.sum() == plan.num_examples.sum()
  assert len(sizes) == 4
  assert int(state.round) == 4


def test_a_network_that_does_not_fit_is_refused_before_compiling():
  with pytest.raises(UsageError, match=r'8x8; use --config.model=mlp'):
    build('--config.model=moon_cnn')


def test_too_few_examples_for_the_clients():
  with pytest.raises(UsageError, match='201'):
    build('--config.num_clients=201')


def test_every_knob_reaches_the_part_it_is_for():
  flags = ['seed=3', 'batch_size=7', 'local_epochs=2', 'execution.lanes=2']
  flags += ['participation=0.25', 'partition.beta=0.3', 'num_clients=6']
  flags += ['partition.balance=false']
  built = build(*(f'--config.{flag}' for flag in flags))
  data = sources.load('digits', limit=200)
  expected = label_skew.dirichlet(
    data.train_labels, num_clients=6, beta=0.3, balance=False, min_size=1, seed=3
  )
  np.testing.assert_array_equal(built.split.indices, expected.indices)
  np.testing.assert_array_equal(built.split.offsets, expected.offsets)
  assert built.planner.sizes.tolist() == expected.sizes.tolist()
  for client, rows in enumerate(built.planner.rows(range(6))):
    np.testing.assert_array_equal(rows, expected.client(client))
  planner = built.planner
  assert (planner.seed, planner.batch_size, planner.local_epochs) == (3, 7, 2)
  # What is drawn on the device depends on the seed too.
  assert traced.scalars(built.config, built.algorithm, 0).seed == 3
  # 6 * 0.25 = 1.5, and halves are rounded up.
  assert (planner.cohort_size, planner.num_lanes) == (2, 2)
  for split, images, labels in (
    (built.train.examples, data.train_images, data.train_labels),
    (built.test, data.test_images, data.test_labels),
  ):
    np.testing.assert_array_equal(split.images, images)
    np.testing.assert_array_equal(split.labels, labels)
    np.testing.assert_array_equal(split.mean, data.mean)
    np.testing.assert_array_equal(split.std, data.std)


@pytest.mark.parametrize('name', ['iid', 'dirichlet', 'shards', 'quantity', 'noise'])
def test_every_partition_reaches_the_device(name, tmp_path):
  built = build(f'--config.partition.name={name}', '--config.num_clients=6')
  data = sources.load('digits', limit=200)
  assert built.class_counts.sum(0).tolist() == np.bincount(data.train_labels).tolist()
  assert built.class_counts.sum(1).tolist() == built.split.sizes.tolist()
  run_directory.save_partition(tmp_path, built.split, built.class_counts)
  assert (built.class_counts > 0).sum(1).tolist() == [2] * 6 or name != 'shards'
  # Clients see noise in training; the test, and what normalises, are of clean data.
  changed = (np.asarray(built.train.examples.images) != data.train_images).any()
  assert changed == (name == 'noise')
  np.testing.assert_array_equal(built.test.images, data.test_images)
  np.testing.assert_array_equal(built.train.examples.mean, data.mean)
  np.testing.assert_array_equal(built.train.examples.std, data.std)
  assert built.data_digest == sources.digest(data)


def test_the_noise_is_that_of_its_knobs():
  flags = ['partition.name=noise', 'partition.noise_sigma=0.3', 'seed=2']
  built = build(*(f'--config.{flag}' for flag in flags))
  data = sources.load('digits', limit=200)
  expected = feature_skew.add_noise(
    data.train_images, built.split, noise_sigma=0.3, seed=2
  )
  np.testing.assert_array_equal(built.train.examples.images, expected)


def test_the_owners_on_the_device_are_the_partition():
  built = build()
  np.testing.assert_array_equal(built.train.rows, built.split.indices)
  np.testing.assert_array_equal(built.train.offsets, built.split.offsets)


@pytest.mark.parametrize(
  ('flags', 'once'),
  [
    (['local_epochs=2'], True),
    (['local_epochs=1'], False),  # looked up once each: nothing to gain
    (['local_epochs=2', 'execution.cache_mib=0'], False),
    # 200 examples * 64 numbers * 4 bytes * 2 networks = 102,400 bytes do not fit
    # 1 MiB only with a representation 11 times as long.
    (['local_epochs=2', 'execution.cache_mib=1'], True),
    (['local_epochs=2', 'execution.cache_mib=1', 'mlp.representation=704'], False),
    (['local_epochs=2', 'algorithm=fedavg'], False),  # no frozen network
    (['local_epochs=2', 'augmentation.name=flip'], False),  # new images every epoch
  ],
)
def test_representations_are_kept_when_it_pays_and_they_fit(flags, once):
  built = build(*(f'--config.{flag}' for flag in flags))
  training = programs.local_training(built)
  state = experiment.initial_state(built)
  assert programs.represent_once(built, training, state) == once


def test_a_batch_larger_than_every_client_costs_nothing():
  built = build('--config.batch_size=1000000000')
  assert built.planner.batch_size == built.split.sizes.max()


def test_bfloat16_computes_with_fewer_bits_and_keeps_float32():
  flags = ('--config.algorithm=fedavg', '--config.local_epochs=1')
  results = {}
  for dtype in ('float32', 'bfloat16'):
    built = build(*flags, f'--config.execution.dtype={dtype}')
    state = experiment.initial_state(built)
    inputs = first_inputs(built)
    compiled = programs.compile_programs(built, state, inputs)
    state, _ = compiled.run_round(state, *inputs, built.train)
    results[dtype] = state.server.variables
    for leaf in jax.tree.leaves(state.server.variables):
      assert leaf.dtype == np.float32
      # Nor are they numbers of bfloat16 in float32's clothes.
      assert (leaf != leaf.astype('bfloat16').astype('float32')).any()
  difference = world.largest_difference(*results.values())
  # 8 bits of mantissa: rounding by 1/256 of weights below 0.2 and their changes.
  assert 1e-5 < difference < 1e-2


@pytest.mark.parametrize('algorithm', ['moon', 'fedprox'])
def test_narrow_weights_that_steps_pass_on_are_those_they_would_make(algorithm):
  built = build(f'--config.algorithm={algorithm}', '--config.execution.dtype=bfloat16')
  by_steps = built.network._replace(narrow=lambda params: params)
  results = []
  for network in (built.network, by_steps):
    one = built._replace(network=network)
    state, inputs = experiment.initial_state(one), first_inputs(one)
    compiled = programs.compile_programs(one, state, inputs)
    state, _ = compiled.run_round(state, *inputs, one.train)
    results.append(jax.device_get(state.server.variables))
  jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_another_local_memory_is_tried_on_the_weights_of_the_step(dtype):
  pairs = []

  def after_step(task, loss, grads, key):
    both = loss, task.loss_with(task.local)
    jax.debug.callback(lambda *losses: pairs.append(losses), *both)
    return task.local

  built = build('--config.algorithm=sa_moon', f'--config.execution.dtype={dtype}')
  built = built._replace(algorithm=built.algorithm._replace(after_step=after_step))
  state, inputs = experiment.initial_state(built), first_inputs(built)
  compiled = programs.compile_programs(built, state, inputs)
  jax.block_until_ready(compiled.run_round(state, *inputs, built.train))
  jax.effects_barrier()
  assert len(pairs) > 1
  np.testing.assert_allclose(*np.transpose(pairs), rtol=1e-6)


@pytest.mark.parametrize('precision', ['default', 'highest'])
def test_the_precision_of_products_reaches_the_program(precision):
  built = build(
    '--config.algorithm=fedavg', f'--config.execution.matmul_precision={precision}'
  )
  lowered = lower_round(built)
  # The average over the clients always has the highest precision.
  assert ('[DEFAULT, DEFAULT]' in lowered.as_text()) == (precision == 'default')


def test_more_devices_than_there_are_is_refused():
  with pytest.raises(UsageError, match="devices='9' must be at most 8"):
    build('--config.execution.devices=9')


def test_the_digest_tells_data_apart():
  data = sources.load('digits', limit=200)
  labels = data.test_labels.copy()
  labels[-1] = (labels[-1] + 1) % 10
  assert build().data_digest == sources.digest(data)
  assert sources.digest(data._replace(test_labels=labels)) != sources.digest(data)


@pytest.mark.parametrize(
  ('flags', 'numbers'),
  [
    (['schedule=step', 'decay=0.5', 'decay_every=2'], [1, 1, 0.5, 0.5]),
    (['schedule=cosine'], [1, 0.853553, 0.5, 0.146447]),  # (1 + cos 45 degrees) / 2
    (['name=adam', 'schedule=exponential', 'decay_every=1'], [1, 0.1, 0.01, 0.001]),
  ],
)
def test_the_learning_rate_of_a_round_follows_the_schedule(flags, numbers):
  flags = [*flags, 'learning_rate=1']
  built = build('--config.num_rounds=4', *(f'--config.optimizer.{f}' for f in flags))
  plan = built.planner.plan(0)
  for index, wanted in enumerate(numbers):
    scalars = programs.round_inputs(built, index, plan).scalars.optimizer
    assert scalars['learning_rate'] == pytest.approx(wanted, rel=1e-5)
    assert ('momentum' in scalars) == ('name=adam' not in flags)


def stepped(*flags):
  """A weight of 1 after two steps along the gradient 1, by the local optimizer."""
  built = build(*(f'--config.optimizer.{flag}' for flag in flags))
  numbers = first_inputs(built).scalars.optimizer
  optimizer = programs.local_training(built).optimizer(**numbers)
  weight = np.float32(1)
  state = optimizer.init(weight)
  for _ in range(2):
    update, state = optimizer.update(np.float32(1), state, weight)
    weight = weight + update
  return float(weight)


def test_the_local_optimizer_is_the_configured_one():
  sgd = ['learning_rate=0.1', 'momentum=0.5', 'weight_decay=0']
  # Velocities 1 and 1.5; with Nesterov the steps are 1.5 and 1.75.
  assert stepped(*sgd) == pytest.approx(1 - 0.25)
  assert stepped(*sgd, 'nesterov=true') == pytest.approx(1 - 0.325)
  # Adam's steps along a constant gradient are of the size of the rate; AdamW's decay
  # takes a tenth of a half of the weight beside them: 1 * 0.95 - 0.1, then the same.
  adam = ['learning_rate=0.1', 'weight_decay=0.5']
  assert stepped('name=adam', *adam) == pytest.approx(0.8, rel=1e-3)
  assert stepped('name=adamw', *adam) == pytest.approx(0.7075, rel=1e-3)


def test_the_default_server_is_the_plain_average():
  assert build('--config.algorithm=fedavg').algorithm == world.algorithm_of('fedavg')
  flags = ['name=adam', 'learning_rate=0.5']
  flags = [f'--config.server_optimizer.{flag}' for flag in flags]
  built = build('--config.algorithm=fedavg', *flags)
  assert built.algorithm.hyperparameters == {'server_learning_rate': 0.5}
  momentum = build('--config.server_optimizer.momentum=0.5').algorithm
  numbers = {'server_learning_rate': 1.0, 'server_momentum': 0.5}
  assert momentum.hyperparameters == {'mu': 1.0, 'tau': 0.5} | numbers


def test_centralized_is_one_client_who_owns_everything():
  built = build('--config.algorithm=centralized')
  assert built.class_counts.shape == (1, 10)
  (owned,) = built.planner.rows([0])
  assert sorted(owned) == list(range(200))
  assert built.planner.plan(0).clients.tolist() == [0]
  state = experiment.initial_state(built)
  assert {leaf.shape[0] for leaf in jax.tree.leaves(state.clients)} == {1}


def test_peers_get_the_graph_and_others_none():
  flags = ['algorithm=decentralized_fedavg', 'num_clients=6', 'topology.degree=4']
  built = build(*(f'--config.{flag}' for flag in flags))
  # Each of 6 has 4 neighbours, weighs each of them 1/5 and itself 1/5.
  weights = built.planner.mixing(np.arange(6))
  assert np.count_nonzero(weights, axis=1).tolist() == [5] * 6
  np.testing.assert_allclose(weights[weights > 0], 0.2)
  assert build().planner.mixing is None


def test_options_of_the_average_and_the_batches():
  assert not build().planner.drop_last
  assert not build().planner.uniform_weights
  flags = ['drop_last=true', 'batch_size=10', 'partition.name=iid', 'num_clients=7']
  built = build('--config.client_weight=uniform', *(f'--config.{f}' for f in flags))
  assert built.planner.drop_last
  # 28 or 29 examples each: two batches of 10 an epoch.
  assert built.planner.plan(0).num_real[built.planner.plan(0).step_real].tolist() == (
    [10] * 2 * 5 * 7
  )
  assert built.planner.plan(0).weights.tolist() == [1] * 7


def test_a_client_smaller_than_a_batch_is_refused_if_batches_are_dropped():
  flags = ['partition.name=iid', 'num_clients=7', 'batch_size=29']
  flags = [f'--config.{flag}' for flag in flags]
  assert build(*flags)
  # 200 = 4 * 29 + 3 * 28.
  with pytest.raises(
    UsageError, match=r'Client \d owns 28 examples, no batch of .*=29'
  ):
    build(*flags, '--config.drop_last=true')


def test_statistics_stay_local_if_told():
  flags = ['--config.model=resnet18', '--config.algorithm=fedavg']
  averaged = build(*flags)
  local_ = build(*flags, '--config.batch_norm=local')
  variables = averaged.network.shapes
  params, statistics = (
    tree.num_bytes(variables[name]) for name in ('params', 'batch_stats')
  )
  assert averaged.traffic == (params + statistics,) * 2
  assert local_.traffic == (params,) * 2
  # A network without batch normalisation is not changed by a config file's choice.
  config = config_lib.changed(build().config, {'batch_norm': 'local'})
  assert experiment.build(config).traffic == build().traffic


def lowered_round(*flags):
  built = build('--config.local_epochs=2', *flags)
  return lower_round(built)


def test_what_is_kept_and_what_is_augmented_reaches_the_program():
  def has_frozen_loop(*flags):
    return 'frozen/while' in lowered_round(*flags).as_text(debug_info=True)

  assert has_frozen_loop()
  assert not has_frozen_loop('--config.execution.cache_mib=0')
  augmentations = (
    ['name=none'],
    ['name=flip'],
    ['name=crop_flip', 'padding=reflect'],
    ['name=crop_flip', 'padding=zero'],
  )
  programs = {
    lowered_round(
      '--config.execution.cache_mib=0',
      *(f'--config.augmentation.{flag}' for flag in flags),
    ).as_text()
    for flags in augmentations
  }
  assert len(programs) == len(augmentations)


def test_a_round_writes_its_state_where_the_old_one_was():
  built = build('--config.execution.devices=1')
  state = experiment.initial_state(built)
  inputs = first_inputs(built)
  compiled = programs.compile_programs(built, state, inputs)
  compiled.run_round(state, *inputs, built.train)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.clients))


@pytest.mark.parametrize(
  ('algorithm', 'models'),
  # With a server a model; of those whose clients remember one, the cohort's too.
  [('fedavg', 1), ('moon', 1 + 3), ('scaffold', 2 + 3), ('solo', 3)],
)
def test_devices_exchange_the_aggregate_and_the_memories_that_change(algorithm, models):
  flags = f'--config.algorithm={algorithm}', '--config.participation=0.3'
  built = build(*flags, '--config.execution.devices=2', '--config.local_epochs=1')
  state = experiment.initial_state(built)
  compiled = programs.compile_programs(built, state, first_inputs(built))
  summed = programs.exchanged_bytes(compiled.run_round)
  assert models <= summed / (4 * MODEL) < models + 0.01
