"""Runs with `metrics`: their columns, the confusion matrix, and the best round."""

import json

import numpy as np
import pytest

import moon_jax
from moon_jax import config as config_lib
from moon_jax.building import programs
from moon_jax.building.data import DataOptions, load_data
from moon_jax.core.errors import UsageError
from moon_jax.data.scale import numbers_of
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import measure
from moon_jax.runner import measures, round_records
from tests.data import federations
from tests.run_directories import TINY
from tests.runner.test_own_tests import columns, config, counted

NAMES = 'macro_f1,auc,ece,nll'
METRICS = {'metrics': NAMES}


def measured_by(model, images, labels):
  """The metrics of a loaded model on images of its scale."""
  logits = model.predict(images).logits
  return measure(NAMES.split(','), Classified(labels, logits))


def own_numbers(run, model_of):
  """Metric -> [T] numbers of model_of(client) on the client's own examples."""
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(config_lib.validate(config())))
  numbers = {name: [] for name in NAMES.split(',')}

  def measure_client(client, images):
    rows = [*saved['local_test_clients']].index(client)
    begin, end = saved['local_test_offsets'][rows : rows + 2]
    labels = data.train_labels[saved['local_test_indices'][begin:end]]
    model = model_of(client)
    images = numbers_of(images, model.scale)
    for name, number in measured_by(model, images, labels).items():
      numbers[name].append(number)
    return np.zeros(len(images))

  counted(run, measure_client)
  return {name: np.array(of_clients) for name, of_clients in numbers.items()}


def check_confusion(run, kind, model_of):
  """Checks the confusion matrix that is summed over the clients' own models."""
  expected = np.zeros((10, 10), int)
  saved = np.load(run.workdir / 'partition.npz')
  data = load_data(DataOptions(config_lib.validate(config())))

  def count_client(client, images):
    row = [*saved['local_test_clients']].index(client)
    begin, end = saved['local_test_offsets'][row : row + 2]
    labels = data.train_labels[saved['local_test_indices'][begin:end]]
    model = model_of(client)
    predicted = model.predict(numbers_of(images, model.scale)).labels
    np.add.at(expected, (labels, predicted), 1)
    return np.zeros(len(images))

  counted(run, count_client)
  arrays = np.load(run.workdir / 'confusion.npz')
  assert arrays[f'{kind}_confusion'].tolist() == expected.tolist()
  assert expected.sum() > 0
  assert (run.workdir / f'confusion_{kind}.png').exists()


def last_test_sizes(run):
  return moon_jax.load(run.workdir).clients.test_examples


def check_clients(line, kind, numbers):
  """Checks the columns of tests of clients against the number of each."""
  for name, of_clients in numbers.items():
    expected = round_records.metrics_over_clients({name: of_clients}, kind)
    recorded = columns(line, f'{kind}_{name}')
    assert recorded == pytest.approx(expected, rel=1e-5)
    assert recorded[f'{kind}_{name}_std'] > 0


def test_a_global_model_on_all_examples_and_on_each_clients_own(tmp_path):
  changes = METRICS | {'data.validation': 0.1, 'data.local_test': 0.0}
  plain = moon_jax.run(config(changes | {'metrics': ''}), tmp_path / 'plain')
  run = moon_jax.run(config(changes), tmp_path / 'run')
  model = moon_jax.load(run.workdir)
  images, labels = model.test_data()
  expected = measured_by(model, images, labels)
  last = run.metrics[-1]
  for name, number in expected.items():
    assert last[f'test_{name}'] == pytest.approx(number, rel=1e-5)
    assert last[f'test_{name}'] != last[f'validation_{name}']
    assert run.summary[f'test_{name}'] == last[f'test_{name}']
  assert last['test_nll'] == pytest.approx(last['test_loss'], rel=1e-5)
  # All other numbers are the same without metrics.
  added = {f'{split}_{name}' for split in ('test', 'validation') for name in expected}
  for line, other in zip(run.metrics, plain.metrics, strict=True):
    assert {name: line[name] for name in line.keys() - added} == other
  arrays = np.load(run.workdir / 'confusion.npz')
  predicted = model.predict(images).labels
  assert arrays['round'] == 2
  assert (
    arrays['confusion'].tolist()
    == Classified(labels, np.eye(10)[predicted]).confusion.tolist()
  )
  assert not (plain.workdir / 'confusion.npz').exists()


def test_the_global_and_the_own_models_on_each_clients_own_test(tmp_path):
  changes = METRICS | {'algorithm': 'ditto', 'execution.devices': 2}
  run = moon_jax.run(config(changes), tmp_path / 'run')
  own_models = [moon_jax.load(run.workdir, client=client) for client in range(6)]
  shared = moon_jax.load(run.workdir)
  last = run.metrics[-1]
  check_clients(last, 'personal', own_numbers(run, own_models.__getitem__))
  check_clients(last, 'local', own_numbers(run, lambda client: shared))


def test_own_models_from_the_disk_and_fine_tuned_ones(tmp_path, capsys):
  changes = METRICS | {'algorithm': 'solo', 'execution.client_store': 'disk'}
  run = moon_jax.run(config(changes), tmp_path / 'solo')
  models = [moon_jax.load(run.workdir, client=client) for client in range(6)]
  last = run.metrics[-1]
  check_clients(last, 'personal', own_numbers(run, models.__getitem__))
  # The whole test set counts once for each client's model.
  images, labels = models[0].test_data()
  of_models = [measured_by(model, images, labels) for model in models]
  for name in NAMES.split(','):
    mean = np.mean([numbers[name] for numbers in of_models])
    assert last[f'test_{name}'] == pytest.approx(mean, rel=1e-5)
  check_confusion(run, 'personal', models.__getitem__)
  # Client 4 is tested on 5 examples; the AUC of one class is not defined.
  changes = METRICS | {'fine_tune_epochs': 1, 'data.local_test': 0.02}
  tuned = moon_jax.run(config(changes), tmp_path / 'tuned')
  last = tuned.metrics[-1]
  arrays = np.load(tuned.workdir / 'confusion.npz')
  assert arrays['tuned_confusion'].sum() == last_test_sizes(tuned).sum()
  assert np.trace(arrays['tuned_confusion']) / last_test_sizes(tuned).sum() == (
    pytest.approx(last['tuned_accuracy_weighted_mean'])
  )
  assert (tuned.workdir / 'confusion_tuned.png').exists()
  assert last['tuned_nll_mean'] != last['local_nll_mean']
  num_tested = len(np.load(tuned.workdir / 'partition.npz')['local_test_clients'])
  num_undefined = last['tuned_auc_undefined']
  assert 0 < num_undefined <= num_tested
  assert last['local_auc_undefined'] == num_undefined
  assert 'tuned_nll_undefined' not in last
  told = capsys.readouterr().out
  line = f'left out: local_auc ({num_undefined} of the clients), tuned_auc ('
  assert told.count(line) == 1


def test_models_of_clients_are_tested_a_few_at_a_time(tmp_path, monkeypatch):
  calls = []
  add_models = measures.RoundMeasures.add_models

  def counting(round_measures, models, score):
    calls.append(score.logits.shape)
    add_models(round_measures, models, score)

  monkeypatch.setattr(measures.RoundMeasures, 'add_models', counting)
  # Room for four of the six models: 300 test and 46 validation examples.
  monkeypatch.setattr(programs, 'MOST_LOGIT_BYTES', 4 * 4 * 350 * 10)
  changes = METRICS | {'algorithm': 'solo', 'data.validation': 0.15}
  run = moon_jax.run(config(changes), tmp_path / 'run')
  assert calls == [(4, 300, 10)] * 4  # two groups in each of two rounds
  of_models = []
  for client in range(6):
    model = moon_jax.load(run.workdir, client=client)
    images, labels = model.test_data()
    of_models.append(measured_by(model, images, labels))
  for name in NAMES.split(','):
    mean = np.mean([numbers[name] for numbers in of_models])
    assert run.metrics[-1][f'test_{name}'] == pytest.approx(mean, rel=1e-5)


def test_users_with_test_examples_of_their_own(tmp_path):
  federation = federations.make_federation()
  knobs = federations.npz(tmp_path, federation) | METRICS
  knobs |= {'partition.name': 'natural', 'partition.min_size': 5, 'num_rounds': 1}
  knobs |= {'algorithm': 'fedavg', 'batch_size': 8, 'local_epochs': 1}
  run = moon_jax.run(moon_jax.load_config('configs/base.py', knobs), tmp_path / 'run')
  model = moon_jax.load(run.workdir)
  numbers = {name: [] for name in NAMES.split(',')}
  for images, labels in federation['test'].values():
    logits = model.predict(images).logits
    of_user = measure(numbers, Classified(labels, logits))
    for name, number in of_user.items():
      numbers[name].append(number)
  for name, of_users in numbers.items():
    of_users = np.array(of_users)
    expected = round_records.metrics_over_clients({name: of_users}, 'user')
    assert columns(run.metrics[-1], f'user_{name}') == pytest.approx(expected, rel=1e-5)


def test_over_clients_by_hand():
  numbers = np.array([*np.arange(1.0, 20.0), np.nan, np.nan, 20.0])
  f1 = round_records.metrics_over_clients({'macro_f1': numbers}, 'user')
  assert f1['user_macro_f1_mean'] == 10.5
  assert f1['user_macro_f1_worst_tenth'] == pytest.approx(1.5)
  assert f1['user_macro_f1_undefined'] == 2
  # A large error is bad.
  error = round_records.metrics_over_clients({'ece': numbers}, 'user')
  assert error['user_ece_worst_tenth'] == pytest.approx(19.5)
  assert error['user_ece_min'] == 1
  nothing = round_records.metrics_over_clients({'auc': np.array([np.nan])}, 'user')
  assert nothing == {'user_auc_undefined': 1}


LINES = [
  {'round': 1, 'test_accuracy': 0.5, 'validation_accuracy': 0.7, 'validation_ece': 0.3},
  {'round': 2, 'test_accuracy': 0.6, 'validation_accuracy': 0.6, 'validation_ece': 0.1},
  {'round': 3, 'test_accuracy': 0.4, 'validation_accuracy': 0.8},
  {'round': 4, 'test_accuracy': 0.4, 'validation_accuracy': 0.5, 'test_auc': 0.9},
]


@pytest.mark.parametrize(
  ('best_by', 'column', 'best_round'),
  [
    ('accuracy', 'validation_accuracy', 3),
    ('ece', 'validation_ece', 2),
    ('auc', 'validation_accuracy', 3),  # the validation split defines none
  ],
)
def test_a_metric_chooses_the_best_round(best_by, column, best_round):
  lines = [line | {'bytes_down': 1, 'bytes_up': 1} for line in LINES]
  changes = {'metrics': 'ece,auc', 'best_by': best_by}
  config = moon_jax.load_config('configs/base.py', changes)
  options = round_records.SummaryOptions(config_lib.validate(config))
  summary = round_records.summarise(lines, [], options)
  best = LINES[best_round - 1]
  assert summary['best_round'] == best_round
  assert summary[f'best_{column}'] == best[column]
  assert summary['best_test_accuracy'] == best['test_accuracy']
  assert summary.get('best_by', 'validation_accuracy') == column


def test_the_wrong_metrics_are_one_line_each():
  changes = {'metrics': 'auc,macro_f', 'best_by': 'ece'}
  with pytest.raises(UsageError) as caught:
    moon_jax.load_config('configs/base.py', changes)
  first, *others = str(caught.value).splitlines()
  assert first.startswith("--config.metrics='auc,macro_f' must be some of macro_f1, ")
  assert others == []
  changes['metrics'] = 'auc'
  with pytest.raises(UsageError, match=r"best_by='ece' needs .*metrics='auc,ece'\.$"):
    moon_jax.load_config('configs/base.py', changes)


def test_metrics_may_change_when_a_run_goes_on(tmp_path):
  knobs = TINY | {'algorithm': 'fedavg', 'num_rounds': 1}
  first = moon_jax.load_config('configs/digits_moon.py', knobs)
  moon_jax.run(first, tmp_path / 'run')
  knobs |= {'num_rounds': 2, 'metrics': 'macro_f1', 'best_by': 'macro_f1'}
  second = moon_jax.load_config('configs/digits_moon.py', knobs)
  run = moon_jax.run(second, tmp_path / 'run')
  assert ['test_macro_f1' in line for line in run.metrics] == [False, True]
  assert run.summary['best_round'] == 2
  assert run.summary['best_by'] == 'test_macro_f1'
  assert json.loads((tmp_path / 'run/config.json').read_text())['config']['metrics']
