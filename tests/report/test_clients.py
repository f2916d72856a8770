"""What a report says of clients is what their runs have recorded."""

import csv
import gzip
import math
import pathlib
import statistics
import tempfile

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from moon_jax.report import (
  charts,
  clients,
  command,
  compare,
  features,
  groups,
  interactive,
  models,
  runs,
  sections,
)
from moon_jax.runner import round_records
from moon_jax.runner.client_file import ClientFile, Clients, Columns
from tests.processes import read_lines
from tests.report.reports import Collected
from tests.run_directories import edit_lines, write_run

NATURAL = '--config.partition.name=natural'
METRICS_FLAG = '--config.metrics=macro_f1,ece'
# Algorithm -> the columns of clients that a run of it records, with natural clients.
COLUMNS = {
  'fedavg': ('user_accuracy',),
  'ditto': ('user_accuracy', 'local_accuracy', 'personal_accuracy'),
  'fedper': ('test_accuracy', 'personal_accuracy'),
}
HEADINGS = {
  'user_accuracy': 'global model',
  'personal_accuracy': "client's own model",
  'test_accuracy': "client's own model, on the whole test set",
}


def write_clients(path, columns, names, rng, num_rounds):
  """Writes the numbers of clients into the two files of a run.

  `ece` of each tested model is in the second file only, and not defined for the first
  client.
  """
  sizes = np.arange(3, 3 + len(names))
  numbers_by_round, errors_by_round = [], []
  for _ in range(num_rounds):
    numbers = {}
    for column in columns:
      numbers[column] = rng.integers(0, sizes + 1) / sizes
    if 'local_accuracy' in numbers:  # the same model and examples
      numbers['local_accuracy'] = numbers['user_accuracy']
    errors = {}
    for column in columns:
      of_clients = rng.random(len(names))
      of_clients[0] = np.nan
      errors[column.replace('accuracy', 'ece')] = of_clients
    errors_by_round.append(errors)
    numbers_by_round.append(numbers)

  def add(line):
    for column, accuracy in numbers_by_round[line['round'] - 1].items():
      if column == 'test_accuracy':
        line['test_accuracy'] = accuracy.mean()
        line['test_accuracy_std'] = accuracy.std()
        line['test_accuracy_worst'] = accuracy.min()
      else:
        line.update(round_records.over_clients(accuracy * sizes, sizes, column))

  edit_lines(path / 'metrics.jsonl', add)
  # The data name the clients.
  class_counts = np.ones((len(names), 3), int)
  np.savez(path / 'partition.npz', class_counts=class_counts, clients=np.array(names))
  listed = Columns(names=names, training_examples=7.0 * sizes, test_examples=sizes)
  with ClientFile(path, listed, tested_rounds=[]) as file:
    for number, numbers in enumerate(numbers_by_round, 1):
      file.add(number, {**numbers, **errors_by_round[number - 1]})


def write_metrics(path, columns, rng):
  """Writes metrics of tests, and a time of its own for each round.

  Args:
    path: path of the run directory.
    columns: those of `COLUMNS`; the tests of these models have metrics, too.
    rng: the numbers come from it.
  """

  def add_metrics(line):
    line['test_macro_f1'] = float(rng.random())
    for column in columns:
      if column != 'test_accuracy':
        line[column.replace('accuracy', 'ece_mean')] = float(rng.random())
    if 'local_ece_mean' in line:  # the same model and examples
      line['local_ece_mean'] = line['user_ece_mean']
    line['bytes_up'] = int(rng.integers(1, 10**6))

  def add_times(line):
    line['train_seconds'], line['idle_seconds'] = rng.random(2).tolist()

  edit_lines(path / 'metrics.jsonl', add_metrics)
  edit_lines(path / 'timings.jsonl', add_times)


def check_best(row, lines_of_runs):
  """The best accuracy is that of the first round with the highest one."""
  bests = [max(line['test_accuracy'] for line in lines) for lines in lines_of_runs]
  check_estimate(row, 'best_accuracy', bests)


def check_differences(row, column, lines, fedavg_lines):
  """Both differences to FedAvg are paired by seed."""
  pairs = list(zip(lines, fedavg_lines, strict=True))
  finals = [ours['test_accuracy'] - theirs['test_accuracy'] for ours, theirs in pairs]
  check_estimate(row, 'difference_to_fedavg', finals)
  own_tests = [
    ours[f'{column}_accuracy_mean'] - theirs['user_accuracy_mean']
    for ours, theirs in pairs
  ]
  check_estimate(row, 'client_difference_to_fedavg', own_tests)
  assert row['client_pairs'] == len(pairs)


def check_target(report, title, lines_of_runs, times_of_runs):
  """Rounds, MB and seconds to 50 %, of the runs that reach it."""
  rounds, megabytes, seconds = [], [], []
  for lines, times in zip(lines_of_runs, times_of_runs, strict=True):
    reached = [line['round'] for line in lines if line['test_accuracy'] >= 0.5]
    if reached:
      number = reached[0]
      rounds.append(number)
      up_to = [line for line in lines if line['round'] <= number]
      megabytes.append(
        sum(line['bytes_up'] + line['bytes_down'] for line in up_to) / 1e6
      )
      phases = ('train_seconds', 'evaluate_seconds', 'idle_seconds')
      seconds.append(
        sum(sum(line[phase] for phase in phases) for line in times[:number])
      )
  (row,) = (row for row in report.table('target').rows if row['series'] == title)
  assert row['reached'] == f'{len(rounds)} of {len(lines_of_runs)}'
  if rounds:
    check_estimate(row, 'rounds_to_target', rounds)
    check_estimate(row, 'megabytes_to_target', megabytes)
    check_estimate(row, 'seconds_to_target', seconds)


def last_of_each(path, column):
  """Client -> its last number, read without the package."""
  with gzip.open(path / 'clients.csv.gz', 'rt', newline='') as file:
    header, *lines = csv.reader(file)
  cells = [line for line in lines if line[1] == column][-1]
  return {
    client: float(cell) if cell else math.nan
    for client, cell in zip(header[2:], cells[2:], strict=True)
  }


def check_estimate(row, key, numbers):
  """The three cells of an estimate are those of the numbers of the runs."""
  assert row[f'{key}_n'] == len(numbers)
  assert row[f'{key}_mean'] == pytest.approx(statistics.fmean(numbers), abs=1e-12)
  if len(numbers) > 1:
    assert row[f'{key}_std'] == pytest.approx(statistics.stdev(numbers), abs=1e-12)
  else:
    assert math.isnan(row[f'{key}_std'])


def test_first_tables_have_the_clients_own_tests(tmp_path):
  """FedPer is behind on the whole test set, and ahead on its clients' own tests."""
  for seed in (0, 1):
    for algorithm, accuracy, client_accuracy in (
      ('fedavg', 0.9, 0.8),
      ('fedper', 0.6 + seed / 100, 0.95 + seed / 100),
    ):
      path = tmp_path / f'{algorithm}-{seed}'
      write_run(path, [accuracy], NATURAL, f'--config.algorithm={algorithm}', seed=seed)
      columns = COLUMNS[algorithm]
      write_clients(path, columns, ['a', 'b'], np.random.default_rng(seed), 1)

      def add(
        line, accuracy=accuracy, client_accuracy=client_accuracy, name=columns[-1]
      ):
        line['test_accuracy'] = accuracy
        line[f'{name}_mean'] = client_accuracy

      edit_lines(path / 'metrics.jsonl', add)
  report = Collected(tmp_path)
  accuracy = report.table('accuracy')
  headings = [column.heading for column in accuracy.columns]
  after_mean = headings.index("mean over clients' own tests, %") + 1
  assert headings[after_mean : after_mean + 3] == [
    'own tests - FedAvg, points',
    'own tests: pairs',
    'own tests: p',
  ]
  # 95 - 80 and 96 - 80 on clients' own tests, 60 - 90 and 61 - 90 on the test set.
  fedper = dict(zip(headings, accuracy.texts()[1], strict=True))
  assert fedper['own tests - FedAvg, points'] == '+15.50 ± 0.71'
  assert fedper['own tests: pairs'] == '2'
  assert fedper['final - FedAvg, points'] == '-29.50 ± 0.71'
  paper = report.table('paper')
  assert [column.heading for column in paper.columns] == [
    'method',
    'Test accuracy, %',
    "Mean over clients' own tests, %",
  ]
  assert paper.texts() == [
    ['FedAvg', '90.00 ± 0.00', '80.00 ± 0.00'],
    ['FedPer', '60.50 ± 0.71', '95.50 ± 0.71'],
  ]
  best = [
    [row['series'] for row in paper.rows if c.is_best(row)] for c in paper.columns
  ]
  assert best == [[], ['FedAvg'], ['FedPer']]
  for name in ('accuracy', 'paper'):
    assert (
      "means over the clients' models, each on the whole" in report.table(name).caption
    )
    assert 'For each client see Clients' in report.table(name).caption
  title = report.charts()['test_accuracy'].title
  assert "without a global model: mean of the clients' models" in title
  # Without clients that are tested, there is no such column and no such sentence.
  write_run(tmp_path / 'plain/run', [0.5])
  plain = Collected(tmp_path / 'plain')
  for name in ('accuracy', 'paper'):
    headings = [column.heading for column in plain.table(name).columns]
    assert not any('own tests' in heading for heading in headings)
    assert "clients' models" not in plain.table(name).caption
  assert plain.charts()['test_accuracy'].title == 'Test accuracy'


@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
  algorithms=st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1),
  num_seeds=st.integers(1, 3),
  num_clients=st.sampled_from([2, 5, 9, 10, 14]),
  num_rounds=st.integers(1, 4),
  seed=st.integers(0, 2**32 - 1),
)
@example(algorithms=set(COLUMNS), num_seeds=2, num_clients=10, num_rounds=3, seed=0)
def test_the_report_equals_the_records(
  algorithms, num_seeds, num_clients, num_rounds, seed
):
  rng = np.random.default_rng(seed)
  names = [f'site {number}, {"xyz"[number % 3]}' for number in range(num_clients)]
  with tempfile.TemporaryDirectory() as folder:
    paths = {}  # algorithm -> its run directories
    for algorithm in sorted(algorithms):
      for run_seed in range(num_seeds):
        path = pathlib.Path(folder, f'{algorithm}-{run_seed}')
        accuracies, flag = rng.random(num_rounds), f'--config.algorithm={algorithm}'
        write_run(path, accuracies.tolist(), NATURAL, METRICS_FLAG, flag, seed=run_seed)
        write_clients(path, COLUMNS[algorithm], names, rng, num_rounds)
        write_metrics(path, COLUMNS[algorithm], rng)
        paths.setdefault(algorithm, []).append(path)
    report = Collected(folder, ['--target=0.5'])
    last_lines = {
      algorithm: [read_lines(path / 'metrics.jsonl')[-1] for path in of_algorithm]
      for algorithm, of_algorithm in paths.items()
    }
    rows = {row['series']: row for row in report.table('accuracy').rows}
    titles = {'fedavg': 'FedAvg', 'ditto': 'Ditto', 'fedper': 'FedPer'}
    for algorithm, lines in last_lines.items():
      row = rows[titles[algorithm]]
      check_estimate(row, 'final_accuracy', [line['test_accuracy'] for line in lines])
      column = 'user' if algorithm == 'fedavg' else 'personal'
      numbers = [line[f'{column}_accuracy_mean'] for line in lines]
      check_estimate(row, 'client_accuracy_mean', numbers)
      if algorithm != 'fedavg' and 'fedavg' in last_lines:
        check_differences(row, column, lines, last_lines['fedavg'])
      all_lines = [read_lines(path / 'metrics.jsonl') for path in paths[algorithm]]
      all_times = [read_lines(path / 'timings.jsonl') for path in paths[algorithm]]
      check_best(row, all_lines)
      check_target(report, titles[algorithm], all_lines, all_times)
      (row,) = (
        row
        for row in report.table('metrics').rows
        if row['series'] == titles[algorithm]
      )
      check_estimate(row, 'test_macro_f1', [line['test_macro_f1'] for line in lines])
      numbers = [line[f'{column}_ece_mean'] for line in lines]
      check_estimate(row, 'client_ece_mean', numbers)
      if algorithm == 'ditto':
        check_estimate(row, 'user_ece_mean', [line['user_ece_mean'] for line in lines])
    # Of the means over clients, only those of Ditto's global model are in no other
    # column.
    keys = [column.key for column in report.table('metrics').columns[2:]]
    of_global_model = ['user_ece_mean'] if 'ditto' in algorithms else []
    assert keys == ['test_macro_f1', 'client_ece_mean', *of_global_model]

    models = [(row['series'], row['model']) for row in report.table('clients').rows]
    assert models == [
      (titles[algorithm], HEADINGS[column])
      for algorithm in ('fedavg', 'fedper', 'ditto')
      if algorithm in algorithms
      for column in ('user_accuracy', 'personal_accuracy')
      if column in COLUMNS[algorithm]
    ]
    algorithms_by_title = {title: name for name, title in titles.items()}
    columns_by_model = {heading: column for column, heading in HEADINGS.items()}
    for row in report.table('clients').rows:
      lines = last_lines[algorithms_by_title[row['series']]]
      column = columns_by_model[row['model']]
      for statistic in ('mean', 'std', 'min'):
        numbers = [line[f'{column}_{statistic}'] for line in lines]
        check_estimate(row, statistic, numbers)
      if num_clients < 10:  # a tenth is no client
        assert row['worst_tenth_mean'] is None
      else:
        numbers = [line[f'{column}_worst_tenth'] for line in lines]
        check_estimate(row, 'worst_tenth', numbers)

    table = report.table('each_client')
    assert sorted(row['client'] for row in table.rows) == sorted(names)
    first_keys = table.columns[3].keys
    assert [row[first_keys[0]] for row in table.rows] == sorted(
      row[first_keys[0]] for row in table.rows
    )
    for algorithm, of_algorithm in paths.items():
      for column in set(COLUMNS[algorithm]) - {'local_accuracy'}:
        recorded = [last_of_each(path, column) for path in of_algorithm]
        recorded_errors = [
          last_of_each(path, column.replace('accuracy', 'ece')) for path in of_algorithm
        ]
        key = f'{titles[algorithm]}, {HEADINGS[column]}'
        for row in table.rows:
          numbers = [of_run[row['client']] for of_run in recorded]
          check_estimate(row, key, numbers)
          position = names.index(row['client'])
          assert row['test_examples'] == 3 + position
          assert row['training_examples'] == 7 * (3 + position)
          if column == 'test_accuracy':
            continue
          errors = [of_run[row['client']] for of_run in recorded_errors]
          key_of_error = f'{key}: Expected calibration error'
          if position:
            check_estimate(row, key_of_error, errors)
          else:  # it is not defined for this client
            assert row[f'{key_of_error}_n'] == 0
    if 'fedper' in algorithms:
      (row,) = report.table('own_models').rows
      lines = last_lines['fedper']
      for key, column in (
        ('mean_accuracy', 'test_accuracy'),
        ('std_over_models', 'test_accuracy_std'),
        ('lowest_model', 'test_accuracy_worst'),
      ):
        check_estimate(row, key, [line[column] for line in lines])


def write_with_a_stranger(path, algorithm, columns, are_clients=True):
  """Writes a run whose users 'a' and 'b' train, and whose user 'c' is only tested.

  Args:
    path: path of the run directory.
    algorithm: its algorithm.
    columns: of clients.csv.gz -> the numbers of 'a', 'b' and 'c'.
    are_clients: whether 'a' and 'b' are clients; otherwise the file does not say that
      they train.
  """
  algorithm_flag = f'--config.algorithm={algorithm}'
  if are_clients:
    write_run(path, [0.5], NATURAL, METRICS_FLAG, algorithm_flag)
  else:
    write_run(path, [0.5], METRICS_FLAG, algorithm_flag)
  numbers = {column: np.array(of_users) for column, of_users in columns.items()}

  def add(line):
    for column, of_users in numbers.items():
      line[f'{column}_mean'] = np.nanmean(of_users)
    if 'user_accuracy' in numbers:
      line['user_accuracy_seen_mean'] = numbers['user_accuracy'][:2].mean()

  edit_lines(path / 'metrics.jsonl', add)
  training_examples = np.array([9.0, 9.0, 0.0]) if are_clients else np.full(3, np.nan)
  listed = Columns(['a', 'b', 'c'], training_examples, np.array([10, 10, 10]))
  with ClientFile(path, listed, tested_rounds=[]) as file:
    file.add(1, numbers)


def test_means_over_clients_are_over_users_who_train(tmp_path):
  """The global model is bad for a stranger, whom no client's own model is for."""
  users = {'user_accuracy': [0.9, 0.7, 0.1], 'user_ece': [0.1, 0.3, 0.9]}
  own_models = {
    'personal_accuracy': [0.7, 0.6, np.nan],
    'personal_ece': [0.2, 0.2, np.nan],
  }
  for algorithm, columns in (
    ('fedavg', users),
    ('fedprox', users | {'user_accuracy': [0.8, 0.7, 0.4]}),
    ('ditto', users | own_models),
  ):
    write_with_a_stranger(tmp_path / algorithm, algorithm, columns)
  report = Collected(tmp_path)
  fedavg, fedprox, ditto = report.table('accuracy').rows
  # (0.9 + 0.7) / 2, and not with the 0.1 of the stranger.
  check_estimate(fedavg, 'client_accuracy_mean', [0.8])
  check_estimate(ditto, 'client_accuracy_mean', [0.65])
  check_estimate(fedprox, 'client_difference_to_fedavg', [0.75 - 0.8])
  check_estimate(ditto, 'client_difference_to_fedavg', [0.65 - 0.8])
  means = [row['client_ece_mean_mean'] for row in report.table('metrics').rows]
  assert means == pytest.approx([0.2, 0.2, 0.2])
  for name in ('accuracy', 'paper'):
    assert 'it is over users who train' in report.table(name).caption
  # `compare` has the mean and the difference over the same two users.
  names = ('fedavg', 'fedprox', 'ditto')
  words = ['compare', *(str(tmp_path / name) for name in names)]
  first, *others = compare.table(command.parse(words), print).rows
  assert first['client_accuracy_mean'] == pytest.approx(0.8)
  check_estimate(others[0], 'difference_to_first', [-0.1, 0.0])
  check_estimate(others[1], 'difference_to_first', [-0.2, -0.1])


def test_means_are_over_all_users_if_their_examples_were_dealt_out(tmp_path):
  for algorithm, accuracies in (
    ('fedavg', [0.9, 0.7, 0.1]),
    ('fedprox', [0.8, 0.7, 0.4]),
  ):
    columns = {'user_accuracy': accuracies, 'user_ece': [0.1, 0.3, 0.8]}
    write_with_a_stranger(tmp_path / algorithm, algorithm, columns, are_clients=False)
  report = Collected(tmp_path)
  fedavg, fedprox = report.table('accuracy').rows
  check_estimate(fedavg, 'client_accuracy_mean', [1.7 / 3])
  check_estimate(fedprox, 'client_difference_to_fedavg', [(1.9 - 1.7) / 3])
  means = [row['client_ece_mean_mean'] for row in report.table('metrics').rows]
  assert means == pytest.approx([0.4, 0.4])
  words = ['compare', *(str(tmp_path / name) for name in ('fedavg', 'fedprox'))]
  first, second = compare.table(command.parse(words), print).rows
  assert first['client_accuracy_mean'] == pytest.approx(1.7 / 3)
  check_estimate(second, 'difference_to_first', [-0.1, 0.0, 0.3])


def test_the_bound_is_over_users_who_train_where_that_is_known(tmp_path):
  """Its file does not say who trains; that of FedAvg with natural clients does."""
  users = {'user_accuracy': [0.9, 0.7, 0.1], 'user_ece': [0.1, 0.3, 0.8]}
  bound = users | {'user_accuracy': [1.0, 0.9, 0.9]}
  names = ('fedavg', 'centralized', 'bound')
  write_with_a_stranger(tmp_path / 'fedavg', 'fedavg', users)
  for name in names[1:]:
    write_with_a_stranger(tmp_path / name, 'centralized', bound, are_clients=False)
  paths = [tmp_path / name for name in names]

  def compared(run_paths):
    lines = []
    request = command.parse(['compare', *map(str, run_paths)])
    return compare.table(request, lines.append).rows[1], lines

  row, lines = compared(paths[:2])
  assert row['client_accuracy_mean'] == pytest.approx(0.95)
  check_estimate(row, 'difference_to_first', [0.1, 0.2])
  assert row['client_ece_mean'] is None
  row, lines = compared(paths[1:])
  assert 'difference_to_first_n' not in row
  assert f'{paths[2]}: no difference over clients: its users who train' in str(lines)
  # A file that is missing is told, too.
  (paths[1] / 'clients.csv.gz').unlink()
  _, lines = compared(paths[:2])
  line = f'{paths[1]}: no numbers of single clients: clients.csv.gz is missing or empty'
  assert lines == [line]


def test_compare_begins_with_the_clients_own_tests(tmp_path):
  names = [f'site {number}' for number in range(5)]
  paths = []
  for seed, algorithm in enumerate(('fedavg', 'fedper', 'ditto')):
    paths.append(tmp_path / algorithm)
    write_run(paths[-1], [0.9], NATURAL, f'--config.algorithm={algorithm}')
    rng = np.random.default_rng(seed)
    write_clients(paths[-1], COLUMNS[algorithm], names, rng, num_rounds=1)

  def compared(run_paths):
    request = command.parse(['compare', *map(str, run_paths)])
    return compare.table(request, print)

  table = compared(paths)
  assert [column.heading for column in table.columns][2:6] == [
    "mean over clients' own tests, %",
    'own tests - first run, points',
    'rounds',
    'final accuracy, %',
  ]
  assert "without one the mean over the clients' models" in table.caption
  accuracies = [
    last_of_each(paths[0], 'user_accuracy'),
    last_of_each(paths[1], 'personal_accuracy'),
    last_of_each(paths[2], 'personal_accuracy'),
  ]
  for row, by_client in zip(table.rows, accuracies, strict=True):
    mean = statistics.fmean(by_client.values())
    assert row['client_accuracy_mean'] == pytest.approx(mean)
  for row, by_client in zip(table.rows[1:], accuracies[1:], strict=True):
    differences = [by_client[name] - accuracies[0][name] for name in names]
    check_estimate(row, 'difference_to_first', differences)
  # Numbered clients of another division of the data make no pairs.
  np.savez(paths[1] / 'partition.npz', class_counts=np.ones((4, 3), int))
  assert 'difference_to_first' not in str(compared(paths[:2]).columns)
  # Without clients that are tested, there is no such column and no such sentence.
  plain = compared([write_run(tmp_path / 'plain', [0.5])])
  assert 'own tests' not in f'{plain.columns}{plain.caption}'


# --- a few runs -----------------------------------------------------------------------


def one_run(folder, num_clients=5, num_rounds=3, **changes):
  """A run of FedAvg with natural clients; what the report over it has."""
  path = folder / 'fedavg'
  write_run(path, [0.5] * num_rounds, NATURAL, '--config.algorithm=fedavg')
  names = [f'site {number}' for number in range(num_clients)]
  names[0] = changes.get('first_name', names[0])
  write_clients(path, ('user_accuracy',), names, np.random.default_rng(0), num_rounds)
  return path


def charts_of(report):
  return {chart.name: chart for chart in report.content.charts}


def test_few_clients_are_lines_and_many_are_a_heat_map(tmp_path):
  path = one_run(tmp_path / 'few', num_clients=5)
  lines = charts_of(Collected(tmp_path / 'few'))['rounds-user_accuracy-FedAvg']
  accuracies = last_of_each(path, 'user_accuracy')
  assert isinstance(lines, charts.LineChart)
  for line in lines.lines:
    assert line.points['mean'].iloc[-1] == 100 * accuracies[line.label]
  path = one_run(tmp_path / 'many', num_clients=300)
  report = Collected(tmp_path / 'many')
  heat_map = charts_of(report)['rounds-user_accuracy-FedAvg']
  accuracies = last_of_each(path, 'user_accuracy')
  assert heat_map.values.shape == (200, 3)
  assert heat_map.y_label == '200 of 300 clients, from the lowest accuracy'
  last_round = [100 * accuracies[name] for name in heat_map.rows]
  assert heat_map.values[:, -1].tolist() == last_round == sorted(last_round)
  # The table shows a hundred clients, and its CSV all.
  table = report.table('each_client')
  assert len(table.texts()) == len(table.cells()) == 100
  assert table.csv().count('\r\n') == 301
  assert 'The first 100 of 300; the CSV has all.' in table.caption


def test_the_page_names_the_client_under_the_pointer(tmp_path):
  one_run(tmp_path, first_name='<b>=1+1')
  report = Collected(tmp_path)
  chart = charts_of(report)['clients-user_accuracy']
  (box,) = interactive.figure(chart, report.content.styles).data
  accuracies = last_of_each(tmp_path / 'fedavg', 'user_accuracy')
  assert box.hovertemplate == '%{customdata}: %{x:.2f}<extra></extra>'
  for name, accuracy in zip(box.customdata[0], box.x[0], strict=True):
    assert accuracy == 100 * accuracies[name]


def test_clients_with_tests_have_no_accuracy_from_class_shares(tmp_path):
  with_tests = one_run(tmp_path)
  write_run(tmp_path / 'without', [0.5], '--config.algorithm=fedavg')
  runs_by_path = {run.path: run for run in runs.find([tmp_path], print)}
  confusion = np.diag([3, 1, 2])
  for path, is_expected in ((with_tests, False), (tmp_path / 'without', True)):
    examined = features.Features(round=1, confusion=confusion, classes=[], embedded=[])
    setting = groups.Setting(key=(), series=())
    series = groups.Series((), 'FedAvg', 'fedavg', runs=(), finished={})
    model = models.Model(setting, series, runs_by_path[path], examined)
    section = sections.class_shares([model])
    assert bool(section.tables) == bool(section.charts) == is_expected


def test_runs_with_other_clients_are_not_averaged(tmp_path):
  one_run(tmp_path)
  other = tmp_path / 'other'
  write_run(other, [0.5] * 3, NATURAL, '--config.algorithm=fedavg', seed=1)
  rng = np.random.default_rng(1)
  write_clients(other, ('user_accuracy',), ['a', 'b'], rng, 3)
  table = Collected(tmp_path).table('each_client')
  assert [row['FedAvg, global model_n'] for row in table.rows] == [1] * 5
  assert 'Runs with other clients are left out.' in table.caption


DEALT = [[50, 10], [10, 48]]
DEALT_ANEW = [[10, 50], [48, 10]]  # each client has as many examples
LEFT_BY_VALIDATION = [[49, 10], [10, 47]]


@pytest.mark.parametrize(
  ('names', 'data_give_names', 'other_class_counts', 'are_alike'),
  [
    (['city', 'rural'], True, LEFT_BY_VALIDATION, True),
    (['101', '7'], True, LEFT_BY_VALIDATION, True),
    (['0', '1'], False, DEALT, True),
    (['0', '1'], False, DEALT_ANEW, False),
    (['0', '1'], False, LEFT_BY_VALIDATION, False),
    (['0', '1'], False, None, False),
  ],
)
def test_clients_are_the_same_by_names_of_the_data_or_by_what_was_dealt(
  tmp_path, names, data_give_names, other_class_counts, are_alike
):
  measured = []
  for seed, class_counts in enumerate((DEALT, other_class_counts)):
    path = write_run(tmp_path / f's{seed}', [0.5], seed=seed)
    partition = path / 'partition.npz'
    if class_counts is None:
      partition.unlink()
    elif data_give_names:
      np.savez(partition, class_counts=class_counts, clients=np.array(names))
    else:
      np.savez(partition, class_counts=class_counts)
    (run,) = runs.find([path], print)
    recorded = Clients(
      names=names,
      training_examples=np.sum(class_counts or DEALT, axis=1).astype(float),
      test_examples=np.array([23, 23]),
      rounds=np.array([1]),
      numbers={},
    )
    measured.append(clients._Measured(run, recorded))
  first, other = measured
  assert clients._are_alike(first, other) == are_alike
  assert clients._are_alike(other, first) == are_alike
  assert clients._are_alike(other, other)
  # Users who are tested, whatever clients the examples were dealt to.
  first, other = (
    clients._Measured(
      entry.run, entry.clients._replace(training_examples=np.full(2, np.nan))
    )
    for entry in measured
  )
  assert clients._are_alike(first, other)


def test_a_damaged_file_of_clients_is_one_line(tmp_path, capsys):
  path = one_run(tmp_path)
  (path / 'clients.csv.gz').write_bytes(b'garbage')
  report = Collected(tmp_path)
  line = f'{path}: no numbers of single clients: {path}/clients.csv.gz is damaged'
  assert line in capsys.readouterr().err
  (row,) = report.table('clients').rows  # from metrics.jsonl
  last_line = read_lines(path / 'metrics.jsonl')[-1]
  assert row['min_mean'] == last_line['user_accuracy_min']
