"""Personal models against their reference, by hand, and reduced to FedAvg."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from moon_jax import catalog, config
from moon_jax.algorithms import base, ditto, fedbabu, fedbn, fedper, private
from moon_jax.building.network import NetworkOptions, make_network
from moon_jax.core import tree
from moon_jax.core.errors import UsageError
from moon_jax.core.types import Form, Layers, Server, Task, Upload
from moon_jax.round import optimizers
from tests import reference, world
from tests.reference import personal
from tests.selection import few

NUM_ROUNDS = 3
SGD = world.OPTIMIZER
HEAD = {('params', 'classifier', leaf) for leaf in ('kernel', 'bias')}


def planner(algorithm=None, **options):
  return world.planner(has_server=True, algorithm=algorithm, **options)


def run(chosen, model='mlp', plans=None, num_rounds=NUM_ROUNDS, run_round=None):
  """The state and the metrics after each round, in NumPy.

  `run_round` is a compiled round that another run may have compiled already.
  """
  plans = plans or planner(chosen)
  state = world.state_of(chosen, model)
  num_clients = plans.participation.num_clients
  if run_round is None:
    round_options = world.RoundOptions(model=model, num_clients=num_clients)
    run_round = world.round_of(chosen, round_options)
  history = []
  for index in range(num_rounds):
    plan = plans.plan(index).for_device()
    split = world.train_split(model)
    state, metrics = run_round(state, plan, world.scalars(chosen), split)
    history.append((state, metrics))
  return jax.device_get(history)


@functools.cache
def history_of(algorithm, **options):
  """A run that several tests share, of FedAvg or of one of world.PERSONAL."""
  return run(world.make(algorithm, **options))


def reference_history(model='mlp', plans=None, **kind):
  """The rounds of the reference; `kind` says which personal algorithm it is."""
  plans = plans or planner()
  _, images, labels = world.data(model)
  params = world.variables(model)['params']
  rounds = [world.batches_of(plans, index) for index in range(NUM_ROUNDS)]
  # Some client is absent in some round, and some joins late.
  assert len({tuple(cohort) for cohort in rounds}) > 1
  return personal.run(
    getattr(reference, model),
    params,
    (images, labels),
    sizes=plans.training.data.sizes,
    rounds=rounds,
    sgd=SGD,
    **kind,
  )


def models_of(chosen, state):
  if chosen.personal:
    return chosen.personal(state.server, state.clients)
  return chosen.evaluated(state.server, state.clients)


def assert_equal(chosen, history, expected):
  for (state, _), truth in zip(history, expected, strict=True):
    params = state.server.variables['params']
    assert world.largest_difference(params, truth.server.params) < 1e-5
    models = models_of(chosen, state)
    for client, true_model in truth.personal.items():
      model = world.of_client(models, client)
      assert world.largest_difference(model['params'], true_model.params) < 1e-5
      stats = model.get('batch_stats', {})
      assert not stats or world.largest_difference(stats, true_model.stats) < 1e-5
  true_params = [true_model.params for true_model in expected[-1].personal.values()]
  assert world.largest_difference(true_params[1], true_params[2]) > 1e-3


@pytest.mark.parametrize(
  ('layers', 'names'),
  few(
    [('head_output, encoder', ['head_output', 'encoder'])],
    [('', ['classifier'])],
  ),
)
def test_fedper_equals_the_reference(layers, names):
  chosen = world.make('fedper', layers=layers)
  history = history_of('fedper', layers=layers)
  assert_equal(chosen, history, reference_history(private=names))


def test_fedbabu_equals_the_reference():
  history = run(world.make('fedbabu'))
  expected = reference_history(fixed=['classifier'])
  first = world.variables()['params']
  for (state, _), truth in zip(history, expected, strict=True):
    params = state.server.variables['params']
    assert world.largest_difference(params, truth.server.params) < 1e-5
    # The head stays equal to the last bit, with weight decay and momentum on.
    assert world.largest_difference(params['classifier'], first['classifier']) == 0
  # FedAvg's head and body are others.
  fedavg = history_of('fedavg')[-1][0].server.variables
  for name in ('classifier', 'encoder'):
    assert world.largest_difference(fedavg['params'][name], params[name]) > 1e-4


@pytest.mark.slow
def test_fedbabu_that_trains_the_head_is_fedavg():
  unfixed = run(fedbabu.with_fixed(frozenset()))[-1][0].server.variables
  fedavg = history_of('fedavg')[-1][0].server.variables
  assert world.largest_difference(unfixed, fedavg) < 1e-6


def test_fedbabu_by_hand():
  # Weight decay 0.1, rate 0.1, no gradient: after two steps a body of 1 is 0.99^2, and
  # the head stays 0.7, where a head without its gradient alone would be 0.68607.
  chosen = fedbabu.with_fixed(frozenset({('params', 'head')}))
  optimizer = optimizers.sgd(learning_rate=0.1, momentum=0.0, weight_decay=0.1)
  params = {'body': jnp.float32(1.0), 'head': jnp.float32(0.7)}
  optimizer_state = optimizer.init(params)
  for _ in range(2):
    zeros = tree.subtract(params, params)
    updates, optimizer_state = optimizer.update(zeros, optimizer_state, params)
    params = chosen.after_update(tree.add(params, updates), params, None)
  assert params['head'] == jnp.float32(0.7)
  assert params['body'] == pytest.approx(0.9801)
  # What `clip_norm` measures.
  assert chosen.correct(params, None) == {'body': params['body'], 'head': 0.0}
  # Bodies 1 and 5 of clients with 3 and 1 examples become 2. The head is not sent.
  sent, _ = chosen.upload({'params': params}, Task(None, None, (), {}, {}))
  assert sent.weighted == {'params': {'body': params['body']}}
  server = Server({'params': {'body': 0.0, 'head': 0.7}}, ())
  mean = Upload({'params': {'body': 0.75 * 1 + 0.25 * 5}})
  variables = chosen.aggregate(server, mean, None, {}).variables
  assert variables == {'params': {'body': 2.0, 'head': 0.7}}


def test_fedbn_equals_the_reference():
  chosen = world.make('fedbn', 'mlp_bn')
  # No batch of a single example, whose unbiased variance the two take differently.
  plans = planner(sizes=(2, 16, 39, 18))
  history = run(chosen, 'mlp_bn', plans)
  assert_equal(chosen, history, reference_history('mlp_bn', plans, private=['norm']))


@pytest.mark.parametrize('epochs', few([3], [1]))
def test_ditto_equals_the_reference(epochs):
  knobs = {'lam': 0.7, 'epochs': epochs, 'learning_rate': 0.02}
  chosen = world.make('ditto', **knobs)
  plans = planner(chosen)
  history = history_of('ditto', **knobs)
  second_batches = [
    world.batches_of(plans, index, plans.second_training) for index in range(NUM_ROUNDS)
  ]
  expected = reference_history(plans=plans, ditto=(0.7, 0.02, second_batches))
  assert_equal(chosen, history, expected)
  # The recorded loss is a mean over the examples of the personal training.
  assert all(np.isfinite(m.reports['personal_loss']).all() for _, m in history)


@pytest.mark.parametrize(('lam', 'epochs'), few([(0.7, 3)], [(0.0, 2), (2.0, 2)]))
def test_the_global_track_of_ditto_is_fedavg_to_the_last_bit(lam, epochs):
  plain = history_of('fedavg')
  history = history_of('ditto', lam=lam, epochs=epochs, learning_rate=0.02)
  for (state, metrics), (fedavg, fedavg_metrics) in zip(history, plain, strict=True):
    jax.tree.map(np.testing.assert_array_equal, state.server, fedavg.server)
    jax.tree.map(np.testing.assert_array_equal, metrics.sums, fedavg_metrics.sums)
  # A client's personal model is not the global model.
  server = history[-1][0].server.variables
  personal_model = world.of_client(history[-1][0].clients, 1)
  assert world.largest_difference(personal_model, server) > 1e-3


def test_the_second_training_draws_batches_of_its_own():
  plan = planner(world.make('ditto', epochs=2)).plan(1)
  assert (plan.schedule.example_rows != plan.second_schedule.example_rows).any()
  assert planner().plan(1).second_schedule is None


def test_the_second_training_has_as_many_epochs_as_the_first_or_its_own():
  knobs = {'local_epochs': 5, 'local_epochs_min': 1}
  training, clients = planner(**knobs).training, np.arange(len(world.SIZES))
  drawn, all_steps = training.steps_of_round(0, clients), training.real_steps(clients)
  assert (drawn < all_steps).any()
  for epochs, steps in ((None, drawn), (3, all_steps // 5 * 3)):
    ditto = world.make('ditto')
    second_training = ditto.second_training._replace(epochs=epochs)
    ditto = ditto._replace(second_training=second_training)
    second = planner(ditto, **knobs).second_training
    np.testing.assert_array_equal(second.steps_of_round(0, clients), steps)


@pytest.mark.slow
def test_both_trainings_know_their_clients_data():
  def loss(outputs, references, params, task, batch):
    total, parts = base.supervised(outputs, references, params, task, batch)
    return total * task.class_counts.sum(), parts

  facts = frozenset({'class_counts'})
  second = base.Algorithm(loss=loss, needs=facts, upload=lambda m, task: (Upload(), m))
  chosen = base.Algorithm(
    needs=facts,
    init_client=lambda variables: variables,
    second_training=base.SecondTraining(second),
  )
  run_round, losses = world.round_of(chosen), []
  for factor in (1, 2):
    counts = np.full((len(world.SIZES), 10), factor, np.float32)
    plans = planner(chosen, client_facts={'class_counts': counts})
    _, metrics = run(chosen, plans=plans, num_rounds=1, run_round=run_round)[0]
    losses.append(metrics.reports['personal_loss'])
  assert (losses[1] > 1.5 * losses[0]).all()


def test_ditto_by_hand():
  # L = (v - 4)^2 / 2, w = 0 and eta 0.1: v is 0.4 after a step, and after two 0.76,
  # 0.72 and 0.64 for lambda 0, 1 and 3. From v = 1 and w = 2 it is 1.4 and 1.72.
  def after(lam, v, w, steps):
    second = ditto.ditto(lam=lam).second_training.algorithm
    task = Task({'params': {'v': w}}, None, (), {'lam': lam}, {})
    for _ in range(steps):

      def loss(params):
        outputs = None
        with pytest.MonkeyPatch.context() as patch:
          quadratic = jnp.sum(jnp.square(params['v'] - 4.0)) / 2
          patch.setattr(base, 'supervised', lambda *arguments: (quadratic, {}))
          return second.loss(outputs, {}, params, task, None)[0]

      v = v - 0.1 * jax.grad(loss)({'v': v})['v']
    return float(v)

  def at(lam, v=0.0, w=0.0, steps=2):
    return after(lam, jnp.float32(v), jnp.float32(w), steps)

  assert at(1.0, steps=1) == pytest.approx(0.4)
  assert [at(lam) for lam in (0.0, 1.0, 3.0)] == pytest.approx([0.76, 0.72, 0.64])
  assert at(1.0, 1.0, 2.0, 1) == pytest.approx(1.4)
  assert at(1.0, 1.0, 2.0) == pytest.approx(1.72)


def _stack(trees):
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def test_private_variables_by_hand():
  # Sizes 3 and 1, bases 1 and 5, heads 10 and 20: the base becomes 2, and the heads
  # stay, the server's first one too; FedAvg would have 12.5.
  chosen = private.with_private(frozenset({('params', 'head')}))
  trained = [
    {'params': {'base': jnp.float32(base), 'head': jnp.float32(head)}}
    for base, head in ((1, 10), (5, 20))
  ]
  task = Task(None, None, (), {}, {})
  uploads = [chosen.upload(model, task) for model in trained]
  sent = _stack([upload.weighted for upload, _ in uploads])
  mean = tree.weighted_sum(sent, jnp.array([0.75, 0.25]))
  first = {'params': {'base': jnp.float32(0), 'head': jnp.float32(7)}}
  server = chosen.aggregate(Server(first, ()), Upload(mean), None, {})
  assert server.variables == {'params': {'base': 2.0, 'head': 7.0}}
  clients = _stack([memory for _, memory in uploads])
  tested = chosen.evaluated(server, clients)['params']
  assert tested['base'].tolist() == [2.0, 2.0]
  assert tested['head'].tolist() == [10.0, 20.0]


def test_layers_are_found_by_what_they_do():
  layers = world.network('mlp_bn').layers()
  assert layers.output == HEAD
  names = {'params': ('scale', 'bias'), 'batch_stats': ('mean', 'var')}
  assert layers.batch_norm == {
    (kind, 'norm', leaf) for kind, leaves in names.items() for leaf in leaves
  }


PICTURE = (32, 32, 3), Form()
WORDS = (12,), Form(kind='words', axes='T', content='words', vocabulary=5)
EXAMPLES = {
  'cnn_1d': ((32, 3), Form(kind='signal', axes='TC', content='numbers')),
  'cnn_3d': ((8, 8, 8, 1), Form(kind='volume', axes='DHWC', content='numbers')),
  'gru': WORDS,
  'transformer': WORDS,
}


@pytest.mark.parametrize(
  'model', few(['dco_cnn', 'cnn_transformer'], catalog.names('model'))
)
def test_layers_of_every_network(model):
  options = NetworkOptions(config.validate({'model': model}))
  shape, form = EXAMPLES.get(model, PICTURE)
  network = make_network(options, shape, 10, form=form)
  layers, variables = network.layers(), flatten_dict(network.shapes)
  assert layers.paths == variables.keys()
  last_layer = 'fc2' if model == 'dco_cnn' else 'classifier'
  classifier = {path for path in variables if last_layer in path}
  assert layers.output == classifier
  assert {path[0] for path in classifier} == {'params'}
  norms = {path[1:-1] for path in variables if path[0] == 'batch_stats'}
  assert layers.batch_norm == {path for path in variables if path[1:-1] in norms}


@pytest.mark.parametrize(
  ('layers', 'problem'),
  [
    (
      'encoder,clasifier',
      "names 'clasifier', which is no layer .*; it has classifier,",
    ),
    (
      'classifier,encoder,head_hidden,head_output',
      'must name some layers .* but not all; it has classifier, encoder, head_',
    ),
  ],
)
def test_layers_that_cannot_be_personal(layers, problem):
  with pytest.raises(UsageError, match=f'layers={layers!r} {problem}'):
    world.make('fedper', layers=layers)


def test_networks_that_do_not_fit():
  with pytest.raises(UsageError, match=r"the network has none.*moon_cnn.norm='batch'"):
    world.make('fedbn')
  no_kinds = Layers(frozenset({('params', 'a', 'b')}), frozenset(), frozenset())
  with pytest.raises(UsageError, match='must name some layers'):
    fedper.fedper(layers='', network_layers=no_kinds)
  with pytest.raises(UsageError, match='never trains the output layer'):
    fedbabu.fedbabu(network_layers=no_kinds)
  assert fedbn.fedbn(network_layers=no_kinds._replace(batch_norm=no_kinds.paths))
