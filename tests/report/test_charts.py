"""The charts of a report have the numbers of its runs."""

import numpy as np
import pytest

from moon_jax.report import charts, sections
from moon_jax.report.sections import Section
from tests.report.reports import Collected, settings_of, write_runs
from tests.run_directories import write_run


def test_sweeps_and_traces_are_drawn_where_there_are_some(tmp_path):
  runs_by_name = {str(mu): ([0.5, 0.6], f'moon.mu={mu}') for mu in (1, 5, 10)}
  write_runs(tmp_path, runs_by_name, positive_cosine=0.5, train_accuracy=0.4)
  names = set(Collected(tmp_path).charts())
  # Algorithms minimise different losses, but the supervised loss is comparable.
  assert {'train_loss', 'supervised_loss', 'train_accuracy'} <= names
  assert {'sweep-moon.mu', 'positive_cosine', 'contrastive_share', 'drift'} <= names
  assert not names & {'temperature', 'p_t', 'consensus_distance'}


# --- sweeps ---------------------------------------------------------------------------


def test_a_sweep_looks_like_its_series_and_not_like_what_it_is_compared_with(tmp_path):
  # Seven series: the next style would have the colour of the first.
  runs_by_name = {f'm{mu}': ([0.5, 0.6], f'moon.mu={mu}') for mu in range(1, 7)}
  runs_by_name['f'] = [0.5, 0.6], 'algorithm=fedavg'
  settings = settings_of(write_runs(tmp_path, runs_by_name))
  (sweep,) = charts.sweeps(settings)
  chart = charts.of_sweep(sweep)
  styles = charts.styles(settings, [chart])
  assert [line.label for line in chart.lines] == ['MOON, any mu', 'FedAvg']
  assert styles['MOON, any mu'] == styles['MOON, mu=1']
  assert styles['MOON, any mu'].colour != styles['FedAvg'].colour


def test_a_sweep_is_after_equally_many_rounds(tmp_path):
  write_runs(
    tmp_path,
    {
      '1': ([0.2, 0.5], 'moon.mu=1'),
      '5': ([0.3, 0.6, 0.9], 'moon.mu=5'),
      '5b': ([0.3, 0.8], 'moon.mu=5 seed=1'),
      '10': ([0.1, 0.4], 'moon.mu=10'),
      'f': ([0.2, 0.3, 0.7], 'algorithm=fedavg'),
    },
  )
  (sweep,) = charts.sweeps(settings_of(tmp_path))
  chart = charts.of_sweep(sweep)
  line, level = chart.lines
  assert chart.title == 'Accuracy after 2 rounds against mu'
  assert chart.ticks == ['1', '5', '10']
  assert list(line.points.index) == list(level.points.index) == [0, 1, 2]
  assert list(line.points['mean']) == pytest.approx([50.0, 70.0, 40.0])
  assert list(line.points['n']) == [1, 2, 1]
  assert level.label == 'FedAvg'
  assert list(level.points['mean']) == pytest.approx([30.0] * 3)


def test_a_value_with_which_a_run_diverged_is_chosen_last(tmp_path):
  write_runs(
    tmp_path,
    {
      '1': ([0.5, 0.5], 'moon.mu=1'),
      '1b': ([0.5, 0.6], 'moon.mu=1 seed=1'),
      '5': ([0.5, 0.9], 'moon.mu=5'),
    },
  )
  diverged = {
    '5b': ([0.5, 0.5], 'moon.mu=5 seed=1'),
    'of another experiment': ([0.5, 0.5], 'moon.mu=1 optimizer.learning_rate=9'),
  }
  write_runs(tmp_path, diverged, train_loss=None)

  def chosen():
    report = Collected(tmp_path)
    (row,) = report.rows('chosen')
    cells = row['value'], row['n'], row['diverged'], float(row['chosen_accuracy'])
    return cells, report.charts()['sweep-moon.mu'].ticks

  assert chosen() == (('1', '2', '0', 0.55), ['1', '5 (1 diverged)'])
  write_runs(tmp_path, {'1c': ([0.5], 'moon.mu=1 seed=2')}, train_loss=None)
  assert chosen() == (('5', '1', '1', 0.9), ['1 (1 diverged)', '5 (1 diverged)'])


def test_a_knob_may_be_auto_beside_numbers(tmp_path):
  accuracies = {'0.1': 0.6, 'auto': 0.7, '0.01': 0.8}
  runs_by_name = {
    rate: ([0.5, accuracy], f'algorithm=ditto ditto.learning_rate={rate}')
    for rate, accuracy in accuracies.items()
  }
  flags = ['--rows=ditto.learning_rate', '--columns=algorithm']
  report = Collected(write_runs(tmp_path, runs_by_name), flags)
  assert report.charts()['sweep-ditto.learning_rate'].ticks == ['0.01', '0.1', 'auto']
  assert report.rows('chosen')[0]['value'] == '0.01'
  rates = [row['row'].rpartition('=')[2] for row in report.rows('pivot')]
  assert rates == ['0.01', '0.1', 'auto']


def test_the_centralized_bound_chooses_no_value_of_a_partition(tmp_path):
  write_runs(
    tmp_path,
    {
      'bound': ([0.8, 0.9], 'algorithm=centralized'),
      '0.5': ([0.5, 0.55], 'partition.beta=0.5'),
      '1': ([0.5, 0.6], 'partition.beta=1'),
    },
  )
  report = Collected(tmp_path)
  assert [row['series'] for row in report.rows('chosen')] == ['MOON']
  lines = report.charts()['sweep-partition.beta'].lines
  assert [line.label for line in lines] == ['MOON', 'centralized']


# --- partitions -----------------------------------------------------------------------


def test_the_partition_has_clients_from_left_to_right(tmp_path):
  path = write_run(tmp_path / 'a', [0.5])
  (chart,) = sections.partition(settings_of(tmp_path)[0])
  with np.load(path / 'partition.npz') as arrays:
    counts = arrays['class_counts']
  assert (chart.x_label, chart.y_label) == ('client', 'class')
  # [clients, classes] is stored; the figure has one row for each class.
  assert chart.values.tolist() == [[row[y] for row in counts] for y in range(3)]


def test_with_many_clients_some_are_drawn(tmp_path):
  path = write_run(tmp_path / 'a', [0.5])
  # Client i of 5,000 owns 5,000 - i examples of class i % 3.
  counts = np.zeros((5000, 3), int)
  counts[np.arange(5000), np.arange(5000) % 3] = 5000 - np.arange(5000)
  np.savez(path / 'partition.npz', class_counts=counts)
  chart = Collected(tmp_path).charts()['partition']
  assert chart.x_label == '200 of 5,000 clients, from fewest to most examples'
  assert (chart.columns[0], chart.columns[-1]) == ('4999', '0')
  totals = chart.values.sum(0)
  assert (totals[0], totals[-1], totals.size) == (1, 5000, 200)
  assert (np.abs(np.diff(totals) - 4999 / 199) < 1).all()


def test_runs_whose_names_are_one_file_name_have_pictures_of_their_own():
  matrices = [
    charts.Matrix(
      name='confusion-a_b',
      title=title,
      x_label='predicted class',
      y_label='true class',
      values=np.eye(2),
      unit='test examples',
    )
    for title in ('a/b', 'a_b')
  ]
  other = matrices[0]._replace(name='confusion-a_b-2')
  renamed = sections.with_own_file_names(
    [Section('a', charts=matrices[:1]), Section('b', charts=[matrices[1], other])]
  )
  names = [[chart.name for chart in section.charts] for section in renamed]
  assert names == [['confusion-a_b'], ['confusion-a_b-3', 'confusion-a_b-2']]


def test_settings_whose_names_are_one_file_name_have_pictures_of_their_own(tmp_path):
  words = 'data.source=npz data.path=sets/a'
  runs_by_name = {
    'semicolon': ([0.5], f'{words};b.npz'),
    'colon': ([0.5], f'{words}:b.npz'),
  }
  report = Collected(write_runs(tmp_path, runs_by_name))
  titles = {
    chart.title
    for chart in report.charts().values()
    if chart.name.startswith('test_accuracy-')
  }
  assert titles == {f'Test accuracy: path=sets/a{sign}b.npz' for sign in ';:'}


def test_a_damaged_partition_is_not_drawn(tmp_path):
  path = write_run(tmp_path / 'a', [0.5, 0.6]) / 'partition.npz'
  path.write_bytes(path.read_bytes()[:-50])
  names = set(Collected(tmp_path).charts())
  assert 'partition' not in names
  assert 'test_accuracy' in names
