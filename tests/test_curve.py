"""docs/curve.py: its numbers are worked by hand, and its tables list the kept runs."""

import math

import pytest

from docs import build, curve, records
from moon_jax.core import files
from tests.run_directories import write_run

ROUNDS = 100


def test_an_endpoint_is_of_five_tests():
  accuracy = {number: float(number) for number in range(1, 11)}
  # (6 + 7 + 8 + 9 + 10) / 5
  assert curve.endpoint(accuracy, 10) == 8
  assert curve.endpoint(accuracy, 4) is None
  del accuracy[8]
  assert curve.endpoint(accuracy, 10) is None


def test_a_level_is_reached_by_the_mean_of_five():
  accuracy = {1: 0.0, 2: 0.0, 3: 50.0, 4: 0.0, 5: 0.0, 6: 0.0, 7: 10.0, 8: 40.0, 9: 0.0}
  # Means of five: 10, 10, 12, 10, 10 of rounds 5 to 9.
  assert curve.reached(accuracy, 10.0, 9) == 5
  assert curve.reached(accuracy, 12.0, 9) == 7
  assert curve.reached(accuracy, 12.0, 6) is None
  assert curve.reached(accuracy, 12.1, 9) is None


def test_students_interval_of_three_differences():
  # 0.2, 2.1, 1.2: mean 3.5 / 3, squares 0.934444 + 0.871111 + 0.001111 = 1.806667,
  # deviation sqrt(1.806667 / 2) = 0.950438; t(0.975, 2) = 4.302653, / sqrt(3) 2.48414.
  std, _ = curve.pooled([[0.2, 2.1, 1.2]])
  assert std == pytest.approx(0.950438, abs=1e-6)
  assert curve.half_width(std, 3, 2) == pytest.approx(0.950438 * 2.484138, abs=1e-5)
  # With 12 degrees of freedom t is 2.178813: 1.257938 deviations.
  assert curve.half_width(1.0, 3, 12) == pytest.approx(1.257938, abs=1e-5)


def test_the_pooled_deviation_weighs_by_degrees_of_freedom():
  # Squares 2 of one degree and 8 of two: sqrt(10 / 3); one alone has none.
  std, freedom = curve.pooled([[1.0, 3.0], [0.0, 2.0, 4.0], [7.0], []])
  assert (std, freedom) == (pytest.approx(math.sqrt(10 / 3)), 3)
  assert curve.pooled([[1.0], []])[1] == 0


def test_the_slope_is_of_a_line_on_log_beta():
  # x = -1, 0, 1 and y = 1, 3, 4: slope 3 / 2, intercept 8 / 3; what is left is
  # -1/6, 1/3, -1/6, squares 1/6, one degree of freedom: error sqrt(1/6 / 2) = 0.288675;
  # t(0.975, 1) = 12.706205. t = 5.196152, p = 1 - 2 atan(t) / pi = 0.121038.
  found = curve.slope([0.1, 1.0, 10.0], [1.0, 3.0, 4.0])
  assert found.slope == pytest.approx(1.5)
  assert found.half_width == pytest.approx(0.288675 * 12.706205, abs=1e-4)
  assert found.p_value == pytest.approx(0.121038, abs=1e-5)
  assert found.count == 3


@pytest.fixture
def docs(tmp_path):
  (tmp_path / 'docs/results').mkdir(parents=True)
  return tmp_path / 'docs'


def keep(docs, tmp_path, variant, seed, accuracy, *flags, **about):
  """Keeps a run whose last five tests are this, in per cent."""
  name = f'{variant}_{seed}{len(flags)}'.replace(':', '_')
  accuracies = [0.0] * (ROUNDS - 5) + [accuracy / 100] * 5
  words = (f'--config=configs/{variant}', *flags)
  run = write_run(tmp_path / name, accuracies, *words, seed=seed)
  told = files.read_json(run / 'config.json')
  files.write_json(run / 'config.json', told | about)
  records.add(run, docs / 'results')


def made(docs, line):
  (docs / 'experiments.in.md').write_text(f'{line}\n')
  return build.page(docs).splitlines()


def cells(lines, start):
  (line,) = [line for line in lines if line.startswith(f'| {start} |')]
  return [cell.strip() for cell in line.strip('|').split('|')][1:]


def test_a_cell_has_the_differences_of_its_pairs(docs, tmp_path):
  line = f'@curve moon {ROUNDS}'
  assert made(docs, line) == [f'MOON, mu 5, at round {ROUNDS}: not run.']
  for seed, (theirs, ours) in enumerate([(60, 60.2), (50, 52.1), (70, 71.2)]):
    keep(docs, tmp_path, 'moon_cvpr21.py:fedavg', seed, theirs)
    keep(docs, tmp_path, 'moon_cvpr21.py:moon', seed, ours)
    if seed == 1:
      assert 'points (1 degree of freedom).' in made(docs, line)[-3]
  keep(docs, tmp_path, 'curve.py:beta_5_fedavg', 0, 70)
  keep(docs, tmp_path, 'curve.py:beta_5_moon', 0, 60)
  keep(docs, tmp_path, 'curve.py:beta_5_moon', 1, 69)
  lines = made(docs, line)
  assert cells(lines, 'beta 0.1')[:2] == ['no pair', '']
  assert lines[0].startswith('| column | seeds | FedAvg | MOON, mu 5 | difference |')
  (mean,) = [
    line for line in made(docs, '@means 100') if line.startswith('| MOON, mu 5')
  ]
  assert mean == (
    '| MOON, mu 5 | not run | not run | not run | +1.2 (3) | -10.0 (1) | not run |'
  )
  # The values for seeds 0, 1 and 2 are worked by hand above.
  assert cells(lines, 'beta 0.5') == [
    *('0, 1, 2', '60.0, 50.0, 70.0', '60.2, 52.1, 71.2', '+0.2, +2.1, +1.2', '+1.17'),
    *('+- 2.36', '+- 2.36', 'undecided', '100, 100, 100', '100, 100, 100'),
  ]
  # The interval is 4.302653 pooled deviations; one pair is too few to decide.
  assert cells(lines, 'beta 5') == [
    *('0', '70.0', '60.0', '-10.0', '-10.00', '', '+- 4.09'),
    'undecided (lower by the pooled deviation)',
    *('100', 'never'),
  ]
  assert 'deviation of 0.95 points (2 degrees of freedom).' in lines[-3]
  assert lines[-1] == 'Slope on log beta: reported when 15 pairs are run; 4 are.'


def test_the_planned_test_waits_for_all_its_pairs(docs, tmp_path):
  columns = {'beta_0.05': -1.0, 'beta_0.1': 0.0, 'beta_0.3': 0.5, 'beta_5': 2.0}
  for column, ahead in (columns | {'': 1.0, 'shards_2': -9.0}).items():
    for seed in range(3):
      called = f'curve.py:{column}_' if column else 'moon_cvpr21.py:'
      keep(docs, tmp_path, f'{called}fedavg', seed, 60)
      keep(docs, tmp_path, f'{called}moon', seed, 60 + ahead + 0.3 * (seed - 1))
  # A run of another setting, such as an ablation, is no pair.
  keep(docs, tmp_path, 'moon_cvpr21.py:moon', 0, 90, '--config.partition.balance=false')
  (docs / 'experiments.in.md').write_text('@curve moon 100\n@table moon_cvpr21: moon\n')
  lines = build.page(docs).splitlines()
  (told,) = [line for line in lines if line.startswith('Slope')]
  # Means -1, 0, 0.5, 1, 2 at log10 beta -1.30103, -1, -0.52288, -0.30103, 0.69897:
  # sxy 3.349485, sxx 2.368194.
  assert told.startswith('Slope on log beta, 15 pairs of seeds 0, 1, 2: +1.41 points')
  assert told.endswith(': rising. By seed: +1.41, +1.41, +1.41.')
  # Six columns: with 12 degrees of freedom the pooled interval decides, 1.257938 * 0.3;
  # by the cell's own, 2.484138 * 0.3, 0.5 would be undecided.
  *widths, verdict = cells(lines, 'beta 0.3')[4:8]
  assert widths == ['+0.50', '+- 0.75', '+- 0.38']
  assert verdict == 'higher (undecided by the own deviation)'
  assert cells(lines, 'beta 0.05')[7] == 'lower'
  assert cells(lines, 'beta 0.1')[7] == 'undecided'
  means = cells(made(docs, '@means 100\n@table moon_cvpr21: moon'), 'MOON, mu 5')
  assert means[:3] == ['**-1.0** (3)', '+0.0 (3)', '**+0.5** (3)']


def test_runs_of_other_data_are_no_pair(docs, tmp_path):
  keep(docs, tmp_path, 'moon_cvpr21.py:fedavg', 0, 60, data_digest='a')
  keep(docs, tmp_path, 'moon_cvpr21.py:moon', 0, 70, data_digest='b')
  assert made(docs, '@curve moon 100') == ['MOON, mu 5, at round 100: not run.']
  lines = made(docs, '@partitions 100')
  assert cells(lines, 'each seed its own partition')[:2] == ['', 'not run']
  (docs / 'experiments.in.md').write_text('@compare moon_cvpr21: moon fedavg\n')
  assert build.page(docs) == '\n'
  assert (
    cells(made(docs, '@ablation 100\n@table moon_cvpr21: moon'), 'none')[3] == 'not run'
  )


def test_a_slope_outside_the_test_has_no_verdict_and_each_seed_has_its_own():
  flat, pairs = dict.fromkeys(range(96, 101), 0.0), {}
  for column, (_, beta) in curve._COLUMNS.items():
    ours = [{n: seed * math.log10(beta or 1.0) for n in flat} for seed in range(4)]
    pairs[column] = [curve.Pair(seed, flat, ours[seed]) for seed in range(4)]
  planned, every = curve._slopes(pairs, 100, False)
  assert planned.startswith('Slope on log beta, 15 pairs of seeds 0, 1, 2: +1.00 ')
  assert planned.endswith('. By seed: +0.00, +1.00, +2.00.')
  assert every.startswith('Slope on log beta, 20 pairs of all seeds: +1.50 ')
  assert 'p = ' not in planned + every


def test_an_ablation_sets_each_change_beside_the_setting_at_the_same_round(
  docs, tmp_path
):
  assert cells(made(docs, '@ablation 50'), 'none') == ['not run'] * 5
  for algorithm, accuracy in (('fedavg', 60), ('moon', 61.5)):
    keep(docs, tmp_path, f'moon_cvpr21.py:{algorithm}', 0, accuracy)
  keep(docs, tmp_path, 'moon_cvpr21.py:fedavg', 1, 99)
  for choice, accuracy in (('no_head_scaffold', 40), ('equal_weights_fedavg', 50)):
    words = f'--config=configs/ablation.py:{choice}'
    run = write_run(tmp_path / choice, [0.1] * 45 + [accuracy / 100] * 5, words)
    records.add(run, docs / 'results')
  lines = made(docs, '@ablation 50\n@costs moon_cvpr21: fedavg')
  # The mean of rounds 46 to 50, not of the run's last five.
  left = 'not run'
  assert cells(lines, 'none') == ['0.0', left, left, '0.0 (+0.0)', left]
  assert cells(lines, 'no projection head') == [left, left, '40.0', left, left]
  assert cells(lines, 'equal weights of clients')[0] == '50.0'
  keep(docs, tmp_path, 'moon_cvpr21.py:scaffold', 0, 57.5)
  lines = made(docs, '@ablation 100\n@costs moon_cvpr21: fedavg')
  assert cells(lines, 'none') == ['60.0', left, '57.5 (-2.5)', '61.5 (+1.5)', left]
  assert cells(lines, 'equal weights of clients')[0] == left
