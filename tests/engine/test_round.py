"""The engine against the reference, and the reductions between the algorithms."""

import itertools
import re

import jax
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax.core import keys, tree
from moon_jax.data.augment import augmenter
from moon_jax.engine import devices
from moon_jax.runner import metrics as metrics_lib
from moon_jax.train import client_training, lanes, optimizers
from moon_jax.train import round as round_lib
from tests import reference, world
from tests.selection import few

LANES = few([2], [1, 3])
NUM_ROUNDS = 4
TOLERANCE = 1e-5
# Without a server -> the algorithm that the reference runs on a mixing matrix.
PEERS = {'decentralized_fedavg': 'fedavg', 'decentralized_moon': 'moon'}
# Our names -> the reference's.
NAMES = PEERS | {'centralized': 'centralised'}
# Who is a neighbour of whom: 0 - 1 - 2 - 3 - 0.
RING = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


def draw(round_index, client, step):
  """The engine's own draw of whether a step's temperature is taken."""
  key = keys.step_key(0, round_index, client, step)
  return float(jax.random.uniform(keys.for_purpose(key, keys.Purpose.ANNEALING)))


def reference_run(algorithm, num_rounds, *, model='mlp', plans=None, **changes):
  """The reference on the batches that the planner draws."""
  plans = plans or world.planner()
  sizes = dict(enumerate(plans.sizes.tolist()))
  options = (
    {'mu': 0.0, 'tau': 1.0, 'uniform': draw}
    | world.OPTIMIZER
    | (world.OPTIONS | world.ROBUST)[algorithm]
  )
  if algorithm in PEERS:
    everyone = reference.metropolis_hastings(changes.pop('graph', RING))
    cohorts = [plans.plan(index).clients for index in range(num_rounds)]
    options['mixing'] = [reference.without_absent(everyone, c) for c in cohorts]
  rounds = []
  for index in range(num_rounds):
    cohort = plans.plan(index).clients
    work = dict(zip(cohort.tolist(), plans.batches(index, cohort), strict=True))
    rounds.append(
      {
        client: [rows[:real] for rows, real in zip(examples, num_real, strict=True)]
        for client, (examples, num_real) in work.items()
      }
    )
  _, images, labels = world.data(model)
  return reference.run(
    algorithm=NAMES.get(algorithm, algorithm),
    network=getattr(reference, model),
    params=world.variables(model)['params'],
    images=images,
    labels=labels,
    rounds=rounds,
    num_clients=len(sizes),
    sizes=sizes,
    **options | changes,
  )


def kept_models(algorithm, state):
  """[N, ...] the clients' own models, None if the algorithm keeps none."""
  if algorithm in ('moon', 'dco_moon'):
    return state.clients.models[0]['params']
  if algorithm == 'sa_moon':
    return state.clients.content.models[0]['params']
  if algorithm in PEERS:
    return state.clients.model['params']
  return state.clients['params'] if algorithm == 'solo' else None


def other_memory(algorithm, state, metrics, truth):
  """What else the algorithm keeps or reports: pairs of its and the reference's."""
  if algorithm == 'scaffold':
    yield state.server.memory, truth.control
    for client, control in truth.controls.items():
      yield tree.gather(state.clients, client), control
  if algorithm == 'sa_moon':
    kept = [truth.temperatures[client] for client in range(len(world.SIZES))]
    if state.clients.temperature is None:
      yield state.server.memory, kept[0]
    else:
      yield state.clients.temperature, np.array(kept)
  if algorithm == 'dco_moon':
    yield state.server.memory, truth.exceeding
    deviation = [truth.deviation[client] for client in sorted(truth.deviation)]
    yield metrics.reports['deviation'], np.array(deviation)


def assert_equal_to_reference(algorithm, history, expected):
  for (state, metrics), truth in zip(history, expected, strict=True):
    params = state.server.variables['params']
    if algorithm in PEERS:
      params = jax.tree.map(lambda leaf: leaf.mean(0), kept_models(algorithm, state))
    assert world.largest_difference(params, truth.params) < TOLERANCE
    measured = world.make(algorithm).measured
    means = metrics_lib.means(jax.device_get(metrics), measured)
    for name in metrics.sums:
      wanted = getattr(truth, name)
      assert (name in means) == (wanted is not None)
      if name in means:
        np.testing.assert_allclose(means[name], wanted, atol=TOLERANCE)
    drift = [truth.drift[client] for client in sorted(truth.drift)]
    # A norm over all weights, whose roundings add up: 2.3e-5 of it on some CPU.
    np.testing.assert_allclose(metrics.drift, drift, rtol=1e-4, atol=TOLERANCE)
    stacked = kept_models(algorithm, state)
    for client, own in truth.clients.items() if stacked is not None else ():
      kept = tree.gather(stacked, client)
      assert world.largest_difference(kept, own) < TOLERANCE
    for found, wanted in other_memory(algorithm, state, metrics, truth):
      assert world.largest_difference(found, wanted) < TOLERANCE


def test_every_algorithm_is_tested():
  assert set(world.OPTIONS | world.ROBUST) == set(catalog.names('algorithm'))


# tests/engine/test_peers.py is about that of a single client.
SEVERAL_CLIENTS = [name for name in world.OPTIONS if name != 'centralized']


# All in two lanes, and further below in six; a memory of each kind in one and three.
@pytest.mark.parametrize(
  ('algorithm', 'num_lanes'),
  few(
    [(algorithm, 2) for algorithm in SEVERAL_CLIENTS],
    itertools.product(['scaffold', 'sa_moon', 'decentralized_moon'], [1, 3]),
  ),
)
def test_equals_the_reference(algorithm, num_lanes):
  plans = world.planner(num_lanes)
  # Partial participation: some client is absent and some joins late.
  cohorts = {tuple(plans.plan(index).clients) for index in range(NUM_ROUNDS)}
  assert len(cohorts) > 1
  history = world.run(algorithm, NUM_ROUNDS, plans=plans)
  expected = reference_run(algorithm, NUM_ROUNDS, plans=plans)
  assert_equal_to_reference(algorithm, history, expected)


@pytest.mark.parametrize('algorithm', few(['moon'], ['scaffold']))
def test_a_cohort_of_everybody_equals_the_reference(algorithm):
  plans = world.planner(1, cohort_size=world.NUM_CLIENTS)
  history = world.run(algorithm, NUM_ROUNDS, plans=plans)
  expected = reference_run(algorithm, NUM_ROUNDS, plans=plans)
  assert_equal_to_reference(algorithm, history, expected)


# (devices, lanes): one lane each, two each, more lanes than clients, idle devices.
@pytest.mark.parametrize(
  ('algorithm', 'num_devices', 'num_lanes'),
  few(
    [('moon', 2, 4)],
    [('moon', 2, 2), ('moon', 8, 8)]
    + [(algorithm, 3, 6) for algorithm in SEVERAL_CLIENTS],
  ),
)
def test_devices_share_the_lanes(algorithm, num_devices, num_lanes):
  plans = world.planner(num_lanes, num_devices=num_devices)
  history = world.run(algorithm, NUM_ROUNDS, plans=plans)
  expected = reference_run(algorithm, NUM_ROUNDS, plans=plans)
  assert_equal_to_reference(algorithm, history, expected)


COLLECTIVES = ('all-reduce', 'all-gather', 'all-to-all', 'collective', 'reduce-scatter')


@pytest.mark.parametrize('represent_once', few([True], [False]))
def test_devices_exchange_nothing_while_they_train(represent_once):
  plan = world.planner(4, num_devices=2).plan(0)
  numbers = world.scalars(world.make('moon'))
  run_round = world.compiled_round('moon', 'mlp', represent_once, num_devices=2)
  text = (
    run_round.lower(
      world.first_state('moon'), plan.for_device(), numbers, world.train_split()
    )
    .compile()
    .as_text()
  )
  bodies, loops = {}, []
  for block in re.findall(r'^\S.*?^\}', text, re.MULTILINE | re.DOTALL):
    name = re.match(r'(?:ENTRY )?%?([\w.-]+)', block)[1]
    bodies[name] = block
    loops += re.findall(r' while\(.*?body=%?([\w.-]+)', block)
  assert any(collective in text for collective in COLLECTIVES)
  assert any('dot_general' in bodies[name] for name in loops)
  while loops:
    body = bodies.pop(loops.pop(), '')
    assert not any(collective in body for collective in COLLECTIVES)
    loops += re.findall(r'(?:body|condition|calls|to_apply)=%?([\w.-]+)', body)


@pytest.mark.parametrize('num_lanes', LANES)
def test_representing_every_batch_equals_the_reference_too(num_lanes):
  plans = world.planner(num_lanes)
  history = world.run('moon', NUM_ROUNDS, plans=plans, represent_once=False)
  expected = reference_run('moon', NUM_ROUNDS, plans=plans)
  assert_equal_to_reference('moon', history, expected)


@pytest.mark.parametrize('algorithm', few(['moon'], ['solo']))
def test_the_convolutional_network_equals_the_reference(algorithm):
  history = world.run(algorithm, 2, model='moon_cnn')
  expected = reference_run(algorithm, 2, model='moon_cnn')
  assert_equal_to_reference(algorithm, history, expected)


@pytest.mark.parametrize('algorithm', ['moon', 'fedprox'])
def test_mu_of_zero_is_fedavg_and_another_is_not(algorithm):
  fedavg = world.run('fedavg', 3)[-1][0].server
  without = world.run(algorithm, 3, mu=0.0)[-1][0].server
  with_it = world.run(algorithm, 3)[-1][0].server
  assert world.largest_difference(fedavg.variables, without.variables) < 1e-6
  assert world.largest_difference(fedavg.variables, with_it.variables) > 1e-3


def test_scaffold_begins_as_fedavg_and_goes_on_differently():
  fedavg, scaffold = (world.run(name, 2) for name in ('fedavg', 'scaffold'))
  differences = [
    world.largest_difference(a.server.variables, b.server.variables)
    for (a, _), (b, _) in zip(fedavg, scaffold, strict=True)
  ]
  assert differences[0] < 1e-6
  assert differences[1] > 1e-3


def test_scaffolds_control_is_the_mean_over_all_clients():
  for state, _ in world.run('scaffold', NUM_ROUNDS):
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.clients)
    assert world.largest_difference(state.server.memory, mean) < TOLERANCE
    assert np.sqrt(tree.squared_norm(mean)) > 0.1


def test_annealing_without_sigma_is_moon_and_with_it_is_not():
  moon, still, annealed = (
    world.run(name, 3, **options)[-1][0]
    for name, options in (('moon', {}), ('sa_moon', {'sigma': 0.0}), ('sa_moon', {}))
  )
  variables = moon.server.variables
  assert world.largest_difference(variables, still.server.variables) < 1e-6
  assert world.largest_difference(variables, annealed.server.variables) > 1e-3
  np.testing.assert_array_equal(still.clients.temperature, np.float32(0.5))


def test_the_draws_of_the_annealing_matter():
  # Else the engine would equal the reference by any draws.
  engine = world.run('sa_moon', NUM_ROUNDS)[-1][0].clients.temperature
  always = reference_run('sa_moon', NUM_ROUNDS, uniform=lambda *step: 0.0)
  kept = np.array([always[-1].temperatures[client] for client in range(4)])
  assert np.max(np.abs(engine - kept)) > 1e-3
  assert np.min(engine) == np.float32(0.05)


def test_dco_moon_whose_clients_never_stray_is_moon():
  mu = world.OPTIONS['dco_moon']['mu']
  # The learning rate multiplies weight decay too.
  optimizer = {
    'learning_rate': world.OPTIMIZER['learning_rate'] * 2 * mu,
    'weight_decay': world.OPTIMIZER['weight_decay'] / (2 * mu),
  }
  moon = world.run('moon', 3, mu=0.5, optimizer=optimizer)[-1][0].server
  never = world.run('dco_moon', 3, theta=1e30)[-1][0].server
  some = world.run('dco_moon', 3)[-1][0].server
  assert world.largest_difference(moon.variables, never.variables) < TOLERANCE
  assert world.largest_difference(moon.variables, some.variables) > 1e-3


def test_the_weights_follow_the_share_that_strayed_a_round_before():
  history = world.run('dco_moon', NUM_ROUNDS)
  theta = world.OPTIONS['dco_moon']['theta']
  strayed = [float((m.reports['deviation'] > theta).mean()) for _, m in history]
  assert len(set(strayed)) > 1
  used = [float(metrics.computed['p_t']) for _, metrics in history]
  np.testing.assert_allclose(used, [0.0, *strayed[:-1]], rtol=1e-6)
  mu_t = [float(metrics.computed['mu_t']) for _, metrics in history]
  np.testing.assert_allclose(mu_t, 0.7 * np.array(used), rtol=1e-6)


def test_the_temperature_of_the_server_scope_is_one_for_all():
  history = world.run('sa_moon', 3, scope='server')
  expected = reference_run('sa_moon', 3, scope='server')
  assert_equal_to_reference('sa_moon', history, expected)
  own = world.run('sa_moon', 3)[-1][0]
  assert world.largest_difference(own.server.variables, expected[-1].params) > 1e-4


def test_the_same_batch_at_two_temperatures_equals_the_reference():
  history = world.run('sa_moon', NUM_ROUNDS, acceptance='temperatures')
  expected = reference_run('sa_moon', NUM_ROUNDS, acceptance='temperatures')
  assert_equal_to_reference('sa_moon', history, expected)
  steps = reference_run('sa_moon', NUM_ROUNDS)[-1]
  found = history[-1][0]
  assert world.largest_difference(found.server.variables['params'], steps.params) > 1e-4
  kept = np.array([steps.temperatures[client] for client in range(4)])
  assert np.max(np.abs(found.clients.temperature - kept)) > 1e-3


def test_dco_moon_that_begins_with_mu_equals_the_reference():
  history = world.run('dco_moon', 2, initial='mu')
  expected = reference_run('dco_moon', 2, initial='mu')
  assert_equal_to_reference('dco_moon', history, expected)
  numbers = history[0][1].computed
  assert float(numbers['p_t']) == 1.0
  np.testing.assert_allclose(numbers['mu_t'], 0.7, rtol=1e-6)
  plain = world.run('dco_moon', 1)[0][0].server
  differs = world.largest_difference(history[0][0].server.variables, plain.variables)
  assert differs > 1e-3


@pytest.mark.parametrize(
  'options',
  [
    {'negative': 'init', 'similarity_on': 'features', 'num_previous': 2},
    {'negative': 'global', 'num_previous': 3},
  ],
)
def test_the_options_of_moon_equal_the_reference(options):
  history = world.run('moon', NUM_ROUNDS, **options)
  expected = reference_run('moon', NUM_ROUNDS, **options)
  assert_equal_to_reference('moon', history, expected)
  usual = world.run('moon', NUM_ROUNDS)[-1][0].server.variables
  assert world.largest_difference(history[-1][0].server.variables, usual) > 1e-4


def test_the_first_round_of_moon_is_fedavg_and_the_second_is_not():
  everyone = world.planner(cohort_size=4)
  fedavg = world.run('fedavg', 2, plans=everyone)
  moon = world.run('moon', 2, plans=everyone)
  differences = [
    world.largest_difference(a.server.variables, b.server.variables)
    for (a, _), (b, _) in zip(fedavg, moon, strict=True)
  ]
  assert differences[0] < 1e-6
  assert differences[1] > 1e-3


def test_a_late_joiner_has_no_contrastive_term():
  plans = world.planner()
  history = world.run('moon', NUM_ROUNDS, plans=plans)
  seen, joined_late = set(), 0
  for index, (_, metrics) in enumerate(history):
    sums = metrics.sums['contrastive_loss']
    for slot, client in enumerate(plans.plan(index).clients):
      if int(client) in seen:
        assert sums[slot] > 0
      else:
        assert sums[slot] == 0
        joined_late += index > 0
      seen.add(int(client))
  assert joined_late


def test_absent_clients_keep_their_memory():
  plans = world.planner()
  before = world.first_state('moon')
  (after, _) = world.run('moon', 1, plans=plans)[0]
  present = set(plans.plan(0).clients.tolist())
  for client in range(len(world.SIZES)):
    old, new = (
      jax.tree.map(lambda leaf, i=client: leaf[i], s.clients) for s in (before, after)
    )
    moved = world.largest_difference(old.models, new.models)
    assert (moved > 0) == (client in present)
    assert float(new.count) == (client in present)


def test_solo_leaves_the_global_model_alone():
  state, _ = world.run('solo', 2)[-1]
  assert world.largest_difference(state.server.variables, world.variables()) == 0


def test_filler_content_reaches_nothing():
  plans = world.planner(num_lanes=3)
  plan = plans.plan(0)
  real = np.arange(world.BATCH_SIZE) < plan.num_real[..., None]
  filler = ~(real & plan.step_real[..., None])
  assert filler.any()
  other = plan._replace(rows=np.where(filler, 7, plan.rows).astype(np.int32))
  assert (other.rows != plan.rows).any()

  class Changed:
    segment_steps = 0

    def plan(self, index):
      return other

  changed = world.run('moon', 1, plans=Changed())[-1]
  assert world.largest_difference(changed, world.run('moon', 1, plans=plans)[-1]) < 1e-6


def test_new_numbers_and_cohorts_compile_nothing_anew():
  function = world.compiled_round('moon', *world.DEFAULTS)
  world.run('moon', 3)
  compiled = function._cache_size()
  assert compiled > 0
  world.run('moon', 3, mu=0.125, tau=3.0, plans=world.planner(seed=5))
  assert function._cache_size() == compiled


@pytest.mark.slow
def test_augmentation_is_a_function_of_seed_round_client_and_step():
  options = {'represent_once': False, 'augmentation': 'crop_flip'}
  one_lane = world.run('moon', 2, plans=world.planner(1), **options)[-1]
  shared = world.run('moon', 2, plans=world.planner(6, num_devices=3), **options)[-1]
  assert world.largest_difference(one_lane, shared) < 1e-4
  other = world.run('moon', 2, plans=world.planner(1), seed=1, **options)[-1]
  plain = world.run('moon', 2, plans=world.planner(1), represent_once=False)[-1]
  for different in (other, plain):
    assert world.largest_difference(one_lane[0].server, different[0].server) > 1e-3


def test_every_step_sees_its_batch_augmented():
  # Client 1 owns one batch, so each of its two local epochs is one step.
  plans = world.planner(1, cohort_size=1)
  index = next(i for i in range(20) if plans.plan(i).clients.tolist() == [1])
  plan = plans.plan(index)
  state = world.first_state('fedavg')._replace(round=np.int32(index))
  run_round = world.compiled_round('fedavg', 'mlp', False, 1, 'crop_flip')
  numbers = world.scalars(world.make('fedavg'), seed=3)
  after, _ = run_round(state, plan.for_device(), numbers, world.train_split())

  split, _, labels = world.data()
  augment = augmenter('crop_flip', padding='reflect')
  seen = []
  for step in range(2):
    key = keys.for_purpose(keys.step_key(3, index, 1, step), keys.Purpose.AUGMENT)
    seen.append(augment(key, split.images, plan.rows[step, 0]))
  pixels = np.concatenate(seen).astype(np.float32) / 255
  images = (pixels - split.mean.reshape(1, 1, 1, -1)) / split.std.reshape(1, 1, 1, -1)
  expected = reference.run(
    algorithm='fedavg',
    network=reference.mlp,
    params=world.variables()['params'],
    images=images,
    labels=labels[plan.rows[:2, 0].ravel()],
    rounds=[{1: [np.arange(16), np.arange(16, 32)]}],
    num_clients=4,
    sizes=dict(enumerate(world.SIZES)),
    mu=0.0,
    tau=1.0,
    **world.OPTIMIZER,
  )
  found = after.server.variables['params']
  assert world.largest_difference(found, expected[0].params) < TOLERANCE


def test_what_training_draws_is_a_function_of_seed_round_client_and_step():
  plain, fedavg = world.network(), world.make('fedavg')

  def train(variables, images, mask, key):
    outputs, state = plain.train(variables, images, mask, key)
    noise = jax.random.normal(key, outputs.logits.shape)
    return outputs._replace(logits=outputs.logits + noise), state

  noisy = client_training.LocalTraining(
    fedavg, plain._replace(train=train), optimizers.sgd
  )

  def after(seed, index, num_lanes=1, num_devices=1):
    cohort_training = lanes.cohort_training(
      noisy, represent_once=False, mesh=devices.mesh(num_devices)
    )
    run_round = jax.jit(round_lib.make_round(fedavg, cohort_training, len(world.SIZES)))
    plan = world.planner(num_lanes, num_devices=num_devices).plan(0)
    state = world.first_state('fedavg')._replace(round=np.int32(index))
    numbers = world.scalars(fedavg, seed)
    return run_round(state, plan.for_device(), numbers, world.train_split())[
      0
    ].server.variables

  first = after(0, 0)
  assert world.largest_difference(first, after(0, 0, 6, 3)) < TOLERANCE
  for other in (after(1, 0), after(0, 1)):
    assert world.largest_difference(first, other) > 1e-2
