"""Runs with `metrics`: models a few at a time, numbers of clients, the best round."""

import json

import numpy as np
import pytest

import moon_jax
from moon_jax import config as config_lib
from moon_jax.building import programs
from moon_jax.core.errors import UsageError
from moon_jax.runner import measures, round_records
from tests.run_directories import TINY
from tests.runner.test_own_tests import METRICS, NAMES, config, measured_by


@pytest.mark.slow
def test_models_of_clients_are_tested_a_few_at_a_time(tmp_path, monkeypatch):
  calls = []
  add_models = measures.RoundMeasures.add_models

  def counting(round_measures, models, score):
    calls.append(score.logits.shape)
    add_models(round_measures, models, score)

  monkeypatch.setattr(measures.RoundMeasures, 'add_models', counting)
  # Room for four of the six models: 300 test and 45 validation examples.
  monkeypatch.setattr(programs, 'MOST_LOGIT_BYTES', 4 * 4 * 350 * 10)
  changes = {'algorithm': 'solo', 'data.validation': 0.15, 'data.local_test': 0.0}
  run = moon_jax.run(config(changes | METRICS), tmp_path / 'run')
  assert calls == [(4, 300, 10)] * 4  # two groups in each of two rounds
  last = run.metrics[-1]
  of_models = []
  for client in range(6):
    model = moon_jax.load(run.workdir, client=client)
    images, labels = model.test_data()
    of_models.append(measured_by(model, images, labels))
  for name in NAMES.split(','):
    mean = np.mean([numbers[name] for numbers in of_models])
    assert last[f'test_{name}'] == pytest.approx(mean, rel=1e-5)
    assert last[f'test_{name}'] != last[f'validation_{name}']


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


@pytest.mark.slow
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
