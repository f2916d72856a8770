"""Runs whose clients are tested on their own examples."""

from types import MappingProxyType

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import moon_jax
from moon_jax.building import experiment
from moon_jax.building.data import DataOptions, load_data
from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.data.scale import numbers_of
from moon_jax.runner import round_records
from tests import reference
from tests.data import federations
from tests.processes import checkpoint
from tests.reference import personal
from tests.reference.networks import Model
from tests.selection import few

# Clients own 45, 75, 89, 1, 20 and 70 examples: client 3 is too small to be tested.
DIGITS = {
  'algorithm': 'fedavg',
  'num_clients': 6,
  'participation': 0.5,
  'num_rounds': 2,
  'local_epochs': 3,
  'optimizer.learning_rate': 0.1,
  'data.limit': 300,
  'data.local_test': 0.25,
  'partition.name': 'quantity',
  'partition.beta': 0.3,
  'partition.seed': 18,
  'partition.min_size': 1,
  'mlp.width': 16,
  'mlp.representation': 8,
}


def config(changes=MappingProxyType({})):
  knobs = DIGITS | changes
  if knobs['partition.name'] == 'iid':
    del knobs['partition.beta']
  return moon_jax.load_config('configs/base.py', knobs)


def columns(line, name):
  return {k: v for k, v in line.items() if k.startswith(name)}


def labels_by(model, images):
  """The labels that a loaded model predicts for grey levels."""
  return model.predict(numbers_of(images, model.scale)).labels


def counted(run, labels_of):
  """[T] correct labels of labels_of(client, images), [T] sizes; the saved rows."""
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  correct, ends = [], saved['local_test_offsets']
  for i, client in enumerate(saved['local_test_clients'].tolist()):
    rows = saved['local_test_indices'][ends[i] : ends[i + 1]]
    labels = labels_of(client, data.train_images[rows])
    correct.append(int(np.sum(labels == data.train_labels[rows])))
  assert saved['local_test_clients'].tolist() == [0, 1, 2, 4, 5]
  return np.array(correct), np.diff(ends), saved


def test_the_global_model_on_each_clients_own_test(tmp_path):
  run = moon_jax.run(config(), tmp_path / 'run')
  model = moon_jax.load(run.workdir)
  correct, sizes, saved = counted(run, lambda _, images: labels_by(model, images))
  expected = round_records.over_clients(correct, sizes, 'local_accuracy')
  recorded = columns(run.metrics[-1], 'local_')
  assert recorded == pytest.approx(expected, rel=1e-12)
  worst = 'local_accuracy_min'
  assert run.summary[worst] == recorded[worst]
  # Every example trains or tests, and none does both.
  together = np.concatenate([saved['indices'], saved['local_test_indices']])
  assert sorted(together.tolist()) == list(range(300))
  assert saved['class_counts'].sum() == 300 - sizes.sum()


def normal(images):
  """Images as the network gets them."""
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  return ((images / 255 - data.mean) / data.std).astype(np.float32)


def predicted(model, images):
  """[M] labels by the reference's network."""
  logits = reference.mlp.forward(model, normal(images), training=False)[-2]
  return np.argmax(logits, 1)


def test_dittos_models_on_each_clients_own_test(tmp_path):
  settings = config({'algorithm': 'ditto', 'ditto.lam': 0.1, 'execution.devices': 2})
  run = moon_jax.run(settings, tmp_path / 'run')
  saved = checkpoint(run.workdir, 2)
  client_params = {}
  for path, (dtype, shape, data) in saved.items():
    if path.startswith('/clients/params/'):
      name = path.removeprefix('/clients/params/')
      client_params[name] = np.frombuffer(data, dtype).reshape(shape)

  def labels_of(client, images):
    params = unflatten_dict({p: leaf[client] for p, leaf in client_params.items()}, '/')
    loaded = moon_jax.load(run.workdir, client=client).variables['params']
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    return predicted(Model(params, {}), images)

  correct, sizes, _ = counted(run, labels_of)
  expected = round_records.over_clients(correct, sizes, 'personal_accuracy')
  recorded = columns(run.metrics[-1], 'personal_accuracy')
  assert recorded == pytest.approx(expected, rel=1e-12)
  # Beside them, the global model is tested on the same examples.
  shared = moon_jax.load(run.workdir)
  local, _, _ = counted(run, lambda _, images: labels_by(shared, images))
  expected = round_records.over_clients(local, sizes, 'local_accuracy')
  assert columns(run.metrics[-1], 'local_') == pytest.approx(expected, rel=1e-12)
  assert (local != correct).any()


@pytest.mark.parametrize('algorithm', few(['apfl'], ['fedrep', 'pfedme', 'fedala']))
def test_the_model_of_each_client_that_is_loaded_is_the_tested_one(algorithm, tmp_path):
  run = moon_jax.run(
    config({'algorithm': algorithm, 'num_rounds': 3}), tmp_path / 'run'
  )

  def labels_of(client, images):
    return labels_by(moon_jax.load(run.workdir, client=client), images)

  correct, sizes, _ = counted(run, labels_of)
  expected = round_records.over_clients(correct, sizes, 'personal_accuracy')
  recorded = columns(run.metrics[-1], 'personal_accuracy')
  assert recorded == pytest.approx(expected, rel=1e-12)


def fine_tuned(run, epochs):
  """[T] images that the global model gets right after each client's fine-tuning."""
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  model = Model(moon_jax.load(run.workdir).variables['params'], {})
  sgd = {'learning_rate': 0.1, 'momentum': 0.9, 'weight_decay': 1e-5}

  def labels_of(client, tested):
    begin, end = saved['offsets'][client : client + 2]
    rows = saved['indices'][begin:end]
    batches = []
    for epoch in range(epochs):
      rng = host_rng(0, Purpose.FINE_TUNE, len(run.metrics) - 1, client, epoch)
      order = rng.permutation(rows)
      batches += [order[k : k + 64] for k in range(0, len(rows), 64)]
    examples = normal(data.train_images), data.train_labels
    tuned = personal.trained(reference.mlp, model, examples, batches, sgd)
    return predicted(tuned, tested)

  return counted(run, labels_of)[:2]


def test_per_fedavgs_models_are_an_inner_step_away_from_the_global_one(tmp_path):
  changes = {'algorithm': 'per_fedavg', 'per_fedavg.alpha': 0.5, 'num_rounds': 3}
  run = moon_jax.run(config(changes), tmp_path / 'run')
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  model = Model(moon_jax.load(run.workdir).variables['params'], {})
  examples = normal(data.train_images), data.train_labels
  # A step of two batches holds the examples of the largest client.
  batch_size = min(64, -(-int(np.diff(saved['offsets']).max()) // 2))

  def labels_of(client, tested, *, is_adapted=True):
    begin, end = saved['offsets'][client : client + 2]
    rng = host_rng(0, Purpose.ADAPT, 2, client, 0)
    batch = rng.permutation(saved['indices'][begin:end])[:batch_size]
    sgd = {'learning_rate': 0.5, 'momentum': 0.0, 'weight_decay': 0.0}
    batches = [batch] if is_adapted else []
    return predicted(
      personal.trained(reference.mlp, model, examples, batches, sgd), tested
    )

  correct, sizes, _ = counted(run, labels_of)
  expected = round_records.over_clients(correct, sizes, 'personal_accuracy')
  recorded = columns(run.metrics[-1], 'personal_accuracy')
  assert recorded == pytest.approx(expected, rel=1e-12)
  before, _, _ = counted(run, lambda c, images: labels_of(c, images, is_adapted=False))
  expected = round_records.over_clients(before, sizes, 'local_accuracy')
  assert columns(run.metrics[-1], 'local_') == pytest.approx(expected, rel=1e-12)
  assert (before != correct).any()


def test_the_global_model_fine_tuned_by_each_client(tmp_path):
  # MOON's clients remember a model, and fine-tuning has no contrastive term. Nor has it
  # a schedule: at the rate of the second round, 1e-5, the model would stay as it is.
  changes = {
    'algorithm': 'moon',
    'execution.client_store': 'disk',
    'optimizer.schedule': 'exponential',
    'optimizer.decay': 1e-4,
    'optimizer.decay_every': 1,
  }
  run = moon_jax.run(config(changes | {'fine_tune_epochs': 5}), tmp_path / 'tuned')
  correct, sizes = fine_tuned(run, 5)
  # Three epochs, as in a round, would give other results.
  assert (correct != fine_tuned(run, 3)[0]).any()
  expected = round_records.over_clients(correct, sizes, 'tuned_accuracy')
  assert columns(run.metrics[-1], 'tuned_') == pytest.approx(expected, rel=1e-12)
  last = run.metrics[-1]
  assert run.summary['tuned_accuracy_mean'] == last['tuned_accuracy_mean']
  assert last['tuned_accuracy_mean'] != last['local_accuracy_mean']
  # All other columns are the same without fine-tuning.
  without = moon_jax.run(config(changes), tmp_path / 'run').metrics
  for line, other in zip(run.metrics, without, strict=True):
    tuned = columns(line, 'tuned_')
    assert {k: v for k, v in line.items() if k not in tuned} == other


def test_fine_tuning_of_a_file_is_for_the_algorithms_that_have_it(tmp_path):
  knobs = DIGITS | {'fine_tune_epochs': 1, 'algorithm': 'solo', 'num_rounds': 1}
  assert not columns(moon_jax.run(knobs, tmp_path / 'run').metrics[-1], 'tuned_')


@pytest.mark.parametrize(
  ('changes', 'problem'),
  [
    ({'data.local_test': 0.0}, 'fine_tune_epochs=1 needs tests of each client'),
    ({'algorithm': 'fedper'}, 'fine_tune_epochs=1 needs a global model, and here each'),
  ],
)
def test_what_cannot_be_fine_tuned(changes, problem):
  settings = config({'fine_tune_epochs': 1} | changes)
  with pytest.raises(UsageError, match=problem):
    experiment.build(moon_jax.config.validate(settings))


@pytest.mark.parametrize(
  ('algorithm', 'tier'), few([('solo', 'disk')], [('fedper', 'device')])
)
def test_each_clients_own_model_on_its_own_test(algorithm, tier, tmp_path):
  changes = {
    'algorithm': algorithm,
    'local_epochs': 20,
    'execution.client_store': tier,
  }
  run = moon_jax.run(config(changes), tmp_path / 'run')
  models = [moon_jax.load(run.workdir, client=client) for client in range(6)]
  correct, sizes, _ = counted(run, lambda i, images: labels_by(models[i], images))
  # The model of another client gives other results.
  others = counted(run, lambda i, images: labels_by(models[i - 1], images))[0]
  assert (correct != others).any()
  expected = round_records.over_clients(correct, sizes, 'personal_accuracy')
  assert columns(run.metrics[-1], 'personal_') == pytest.approx(expected, rel=1e-12)
  assert not columns(run.metrics[-1], 'local_')


@pytest.mark.slow
def test_the_devices_share_the_clients():
  lines = []
  for devices in 1, 4:
    changes = {
      'participation': 0.7,
      'num_rounds': 1,
      'local_epochs': 1,
      'execution.devices': devices,
    }
    lines += [round.metrics for round in moon_jax.rounds(config(changes))]
  assert columns(lines[0], 'local_') == pytest.approx(columns(lines[1], 'local_'))


def test_natural_users_are_tested_on_their_tests(tmp_path):
  federation = federations.make_federation()
  knobs = federations.npz(tmp_path, federation) | {'partition.name': 'natural'}
  knobs |= {'partition.min_size': 5, 'data.local_test': 0.0, 'algorithm': 'solo'}
  knobs |= {'data.limit': 0, 'participation': 1.0}
  knobs = DIGITS | knobs
  for name in ('num_clients', 'partition.beta', 'partition.seed'):
    del knobs[name]
  settings = moon_jax.load_config('configs/base.py', knobs)
  run = moon_jax.run(settings, tmp_path / 'run')
  names = np.load(run.workdir / 'partition.npz')['clients'].tolist()
  correct, sizes = [], []
  for client, name in enumerate(names):
    if name in federation['test']:
      images, labels = federation['test'][name]
      model = moon_jax.load(run.workdir, client=client)
      correct.append(np.sum(model.predict(images).labels == labels))
      sizes.append(len(labels))
  expected = round_records.over_clients(
    np.array(correct), np.array(sizes), 'personal_accuracy'
  )
  assert columns(run.metrics[-1], 'personal_') == pytest.approx(expected, rel=1e-12)
  # With local_test there would be a second test of the same clients.
  knobs['data.local_test'] = 0.25
  settings = moon_jax.load_config('configs/base.py', knobs)
  with pytest.raises(UsageError, match=r'local_test=0\.25 must be 0\.0: the test exam'):
    experiment.build(moon_jax.config.validate(settings))


def test_a_partition_that_is_fixed_has_fixed_tests():
  def tests(seed, partition_seed=18):
    changes = {'partition.name': 'iid', 'seed': seed, 'partition.seed': partition_seed}
    built = experiment.build(moon_jax.config.validate(config(changes)))
    return built.tests.of_clients.rows.tolist()

  assert tests(seed=0) == tests(seed=1)
  first, second = (tests(seed, partition_seed='auto') for seed in (0, 1))
  assert first != second
