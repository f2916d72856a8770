"""The numbers of a report are those of plain arithmetic over metrics.jsonl."""

import math
import statistics

import numpy as np
import pytest

from moon_jax.report import command, results, runs, traces
from moon_jax.report.tables import Column
from tests.report.reports import (
  FEDAVG,
  MOON,
  Collected,
  runs_of_seeds,
  settings_of,
  write_runs,
  write_two_algorithms,
)
from tests.run_directories import (
  BYTES_DOWN,
  BYTES_UP,
  EVALUATE,
  IDLE,
  TRAIN,
  edit_lines,
)
from tests.selection import few


@pytest.fixture(scope='module')
def two_algorithms(tmp_path_factory):
  """The folder of two algorithms' runs with three seeds."""
  return write_two_algorithms(tmp_path_factory.mktemp('numbers'))


def is_estimate(row, name, numbers):
  """Whether a row has the mean, the sample deviation and the count of the numbers."""
  cells = [float(row[f'{name}_{statistic}']) for statistic in ('mean', 'std', 'n')]
  expected = statistics.mean(numbers), statistics.stdev(numbers), len(numbers)
  return cells == pytest.approx(expected, rel=1e-12)


def test_accuracies_are_means_and_deviations_over_seeds(two_algorithms):
  rows = Collected(two_algorithms).rows('accuracy')
  assert [row['series'] for row in rows] == ['FedAvg', 'MOON']
  for row, accuracies_by_seed in zip(rows, (FEDAVG, MOON), strict=True):
    assert (row['n'], row['rounds']) == ('3', '7')
    finals = [accuracies[-1] for accuracies in accuracies_by_seed]
    assert is_estimate(row, 'final_accuracy', finals)
    bests = [max(accuracies) for accuracies in accuracies_by_seed]
    assert is_estimate(row, 'best_accuracy', bests)
    means = [statistics.mean(accuracies[-5:]) for accuracies in accuracies_by_seed]
    assert is_estimate(row, 'mean_of_last_5', means)


def test_fewer_than_five_tests_have_no_mean_of_five(tmp_path):
  write_runs(tmp_path, {'run': ([0.5, 0.6, 0.7, 0.8], 'seed=0')})
  (row,) = Collected(tmp_path).rows('accuracy')
  assert row['mean_of_last_5_mean'] == ''
  # A cell says if only some of the n runs have a number.
  write_runs(tmp_path, {'longer': ([0.5, 0.6, 0.7, 0.8, 0.9], 'seed=1')})
  table = Collected(tmp_path).table('accuracy')
  texts = {
    column.key: column.text(row) for row in table.rows for column in table.columns
  }
  assert (texts['n'], texts['mean_of_last_5']) == ('2', '70.00 (1 of 2)')
  assert texts['final_accuracy'] == '85.00 ± 7.07'


def test_the_difference_to_fedavg_is_paired_by_seed(two_algorithms):
  report = Collected(two_algorithms)
  _, row = report.rows('accuracy')
  caption = report.table('accuracy').caption
  assert 'not corrected for the number of comparisons' in caption
  # 0.81 - 0.76, 0.80 - 0.78, 0.74 - 0.71
  differences = [0.05, 0.02, 0.03]
  assert is_estimate(row, 'difference_to_fedavg', differences)
  # Student's t with 2 degrees of freedom: P(|T| > t) = 1 - t / sqrt(t^2 + 2).
  t = statistics.mean(differences) / (statistics.stdev(differences) / math.sqrt(3))
  assert float(row['p_value']) == pytest.approx(1 - t / math.sqrt(t**2 + 2), rel=1e-9)


def test_what_it_takes_to_reach_the_target(two_algorithms):
  fedavg, moon = Collected(two_algorithms).rows('target')
  # FedAvg's mean last accuracy is (0.76 + 0.78 + 0.71) / 3 = 0.75.
  assert float(fedavg['target']) == pytest.approx(0.75)
  # Seeds 0 and 1 are at 0.75 or above first in rounds 7 and 6; seed 2 never is.
  assert fedavg['reached'] == '2 of 3'
  assert is_estimate(fedavg, 'rounds_to_target', [7, 6])
  # MOON's in rounds 4 and 5; its seed 2 ends at 0.74.
  assert moon['reached'] == '2 of 3'
  costs_of_a_round = {
    'rounds': 1,
    'megabytes': (BYTES_DOWN + BYTES_UP) / 1e6,
    'seconds': TRAIN + EVALUATE + IDLE,
  }
  for name, cost in costs_of_a_round.items():
    assert is_estimate(moon, f'{name}_to_target', [4 * cost, 5 * cost])
  # The targets are means over seeds: FedAvg's is reached in round 7 by definition;
  # MOON's is 0.733 in round 4 and 0.773 in round 5, so it is reached in round 5.
  assert (fedavg['round_of_the_mean'], moon['round_of_the_mean']) == ('7', '5')
  assert float(moon['rounds_saved']) == pytest.approx(1 - 5 / 7)


def test_a_target_can_be_given(two_algorithms):
  rows = Collected(two_algorithms, ['--target=0.6']).rows('target')
  assert [row['reached'] for row in rows] == ['3 of 3'] * 2
  # MOON's best accuracies: 0.82, 0.80, 0.74.
  rows = Collected(two_algorithms, ['--target=moon@best']).rows('target')
  assert float(rows[0]['target']) == pytest.approx((0.82 + 0.80 + 0.74) / 3)


@pytest.mark.parametrize('seed', few([4], [7]))  # the two means differ in the last bit
def test_the_mean_of_many_runs_reaches_its_own_target(seed, tmp_path):
  """Both are means over runs, summed in different orders."""
  finals = np.random.default_rng(seed).random(10).tolist()
  write_runs(tmp_path, runs_of_seeds('fedavg', [[0.0, final] for final in finals]))
  assert Collected(tmp_path).rows('target')[0]['round_of_the_mean'] == '2'


@pytest.mark.parametrize(('p_value', 'text'), [(3e-5, '<0.0001'), (0.0497, '0.0497')])
def test_a_p_value_is_never_zero(p_value, text):
  assert Column('p_value', 'p', '.4f').text({'p_value': p_value}) == text


@pytest.mark.parametrize(
  ('words', 'metrics', 'share'),
  [
    ('algorithm=fedavg', {}, None),
    # mu = 2 times a contrastive loss of 0.25 is 25 % of the loss of 2.0.
    ('algorithm=moon moon.mu=2', {}, 25.0),
    ('algorithm=decentralized_moon moon.mu=2', {}, 25.0),
    # The weight is mu + mu_t = 3; normalised, it is divided by mu = 2.
    ('algorithm=dco_moon dco_moon.mu=2', {'mu_t': 1.0}, 37.5),
    ('algorithm=dco_moon dco_moon.mu=2 dco_moon.normalise=true', {'mu_t': 1.0}, 18.75),
  ],
)
def test_the_contrastive_share_is_weighted(tmp_path, words, metrics, share):
  write_runs(tmp_path, {'run': ([0.5, 0.6], words)}, **metrics)
  (run,) = runs.find([tmp_path], print)
  expected = {} if share is None else {1: share, 2: share}
  assert traces.trace(run, 'contrastive_share').to_dict() == pytest.approx(expected)


def test_pairs_have_one_seed_and_one_length_and_are_counted(tmp_path, capsys):
  fedavg = ([0.5, 0.75], [0.5, 0.6, 0.7], [0.5, 0.6, 0.7])
  write_runs(tmp_path, runs_of_seeds('fedavg', fedavg))
  write_runs(tmp_path, runs_of_seeds('moon', [[0.5, 0.6, 0.8]] * 2))
  write_runs(tmp_path, {'m3': ([0.5, 0.6, 0.9], 'seed=3')})
  rows = Collected(tmp_path).rows('accuracy')
  stderr = capsys.readouterr().err
  assert 'unequal numbers of rounds: ' in stderr
  # They were asked for equally many, and have equal tests up to the shortest.
  assert 'callbacks ended them in different rounds\n' in stderr
  assert 'tests in different rounds' not in stderr
  assert [row['rounds'] for row in rows] == ['2 to 3', '3']
  # Only the runs of seed 1 have equal numbers of rounds, so they alone are a pair.
  assert [(row['n'], row['pairs']) for row in rows] == [('3', ''), ('3', '1')]
  assert float(rows[1]['difference_to_fedavg_mean']) == pytest.approx(0.8 - 0.7)


def test_runs_that_were_asked_for_other_rounds_are_chosen_by_them(tmp_path, capsys):
  runs_by_name = {
    str(number): ([0.5] * number, f'algorithm=fedavg seed={number} num_rounds={number}')
    for number in (2, 3)
  }
  Collected(write_runs(tmp_path, runs_by_name))
  assert 'paired; --where=num_rounds=N chooses\n' in capsys.readouterr().err


def test_more_frequent_tests_make_no_best(tmp_path, capsys):
  """Each run of MOON is better in its last test and in all others."""
  seldom = [None, 0.4, None, 0.5, None, 0.55, None, 0.6, None, 0.65]
  often = [0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7]
  runs_by_name = {}
  for seed in (0, 1):
    for words, accuracies in (
      ('algorithm=fedavg eval_every_rounds=2', seldom),
      ('algorithm=moon eval_every_rounds=1', [*often, 0.75 + seed / 100]),
    ):
      runs_by_name[f'{words} {seed}'] = (accuracies, f'{words} seed={seed}')
  report = Collected(write_runs(tmp_path, runs_by_name))
  assert 'tests in different rounds: ' in (stderr := capsys.readouterr().err)
  assert '; --where=eval_every_rounds=N chooses\n' in stderr
  _, moon = report.table('accuracy').rows
  is_best = [
    moon.get(results.best_key(name), False)
    for name in ('final_accuracy', 'best_accuracy', 'mean_of_last_5')
  ]
  assert is_best == [True, False, False]


def test_a_missing_column_is_left_out_of_its_numbers(tmp_path):
  write_runs(tmp_path, {'a': ([0.5, 0.6], 'algorithm=fedavg')})
  edit_lines(tmp_path / 'a/metrics.jsonl', lambda line: line.pop('bytes_up'))
  (row,) = Collected(tmp_path).rows('target')
  assert row['megabytes_to_target_mean'] == ''
  assert float(row['seconds_to_target_mean']) == 2 * (TRAIN + EVALUATE + IDLE)
  # If a round has no time, the sum is not given either.
  path = tmp_path / 'a/timings.jsonl'
  edit_lines(path, lambda line: line['round'] == 1 and line.pop('idle_seconds'))
  (row,) = Collected(tmp_path).rows('target')
  assert row['seconds_to_target_mean'] == ''


# --- validation -----------------------------------------------------------------------


def write_validated(folder, name, accuracies, validation_accuracies, words):
  """Writes a run with a validation split."""
  write_runs(folder, {name: (accuracies, f'data.validation=0.1 {words}')})

  def add_validation_accuracy(line):
    line['validation_accuracy'] = validation_accuracies[line['round'] - 1]

  edit_lines(folder / name / 'metrics.jsonl', add_validation_accuracy)


def test_the_best_round_and_value_are_chosen_by_validation_where_there_is_one(tmp_path):
  write_validated(tmp_path, '1', [0.5, 0.9, 0.6], [0.3, 0.4, 0.5], 'moon.mu=1')
  write_validated(tmp_path, '5', [0.5, 0.6, 0.8], [0.6, 0.2, 0.4], 'moon.mu=5')
  report = Collected(tmp_path)
  rows = report.rows('accuracy')
  # These are the test accuracies in the rounds with the best validation accuracies, 0.5
  # and 0.6: not the best ones, 0.9 and 0.8.
  assert [row['best_accuracy_mean'] for row in rows] == ['0.6', '0.5']
  assert [row['best_by'] for row in rows] == ['validation', 'validation']
  (chosen,) = report.rows('chosen')
  # On validation data mu = 1 has 0.5 and mu = 5 has 0.4; the test set would choose 5.
  assert (chosen['knob'], chosen['value'], chosen['rounds']) == ('moon.mu', '1', '3')
  assert (chosen['by'], chosen['chosen_accuracy']) == ('validation', '0.5')
  assert chosen['test_accuracy'] == '0.6'
  assert report.charts()['sweep-moon.mu'].y_label == 'validation accuracy, %'
  assert 'validation_accuracy' in report.charts()
  target = command.parse([str(tmp_path), '--target=moon@best']).target
  (setting,) = settings_of(tmp_path, ('algorithm', 'moon.mu'))
  accuracy = results.target_accuracy(setting, setting.series[0], target)
  assert accuracy in (0.5, 0.6)


def test_without_a_validation_split_in_all_runs_the_test_set_chooses(tmp_path):
  write_validated(tmp_path, '1', [0.5, 0.7], [0.5, 0.4], 'moon.mu=1')
  write_runs(tmp_path, {'5': ([0.5, 0.6], 'moon.mu=5 data.validation=0.1')})
  report = Collected(tmp_path)
  assert [row['best_by'] for row in report.rows('accuracy')] == ['validation', 'test']
  (chosen,) = report.rows('chosen')
  assert (chosen['value'], chosen['by']) == ('1', 'test')
  assert report.charts()['sweep-moon.mu'].y_label == 'test accuracy, %'
