"""Runs with natural clients: their number, their tests and names, and the records."""

import csv
import json
import shutil

import numpy as np
import pytest

import moon_jax
from moon_jax import config as config_lib
from moon_jax.building import experiment
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import measure
from moon_jax.predict.command import main as predict
from moon_jax.runner import client_file, round_records
from moon_jax.runner.run_files import CLIENTS
from moon_jax.sweeps import estimate, planned_runs
from tests.data import federations
from tests.processes import ROOT, check_success, launched
from tests.refusals import refused

FOUND = federations.make_federation()
# The AUC of one example is not defined.
FOUND['test']['f0001_41'] = tuple(array[:1] for array in FOUND['test']['f0001_41'])
NAMES = ('macro_f1', 'auc', 'ece', 'nll')
METRICS = {'metrics': ','.join(NAMES)}
TINY = {
  'algorithm': 'fedavg',
  'model': 'mlp',
  'partition.name': 'natural',
  'partition.min_size': 5,
  'batch_size': 8,
  'local_epochs': 1,
  'num_rounds': 2,
  'eval_every_rounds': 2,
  'optimizer.learning_rate': 0.02,
}


def config(knobs):
  return moon_jax.load_config('configs/base.py', TINY | knobs)


@pytest.fixture(scope='module')
def knobs(tmp_path_factory):
  """The source of the federation."""
  return federations.npz(tmp_path_factory.mktemp('federation'), FOUND)


@pytest.fixture(scope='module')
def run(knobs, tmp_path_factory):
  """A finished run with a global model."""
  return moon_jax.run(config(knobs | METRICS), tmp_path_factory.mktemp('run'))


@pytest.fixture(scope='module')
def solo(knobs, tmp_path_factory):
  """A finished run with clients' own models alone."""
  chosen = config(knobs | {'algorithm': 'solo'})
  return moon_jax.run(chosen, tmp_path_factory.mktemp('solo'))


def test_an_earlier_run_predicts_what_others_take(run, knobs):
  words = [
    f'--config.{name}={value}' for name, value in (TINY | knobs | METRICS).items()
  ]
  folder = run.workdir.parent / 'sweep'
  runs = planned_runs.sweep_runs('configs/base.py', words, {'seed': ['7', '8']}, folder)
  *_, line = estimate.table(runs, folder)
  assert line.endswith('by earlier runs on this machine')


def test_a_database_of_users_is_what_is_classified(run, tmp_path, capsys):
  path = federations.hdf5(tmp_path, FOUND)['data.path']
  words = (f'--workdir={run.workdir}', '--source=hdf5', f'--input={path}')
  assert predict([*words, f'--output={tmp_path}/out.csv']) == ExitCode.DONE
  assert 'training images, too' not in capsys.readouterr().err
  with open(tmp_path / 'out.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == sum(len(labels) for _, labels in FOUND['train'].values())


def test_who_owns_too_little_is_named(knobs):
  name = min(FOUND['train'], key=lambda user: len(FOUND['train'][user][1]))
  every_user = {'partition.min_size': 1, 'drop_last': True}
  with pytest.raises(UsageError, match=f'Client {name} owns 3 examples, less than a'):
    experiment.build(config_lib.validate(config(knobs | every_user)))


@pytest.mark.slow
def test_the_data_say_how_many_clients_there_are(run, knobs, tmp_path):
  saved = json.loads((run.workdir / 'config.json').read_text())
  # One of the four users owns 3 examples.
  assert saved['config']['num_clients'] == 3
  assert [line['clients'] for line in run.metrics] == [[0, 1, 2]] * 2
  partition = np.load(run.workdir / 'partition.npz')
  counts = partition['class_counts']
  trained = {name: y for name, (_, y) in FOUND['train'].items() if len(y) >= 5}
  expected = [np.bincount(trained[n], minlength=4).tolist() for n in sorted(trained)]
  assert counts.tolist() == expected
  assert partition['clients'].tolist() == sorted(trained)
  # The number of clients that the data gave does not stop the run from going on.
  shutil.copytree(run.workdir, tmp_path / 'run')
  more = config(knobs | METRICS | {'num_rounds': 3})
  continued = moon_jax.run(more, tmp_path / 'run')
  assert len(continued.metrics) == 3
  assert continued.metrics[:2] == run.metrics


def test_every_user_is_tested_on_examples_of_its_own(run):
  last = run.metrics[-1]
  model = moon_jax.load(run.workdir)
  accuracies, sizes, numbers = [], [], []
  for images, labels in FOUND['test'].values():
    predicted = model.predict(images)
    accuracies.append(float(np.mean(predicted.labels == labels)))
    sizes.append(len(labels))
    numbers.append(measure(NAMES, Classified(labels, predicted.logits)))
  assert len(set(accuracies)) > 2
  counts = np.array(accuracies) * sizes
  for column, value in round_records.over_clients(counts, np.array(sizes)).items():
    assert last[column] == pytest.approx(value, rel=1e-12), column
  for name in NAMES:
    of_users = np.array([of_user[name] for of_user in numbers])
    expected = round_records.metrics_over_clients({name: of_users}, 'user')
    of_run = {k: v for k, v in last.items() if k.startswith(f'user_{name}')}
    assert of_run == pytest.approx(expected, rel=1e-5)
  assert last['user_accuracy_weighted_mean'] == pytest.approx(last['test_accuracy'])
  assert run.summary['user_accuracy_min'] == last['user_accuracy_min']


@pytest.mark.slow
def test_clients_with_own_models_have_no_user_columns(solo, tmp_path):
  assert 'test_accuracy_worst' in solo.metrics[-1]
  assert 'user_accuracy_mean' not in solo.metrics[-1]
  # The run directory records the number of models.
  assert moon_jax.load(solo.workdir, client=2).client == 2
  by_name = moon_jax.load(solo.workdir, client='f0003_11')
  assert (by_name.client, by_name.client_name) == (1, 'f0003_11')
  by_name.save(tmp_path / 'model.npz')
  assert moon_jax.load(tmp_path / 'model.npz', client='f0003_11').client == 1
  known = r'a name \(f0001_41, f0003_11, ü\.\.\\x1b\[31m\) or '
  wrong = rf'client=3 must be {known}a number, 0 to 2'
  with pytest.raises(UsageError, match=wrong):
    moon_jax.load(solo.workdir, client=3)
  with pytest.raises(UsageError, match=r"client='f0003' must .* Did you mean 'f0003_"):
    moon_jax.load(solo.workdir, client='f0003')
  choices = rf'{known.replace("a name", "its name")}its number, from 0 to 2: --client'
  with pytest.raises(UsageError, match=rf'no global model.* Choose.* by {choices}'):
    moon_jax.load(solo.workdir)


def test_centralized_has_a_global_model_with_user_columns(knobs, tmp_path):
  chosen = config(knobs | {'num_rounds': 1})
  chosen.algorithm = 'centralized'
  finished = moon_jax.run(chosen, tmp_path / 'centralized')
  assert 0 < finished.metrics[0]['user_accuracy_mean'] < 1


def test_users_with_tests_have_no_other_tests(knobs):
  chosen = config(knobs | {'data.local_test': 0.25})
  with pytest.raises(UsageError, match=r'local_test=0\.25 must be 0\.0: the test exam'):
    experiment.build(config_lib.validate(chosen))


def test_a_knob_that_the_network_does_not_use_hinders_no_algorithm(knobs):
  chosen = config(knobs)
  chosen.algorithm, chosen.batch_norm = 'ditto', 'local'  # `mlp` has no batch norm
  assert experiment.build(config_lib.validate(chosen)).config.num_clients == 3


def test_the_command_line_tells_who_is_left_out(knobs, tmp_path):
  flags = federations.flags(TINY | knobs | METRICS)
  words = [f'--config={ROOT}/configs/base.py', *flags, '--workdir=run']
  words.append('--config.eval_every_rounds=1')
  completed = launched(tmp_path, words)
  check_success(completed)
  lines = completed.stdout.splitlines()
  assert 'users left out: 1, with fewer than 5 training examples each' in lines
  tested = 'tested: each of 5 users on examples of its own, 2 of whom do not train'
  assert tested in lines
  assert any(line.startswith('partition: natural, 3 clients own 49') for line in lines)
  # The metric that one user lacks is named once.
  assert completed.stdout.count('left out: user_auc (1 of the clients)') == 1


def test_what_the_number_of_clients_decides_is_checked_when_it_is_known(knobs):
  changes = {'algorithm': 'decentralized_fedavg', 'topology.degree': 12}
  # The default of 10 clients would allow at most 9, but does not count here.
  expected = 'topology.degree=12 must be below --config.num_clients=3'
  with pytest.raises(UsageError, match=expected):
    experiment.build(moon_jax.config.validate(config(knobs | changes)))


def test_data_without_users(tmp_path):
  with refused(UsageError, "^--config.partition.name='natural' needs data with user"):
    moon_jax.run(config({}), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


# --- the file of the clients' numbers -------------------------------------------------


def check_spread(run, column):
  """metrics.jsonl has the spread of the clients' numbers in the last round."""
  clients = client_file.read(run.workdir)
  accuracy = clients.numbers[column][-1]
  is_tested = ~np.isnan(accuracy)
  sizes = clients.test_examples[is_tested]
  num_correct = np.rint(accuracy[is_tested] * sizes)
  for name, number in round_records.over_clients(num_correct, sizes, column).items():
    assert run.metrics[-1][name] == number


def test_the_users_of_a_federation_by_name(run):
  clients = client_file.read(run.workdir)
  assert clients.rounds.tolist() == [2]
  assert moon_jax.load(run.workdir).clients.names == run.clients.names == clients.names
  trained = {
    name: len(labels)
    for name, (_, labels) in FOUND['train'].items()
    if len(labels) >= 5
  }
  tested = {name: len(labels) for name, (_, labels) in FOUND['test'].items()}
  names = [*sorted(trained.keys() & tested.keys()), *sorted(tested.keys() - trained)]
  assert clients.names == names
  assert clients.training_examples.tolist() == [trained.get(name, 0) for name in names]
  assert clients.test_examples.tolist() == [tested[name] for name in names]
  assert clients.numbers.keys() == {f'user_{name}' for name in ('accuracy', *NAMES)}
  check_spread(run, 'user_accuracy')
  worst = clients.numbers['user_accuracy'].min()
  assert run.metrics[-1]['user_accuracy_min'] == worst


def test_the_global_and_own_models_by_name(knobs, tmp_path):
  run = moon_jax.run(config(knobs | {'algorithm': 'ditto'}), tmp_path / 'run')
  clients = client_file.read(run.workdir)
  # Two users do not train: they have no models of their own.
  has_model = clients.training_examples > 0
  assert has_model.sum() == len(has_model) - 2
  for column in ('user_accuracy', 'local_accuracy', 'personal_accuracy'):
    check_spread(run, column)
  user, local, personal = (
    clients.numbers[f'{model}_accuracy'][-1] for model in ('user', 'local', 'personal')
  )
  assert np.isnan(personal).tolist() == (~has_model).tolist()
  np.testing.assert_array_equal(local[has_model], user[has_model])


def test_own_models_by_name_on_the_whole_test_set_and_on_their_own(solo):
  clients, last = client_file.read(solo.workdir), solo.metrics[-1]
  accuracy = clients.numbers['test_accuracy'][-1]
  assert accuracy.min() == last['test_accuracy_worst']
  assert accuracy.mean() == last['test_accuracy']
  check_spread(solo, 'personal_accuracy')
  for name, own in zip(
    clients.names, clients.numbers['personal_accuracy'][-1], strict=True
  ):
    images, labels = FOUND['test'][name]
    predicted = moon_jax.load(solo.workdir, client=name).predict(images).labels
    assert own == np.mean(predicted == labels)
  # The models differ.
  several = [moon_jax.load(solo.workdir, client=name) for name in clients.names[:2]]
  first, second = (model.predict(images).logits for model in several)
  assert (first != second).any()


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_file(knobs, tmp_path):
  every_round = {'eval_every_rounds': 1, 'checkpoint_every_rounds': 5, 'num_rounds': 3}
  settings = config(knobs | METRICS | every_round)
  moon_jax.run(settings, tmp_path / 'undisturbed')

  class Interruption(moon_jax.Callback):
    def after_round(self, round):
      if round.number == 3:  # two rounds are recorded, and no state is saved
        raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    moon_jax.run(settings, tmp_path / 'run', callbacks=[Interruption()])
  assert client_file.read(tmp_path / 'run').rounds.tolist() == [1, 2]
  moon_jax.run(settings, tmp_path / 'run')
  expected = (tmp_path / 'undisturbed' / CLIENTS).read_bytes()
  assert (tmp_path / 'run' / CLIENTS).read_bytes() == expected
