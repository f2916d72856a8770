"""papers/planned.py: p-values worked by hand, and the table from kept runs."""

import math

import numpy as np
import pytest
from scipy import stats

from moon_jax import config as config_lib
from moon_jax.core.errors import UsageError
from papers import differences, kept_runs, planned
from tests import plan_by_enumeration
from tests.run_directories import write_run

CHOICES = {
  'beta 0.05': ('curve.py:beta_0.05_moon', 'curve.py:beta_0.05_fedavg'),
  'beta 0.3': ('curve.py:beta_0.3_moon', 'curve.py:beta_0.3_fedavg'),
  'beta 0.5': ('moon_cvpr21.py:moon', 'moon_cvpr21.py:fedavg'),
}


def test_p_values_by_hand():
  # Ranks 1, 2 and 3: both sums are 3, which no assignment of signs is nearer to.
  assert planned.signed_rank_p([0.1, 0.2, -0.3]) == 1
  # All eight of one sign: 2 of 256 assignments.
  assert planned.signed_rank_p([-n for n in range(1, 9)]) == pytest.approx(2 / 256)
  # A loss by divergence has rank 3; the positive ranks are 1 + 2, as before.
  assert planned.signed_rank_p([0.1, 0.2, -math.inf]) == 1
  # Equal sizes share their rank, though 0.1 + 0.2 is not 0.3; 0 has no rank.
  assert planned.signed_rank_p([0.3, -(0.1 + 0.2)]) == 1
  of_ties = planned.signed_rank_p([0.3, -(0.1 + 0.2), 0.5, 0.7, 0.9, 1.1, 1.3, 1e-14])
  assert of_ties == planned.signed_rank_p([1.5, -1.5, 3, 4, 5, 6, 7])
  # One rank says nothing, and no rank neither.
  assert planned.signed_rank_p([0.4, 0.0]) == planned.signed_rank_p([]) == 1
  # Two share ranks 2 and 3: sums 1 and 5, as extreme in 4 of 8 assignments (0, 1).
  assert planned.signed_rank_p([0.1, -math.inf, -math.inf]) == pytest.approx(4 / 8)


def test_without_ties_it_is_the_library_s_exact_test():
  numbers = np.random.default_rng(0).normal(0.5, 1, 8)
  expected = stats.wilcoxon(numbers, method='exact').pvalue
  assert planned.signed_rank_p(numbers) == pytest.approx(expected)


def test_both_programs_have_the_same_p_values():
  random = np.random.default_rng(0)
  for sizes in random.integers(-4, 5, (20, 8)):  # with ties and zeros
    numbers = np.where(sizes == 4, math.inf, 0.1 * sizes)
    expected = plan_by_enumeration.signed_rank_p(numbers)
    assert planned.signed_rank_p(numbers) == pytest.approx(expected)
  for p_values in random.integers(1, 20, (20, 3)) / 20:
    expected = plan_by_enumeration.holm(p_values.tolist())
    assert differences.holm(p_values.tolist()) == pytest.approx(expected)


def test_holm_by_hand():
  # 3 * 0.01; 2 * 0.03; 0.04, but no less than the one before.
  assert differences.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
  assert differences.holm([0.5, 0.6, 0.7]) == [1, 1, 1]


@pytest.fixture
def runs(tmp_path, monkeypatch):
  """All runs of a plan of three seeds; MOON is 1, 2 or 3 points above, by seed."""
  monkeypatch.setattr(planned, 'SEEDS', (4, 5, 6))
  monkeypatch.setattr(planned, 'COMMIT', 'a' * 8)
  for pair in CHOICES.values():
    for choice, gain in zip(pair, (0.01, 0.0), strict=True):
      for seed in planned.SEEDS:
        name = f'{choice.replace(":", "_")}_seed{seed}'
        accuracies = [None] * 95 + [0.5 + gain * (seed - 3)] * 5
        flag = f'--config=configs/{choice}'
        run = write_run(tmp_path / name, accuracies, flag, seed=seed)
        kept_runs.keep_run(run, tmp_path / 'kept')
  return kept_runs.read_all(tmp_path / 'kept')


def test_the_table_waits_for_all_runs_and_is_that_of_the_differences(runs):
  *most, _ = runs
  left = planned.planned_table({name: runs[name] for name in most}, {})
  (line,) = left
  assert line.startswith('Runs of the plan that are left: 1 of 18. Nothing is computed')
  head, _, *rows = planned.planned_table(runs, {})
  assert head.startswith(
    '| MOON - FedAvg | by seed | median | mean, 95 % | p (planned)'
  )
  # Three of one sign: 2 of 8 assignments, and three times as much.
  mean = '+2.0 (-0.5 to +4.5)'
  cells = f'+1.0, +2.0, +3.0 | +2.0 | {mean} | 0.250 | 0.750 | undecided |'
  assert rows == [f'| {skew} | {cells}' for skew in CHOICES]


def test_a_run_that_diverged_is_the_lowest(runs):
  names = [f'curve.py_beta_0.05_{algorithm}_seed6' for algorithm in ('moon', 'fedavg')]
  lost = {name: without_an_end(runs[name]) for name in names}

  def first_row(*lost_names):
    finished = {name: run for name, run in runs.items() if name not in lost_names}
    diverged = {name: lost[name] for name in lost_names}
    _, _, row, *_ = planned.planned_table(finished, diverged)
    return row

  # Ranks 1 and 2 against 3; then all of one sign, and then of two seeds.
  cells = '+1.0, +2.0, MOON diverged | +1.0 |  | 1.000 | 1.000 | undecided |'
  assert first_row(names[0]) == f'| beta 0.05 | {cells}'
  cells = '+1.0, +2.0, FedAvg diverged | +2.0 |  | 0.250 | 0.750 | undecided |'
  assert first_row(names[1]) == f'| beta 0.05 | {cells}'
  cells = '+1.0, +2.0, both diverged | +1.5 |  | 0.500 | 0.750 | undecided |'
  assert first_row(names[0], names[1]) == f'| beta 0.05 | {cells}'


def without_an_end(run):
  """The run, with a loss that is not finite in its last round."""
  *rounds, last = run.rounds
  return run._replace(rounds=[*rounds, last | {'train_loss': None}])


def test_runs_that_are_not_of_the_plan_are_refused(runs):
  name, run = next(iter(runs.items()))
  with pytest.raises(UsageError, match='seed4 has not diverged: all numbers'):
    planned.planned_table({}, {name: run})
  with pytest.raises(UsageError, match='seed4 is kept as finished and as diverged'):
    planned.planned_table(runs, {name: without_an_end(run)})
  for field, content, problem in (
    ('devices', ['cpu: cpu', 'gpu: a card'], 'seed4 must be of a CPU'),
    ('data_digest', 'another', 'Runs of the plan have other data: .*seed'),
  ):
    other = run._replace(provenance=run.provenance | {field: content})
    with pytest.raises(UsageError, match=problem):
      planned.planned_table(runs | {name: other}, {})
    finished = {one: runs[one] for one in runs if one != name}
    with pytest.raises(UsageError, match=problem):
      planned.planned_table(finished, {name: without_an_end(other)})


def test_a_run_of_another_commit_is_refused(runs, monkeypatch):
  with monkeypatch.context() as changed:
    changed.setattr(planned, 'COMMIT', 'b' * 8)
    with pytest.raises(UsageError, match='seed4 must be of commit bbbbbbbb'):
      planned.planned_table(runs, {})
  run = next(iter(runs.values()))
  run.provenance['earlier'] = [{'git_commit': 'b' * 40}]
  with pytest.raises(UsageError, match='seed4 must be of commit aaaaaaaa'):
    planned.planned_table(runs, {})
  run.provenance['earlier'] = []
  run.provenance['git_commit'] = f'{"a" * 40}+changes'
  with pytest.raises(UsageError, match='seed4 must be of commit aaaaaaaa'):
    planned.planned_table(runs, {})


def test_a_comparison_is_decided_by_its_corrected_p_value():
  by_seed = dict(zip(range(4, 12), [1, 2, 3, 4, 5, 6, 7, -0.5], strict=True))
  p_value = planned.signed_rank_p([*by_seed.values()])
  comparison = planned.Planned(by_seed, p_value, 0.049)
  assert comparison.verdict == 'higher'
  assert comparison._replace(adjusted=0.05).verdict == 'undecided'
  negative = {seed: -difference for seed, difference in by_seed.items()}
  assert comparison._replace(differences=negative).verdict == 'lower'
  # Three lost of eight, but the largest.
  lost = by_seed | {4: -math.inf, 5: -math.inf, 6: -math.inf}
  assert comparison._replace(differences=lost).verdict == 'lower'


def accuracies_of_the_plan(gain=0):
  """Name -> (config choice, seed, seed of the partition, accuracy), of all its runs."""
  random = np.random.default_rng(1)
  runs = {}
  for choices in (
    *CHOICES.values(),
    ('moon_cvpr21.py:fedprox', 'moon_cvpr21.py:scaffold'),
  ):
    for choice in choices:
      stem = choice.replace('.py:', '_')
      for seed in range(4, 12):
        # Multiples of 0.01 points, so that some differences are equal.
        accuracy = 0.6 + 1e-4 * int(random.integers(-5, 6))
        accuracy += gain * choice.endswith('moon')
        runs[f'{stem}_seed{seed}'] = (choice, seed, 'auto', accuracy)
  for algorithm in ('fedavg', 'moon'):
    for seed, partition_seed in ((4, 5), (5, 4)):
      name = f'moon_cvpr21_{algorithm}_partition.seed={partition_seed}_seed{seed}'
      choice = f'moon_cvpr21.py:{algorithm}'
      runs[name] = (choice, seed, partition_seed, 0.61 + 0.01 * seed)
  return runs


def made_up_run(name, facts):
  """A finished run with one accuracy in all its rounds."""
  choice, seed, partition_seed, accuracy = facts
  config_choice = f'configs/{choice}'
  knobs = config_lib.flatten(config_lib.validate(config_lib.load(config_choice)))
  return kept_runs.KeptRun(
    name=name,
    config_choice=config_choice,
    command='',
    knobs=knobs | {'seed': seed, 'partition.seed': partition_seed},
    provenance={'git_commit': planned.COMMIT, 'devices': ['cpu: cpu']},
    rounds=[{'round': number, 'test_accuracy': accuracy} for number in range(1, 101)],
  )


LOST_NAMES = [
  'moon_cvpr21_moon_seed6',
  'moon_cvpr21_scaffold_seed7',
  'curve_beta_0.05_fedavg_seed4',
  'curve_beta_0.3_fedavg_seed5',
  'curve_beta_0.3_moon_seed5',
  'moon_cvpr21_moon_partition.seed=4_seed5',
]


@pytest.mark.parametrize(
  ('lost_names', 'gain', 'verdict'),
  [
    ([], 0, 'undecided'),
    (LOST_NAMES, 0, 'undecided'),
    # MOON is above, or below, with every seed.
    ([], 0.01, 'higher'),
    ([], -0.01, 'lower'),
  ],
)
def test_both_programs_have_the_same_tables(lost_names, gain, verdict):
  made_up = accuracies_of_the_plan(gain)
  runs = {name: made_up_run(name, facts) for name, facts in made_up.items()}
  diverged = {name: without_an_end(runs.pop(name)) for name in lost_names}
  ends = {
    name: 100 * accuracy for name, (*_, accuracy) in made_up.items() if name in runs
  }
  _, _, *rows = planned.planned_table(runs, diverged)
  assert rows == [*plan_by_enumeration.planned_rows(ends, {*lost_names})]
  assert all(row.endswith(f'| {verdict} |') for row in rows)
  _, _, *rows = planned.described_table(runs, diverged)
  _, _, *crossed_rows = planned.crossed_table(runs, diverged)
  described = [*plan_by_enumeration.described_rows(ends, {*lost_names})]
  assert rows + crossed_rows == described
  assert len(crossed_rows) == 4
  # Before all planned runs are there, nothing is said.
  runs.pop('moon_cvpr21_moon_seed4')
  assert planned.described_table(runs, diverged) == []
  assert planned.crossed_table(runs, diverged) == []


def test_runs_that_diverged_are_named(runs):
  name, run = next(iter(runs.items()))
  assert planned.divergences({}) == []
  (line,) = planned.divergences({name: without_an_end(run)})
  assert line == f'Diverged: `{name}` in round 100.'
