"""Runs whose clients are tested on their own examples: accuracies and `metrics`."""

from types import MappingProxyType, SimpleNamespace

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import moon_jax
from moon_jax.algorithms.per_fedavg import per_fedavg
from moon_jax.building import client_test_programs, experiment, fine_tuning, programs
from moon_jax.building.data import DataOptions, load_data
from moon_jax.core.errors import UsageError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.data.scale import numbers_of
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import measure
from moon_jax.runner import client_file, round_records
from tests import reference
from tests.processes import checkpoint
from tests.reference import personal
from tests.reference.networks import Model

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
NAMES = 'macro_f1,auc,ece,nll'
METRICS = {'metrics': NAMES}


def config(changes=MappingProxyType({})):
  knobs = DIGITS | changes
  if knobs['partition.name'] == 'iid':
    del knobs['partition.beta']
  return moon_jax.load_config('configs/base.py', knobs)


def columns(line, name):
  return {k: v for k, v in line.items() if k.startswith(name)}


def check_accuracies(line, kind, correct, sizes):
  """Checks the columns of accuracies of clients against their correct labels."""
  expected = round_records.over_clients(correct, sizes, f'{kind}_accuracy')
  assert columns(line, f'{kind}_accuracy') == pytest.approx(expected, rel=1e-12)


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


def measured_by(model, images, labels):
  """The metrics of a loaded model on images of its scale."""
  logits = model.predict(images).logits
  return measure(NAMES.split(','), Classified(labels, logits))


def own_test_labels(run):
  """Client -> the labels of its own test examples."""
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  labels = data.train_labels[saved['local_test_indices']]
  labels_of_clients = np.split(labels, saved['local_test_offsets'][1:-1])
  return dict(zip(saved['local_test_clients'], labels_of_clients, strict=True))


def own_numbers(run, model_of):
  """Metric -> [T] numbers of model_of(client) on the client's own examples."""
  labels_of = own_test_labels(run)
  numbers = {name: [] for name in NAMES.split(',')}

  def measure_client(client, images):
    model = model_of(client)
    images = numbers_of(images, model.scale)
    for name, number in measured_by(model, images, labels_of[client]).items():
      numbers[name].append(number)
    return np.zeros(len(images))

  counted(run, measure_client)
  return {name: np.array(of_clients) for name, of_clients in numbers.items()}


def check_confusion(run, kind, model_of):
  """Checks the confusion matrix that is summed over the clients' own models."""
  expected = np.zeros((10, 10), int)
  labels_of = own_test_labels(run)

  def count_client(client, images):
    predicted = labels_by(model_of(client), images)
    np.add.at(expected, (labels_of[client], predicted), 1)
    return np.zeros(len(images))

  counted(run, count_client)
  arrays = np.load(run.workdir / 'confusion.npz')
  assert arrays[f'{kind}_confusion'].tolist() == expected.tolist()
  assert expected.sum() > 0
  assert (run.workdir / f'confusion_{kind}.png').exists()


def check_clients(line, kind, numbers):
  """Checks the columns of tests of clients against the number of each."""
  for name, of_clients in numbers.items():
    expected = round_records.metrics_over_clients({name: of_clients}, kind)
    recorded = columns(line, f'{kind}_{name}')
    assert recorded == pytest.approx(expected, rel=1e-5)
    assert recorded[f'{kind}_{name}_std'] > 0


# MOON's clients remember a model, and fine-tuning has no contrastive term. Nor has it
# a schedule: at the rate of the second round, 1e-5, the model would stay as it is.
MOON = {
  'algorithm': 'moon',
  'execution.client_store': 'disk',
  'optimizer.schedule': 'exponential',
  'optimizer.decay': 1e-4,
  'optimizer.decay_every': 1,
}


@pytest.fixture(scope='module')
def tuned(tmp_path_factory):
  """A run with a global model, which each client fine-tunes, and with metrics."""
  changes = MOON | METRICS | {'fine_tune_epochs': 5}
  return moon_jax.run(config(changes), tmp_path_factory.mktemp('tuned') / 'run')


@pytest.fixture(scope='module')
def ditto(tmp_path_factory):
  """A run with a global model and clients' own ones."""
  changes = {'algorithm': 'ditto', 'ditto.lam': 0.1, 'execution.devices': 2}
  folder = tmp_path_factory.mktemp('ditto')
  return moon_jax.run(config(changes | METRICS), folder / 'run')


@pytest.fixture(scope='module')
def solo(tmp_path_factory):
  """A run with clients' own models alone, which are on the disk.

  The logits of two clients, with up to 22 tests each, have room, and 3 are in a cohort.
  """
  changes = {'algorithm': 'solo', 'execution.client_store': 'disk', 'local_epochs': 20}
  folder = tmp_path_factory.mktemp('solo')
  with pytest.MonkeyPatch.context() as patched:
    patched.setattr(programs, 'MOST_LOGIT_BYTES', 2 * 4 * 22 * 10)
    return moon_jax.run(config(changes | METRICS), folder / 'run')


def models_of_clients(run):
  return [moon_jax.load(run.workdir, client=client) for client in range(6)]


def test_the_global_model_on_each_clients_own_test(tuned):
  model = moon_jax.load(tuned.workdir)
  correct, sizes, saved = counted(tuned, lambda _, images: labels_by(model, images))
  check_accuracies(tuned.metrics[-1], 'local', correct, sizes)
  worst = 'local_accuracy_min'
  assert tuned.summary[worst] == tuned.metrics[-1][worst]
  # Every example trains or tests, and none does both.
  together = np.concatenate([saved['indices'], saved['local_test_indices']])
  assert sorted(together.tolist()) == list(range(300))
  assert saved['class_counts'].sum() == 300 - sizes.sum()


def test_clients_without_names_are_numbered(tuned):
  model = moon_jax.load(tuned.workdir)
  correct, sizes, saved = counted(tuned, lambda _, images: labels_by(model, images))
  clients = client_file.read(tuned.workdir)
  assert clients.names == ['0', '1', '2', '4', '5']
  assert clients.test_examples.tolist() == sizes.tolist()
  trained = saved['class_counts'].sum(axis=1)[[int(name) for name in clients.names]]
  assert clients.training_examples.tolist() == trained.tolist()
  accuracy = clients.numbers['local_accuracy'][-1]
  assert np.rint(accuracy * sizes).tolist() == correct.tolist()


def test_a_global_model_on_all_examples(tuned):
  model = moon_jax.load(tuned.workdir)
  images, labels = model.test_data()
  last = tuned.metrics[-1]
  for name, number in measured_by(model, images, labels).items():
    assert last[f'test_{name}'] == pytest.approx(number, rel=1e-5)
    assert tuned.summary[f'test_{name}'] == last[f'test_{name}']
  assert last['test_nll'] == pytest.approx(last['test_loss'], rel=1e-5)
  arrays = np.load(tuned.workdir / 'confusion.npz')
  predicted = model.predict(images).labels
  assert arrays['round'] == 2
  assert (
    arrays['confusion'].tolist()
    == Classified(labels, np.eye(10)[predicted]).confusion.tolist()
  )


def test_metrics_and_fine_tuning_change_no_other_column(tuned, tmp_path):
  plain = moon_jax.run(config(MOON), tmp_path / 'run')
  for line, other in zip(tuned.metrics, plain.metrics, strict=True):
    assert {name: line[name] for name in other} == other
    added = line.keys() - other
    assert {'test_nll', 'local_nll_mean', 'tuned_nll_mean'} <= added
    assert all(
      name.startswith('tuned_') or any(metric in name for metric in NAMES.split(','))
      for name in added
    )
  assert not (plain.workdir / 'confusion.npz').exists()


def normal(images):
  """Images as the network gets them."""
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  return ((images / 255 - data.mean) / data.std).astype(np.float32)


def predicted(model, images):
  """[M] labels by the reference's network, of at most 32 images."""
  filled = np.resize(normal(images), (32, *images.shape[1:]))  # one shape compiles once
  logits = reference.mlp.forward(model, filled, training=False)[-2]
  return np.argmax(logits, 1)[: len(images)]


def test_dittos_models_on_each_clients_own_test(ditto):
  saved = checkpoint(ditto.workdir, 2)
  client_params = {}
  for path, (dtype, shape, data) in saved.items():
    if path.startswith('/clients/params/'):
      name = path.removeprefix('/clients/params/')
      client_params[name] = np.frombuffer(data, dtype).reshape(shape)

  def labels_of(client, images):
    params = unflatten_dict({p: leaf[client] for p, leaf in client_params.items()}, '/')
    loaded = moon_jax.load(ditto.workdir, client=client).variables['params']
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    return predicted(Model(params, {}), images)

  last = ditto.metrics[-1]
  correct, sizes, _ = counted(ditto, labels_of)
  check_accuracies(last, 'personal', correct, sizes)
  # Beside them, the global model is tested on the same examples.
  shared = moon_jax.load(ditto.workdir)
  local, _, _ = counted(ditto, lambda _, images: labels_by(shared, images))
  check_accuracies(last, 'local', local, sizes)
  assert (local != correct).any()


def test_metrics_of_the_global_and_the_own_models(ditto):
  own_models = models_of_clients(ditto)
  shared = moon_jax.load(ditto.workdir)
  last = ditto.metrics[-1]
  check_clients(last, 'personal', own_numbers(ditto, own_models.__getitem__))
  check_clients(last, 'local', own_numbers(ditto, lambda client: shared))


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['apfl', 'fedrep', 'pfedme', 'fedala'])
def test_the_model_of_each_client_that_is_loaded_is_the_tested_one(algorithm, tmp_path):
  run = moon_jax.run(
    config({'algorithm': algorithm, 'num_rounds': 3}), tmp_path / 'run'
  )

  def labels_of(client, images):
    return labels_by(moon_jax.load(run.workdir, client=client), images)

  correct, sizes, _ = counted(run, labels_of)
  check_accuracies(run.metrics[-1], 'personal', correct, sizes)


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


@pytest.mark.slow
def test_per_fedavgs_models_are_an_inner_step_away_from_the_global_one(tmp_path):
  changes = {'algorithm': 'per_fedavg', 'per_fedavg.alpha': 0.5, 'num_rounds': 3}
  run = moon_jax.run(config(changes), tmp_path / 'run')
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(moon_jax.config.validate(config())))
  model = Model(moon_jax.load(run.workdir).variables['params'], {})
  examples = normal(data.train_images), data.train_labels
  batch_size = 64  # a step of the round has two, which are smaller here

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
  check_accuracies(run.metrics[-1], 'personal', correct, sizes)
  before, _, _ = counted(run, lambda c, images: labels_of(c, images, is_adapted=False))
  check_accuracies(run.metrics[-1], 'local', before, sizes)
  assert (before != correct).any()


def test_the_global_model_fine_tuned_by_each_client(tuned):
  last = tuned.metrics[-1]
  correct, sizes = fine_tuned(tuned, 5)
  # Three epochs, as in a round, would give other results.
  assert (correct != fine_tuned(tuned, 3)[0]).any()
  check_accuracies(last, 'tuned', correct, sizes)
  assert tuned.summary['tuned_accuracy_mean'] == last['tuned_accuracy_mean']
  assert last['tuned_accuracy_mean'] != last['local_accuracy_mean']
  assert last['tuned_nll_mean'] != last['local_nll_mean']
  confusion = np.load(tuned.workdir / 'confusion.npz')['tuned_confusion']
  assert confusion.sum() == sizes.sum()
  assert np.trace(confusion) == correct.sum()
  assert (tuned.workdir / 'confusion_tuned.png').exists()


def test_fine_tuning_has_batches_of_the_configured_size_also_with_per_fedavg():
  knobs = DIGITS | {
    'algorithm': 'per_fedavg',
    'fine_tune_epochs': 1,
    'num_clients': 4,
    'partition.name': 'iid',
    'batch_size': 32,
  }
  built = experiment.build(moon_jax.config.validate(knobs))
  training = built.planner.training
  largest = training.data.sizes.max()
  assert 32 < largest < 64
  # A step of Per-FedAvg has two batches, more of which would be filler.
  assert training.work.batch_size == -(-largest // 2)
  for tuning in fine_tuning.tunings(built).values():
    assert fine_tuning.tuning_planner(built, tuning).work.batch_size == 32


def test_fine_tuning_of_a_file_is_for_the_algorithms_that_have_it():
  for algorithm, column in (('solo', []), ('fedavg', ['tuned_accuracy'])):
    knobs = DIGITS | {'fine_tune_epochs': 1, 'algorithm': algorithm}
    built = experiment.build(moon_jax.config.validate(knobs))
    assert [*fine_tuning.tunings(built)] == column


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


@pytest.mark.usefixtures('own_parts')
def test_models_of_clients_are_not_adapted():
  def of_clients():
    return per_fedavg(alpha=0.1, hessian='none')._replace(
      init_client=lambda variables: variables,
      evaluated=lambda server, clients: clients,
    )

  moon_jax.register_algorithm('of_clients', of_clients)
  settings = config({'algorithm': 'of_clients'})
  problem = "--config.algorithm='of_clients' adapts a global model"
  with pytest.raises(UsageError, match=problem):
    experiment.build(moon_jax.config.validate(settings))


@pytest.mark.parametrize(
  ('shape', 'size'), [((8, 8, 1), 64), ((1024, 1024, 3), 5), ((8192, 8192, 3), 1)]
)
def test_large_examples_are_tested_a_few_at_a_time(shape, size):
  tests = SimpleNamespace(of_clients=SimpleNamespace(sizes=np.array([3, 200])))
  large = SimpleNamespace(tests=tests, network=SimpleNamespace(image_shape=shape))
  assert client_test_programs.batch_size(large) == size


def test_each_clients_own_model_on_its_own_test(solo):
  models = models_of_clients(solo)
  correct, sizes, _ = counted(solo, lambda i, images: labels_by(models[i], images))
  # The model of another client gives other results.
  others = counted(solo, lambda i, images: labels_by(models[i - 1], images))[0]
  assert (correct != others).any()
  last = solo.metrics[-1]
  check_accuracies(last, 'personal', correct, sizes)
  assert not columns(last, 'local_')
  check_clients(last, 'personal', own_numbers(solo, models.__getitem__))
  check_confusion(solo, 'personal', models.__getitem__)
  # The whole test set counts once for each client's model.
  images, labels = models[0].test_data()
  of_models = [measured_by(model, images, labels) for model in models]
  for name in NAMES.split(','):
    mean = np.mean([numbers[name] for numbers in of_models])
    assert last[f'test_{name}'] == pytest.approx(mean, rel=1e-5)


@pytest.mark.slow
def test_own_layers_on_each_clients_own_test(tmp_path):
  run = moon_jax.run(config({'algorithm': 'fedper'}), tmp_path / 'run')
  models = models_of_clients(run)
  correct, sizes, _ = counted(run, lambda i, images: labels_by(models[i], images))
  check_accuracies(run.metrics[-1], 'personal', correct, sizes)


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


def test_a_partition_that_is_fixed_has_fixed_tests():
  def tests(seed, partition_seed=18):
    changes = {'partition.name': 'iid', 'seed': seed, 'partition.seed': partition_seed}
    built = experiment.build(moon_jax.config.validate(config(changes)))
    return built.tests.of_clients.rows.tolist()

  assert tests(seed=0) == tests(seed=1)
  first, second = (tests(seed, partition_seed='auto') for seed in (0, 1))
  assert first != second
