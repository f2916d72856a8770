"""The engine against the reference, and the reductions between the algorithms."""

import functools
import re

import jax
import numpy as np
import pytest

from moon_jax import catalog
from moon_jax.core import device_keys, keys
from moon_jax.data import device_split
from moon_jax.data.augment import augmenter
from moon_jax.runner import round_records
from tests import reference, world
from tests.selection import few

NUM_ROUNDS = 4
TOLERANCE = 1e-5
# Without a server -> the algorithm that the reference runs on a mixing matrix.
PEERS = {'decentralized_fedavg': 'fedavg', 'decentralized_moon': 'moon'}
# Terms that algorithms add to the loss.
RIVAL_LOSSES = dict.fromkeys(
  (
    *('prototype_loss', 'distance_loss', 'distillation_loss', 'correlation_loss'),
    'linear_loss',
  ),
  'rival_loss',
)
# Our names -> the reference's.
NAMES = PEERS | {'centralized': 'centralised'}
# The ring of neighbours is 0 - 1 - 2 - 3 - 0.
RING = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


@jax.jit
def draw(round_index, client, step):
  """The engine's own draw of whether a step's temperature is taken."""
  key = device_keys.step_key(0, round_index, client, step)
  return jax.random.uniform(device_keys.for_purpose(key, keys.Purpose.ANNEALING))


def reference_run(algorithm, num_rounds, *, model='mlp', plans=None, **changes):
  """The reference on the planner's batches; a client without batches does not train."""
  plans = plans or world.planner()
  sizes = dict(enumerate(plans.training.data.sizes.tolist()))
  options = (world.OPTIONS | world.ROBUST)[algorithm] | world.OPTIMIZER
  options = {'mu': 0.0, 'tau': 1.0, 'uniform': draw} | options
  cohorts = [plans.plan(index).clients for index in range(num_rounds)]
  if algorithm in PEERS:
    everyone = reference.metropolis_hastings(changes.pop('graph', RING))
    options['mixing'] = [reference.without_absent(everyone, c) for c in cohorts]
  rounds = [world.batches_of(plans, index) for index in range(num_rounds)]
  _, images, labels = world.data(model)
  arguments = {
    'algorithm': NAMES.get(algorithm, algorithm),
    'network': getattr(reference, model),
    'params': world.variables(model)['params'],
    'images': images,
    'labels': labels,
    'rounds': rounds,
    'num_clients': len(sizes),
    'sizes': sizes,
  }
  return reference.run(**arguments | options | changes)


@functools.cache
def usual_reference(algorithm):
  """Its NUM_ROUNDS rounds of the world's plans, which no number of lanes changes."""
  return reference_run(algorithm, NUM_ROUNDS)


def kept_models(algorithm, state):
  """[N, ...] the clients' own models, None if the algorithm keeps none."""
  if algorithm in ('moon', 'dco_moon'):
    return state.clients.models[0]['params']
  if algorithm == 'sa_moon':
    return state.clients.content.models[0]['params']
  if algorithm in PEERS:
    return state.clients.model['params']
  return state.clients['params'] if algorithm in ('solo', 'fedproto') else None


def other_memory(algorithm, state, metrics, truth):
  """All else that the algorithm keeps or reports: pairs of ours and the reference's."""
  if algorithm == 'scaffold':
    yield state.server.memory, truth.control
    for client, control in truth.controls.items():
      yield world.of_client(state.clients, client), control
  if algorithm == 'mofedsam':
    yield state.server.memory, truth.last_change
  if algorithm == 'sa_moon':
    temperatures = [truth.temperatures[client] for client in range(len(world.SIZES))]
    if state.clients.temperature is None:
      yield state.server.memory, temperatures[0]
    else:
      yield state.clients.temperature, np.array(temperatures)
  if algorithm == 'feddyn':
    yield state.server.memory.h, truth.control
    for client, gradient in truth.controls.items():
      yield world.of_client(state.clients, client), gradient
  if algorithm == 'fednova':
    yield state.server.memory, truth.pace
  if algorithm in ('fedproc', 'fedproto'):
    prototypes = state.server.memory
    if algorithm == 'fedproc':
      prototypes = prototypes.prototypes
    assert {*np.flatnonzero(prototypes.there)} == {*truth.prototypes}
    for label, vector in truth.prototypes.items():
      yield prototypes.vectors[label], vector
  if algorithm == 'fedexp':
    yield state.server.memory.eta_g, truth.pace
  if algorithm == 'dco_moon':
    yield state.server.memory, truth.exceeding
    deviation = [truth.deviation[client] for client in sorted(truth.deviation)]
    yield metrics.reports['deviation'], np.array(deviation)


def of_some(metrics, is_chosen):
  """The metrics of some clients; is_chosen: [K] bool."""
  names = ('sums', 'num_summed', 'num_seen', 'drift', 'reports', 'finite')
  of_all = {name: getattr(metrics, name) for name in names}
  return metrics._replace(**jax.tree.map(lambda leaf: leaf[is_chosen], of_all))


# A number that a round records of the round before, and its first value.
RECORDED = {'fednova': ('tau_eff', 0.0), 'fedexp': ('eta_g', 1.0)}


def assert_equal_to_reference(algorithm, history, expected):
  recorded, before = RECORDED.get(algorithm, ('', 0.0))
  for (state, metrics), truth in zip(history, expected, strict=True):
    if recorded:
      np.testing.assert_allclose(metrics.computed[recorded], before, rtol=1e-5)
      before = truth.pace
    params = state.server.variables['params']
    if algorithm in PEERS:
      params = jax.tree.map(lambda leaf: leaf.mean(0), kept_models(algorithm, state))
    assert world.largest_difference(params, truth.params) < TOLERANCE
    measured = world.make(algorithm).measured
    means = round_records.means(metrics, measured)
    for name in metrics.sums:
      true_mean = getattr(truth, RIVAL_LOSSES.get(name, name))
      assert (name in means) == (true_mean is not None)
      if name in means:
        np.testing.assert_allclose(means[name], true_mean, atol=TOLERANCE)
    drift = [truth.drift[client] for client in sorted(truth.drift)]
    # The drift is a norm over all weights, whose rounding errors add up: 2.3e-5 of it
    # on some CPU.
    np.testing.assert_allclose(metrics.drift, drift, rtol=1e-4, atol=TOLERANCE)
    stacked = kept_models(algorithm, state)
    if stacked is not None:
      for client, true_model in truth.clients.items():
        client_model = world.of_client(stacked, client)
        assert world.largest_difference(client_model, true_model) < TOLERANCE
    for memory, true_memory in other_memory(algorithm, state, metrics, truth):
      assert world.largest_difference(memory, true_memory) < TOLERANCE


def test_no_key_is_drawn_from_twice():
  chosen, model = world.make('sa_moon', 'mlp_dropout'), 'mlp_dropout'
  round_options = world.RoundOptions(model=model, augmentation='crop_flip')
  plan = world.planner().plan(0).for_device()
  with jax.debug_key_reuse(True):  # looks when a program is traced
    world.round_of(chosen, round_options).trace(
      world.state_of(chosen, model),
      plan,
      world.scalars(chosen),
      world.train_split(model),
    )


def test_every_algorithm_is_tested():
  known = world.OPTIONS | world.ROBUST | world.PERSONAL
  assert set(known) == set(catalog.names('algorithm'))


# tests/building/test_peers.py tests `centralized`, which has a single client.
SEVERAL_CLIENTS = [name for name in world.OPTIONS if name != 'centralized']
# Algorithms whose server or clients keep something between rounds.
REMEMBERING = (
  *('scaffold', 'sa_moon', 'dco_moon', 'mofedsam', 'feddyn', 'fednova', 'fedexp'),
  *('fedproc', 'fedproto', 'decentralized_moon', 'solo'),
)


# All algorithms run in two lanes of one device. Those that remember something, and
# FedAvg, run in six lanes of three devices, and some in one or three lanes. There are
# also cases with one lane for each client, and with more lanes than clients and idle
# devices.
@pytest.mark.parametrize(
  ('algorithm', 'num_devices', 'num_lanes'),
  few(
    [(algorithm, 1, 2) for algorithm in SEVERAL_CLIENTS],
    [
      *[('scaffold', 1, 1), ('sa_moon', 1, 3), ('decentralized_moon', 1, 3)],
      *[(algorithm, 3, 6) for algorithm in ('fedavg', *REMEMBERING)],
      *[('moon', 2, 2), ('moon', 8, 8)],
    ],
  ),
)
def test_equals_the_reference(algorithm, num_devices, num_lanes):
  plans = world.planner(num_lanes, num_devices=num_devices)
  # Partial participation: some client is absent and some joins late.
  cohorts = {tuple(plans.plan(index).clients) for index in range(NUM_ROUNDS)}
  assert len(cohorts) > 1
  history = world.run(algorithm, NUM_ROUNDS, plans=plans)
  assert_equal_to_reference(algorithm, history, usual_reference(algorithm))


def looped(text):
  """The text of a compiled program's loops, and of the computations that they call."""
  bodies, names = {}, []
  for block in re.findall(r'^\S.*?^\}', text, re.MULTILINE | re.DOTALL):
    bodies[re.match(r'(?:ENTRY )?%?([\w.-]+)', block)[1]] = block
    names += re.findall(r' while\(.*?body=%?([\w.-]+)', block)
  texts = []
  while names:
    texts.append(bodies.pop(names.pop(), ''))
    names += re.findall(r'(?:body|condition|calls|to_apply)=%?([\w.-]+)', texts[-1])
  return '\n'.join(texts)


COLLECTIVES = ('all-reduce', 'all-gather', 'all-to-all', 'collective', 'reduce-scatter')


@pytest.mark.parametrize('represent_once', few([True], [False]))
def test_devices_exchange_nothing_while_they_train(represent_once, monkeypatch):
  plans, chosen = world.planner(4, num_devices=2), world.make('moon')
  run_round = world.compiled_round(
    'moon', world.RoundOptions(represent_once=represent_once, num_devices=2)
  )
  compiled = run_round.lower(
    world.state_of(chosen, num_devices=2),
    plans.plan(0).for_device(),
    world.scalars(chosen),
    world.train_split(),
  ).compile()
  text = compiled.as_text()
  assert any(word in text for word in COLLECTIVES)
  loops = looped(text)
  assert 'dot_general' in loops
  assert not any(collective in loops for collective in COLLECTIVES)
  # This program computes the right numbers.
  monkeypatch.setattr(world, 'compiled_round', lambda *arguments: compiled)
  history = world.run('moon', NUM_ROUNDS, plans=plans)
  assert_equal_to_reference('moon', history, usual_reference('moon'))


FEATURES = {'similarity_on': 'features', 'num_previous': 2, 'represent_once': False}
FEATURES |= {'negative': 'init'}
KEEPING = [('scaffold', {}), ('moon', {'num_previous': 2})]
KEEPING += [('sa_moon', {}), ('dco_moon', {}), ('moon', {}), ('solo', {})]
KEEPING += [('decentralized_moon', {}), ('decentralized_fedavg', {})]


# If each client copied the cohort's memories, a round would cost its size squared.
@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'options', 'num_lanes'),
  [
    ('moon', FEATURES, 2),
    ('scaffold', {}, 1),
    *((*keeping, 2) for keeping in KEEPING),
  ],
)
def test_no_client_copies_the_memories_of_all(algorithm, options, num_lanes):
  options = dict(options)
  round_options = world.RoundOptions(represent_once=options.pop('represent_once', True))
  chosen, plan = world.make(algorithm, **options), world.planner(num_lanes).plan(0)
  run_round = world.compiled_round(algorithm, round_options, **options)
  lowered = run_round.lower(
    world.state_of(chosen),
    plan.for_device(),
    world.scalars(chosen),
    world.train_split(),
  )
  text = lowered.compile().as_text()
  loops, stack = looped(text), rf'= f32\[{len(plan.clients)},\d'
  assert re.search(stack, loops)
  assert not re.findall(rf'{stack}\S* copy\(.*', loops)


OPTIONS = [
  ('moon', FEATURES),
  ('dco_moon', {'initial': 'mu'}),
]
ANNEALING = {'scope': 'server', 'acceptance': 'temperatures'}
MORE_OPTIONS = [
  ('sa_moon', ANNEALING),
  # tests/algorithms/test_rivals.py works these out by hand.
  ('feddecorr', {'scale': 'equation', 'beta': 1.0}),
  ('moon_l2', {'squared': True}),
  ('fedlc', {'true_class': False, 'least_count': 0.5}),
  ('fedrs', {'graded': True}),
  ('feddyn', {'by_size': False}),
  ('fednova', {'tau_eff': 'steps'}),
  ('moon', {'model': 'moon_cnn'}),
  ('moon', {'represent_once': False}),
  ('moon', {'negative': 'global', 'num_previous': 3}),
  *(('sa_moon', {name: value}) for name, value in ANNEALING.items()),
]


@pytest.mark.parametrize(('algorithm', 'options'), few(OPTIONS, MORE_OPTIONS))
def test_options_equal_the_reference_and_change_the_model(algorithm, options):
  num_rounds = 2 if 'model' in options else NUM_ROUNDS
  history = world.run(algorithm, num_rounds, **options)
  options = {k: v for k, v in options.items() if k != 'represent_once'}
  expected = reference_run(algorithm, num_rounds, **options)
  assert_equal_to_reference(algorithm, history, expected)
  if options and 'model' not in options:
    usual = usual_reference(algorithm)[-1]
    assert world.largest_difference(usual.params, expected[-1].params) > 1e-4


@pytest.mark.parametrize(
  ('algorithm', 'num_rounds', 'options', 'other'),
  [
    ('moon', 3, {'mu': 0.0}, 'fedavg'),
    ('fedprox', 3, {'mu': 0.0}, 'fedavg'),
    ('moon_l2', 3, {'mu': 0.0}, 'fedavg'),
    ('fedntd', 3, {'beta': 0.0}, 'fedavg'),
    ('feddecorr', 3, {'beta': 0.0}, 'fedavg'),
    ('fedlc', 3, {'tau': 0.0}, 'fedavg'),
    ('fedrs', 3, {'alpha': 1.0}, 'fedavg'),
    ('fedexp', 3, {'eps': 1e30}, 'fedavg'),
    ('fedproc', 3, {'rise': 1.0}, 'fedavg'),
    ('sa_moon', 3, {'sigma': 0.0}, 'moon'),
    ('scaffold', 1, {}, 'fedavg'),
    ('fedsam', 3, {'rho': 0.0}, 'fedavg'),
    pytest.param(
      *('mofedsam', 3, {'beta': 1.0, 'adaptive': False}, 'fedsam'),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_an_algorithm_without_its_own_part_is_another(
  algorithm, num_rounds, options, other
):
  def last_model(algorithm, num_rounds, **options):
    last_state, _ = world.run(algorithm, num_rounds, **options)[-1]
    return last_state.server.variables

  reduced = last_model(algorithm, num_rounds, **options)
  assert world.largest_difference(reduced, last_model(other, num_rounds)) < 1e-6
  usual = last_model(algorithm, max(num_rounds, 2))
  other_model = last_model(other, max(num_rounds, 2))
  assert world.largest_difference(usual, other_model) > 1e-3


def test_the_weights_follow_the_share_that_strayed_a_round_before():
  history = world.run('dco_moon', NUM_ROUNDS)
  theta = world.OPTIONS['dco_moon']['theta']
  strayed = [float((m.reports['deviation'] > theta).mean()) for _, m in history]
  assert len(set(strayed)) > 1
  p_t = [float(metrics.computed['p_t']) for _, metrics in history]
  np.testing.assert_allclose(p_t, [0.0, *strayed[:-1]], rtol=1e-6)
  mu_t = [float(metrics.computed['mu_t']) for _, metrics in history]
  np.testing.assert_allclose(mu_t, 0.7 * np.array(p_t), rtol=1e-6)


def test_filler_content_reaches_nothing():
  plan = world.planner().plan(0)
  device_plan = plan.for_device()
  rows, num_real = plan.schedule.example_rows, plan.schedule.num_real
  is_real = np.arange(world.BATCH_SIZE) < num_real[..., None]
  is_filler = ~(is_real & plan.step_real[..., None])
  other_rows = np.where(is_filler, 7, rows).astype(np.int32)
  assert (other_rows != rows).any()
  other_schedule = plan.schedule._replace(example_rows=other_rows)
  other_plan = device_plan._replace(schedule=other_schedule)
  run_round = world.compiled_round('moon')
  scalars, train = world.scalars(world.make('moon')), world.train_split()
  ends = [
    run_round(world.first_state('moon'), plan, scalars, train)
    for plan in (device_plan, other_plan)
  ]
  first, second = ends
  assert world.largest_difference(first, second) < 1e-6


def test_new_numbers_and_cohorts_compile_nothing_anew():
  function = world.compiled_round('moon')
  world.run('moon', 3)
  compiled = function._cache_size()
  assert compiled > 0
  world.run('moon', 3, mu=0.125, tau=3.0, plans=world.planner(seed=5))
  assert function._cache_size() == compiled


def test_every_step_sees_its_batch_augmented():
  # Client 1 owns one batch, so each of its two local epochs is one step.
  plans = world.planner(1, cohort_size=1)
  index = next(i for i in range(20) if plans.plan(i).clients.tolist() == [1])
  plan = plans.plan(index)
  state = world.first_state('fedavg')._replace(round=np.int32(index))
  run_round = world.compiled_round(
    'fedavg', world.RoundOptions(represent_once=False, augmentation='crop_flip')
  )
  numbers = world.scalars(world.make('fedavg'), seed=3)
  after, _ = run_round(state, plan.for_device(), numbers, world.train_split())

  split, _, labels = world.data()
  augment = augmenter('crop_flip', padding='reflect')

  @jax.jit
  def augmented(step, rows):
    step_key = device_keys.step_key(3, index, 1, step)
    key = device_keys.for_purpose(step_key, keys.Purpose.AUGMENT)
    images = augment(key, split.images, rows)
    return device_split.normalise(images, split.mean, split.std)

  rows = plan.schedule.example_rows
  images = np.concatenate([augmented(step, rows[step, 0]) for step in range(2)])
  batches = [np.arange(16), np.arange(16, 32)]
  (expected,) = reference.run(
    algorithm='fedavg',
    network=reference.mlp,
    params=world.variables()['params'],
    images=images,
    labels=labels[rows[:2, 0].ravel()],
    rounds=[{1: batches}],
    num_clients=4,
    sizes=dict(enumerate(world.SIZES)),
    **{'mu': 0.0, 'tau': 1.0} | world.OPTIMIZER,
  )
  params = after.server.variables['params']
  assert world.largest_difference(params, expected.params) < TOLERANCE


def test_what_training_draws_is_a_function_of_seed_round_client_and_step():
  fedavg = world.make('fedavg')

  def after(seed, index, num_lanes=1, num_devices=1):
    run_round = world.compiled_round(
      'fedavg', world.RoundOptions(model='mlp_dropout', num_devices=num_devices)
    )
    plan = world.planner(num_lanes, num_devices=num_devices).plan(0)
    state = world.first_state('fedavg', 'mlp_dropout')
    state = state._replace(round=np.int32(index))
    data = world.train_split('mlp_dropout')
    scalars = world.scalars(fedavg, seed)
    state, _ = run_round(state, plan.for_device(), scalars, data)
    return state.server.variables

  first = after(0, 0)
  assert world.largest_difference(first, after(0, 0, 6, 3)) < TOLERANCE
  for other in (after(1, 0), after(0, 1)):
    assert world.largest_difference(first, other) > 1e-2


def test_the_purposes_of_draws_keep_their_numbers():
  # Another number draws anew, so a run would be resumed with other batches.
  assert ' '.join(keys.Purpose.__members__) == (
    'INIT PARTITION COHORT BATCHES SUBSET NOISE AUGMENT TOPOLOGY DROPOUT ANNEALING '
    'FROZEN VALIDATION LOCAL_TEST EPOCHS STRAGGLERS ATTACK SECOND FINE_TUNE '
    'STRAGGLER_STEPS ATTACK_DRAWS SAMPLE ADAPT'
  )
  assert [*keys.Purpose] == [*range(22)]
