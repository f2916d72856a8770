"""FedRep, APFL, pFedMe, Per-FedAvg and FedALA: reference, by hand, reductions."""

import functools
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.algorithms import apfl, fedala, fedrep, per_fedavg, pfedme
from moon_jax.core import tree
from moon_jax.core.types import Batch, Layers, Outputs, Scalars, Server, Upload
from moon_jax.models import Network
from moon_jax.planning.batches import LocalWork, client_batches
from moon_jax.round import optimizers
from moon_jax.round.client_training import LocalTraining
from tests import reference, world
from tests.reference import personalised
from tests.selection import few

NUM_ROUNDS = 3
HEAD = ('classifier',)
KNOBS = {
  'fedrep': {'head_epochs': 3},
  'apfl': {'alpha': 0.4, 'adaptive': True},
  'pfedme': {
    'lam': 2.0,
    'inner_steps': 3,
    'inner_learning_rate': 0.1,
    'beta': 1.5,
    'warm': False,
  },
  'per_fedavg': {'alpha': 0.2, 'hessian': 'difference', 'delta': 0.01},
  'fedala': {'eta': 20.0, 'threshold': 1e9, 'start_epochs': 13, 'example_share': 0.8},
}


def with_knobs(algorithm, changes=MappingProxyType({}), model='mlp'):
  """The algorithm with its KNOBS, some of them changed."""
  return world.make(algorithm, model, **KNOBS.get(algorithm, {}) | changes)


def run(
  chosen,
  *,
  model='mlp',
  sizes=world.SIZES,
  num_lanes=2,
  num_devices=1,
  segment_steps=0,
  run_round=None,
):
  """The plans, and the state and the metrics after each round, in NumPy.

  `run_round` is the compiled round of an algorithm that differs in numbers alone.
  """
  plans = world.planner(
    num_lanes,
    sizes=sizes,
    num_devices=num_devices,
    segment_steps=segment_steps,
    has_server=True,
    algorithm=chosen,
  )
  state = world.state_of(chosen, model, num_devices=num_devices)
  run_round = run_round or world.round_of(
    chosen,
    world.RoundOptions(
      model=model,
      num_devices=num_devices,
      segment_steps=segment_steps,
    ),
  )
  history = []
  for index in range(NUM_ROUNDS):
    plan, split = plans.plan(index).for_device(), world.train_split(model)
    state, metrics = run_round(state, plan, world.scalars(chosen), split)
    history.append((state, metrics))
  return plans, jax.device_get(history)


def compiled_round(algorithm, changes=MappingProxyType({}), model='mlp'):
  """The compiled round of the algorithm with its KNOBS, some of them changed."""
  knobs = KNOBS.get(algorithm, {}) | changes
  return world.compiled_round(algorithm, world.RoundOptions(model=model), **knobs)


@functools.cache
def usual_run(algorithm):
  """A run that several tests share."""
  return run(with_knobs(algorithm), run_round=compiled_round(algorithm))


def expected_rounds(algorithm, plans, knobs, model='mlp'):
  """The rounds of the reference on the planner's batches."""
  rounds, head_rounds = [], []
  for index in range(NUM_ROUNDS):
    cohort = world.batches_of(plans, index)
    if algorithm == 'per_fedavg':
      count = plans.training.work.batches_per_step
      cohort = {
        client: [[rows[first::count] for first in range(count)] for rows in batches]
        for client, batches in cohort.items()
      }
    head_cohort = {}
    if plans.second_training:
      head_cohort = world.batches_of(plans, index, plans.second_training)
    if algorithm == 'fedala':  # by epochs
      sizes = plans.second_training.data.sizes
      steps = plans.second_training.work.epoch_steps(sizes)
      head_cohort = {
        client: [
          batches[i : i + steps[client]] for i in range(0, len(batches), steps[client])
        ]
        for client, batches in head_cohort.items()
      }
    rounds.append(cohort)
    head_rounds.append(head_cohort)
  assert len({tuple(cohort) for cohort in rounds}) > 1
  _, images, labels = world.data(model)
  of_reference = personalised.World(
    getattr(reference, model),
    images,
    labels,
    world.OPTIMIZER,
    knobs | {'head': HEAD, 'upper': HEAD},
  )
  params = world.variables(model)['params']
  sizes = plans.training.data.sizes
  return personalised.run(
    algorithm,
    of_reference,
    params,
    sizes=sizes,
    rounds=rounds,
    head_rounds=head_rounds,
  )


def own_models(chosen, state):
  if chosen.personal:
    return jax.vmap(chosen.personal, (None, 0))(state.server, state.clients)
  return chosen.evaluated(state.server, state.clients)


def assert_equal_to_reference(algorithm, chosen, history, expected):
  moved = world.variables()['params']
  for (state, _), truth in zip(history, expected, strict=True):
    params = state.server.variables['params']
    assert world.largest_difference(params, truth.server.params) < 1e-5
    if algorithm == 'per_fedavg':
      continue  # its own models are tested in tests/runner/test_own_tests.py
    models = own_models(chosen, state)
    for client, true_model in truth.personal.items():
      model = world.of_client(models, client)
      assert world.largest_difference(model['params'], true_model.params) < 1e-5
      stats = model.get('batch_stats', {})
      assert not stats or world.largest_difference(stats, true_model.stats) < 1e-5
  if algorithm != 'per_fedavg':
    true_params = [model.params for model in truth.personal.values()]
    assert world.largest_difference(true_params[1], true_params[2]) > 1e-3
  if 'norm' not in params:
    assert world.largest_difference(params, moved) > 1e-3


@pytest.mark.parametrize('algorithm', KNOBS)
def test_equals_the_reference(algorithm):
  plans, history = usual_run(algorithm)
  expected = expected_rounds(algorithm, plans, KNOBS[algorithm])
  chosen = with_knobs(algorithm)
  assert_equal_to_reference(algorithm, chosen, history, expected)


OTHER_KNOBS = [
  ('apfl', {'adaptive': False}, 'mlp'),
  ('pfedme', {'warm': True}, 'mlp'),
  ('per_fedavg', {'hessian': 'none'}, 'mlp'),
  ('fedala', {'threshold': 0.0}, 'mlp'),
  *((algorithm, {}, 'mlp_bn') for algorithm in KNOBS),
]


@pytest.mark.parametrize(
  ('algorithm', 'changes', 'model'), few(OTHER_KNOBS[:1], OTHER_KNOBS)
)
def test_other_knobs_and_batch_normalisation_equal_the_reference(
  algorithm, changes, model
):
  knobs = KNOBS[algorithm] | changes
  # No batch of a single example, whose unbiased variance the two take differently.
  sizes = (6, 12, 39, 18) if model == 'mlp_bn' else world.SIZES
  chosen = with_knobs(algorithm, changes, model)
  run_round = compiled_round(algorithm, changes, model)
  plans, history = run(chosen, model=model, sizes=sizes, run_round=run_round)
  expected = expected_rounds(algorithm, plans, knobs, model)
  assert_equal_to_reference(algorithm, chosen, history, expected)


@pytest.mark.parametrize(
  ('algorithm', 'num_lanes', 'num_devices', 'segment_steps'),
  few(
    [('fedrep', 6, 3, 0)],
    [
      ('fedrep', 1, 1, 0),
      ('fedala', 6, 3, 0),
      ('apfl', 6, 3, 0),
      ('pfedme', 2, 1, 2),
      ('per_fedavg', 6, 3, 0),
      ('fedala', 2, 1, 2),
    ],
  ),
)
def test_lanes_segments_and_devices_change_nothing(
  algorithm, num_lanes, num_devices, segment_steps
):
  _, usual = usual_run(algorithm)
  chosen = with_knobs(algorithm)
  _, history = run(
    chosen,
    num_lanes=num_lanes,
    num_devices=num_devices,
    segment_steps=segment_steps,
  )
  (state, metrics), (usual_state, usual_metrics) = history[-1], usual[-1]
  assert world.largest_difference(state, usual_state) < 1e-5
  if metrics.reports:
    assert world.largest_difference(metrics.reports, usual_metrics.reports) < 1e-5


# --- reductions -----------------------------------------------------------------------


def last_model(history):
  return history[-1][0].server.variables


@pytest.mark.parametrize(('alpha', 'adaptive'), few([(0.0, False)], [(0.6, True)]))
def test_the_global_track_of_apfl_is_fedavg(alpha, adaptive):
  chosen = world.make('apfl', alpha=alpha, adaptive=adaptive)
  _, history = run(chosen, run_round=compiled_round('apfl', {'adaptive': adaptive}))
  _, plain = usual_run('fedavg')
  for (state, metrics), (fedavg, fedavg_metrics) in zip(history, plain, strict=True):
    jax.tree.map(np.testing.assert_array_equal, state.server, fedavg.server)
    jax.tree.map(np.testing.assert_array_equal, metrics.sums, fedavg_metrics.sums)
  v = history[-1][0].clients.model
  if not alpha:  # v never moves, with weight decay on
    first = tree.repeat(world.variables(), world.NUM_CLIENTS)
    assert world.largest_difference(v, first) == 0


@pytest.mark.slow
def test_apfl_with_alpha_1_is_solo():
  _, history = run(world.make('apfl', alpha=1.0, adaptive=False))
  _, solo = run(world.make('solo'))
  v = history[-1][0].clients.model
  assert world.largest_difference(v, solo[-1][0].clients) < 1e-6


@pytest.mark.slow
def test_fedrep_without_head_is_fedavg():
  _, history = run(fedrep.with_head(frozenset(), head_epochs=1))
  _, plain = usual_run('fedavg')
  assert world.largest_difference(last_model(history), last_model(plain)) < 1e-6
  # Joint steps are FedPer: another model.
  _, joint = run(world.make('fedper'))
  _, usual = usual_run('fedrep')
  encoder, usual_encoder = (last_model(h)['params']['encoder'] for h in (joint, usual))
  assert world.largest_difference(encoder, usual_encoder) > 1e-3


@pytest.mark.parametrize('knob', few(['lam'], ['beta']))
def test_pfedme_without_a_pull_or_a_step_stays_where_it_is(knob):
  sgd = world.OPTIMIZER | {'weight_decay': 0.0}
  chosen = with_knobs('pfedme', {knob: 0.0})
  # These are numbers, with which nothing is compiled anew.
  plans = world.planner(has_server=True, algorithm=chosen)
  numbers = world.scalars(chosen, optimizer=sgd)
  state = world.state_of(chosen)
  plan = plans.plan(0).for_device()
  state, _ = compiled_round('pfedme')(state, plan, numbers, world.train_split())
  assert world.largest_difference(state.server.variables, world.variables()) < 1e-7


@pytest.mark.slow
def test_per_fedavg_without_an_inner_step_is_fedavg_on_the_second_batch():
  plans, history = run(with_knobs('per_fedavg', {'alpha': 0.0, 'hessian': 'none'}))
  fedavg = world.make('fedavg')
  state, split = world.state_of(fedavg), world.train_split()
  plan = plans.plan(0)
  rows, num_real = plan.schedule.example_rows, plan.schedule.num_real
  second = plan.schedule._replace(example_rows=rows[..., 1::2], num_real=num_real // 2)
  plan = plan.for_device()._replace(schedule=second)
  state, _ = world.round_of(fedavg)(state, plan, world.scalars(fedavg), split)
  first_round = history[0][0].server.variables
  assert world.largest_difference(state.server.variables, first_round) < 1e-6


def test_fedala_that_learns_nothing_is_fedavg():
  chosen = with_knobs('fedala', {'eta': 0.0})
  _, history = run(chosen, run_round=compiled_round('fedala'))
  _, plain = usual_run('fedavg')
  assert world.largest_difference(last_model(history), last_model(plain)) < 1e-6
  _, usual = usual_run('fedala')
  assert world.largest_difference(last_model(usual), last_model(plain)) > 1e-4


# --- by hand --------------------------------------------------------------------------

ONES = jnp.ones((1, 1, 1, 2))
PLAIN_SGD = {'learning_rate': 0.1, 'momentum': 0.0, 'weight_decay': 0.0}
FAKE = Network(
  shapes=None,
  init=None,
  apply=None,
  train=lambda variables, images, mask, key: (
    Outputs(images[:, 0, 0], images[:, 0, 0], images[:, 0, 0]),
    {},
  ),
)


def floats(number_tree):
  return jax.tree.map(jnp.float32, number_tree)


def trained(chosen, loss, received, memory, num_steps, *, images=ONES, sgd=PLAIN_SGD):
  """(Finished, progress) of local steps on (params, batch) -> loss."""
  numbers = PLAIN_SGD | sgd
  chosen = chosen._replace(
    loss=lambda outputs, references, params, task, batch: (loss(params, batch), {})
  )
  make_optimizer = optimizers.with_clipping(optimizers.sgd)
  training = LocalTraining(chosen, FAKE, make_optimizer)
  scalars = Scalars(floats(dict(chosen.hyperparameters)), floats(numbers), jnp.int32(0))
  batch = Batch(images, jnp.zeros(len(images), jnp.int32), jnp.ones(len(images)))
  facts = {'epoch_steps': jnp.float32(1)}
  progress = training.start(0, received, memory, scalars, batch, facts)
  for _ in range(num_steps):
    progress = training.step(progress, {}, received, scalars, batch, jax.random.key(0))
  return training.finish(progress, received, scalars), progress


def test_fedrep_by_hand():
  # L = (h b - y)^2 / 2 from b = 1: h takes two steps on b, then b one under the new h.
  chosen = fedrep.with_head(frozenset({('params', 'h')}), head_epochs=2)
  assert chosen.second_training.comes_first
  assert chosen.second_training.epochs == 2

  def after(y, h, sgd=PLAIN_SGD):
    def loss(params, batch):
      return jnp.square(params['h'] * params['b'] - y) / 2

    received, memory = floats(({'params': {'b': 1.0}}, {'params': {'h': h}}))
    heads, _ = trained(
      chosen.second_training.algorithm, loss, received, memory, 2, sgd=sgd
    )
    finished, _ = trained(chosen, loss, received, heads.memory, 1, sgd=sgd)
    assert finished.memory == heads.memory
    head, body = finished.memory['params']['h'], finished.upload.weighted['params']
    return float(head), float(body['b'])

  assert after(2.0, 0.5) == pytest.approx((0.785, 1.0953775))
  assert after(-1.0, -0.5) == pytest.approx((-0.595, 1.0240975))
  # Momentum and decay move only what is trained.
  moved = after(2.0, 0.5, {'momentum': 0.5, 'weight_decay': 0.1})
  assert moved == pytest.approx((0.84655, 1.08764530975))
  # Gradients of h and then of b alone are cut to -0.1: those of the other do not count.
  assert after(2.0, 0.5, {'clip_norm': 0.1}) == pytest.approx((0.52, 1.01))
  # Sizes 3 and 1: the body is 1.0775575, and the server's head stays.
  server = Server(floats({'params': {'b': 1.0, 'h': 9.0}}), ())
  mean = Upload(floats({'params': {'b': 0.75 * 1.0953775 + 0.25 * 1.0240975}}))
  params = chosen.aggregate(server, mean, None, {}).variables['params']
  assert params == {'b': pytest.approx(1.0775575), 'h': 9.0}


def square(params, batch):
  return sum(jnp.square(x - 4.0) / 2 for x in jax.tree.leaves(params))


def test_apfl_by_hand():
  # L = (x - 4)^2 / 2, w 0, v 1, alpha 0.5, rate 0.1; gradients at the old weights.
  def after(num_steps, adaptive=True, sgd=PLAIN_SGD):
    received, model = floats(({'params': {'x': 0.0}}, {'params': {'x': 1.0}}))
    memory = apfl.Personal(model, jnp.float32(0.5))
    chosen = apfl.apfl(alpha=0.5, adaptive=adaptive)
    finished, _ = trained(chosen, square, received, memory, num_steps, sgd=sgd)
    v, alpha = finished.memory
    return [
      float(x)
      for x in (finished.upload.weighted['params']['x'], v['params']['x'], alpha)
    ]

  assert after(1) == pytest.approx([0.4, 1.175, 0.85])
  assert after(2) == pytest.approx([0.76, 1.42500625, 1.0])
  assert after(1, adaptive=False) == pytest.approx([0.4, 1.175, 0.5])
  # -4 and 0.5 * -3.5 are cut to -1; the decay of m = 0.5, 0.5 * 0.2 * 0.5, is not.
  clipped = after(1, adaptive=False, sgd={'clip_norm': 1.0, 'weight_decay': 0.2})
  assert clipped == pytest.approx([0.1, 1.095, 0.5])


def test_pfedme_by_hand():
  # L = (x - 4)^2 / 2, w 0, lambda 2, rates 0.1, K 2.
  def after(num_steps, *, warm=False):
    model = floats({'params': {'x': 0.0}})
    chosen = pfedme.pfedme(
      lam=2.0, inner_steps=2, inner_learning_rate=0.1, beta=2.0, warm=warm
    )
    finished, _ = trained(chosen, square, model, model, num_steps)
    models = finished.memory, finished.upload.weighted
    return [float(model['params']['x']) for model in models]

  assert after(1) == pytest.approx([0.68, 0.136])
  assert after(2) == pytest.approx([0.79288, 0.267376])
  assert after(2, warm=True) == pytest.approx([1.05944, 0.320688])
  # Models 0.2 and 0.6 of sizes 3 and 1, w 0, beta 2: 0.6.
  chosen = pfedme.pfedme(lam=2.0, inner_steps=2, inner_learning_rate=0.1, beta=2.0)
  server = Server(floats({'params': {'x': 0.0}}), ())
  mean = Upload(floats({'params': {'x': 0.75 * 0.2 + 0.25 * 0.6}}))
  moved = chosen.aggregate(server, mean, None, floats({'beta': 2.0}))
  assert moved.variables['params']['x'] == pytest.approx(0.6)


@pytest.mark.parametrize(('hessian', 'after'), [('none', 0.28), ('difference', 0.168)])
def test_per_fedavg_by_hand(hessian, after):
  # L(w; a, c) = a (w - c)^2 / 2, w 0, alpha 0.1, rate 0.05; b1 (1, 2), b2 (2, 3) and
  # b3 (4, 0): u 0.2, g -5.6. A step from u would end at 0.48, b1's Hessian at 0.252.
  def loss(params, batch):
    a, c = batch.images[0, 0, 0]
    return a * jnp.square(params['x'] - c) / 2

  chosen = per_fedavg.per_fedavg(alpha=0.1, hessian=hessian, delta=0.01)
  batches = [[1.0, 2.0], [2.0, 3.0], [4.0, 0.0]][: chosen.num_batches]
  images = jnp.array(batches)[:, None, None]
  model = floats({'params': {'x': 0.0}})
  finished, _ = trained(
    chosen, loss, model, (), 1, images=images, sgd={'learning_rate': 0.05}
  )
  assert finished.upload.weighted['params']['x'] == pytest.approx(after, rel=1e-4)
  # All examples of a step are seen; its loss is that of b1.
  assert finished.metrics.num_seen == len(batches)
  assert finished.metrics.num_summed == 1
  assert finished.metrics.sums['train_loss'] == 2.0
  # The own model of 0.28 on b1: 0.452.
  adapted = chosen.adapted
  assert adapted.max_steps == 1
  numbers = adapted.optimizer_scalars(
    floats({'alpha': 0.1}), floats({'learning_rate': 0.05, 'momentum': 0.9})
  )
  model = floats({'params': {'x': 0.28}})
  finished, _ = trained(
    adapted.algorithm, loss, model, model, 1, images=images[:1], sgd=numbers
  )
  assert finished.memory['params']['x'] == pytest.approx(0.452)


def test_fedala_by_hand():
  # L = sum (x - 4)^2 / 2 over a lower and an upper weight, O 3, G 1, eta 0.1.
  upper = frozenset({('params', 'top', 'x')})
  paths = upper | {('params', 'low', 'x')}
  chosen = fedala.fedala(
    layers='',
    eta=0.1,
    example_share=0.8,
    threshold=0.1,
    start_epochs=20,
    evaluate='blend',
    network_layers=Layers(paths=paths, output=upper, batch_norm=frozenset()),
  )
  learning = chosen.second_training.algorithm._replace(
    hyperparameters=chosen.hyperparameters
  )

  def both_layers(x):
    return floats({'params': {'low': {'x': x}, 'top': {'x': x}}})

  memory = fedala.Memory(
    model=both_layers(3.0),
    weights=floats({'params': {'top': {'x': 1.0}}}),
    has_trained=jnp.array(True),
  )

  def learned(num_steps, memory=memory):
    finished, progress = trained(learning, square, both_layers(1.0), memory, num_steps)
    weights = finished.memory.weights['params']['top']['x']
    params = progress.variables['params']
    blend = float(params['top']['x']), float(params['low']['x'])
    return float(weights), blend, progress, finished.memory

  for num_steps, weight, blend in ((1, 0.4, 2.2), (2, 0.04, 2.92), (3, 0.0, 3.0)):
    seen_weight, seen_blend, _, _ = learned(num_steps)
    assert seen_weight == pytest.approx(weight, abs=1e-6)
    assert seen_blend == pytest.approx((blend, 1.0))
  # One batch for W, then one step of rate 0.1.
  finished, _ = trained(chosen, square, both_layers(1.0), learned(1)[-1], 1)
  sent = finished.upload.weighted['params']
  assert sent['top']['x'] == pytest.approx(2.38)
  assert sent['low']['x'] == pytest.approx(1.3)
  # With a batch an epoch, 12 epochs until 10 losses deviate by less than 0.1.
  assert [bool(learned(n)[2].local.has_converged) for n in (11, 12)] == [False, True]
  # In the first round the client trains from G, and W stays 1.
  first = memory._replace(has_trained=jnp.array(False))
  weight, blend, _, first_memory = learned(2, first)
  assert (weight, blend) == (1.0, (1.0, 1.0))
  finished, _ = trained(chosen, square, both_layers(1.0), first_memory, 1)
  sent = finished.upload.weighted['params']
  assert [float(sent[name]['x']) for name in ('top', 'low')] == pytest.approx(
    [1.3, 1.3]
  )
  assert finished.memory.has_trained


def test_fedala_tests_a_client_that_never_trained_by_the_global_model():
  chosen = with_knobs('fedala', {'evaluate': 'trained'})
  variables = world.network().init(0)
  memory = chosen.init_client(variables)
  server = Server(jax.tree.map(lambda leaf: leaf + 1.0, variables), ())
  for has_trained, model in ((False, server.variables), (True, variables)):
    memory = memory._replace(has_trained=jnp.array(has_trained))
    assert world.largest_difference(chosen.personal(server, memory), model) == 0


# --- plans ----------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('size', 'num_real'), [(2, [3]), (24, [24]), (25, [24, 3]), (29, [24, 5])]
)
def test_each_batch_of_a_step_has_an_example(size, num_real):
  work = LocalWork(local_epochs=2, batch_size=8, batches_per_step=3)
  owned = 100 + np.arange(size)
  rows, counts = client_batches(owned, rng_key=(0, 1, 2), work=work)
  assert counts.tolist() == 2 * num_real
  assert len(rows) == work.max_steps(np.array([size]))[0]
  for epoch in range(2):
    steps = range(epoch * len(num_real), (epoch + 1) * len(num_real))
    examples = [row for step in steps for row in rows[step, : counts[step]].tolist()]
    assert set(examples) == set(owned.tolist())
    # Only examples of a step that has fewer than three are repeated.
    assert len(examples) == sum(num_real)


def test_a_part_of_the_examples_is_drawn_anew_in_each_round():
  work = LocalWork(local_epochs=1, batch_size=4, example_share=0.6)
  owned = np.arange(10)

  def drawn(round_index):
    rows, num_real = client_batches(owned, rng_key=(0, round_index, 2), work=work)
    return sorted(r for row, n in zip(rows, num_real, strict=True) for r in row[:n])

  assert [len(drawn(index)) for index in range(2)] == [6, 6]
  assert drawn(0) != drawn(1)
  assert drawn(0) == drawn(0)
  # Two epochs see the same examples.
  rows, _ = client_batches(owned, rng_key=(0, 0, 2), work=work, num_epochs=2)
  assert set(rows[:2].ravel()) == set(rows[2:].ravel()) == set(drawn(0))


def test_the_second_round_of_a_client_may_be_longer():
  chosen = with_knobs('fedala')
  plans = world.planner(has_server=True, algorithm=chosen)
  rounds_before = np.zeros(world.NUM_CLIENTS, int)
  in_order = [plans.in_second_round(index) for index in range(6)]
  for index, in_second_round in enumerate(in_order):
    cohort = plans.cohort(index)
    assert in_second_round == [c for c in cohort.tolist() if rounds_before[c] == 1]
    rounds_before[cohort] += 1
    steps = plans.second_training.steps_of_round(index, cohort, (), in_second_round)
    epoch_steps = plans.second_training.work.epoch_steps(world.SIZES)[cohort]
    epochs = np.where(np.isin(cohort, in_second_round), 13, 1)
    np.testing.assert_array_equal(steps, epochs * epoch_steps)
  # A resumed run, which begins anywhere, has the same plans.
  resumed = world.planner(has_server=True, algorithm=chosen)
  assert [resumed.in_second_round(index) for index in (4, 1)] == [
    in_order[4],
    in_order[1],
  ]
