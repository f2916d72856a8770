"""papers/curve.py: its numbers are worked by hand, its tables show the kept runs."""

import math

import pandas as pd
import pytest

from moon_jax.core import files
from papers import curve, differences, kept_runs
from papers.estimates import endpoints
from papers.page import Paths, page
from tests.run_directories import write_run

ROUNDS = 100


# --- numbers --------------------------------------------------------------------------


def test_an_endpoint_is_of_five_tests():
  accuracy = pd.Series({number: float(number) for number in range(1, 11)})
  # (6 + 7 + 8 + 9 + 10) / 5
  assert endpoints(accuracy)[10] == 8
  assert 4 not in endpoints(accuracy)
  assert 10 not in endpoints(accuracy.drop(8))


def test_a_level_is_reached_by_the_mean_of_five(tmp_path):
  accuracies = [0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.1, 0.4, 0.0]
  written_run = write_run(
    tmp_path / 'a',
    accuracies,
    '--config=configs/moon_cvpr21.py:fedavg',
    '--config.num_rounds=9',
  )
  run = kept_runs.read(kept_runs.keep_run(written_run, tmp_path))
  # Means of five in rounds 5 to 9: 10, 10, 12, 10, 10.
  assert curve.rounds_to(10.0, run, 9) == 5
  assert curve.rounds_to(11.9, run, 9) == 7
  assert curve.rounds_to(11.9, run, 6) is None
  assert curve.rounds_to(12.1, run, 9) is None


def test_the_pooled_deviation_weighs_by_degrees_of_freedom():
  # Squares 2 of one degree and 8 of two: sqrt(10 / 3); one alone has none.
  pooled = differences.pooled_deviation([[1.0, 3.0], [0.0, 2.0, 4.0], [7.0], []])
  assert pooled == (pytest.approx(math.sqrt(10 / 3)), 3)
  assert differences.pooled_deviation([[1.0], []]).freedom == 0


def test_students_intervals_of_three_differences():
  # 0.2, 2.1, 1.2: mean 3.5 / 3, squares 0.934444 + 0.871111 + 0.001111 = 1.806667,
  # deviation sqrt(1.806667 / 2) = 0.950438; t(0.975, 2) = 4.302653, / sqrt(3) 2.484138.
  numbers = [0.2, 2.1, 1.2]
  pooled = differences.pooled_deviation([numbers])
  assert pooled.std == pytest.approx(0.950438, abs=1e-6)
  judgement = differences.judge(numbers, pooled)
  width = pytest.approx(0.950438 * 2.484138, abs=1e-5)
  assert judgement.own_half_width == judgement.pooled_half_width == width
  assert judgement.verdict == 'undecided'
  # With 12 degrees of freedom t is 2.178813, / sqrt(3) 1.257938.
  judgement = differences.judge(numbers, differences.PooledDeviation(0.9, 12))
  assert judgement.pooled_half_width == pytest.approx(0.9 * 1.257938, abs=1e-5)
  assert judgement.verdict == 'higher'
  assert judgement.other_verdict == 'undecided by the own deviation'


def test_the_slope_is_of_a_line_on_log_beta():
  # x = -1, 0, 1 and y = 1, 3, 4: slope 3 / 2, intercept 8 / 3; what is left is
  # -1/6, 1/3, -1/6, squares 1/6, one degree of freedom: error sqrt(1/6 / 2) = 0.288675;
  # t(0.975, 1) = 12.706205. t = 5.196152, p = 1 - 2 atan(t) / pi = 0.121038.
  slope = differences.fit_slope([0.1, 1.0, 10.0], [1.0, 3.0, 4.0])
  assert slope.slope == pytest.approx(1.5)
  assert slope.half_width == pytest.approx(0.288675 * 12.706205, abs=1e-4)
  assert slope.p_value == pytest.approx(0.121038, abs=1e-5)


def test_groups_differ_by_more_than_their_deviations():
  # Means 1, 2, 3, variances 1 within: 3 * 1 between, F = 3; (2, 6) degrees of freedom.
  groups = [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
  outcome = differences.f_test(groups)
  assert outcome.statistic == pytest.approx(3.0)
  assert outcome.freedom == (2, 6)
  assert outcome.p_value == pytest.approx(0.125)  # (1 + 2 * 3 / 6) ** -3


# --- tables ---------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path):
  """The paths of a page without a run."""
  paths = Paths.below(tmp_path)
  paths.template.parent.mkdir()
  return paths


def keep_run(paths, variant, seed, accuracy, *flags, config_changes=None):
  """Keeps a run whose last five tests are this, in per cent."""
  name = f'{variant}_{seed}{len(flags)}'.replace(':', '_')
  accuracies = [0.0] * (ROUNDS - 5) + [accuracy / 100] * 5
  run = paths.runs.parent / name
  write_run(run, accuracies, f'--config=configs/{variant}', *flags, seed=seed)
  description = files.read_json(run / 'config.json')
  files.write_json(run / 'config.json', description | (config_changes or {}))
  kept_runs.keep_run(run, paths.runs)


def lines_of(paths, *template):
  """The lines of the page of a template."""
  paths.template.write_text('\n'.join(template) + '\n')
  return page(paths).splitlines()


def cells(lines, first_cell):
  (line,) = [line for line in lines if line.startswith(f'| {first_cell} |')]
  return [cell.strip() for cell in line.strip('|').split('|')][1:]


@pytest.mark.slow
def test_a_cell_has_the_differences_of_its_pairs(paths):
  table = "{{ curve_table('moon', 100) }}"
  for seed, (fedavg, moon) in enumerate([(60, 60.2), (50, 52.1), (70, 71.2)]):
    keep_run(paths, 'moon_cvpr21.py:fedavg', seed, fedavg)
    keep_run(paths, 'moon_cvpr21.py:moon', seed, moon)
  keep_run(paths, 'curve.py:beta_5_fedavg', 0, 70)
  keep_run(paths, 'curve.py:beta_5_moon', 0, 60)
  keep_run(paths, 'curve.py:beta_5_moon', 1, 69)
  lines = lines_of(paths, table)
  # The values for seeds 0, 1 and 2 are worked by hand above.
  assert ' | '.join(cells(lines, 'beta 0.5')) == (
    '60.0, 50.0, 70.0 | 60.2, 52.1, 71.2 | +0.2, +2.1, +1.2 | +1.17 +- 2.36 | '
    '+- 2.36 | undecided | 100 / 100, 100 / 100, 100 / 100'
  )
  # The interval is 4.302653 pooled deviations; one pair is too few to decide.
  assert ' | '.join(cells(lines, 'beta 5')) == (
    '70.0 | 60.0 | -10.0 | -10.00 | +- 4.09 | '
    'undecided (lower by the pooled deviation) | 100 / never'
  )
  assert not any(line.startswith('| beta 0.1 ') for line in lines)
  assert 'of a difference: 0.95 points (2 degrees of freedom).' in lines[-1]
  means = cells(lines_of(paths, '{{ mean_table(100) }}'), 'MOON, mu 5')
  assert means == [*['not run'] * 3, '+1.2', '-10.0', 'not run']


def test_a_column_in_which_runs_diverged_has_no_mean(paths):
  keep_run(paths, 'curve.py:beta_0.05_fedavg', 0, 50)
  keep_run(paths, 'curve.py:beta_0.05_scaffold', 0, 47)
  diverged = kept_runs.path_of(paths.runs, 'curve.py_beta_0.05_scaffold_00')
  paths.diverged.mkdir()
  for seed in (1, 2):
    name = f'curve_beta_0.05_scaffold_seed{seed}'
    kept_runs.path_of(paths.diverged, name).write_bytes(diverged.read_bytes())
  row = cells(lines_of(paths, "{{ curve_table('scaffold', 100) }}"), 'beta 0.05')
  assert row == ['50.0', '47.0', '-3.0', '', '', '2 of 3 diverged', '100 / never']
  means = cells(lines_of(paths, '{{ mean_table(100) }}'), 'SCAFFOLD')
  assert means[0] == '2 of 3 diverged'


@pytest.mark.slow
def test_the_planned_test_waits_for_all_its_pairs(paths):
  slope = "{% set s = curve('moon', 100).slope() %}{{ s and s.slope | signed(2) }}"
  mean_differences = {
    'curve.py:beta_0.05_': -1.0,
    'curve.py:beta_0.1_': 0.0,
    'curve.py:beta_0.3_': 0.5,
    'curve.py:beta_5_': 2.0,
    'moon_cvpr21.py:': 1.0,
    'curve.py:shards_2_': -9.0,
  }
  for variant, difference in mean_differences.items():
    for seed in range(3):
      keep_run(paths, f'{variant}fedavg', seed, 60)
      if (variant, seed) == ('moon_cvpr21.py:', 2):
        assert lines_of(paths, slope) == ['None']
      keep_run(paths, f'{variant}moon', seed, 60 + difference + 0.3 * (seed - 1))
  # A run of another setting, such as an ablation, is no pair; nor is another seed.
  keep_run(paths, 'moon_cvpr21.py:moon', 0, 90, '--config.partition.balance=false')
  keep_run(paths, 'curve.py:beta_5_fedavg', 3, 60)
  keep_run(paths, 'curve.py:beta_5_moon', 3, 90)
  # Means -1, 0, 0.5, 1, 2 at log10 beta -1.30103, -1, -0.52288, -0.30103, 0.69897:
  # sxy 3.349485, sxx 2.368194.
  assert lines_of(paths, slope) == ['+1.41']
  slopes = "{{ curve('moon', 100).slopes_by_seed() | listed(2) }}"
  assert lines_of(paths, slopes) == ['1.41, 1.41 and 1.41']


@pytest.mark.slow
def test_the_pooled_deviation_decides_with_twelve_degrees_of_freedom(paths):
  for name, column in curve.COLUMNS.items():
    choice = column.choice.replace(':', '.py:')
    for seed in range(3):
      keep_run(paths, choice.format('fedavg'), seed, 60)
      mean = -1.0 if name == 'beta 0.05' else 0.5
      keep_run(paths, choice.format('moon'), seed, 60 + mean + 0.3 * (seed - 1))
  lines = lines_of(paths, "{{ curve_table('moon', 100) }}")
  # Pooled 1.257938 * 0.3; by the cell's own, 2.484138 * 0.3, 0.5 would be undecided.
  assert cells(lines, 'beta 0.3')[3:6] == [
    '+0.50 +- 0.75',
    '+- 0.38',
    'higher (undecided by the own deviation)',
  ]
  assert cells(lines, 'beta 0.05')[5] == 'lower'
  means = cells(lines_of(paths, '{{ mean_table(100) }}'), 'MOON, mu 5')
  assert means[:3] == ['**-1.0**', '+0.5', '+0.5']


def test_runs_of_other_data_are_no_pair(paths):
  keep_run(paths, 'moon_cvpr21.py:fedavg', 0, 60, config_changes={'data_digest': 'a'})
  keep_run(paths, 'moon_cvpr21.py:moon', 0, 70, config_changes={'data_digest': 'b'})
  gap = "{{ gap('moon_cvpr21:moon', 'moon_cvpr21:fedavg').count }}"
  assert lines_of(paths, gap) == ['0']
  lines = lines_of(paths, '{{ partition_table(100) }}')
  assert cells(lines, 'each seed its own partition')[:2] == ['', 'not run']


def test_an_ablation_sets_each_change_beside_the_setting_at_the_same_round(paths):
  not_run = 'not run'
  table = '{{ ablation_table(50) }}'
  assert cells(lines_of(paths, table), 'none') == [not_run] * 5
  keep_run(paths, 'moon_cvpr21.py:fedavg', 0, 60)
  keep_run(paths, 'moon_cvpr21.py:moon', 0, 61.5)
  keep_run(paths, 'moon_cvpr21.py:fedavg', 1, 99)
  for variant, accuracy in (('no_head_scaffold', 40), ('equal_weights_fedavg', 50)):
    flag = f'--config=configs/ablation.py:{variant}'
    accuracies = [0.1] * 45 + [accuracy / 100] * 5
    run = write_run(paths.runs.parent / variant, accuracies, flag)
    kept_runs.keep_run(run, paths.runs)
  lines = lines_of(paths, table)
  # The mean of rounds 46 to 50, not of the run's last five.
  assert cells(lines, 'none') == ['0.0', '0.0 (+0.0)', not_run, not_run, not_run]
  no_head = cells(lines, 'no projection head')
  assert no_head == [not_run, not_run, not_run, not_run, '40.0']
  assert cells(lines, 'equal weights of clients')[0] == '50.0'
  keep_run(paths, 'moon_cvpr21.py:scaffold', 0, 57.5)
  changes = cells(lines_of(paths, '{{ ablation_table(100) }}'), 'none')
  assert changes == ['60.0', '61.5 (+1.5)', not_run, not_run, '57.5 (-2.5)']
