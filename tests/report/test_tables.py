"""Tables in LaTeX, the table by two knobs, and that of classes."""

import functools

import numpy as np
import pandas as pd
import pytest

import moon_jax
from moon_jax.core.errors import UsageError
from moon_jax.report import latex, report_files, results, runs, statistics, tables
from moon_jax.report.tables import Column, Table
from tests.report.reports import Collected, write_runs
from tests.run_directories import edit_lines, write_run

# --- LaTeX ----------------------------------------------------------------------------


def lines_of(columns, rows):
  """The lines of a tabular."""
  table = Table(name='n', title='t', caption='c', columns=columns, rows=rows)
  return latex.text(table).splitlines()


def test_latex_of_numbers_of_all_kinds():
  columns = (
    Column('name', 'a_b & c'),
    tables.percent_estimate('x', 'x, %'),
    Column('d', 'd', '+.1f'),
    Column('command', 'command'),
  )
  rows = [
    {'name': 'A', 'x_mean': 0.5, 'x_std': 0.01, 'd': -1.5, 'command': 'python'},
    {'name': 'B', 'x_mean': 0.7, 'x_std': None, 'd': 2.0, 'x_is_best': True},
    {'name': 'C', 'x_mean': 0.70004, 'x_std': 0.1, 'd': None, 'command': 'python'},
    {'name': 'D', 'x_mean': 0.1, 'x_std': 0.1, 'd': 0.0, 'command': 'python'},
    {'name': 'E', 'x_mean': 0.2, 'x_note': '1 of 3'},
    {'name': 'F', 'x_mean': 0.2, 'x_std': 0.1, 'x_note': '2 of 3'},
  ]
  lines = lines_of(columns, rows)
  assert lines[0] == r'\begin{tabular}{lr@{\,$\pm$\,}lr}'
  assert lines[2] == r'a\_b \& c & \multicolumn{2}{c}{x, \%} & d \\'
  a, b, c, d, e, f = lines[4:10]
  assert a == r'A & 50.00 & 1.00 & $-$1.5 \\'
  assert b.startswith(r'B & \multicolumn{1}{r')
  assert r'\textbf{70.00}' in b
  assert b.endswith(r' & $+$2.0 \\')
  assert c == r'C & 70.00 & 10.00 & - \\'
  assert d == r'D & 10.00 & 10.00 & $+$0.0 \\'
  assert e == r'E & \multicolumn{1}{r@{\phantom{\,$\pm$\,}}}{20.00} & (1 of 3) & - \\'
  assert f == r'F & 20.00 & 10.00 (2 of 3) & - \\'


def test_latex_leaves_room_where_a_number_has_fewer_decimals():
  rows = [{'beta': 0.05}, {'beta': 5.0}, {'beta': 0.5}, {'beta': None}]
  assert lines_of([Column('beta', 'beta')], rows)[4:8] == [
    r'0.05 \\',
    r'5\phantom{.05} \\',
    r'0.5\phantom{5} \\',
    r'- \\',
  ]


# --- the best -------------------------------------------------------------------------


def best_of(accuracies_by_method, is_higher_better=True):
  samples = {
    name: pd.Series(accuracies, range(len(accuracies)), dtype=float)
    for name, accuracies in accuracies_by_method.items()
  }
  return statistics.clear_best(samples, is_higher_better=is_higher_better)


def test_the_best_is_clear_of_the_second_by_hand():
  # The differences to the second are 0.02, 0.03 and 0.04: mean 0.03, deviation 0.01.
  # Student's quantile for two degrees of freedom is 4.303, so half of the interval is
  # 4.303 * 0.01 / sqrt(3) = 0.0248, below 0.03.
  methods = {'a': [0.52, 0.73, 0.64], 'b': [0.5, 0.7, 0.6], 'c': [0.1, 0.1, 0.1]}
  assert best_of(methods) == 'a'
  # 0.01, 0.03 and 0.05: deviation 0.02, half of the interval 0.0497.
  assert best_of(methods | {'a': [0.51, 0.73, 0.65]}) is None
  # Of costs, the lowest is best.
  assert best_of({'a': [1.0, 2.0], 'b': [2.0, 3.01]}, is_higher_better=False) == 'a'


def test_one_pair_or_one_method_has_no_best():
  assert best_of({'a': [0.9], 'b': [0.1]}) is None
  assert best_of({'a': [0.9, 0.9]}) is None
  assert best_of({'a': [0.9, 0.9], 'b': [0.9, 0.9]}) is None
  # Both are better by 0.02, one test image of fifty: an interval without a width.
  assert best_of({'a': [0.52, 0.62], 'b': [0.5, 0.6]}) is None
  assert best_of({'a': [0.52, 0.64], 'b': [0.5, 0.62]}) is None
  assert best_of({'a': [0.920, 0.921], 'b': [0.5, 0.5]}) == 'a'
  # 'c' is above 'a' with both seeds of 'a', and below it by a third that 'a' lacks.
  led = {'a': [0.8, 0.81], 'b': [0.7, 0.711], 'c': [0.82, 0.83, 0.4]}
  assert best_of(led) is None
  assert best_of(led | {'c': [0.79, 0.8, 0.4]}) == 'a'
  apart = {'a': pd.Series([0.9, 0.9], [0, 1]), 'b': pd.Series([0.1, 0.1], [2, 3])}
  assert statistics.clear_best(apart, is_higher_better=True) is None


# --- for a paper ----------------------------------------------------------------------


def write_methods(folder, accuracies_by_method):
  """A run for each method, beta and seed: (algorithm, beta) -> final accuracies.

  Half of the test examples are of one class.
  """
  runs_by_name = {
    f'{algorithm}-{beta}-{seed}': (
      [0.5, accuracy],
      f'algorithm={algorithm} partition.beta={beta} seed={seed}',
    )
    for (algorithm, beta), accuracies in accuracies_by_method.items()
    for seed, accuracy in enumerate(accuracies)
  }
  write_runs(folder, runs_by_name)
  for name in runs_by_name:
    write_confusion(folder / name, [50, 30, 20])
  return folder


def write_confusion(path, test_class_counts):
  """Writes the confusion matrix of a model that predicts class 0 only."""
  confusion = np.zeros((3, 3), int)
  confusion[:, 0] = test_class_counts
  np.savez(path / 'confusion.npz', round=np.asarray(1), confusion=confusion)


@pytest.fixture(scope='module')
def methods(tmp_path_factory):
  """Three methods; MOON is clearly better with beta = 5, and SCAFFOLD at chance."""
  return write_methods(
    tmp_path_factory.mktemp('methods'),
    {
      ('fedavg', 0.5): [0.60, 0.70, 0.65],
      ('moon', 0.5): [0.70, 0.60, 0.68],
      ('fedavg', 5): [0.70, 0.80, 0.75],
      ('moon', 5): [0.75, 0.86, 0.79],
      ('scaffold', 5): [0.10, 0.20, 0.10],
    },
  )


def test_a_table_for_a_paper_has_a_row_for_each_method(methods):
  table = Collected(methods).table('paper')
  assert [column.heading for column in table.columns] == [
    'method',
    'beta=0.5, %',
    'beta=5, %',
  ]
  assert table.texts() == [
    ['FedAvg', '65.00 ± 5.00', '75.00 ± 5.00'],
    ['SCAFFOLD', '-', '13.33 ± 5.77 (at chance)'],
    ['MOON', '66.00 ± 5.29', '80.00 ± 5.57'],
  ]
  assert '(at chance): no run is more than a point above the share' in table.caption
  text = latex.text(table)
  assert text.count('textbf') == 1
  assert r'\textbf{80.00} & 5.57' in text
  assert r'13.33 & 5.77 (at chance) \\' in text
  assert '| **80.00 ± 5.57** ' in report_files.markdown(table)


def test_runs_at_chance_are_called_so(methods, capsys):
  report = Collected(methods)
  note = 'beta=5: SCAFFOLD: 3 of 3 runs at chance: their last test accuracy is at most'
  assert note in capsys.readouterr().err
  states = {(row['algorithm'], row['state']) for row in report.rows('runs')}
  assert states == {
    ('scaffold', 'finished, at chance'),
    ('fedavg', 'finished'),
    ('moon', 'finished'),
  }


@pytest.mark.parametrize(
  ('training', 'test', 'accuracy', 'is_at_chance'),
  [
    # Training examples have a long tail, test examples have none.
    ([90, 5, 5], [30, 30, 30], 0.63, False),
    ([90, 5, 5], [30, 30, 30], 0.34, True),
    # Training is balanced, and a constant prediction is right for 90 % of the test.
    ([30, 30, 30], [90, 5, 5], 0.905, True),
    ([30, 30, 30], [90, 5, 5], 0.92, False),
    # Without the test examples' classes nothing is known.
    ([90, 5, 5], None, 0.3, False),
    ([90, 5, 5], [0, 0, 0], 0.3, False),
  ],
)
def test_chance_is_that_of_the_test_examples(
  tmp_path, training, test, accuracy, is_at_chance
):
  path = write_run(tmp_path / 'run', [accuracy])
  np.savez(path / 'partition.npz', class_counts=np.array([training]))
  if test:
    write_confusion(path, test)
  (run,) = runs.find([tmp_path], print)
  assert results.at_chance(run) == is_at_chance


def test_other_columns_of_a_paper(methods):
  report = Collected(methods, ['--paper=test_accuracy,train_loss'])
  headings = [column.heading for column in report.table('paper').columns]
  assert headings[1:3] == ['beta=0.5: Test accuracy, %', 'beta=0.5: Training loss']
  wrong = r"no finished run has recorded 'tset_loss'\. Did you mean 'test_loss'"
  with pytest.raises(UsageError, match=wrong):
    Collected(methods, ['--paper=tset_loss'])
  with pytest.raises(UsageError, match=r"recorded 'clients'\.$"):  # no number
    Collected(methods, ['--paper=clients'])


def test_the_caption_counts_the_runs_that_have_the_number(tmp_path):
  flags = {f'fedavg-{seed}': f'algorithm=fedavg seed={seed}' for seed in range(3)}
  flags |= {f'moon-{seed}': f'algorithm=moon seed={seed}' for seed in range(2)}
  write_runs(tmp_path, {name: ([0.8], words) for name, words in flags.items()})
  assert 'over 2 to 3 finished runs' in Collected(tmp_path).table('paper').caption
  for seed in range(2):
    path = tmp_path / f'moon-{seed}/metrics.jsonl'
    edit_lines(path, functools.partial(add, {'personal_accuracy_mean': 0.7}))
  table = Collected(tmp_path, ['--paper=personal_accuracy_mean']).table('paper')
  assert 'over 2 finished runs' in table.caption


def test_a_metric_says_itself_which_numbers_are_best(tmp_path, own_parts):
  moon_jax.register_metric('brier', lambda of: 0.0, lower_is_better=True)
  moon_jax.register_metric('error_free', lambda of: 0.0)
  best_by_column = {
    'test_ece': 'MOON',
    'test_brier': 'MOON',
    'user_brier_worst_tenth': 'MOON',
    'test_error_free': 'FedAvg',  # higher is better, whatever its name says
    'user_error_free_std': 'MOON',
    'user_error_free_undefined': 'MOON',
    'train_loss': 'MOON',
    'bytes_up': 'MOON',
    'user_accuracy_min': 'FedAvg',
    # Of callbacks, and of ours that are neither an accuracy nor a cost.
    'perplexity': None,
    'error_rate': None,
    'loss_reduction': None,
    'accuracy_gap': None,
    'positive_cosine': None,
  }
  for algorithm, number in (('fedavg', 0.2), ('moon', 0.1)):
    flags = f'algorithm={algorithm} metrics=ece,brier,error_free'
    for seed in (0, 1):
      numbers = dict.fromkeys(best_by_column, number * (1 + seed / 100))
      name = f'{algorithm}-{seed}'
      write_runs(tmp_path, {name: ([0.8], f'{flags} seed={seed}')})
      edit_lines(tmp_path / name / 'metrics.jsonl', functools.partial(add, numbers))
  paper = f'--paper={",".join(best_by_column)}'
  table = Collected(tmp_path, [paper]).table('paper')
  for column, best in zip(table.columns[1:], best_by_column.values(), strict=True):
    marked = [row['series'] for row in table.rows if column.is_best(row)]
    assert marked == ([best] if best else []), column.key
  unranked = ', '.join(name for name, best in best_by_column.items() if not best)
  assert f'it is not known which numbers are better: {unranked}.' in table.caption


def add(numbers, line):
  line.update(numbers)


def test_runs_of_unequal_lengths_have_no_best(tmp_path):
  runs_by_name = {
    f'{algorithm}-{seed}': (
      [0.5] * length + [final + seed / 10],
      f'algorithm={algorithm} seed={seed}',
    )
    for algorithm, final, length in (('fedavg', 0.6, 1), ('moon', 0.7, 2))
    for seed in (0, 1)
  }
  report = Collected(write_runs(tmp_path, runs_by_name))
  for name in ('paper', 'accuracy'):
    table = report.table(name)
    for row in table.rows:
      assert not any(column.is_best(row) for column in table.columns)


# --- by two knobs ---------------------------------------------------------------------


@pytest.fixture(scope='module')
def two_knobs(tmp_path_factory):
  """Runs of FedAvg with two betas and of MOON with one, each with two seeds.

  Their best accuracy, 0.95, is not their last.
  """
  finals = {
    'algorithm=fedavg partition.beta=0.5': (0.35, 0.36),
    'algorithm=fedavg partition.beta=5': (0.80, 0.81),
    'algorithm=moon partition.beta=0.5': (0.45, 0.462),
  }
  runs_by_name = {
    f'{words} {seed}': ([0.95, final], f'{words} seed={seed}')
    for words, finals_of_seeds in finals.items()
    for seed, final in enumerate(finals_of_seeds)
  }
  return write_runs(tmp_path_factory.mktemp('pivot'), runs_by_name)


def test_a_pivot_has_a_row_and_a_column_for_each_value(two_knobs):
  report = Collected(two_knobs, ['--rows=algorithm', '--columns=partition.beta'])
  fedavg, moon = report.rows('pivot')
  assert (fedavg['row'], moon['row']) == ('FedAvg', 'MOON')
  # Means of the last accuracies of two seeds: 0.35 and 0.36, 0.80 and 0.81.
  assert float(fedavg['of 0.5_mean']) == pytest.approx(0.355)
  assert float(fedavg['of 5.0_mean']) == pytest.approx(0.805)
  assert fedavg['of 0.5_n'] == '2'
  assert float(moon['of 0.5_mean']) == pytest.approx(0.456)
  assert moon['of 5.0_mean'] == ''  # no run has these values


def test_a_pivot_ranks_algorithms_and_no_values(two_knobs):
  def best(*flags):
    table = Collected(two_knobs, flags).table('pivot')
    return [
      (row['row'], column.heading)
      for row in table.rows
      for column in table.columns
      if column.is_best(row)
    ]

  by_algorithm = best('--rows=algorithm', '--columns=partition.beta')
  assert by_algorithm == [('MOON', 'beta=0.5')]
  assert best('--rows=partition.beta', '--columns=algorithm') == []


@pytest.mark.parametrize(
  ('flags', 'complaint'),
  [
    (
      ['--rows=algorithm', '--columns=partition.beta', '--over=partition.beta'],
      'differ in seed; choose',
    ),
    (['--rows=seed'], 'go together, each with another knob'),
    (['--rows=seed', '--columns=seed'], 'go together, each with another knob'),
    (['--rows=moon.mu', '--columns=algorithm'], r"has no setting 'moon\.mu'"),
  ],
)
def test_a_pivot_that_is_not_to_be_had_is_refused(two_knobs, flags, complaint):
  with pytest.raises(UsageError, match=complaint):
    Collected(two_knobs, flags)


# --- by class -------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('setting', 'caption'),
  [
    ('', 'Trained global model on the test examples of each class.'),
    ('beta=0.5', 'Trained global model on the test examples of each class: beta=0.5.'),
  ],
)
def test_a_table_by_class_names_its_setting(setting, caption):
  table = tables.by_class(number=1, setting=setting, headings={}, rows=[])
  assert table.caption == caption
