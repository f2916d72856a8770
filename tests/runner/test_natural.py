"""Runs with natural clients: their number, their tests, and the records."""

import json

import numpy as np
import pytest

import moon_jax
from moon_jax import config as config_lib
from moon_jax.building import experiment
from moon_jax.core.errors import UsageError
from moon_jax.runner import round_records
from tests.data import federations
from tests.processes import check_success, launched, read_lines
from tests.refusals import refused

FOUND = federations.make_federation()
TINY = {
  'algorithm': 'fedavg',
  'model': 'mlp',
  'partition.name': 'natural',
  'partition.min_size': 5,
  'batch_size': 8,
  'local_epochs': 1,
  'num_rounds': 2,
  'optimizer.learning_rate': 0.02,
}


def config(knobs):
  return moon_jax.load_config('configs/base.py', TINY | knobs)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A finished run, and its knobs."""
  folder = tmp_path_factory.mktemp('natural')
  knobs = federations.npz(folder, FOUND)
  return moon_jax.run(config(knobs), folder / 'run'), knobs


def test_the_data_say_how_many_clients_there_are(run):
  finished, knobs = run
  saved = json.loads((finished.workdir / 'config.json').read_text())
  # One of the four users owns 3 examples.
  assert saved['config']['num_clients'] == 3
  assert [line['clients'] for line in finished.metrics] == [[0, 1, 2]] * 2
  partition = np.load(finished.workdir / 'partition.npz')
  counts = partition['class_counts']
  trained = {name: y for name, (_, y) in FOUND['train'].items() if len(y) >= 5}
  expected = [np.bincount(trained[n], minlength=4).tolist() for n in sorted(trained)]
  assert counts.tolist() == expected
  assert partition['clients'].tolist() == sorted(trained)
  # The number of clients that the data gave does not stop the run from going on.
  continued = moon_jax.run(config(knobs | {'num_rounds': 3}), finished.workdir)
  assert len(continued.metrics) == 3
  assert continued.metrics[:2] == finished.metrics


def test_every_user_is_tested_on_examples_of_its_own(run):
  finished, _ = run
  last = read_lines(finished.workdir / 'metrics.jsonl')[-1]
  model = moon_jax.load(finished.workdir)
  accuracies, sizes = [], []
  for images, labels in FOUND['test'].values():
    accuracies.append(float(np.mean(model.predict(images).labels == labels)))
    sizes.append(len(labels))
  assert len(set(accuracies)) > 2
  counts = np.array(accuracies) * sizes
  for column, value in round_records.over_clients(counts, np.array(sizes)).items():
    assert last[column] == pytest.approx(value, rel=1e-12), column
  assert last['user_accuracy_weighted_mean'] == pytest.approx(last['test_accuracy'])
  summary = json.loads((finished.workdir / 'summary.json').read_text())
  assert summary['user_accuracy_min'] == last['user_accuracy_min']


def test_clients_with_own_models_have_no_user_columns(run, tmp_path):
  _, knobs = run
  solo = config(knobs | {'algorithm': 'solo', 'num_rounds': 1})
  finished = moon_jax.run(solo, tmp_path / 'solo')
  assert 'test_accuracy_worst' in finished.metrics[0]
  assert 'user_accuracy_mean' not in finished.metrics[0]
  # The run directory records the number of models.
  assert moon_jax.load(finished.workdir, client=2).client == 2
  by_name = moon_jax.load(finished.workdir, client='f0003_11')
  assert (by_name.client, by_name.client_name) == (1, 'f0003_11')
  by_name.save(tmp_path / 'model.npz')
  assert moon_jax.load(tmp_path / 'model.npz', client='f0003_11').client == 1
  known = r'a name \(f0001_41, f0003_11, ü\.\.\\x1b\[31m\) or '
  wrong = rf'client=3 must be {known}a number, 0 to 2'
  with pytest.raises(UsageError, match=wrong):
    moon_jax.load(finished.workdir, client=3)
  with pytest.raises(UsageError, match=r"client='f0003' must .* Did you mean 'f0003_"):
    moon_jax.load(finished.workdir, client='f0003')
  choices = rf'{known.replace("a name", "its name")}its number, from 0 to 2: --client'
  with pytest.raises(UsageError, match=rf'no global model.* Choose.* by {choices}'):
    moon_jax.load(finished.workdir)


def test_centralized_has_a_global_model_with_user_columns(run, tmp_path):
  _, knobs = run
  chosen = config(knobs | {'num_rounds': 1})
  chosen.algorithm = 'centralized'
  finished = moon_jax.run(chosen, tmp_path / 'centralized')
  assert 0 < finished.metrics[0]['user_accuracy_mean'] < 1


def test_a_knob_that_the_network_does_not_use_hinders_no_algorithm(run):
  _, knobs = run
  chosen = config(knobs)
  chosen.algorithm, chosen.batch_norm = 'ditto', 'local'  # `mlp` has no batch norm
  assert experiment.build(config_lib.validate(chosen)).config.num_clients == 3


def test_the_command_line_tells_who_is_left_out(run, tmp_path):
  _, knobs = run
  flags = federations.flags(TINY | knobs)
  completed = launched(tmp_path, [*flags, '--workdir=run'])
  check_success(completed)
  lines = completed.stdout.splitlines()
  assert 'users left out: 1, with fewer than 5 training examples each' in lines
  tested = 'tested: each of 5 users on examples of its own, 2 of whom do not train'
  assert tested in lines
  assert any(line.startswith('partition: natural, 3 clients own 49') for line in lines)


def test_what_the_number_of_clients_decides_is_checked_when_it_is_known(run):
  _, knobs = run
  changes = {'algorithm': 'decentralized_fedavg', 'topology.degree': 12}
  # The default of 10 clients would allow at most 9, but does not count here.
  expected = 'topology.degree=12 must be below --config.num_clients=3'
  with pytest.raises(UsageError, match=expected):
    experiment.build(moon_jax.config.validate(config(knobs | changes)))


def test_data_without_users(tmp_path):
  with refused(UsageError, "^--config.partition.name='natural' needs data with user"):
    moon_jax.run(config({}), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
