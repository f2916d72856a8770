"""Metrics of tests in reports: a table, curves, and the best round."""

import json

import pytest

import moon_jax
from moon_jax.catalog import registry
from moon_jax.report import groups, results, runs, sections, traces
from moon_jax.report.request import Choice, Target
from tests.report.reports import Collected
from tests.run_directories import edit_lines, write_run

ERRORS = [0.3, 0.1, 0.2]


@pytest.fixture
def two_runs(tmp_path):
  """Two runs that differ in the seed; calibration is best after round 2."""
  for seed in range(2):
    path = tmp_path / f's{seed}'
    accuracies = [0.5, 0.4, 0.6]
    write_run(
      path,
      accuracies,
      '--config.metrics=macro_f1,ece',
      '--config.algorithm=fedavg',
      seed=seed,
      test_macro_f1=0.5 + seed / 10,
    )

    def add(line):
      line['test_ece'] = ERRORS[line['round'] - 1]
      line['local_accuracy_mean'] = 0.5
      line['local_ece_mean'] = 2 * line['test_ece']

    edit_lines(path / 'metrics.jsonl', add)
  return tmp_path


def read(folder):
  return runs.find([folder], print)


def first_row_of_accuracies(folder):
  """Heading -> the text of its cell."""
  table = Collected(folder).table('accuracy')
  headings = [column.heading for column in table.columns]
  return dict(zip(headings, table.texts()[0], strict=True))


def test_a_table_and_curves(two_runs):
  all_runs = read(two_runs)
  (setting,) = groups.settings(all_runs, Choice(None, ('seed',), {}))
  setting_results = results.results(setting, Target(0.5))
  tables = sections.results(setting_results, Target(0.5)).tables
  (table,) = [table for table in tables if table.name == 'metrics']
  headings = [column.heading for column in table.columns]
  assert headings[2:] == [
    'Macro F1, test set, %',
    'Expected calibration error, test set, %',
    "Expected calibration error, mean over clients' own tests, %",
  ]
  assert table.texts()[0][1:] == ['2', '55.00 ± 7.07', '20.00 ± 0.00', '40.00 ± 0.00']
  names = {chart.name.partition('-')[0] for chart in sections.curves(setting).charts}
  assert {'test_macro_f1', 'test_ece', 'local_ece'} <= names


def test_a_clearly_lower_error_is_marked(two_runs):
  for seed in range(2):
    write_run(
      two_runs / f'prox{seed}',
      [0.5, 0.5, 0.5],
      '--config.metrics=ece',
      '--config.algorithm=fedprox',
      seed=seed,
      test_ece=0.4 + seed / 1e6,
    )
  (setting,) = groups.settings(read(two_runs), Choice(None, ('seed',), {}))
  marked = {
    result.series.label: result.row.get(results.best_key('test_ece'), False)
    for result in results.results(setting, Target(0.5))
  }
  assert marked == {'FedAvg': True, 'FedProx': False}


def test_a_metric_of_some_runs_is_told(two_runs, capsys):
  edit_lines(two_runs / 's1/metrics.jsonl', lambda line: line.pop('test_ece'))
  write_run(
    two_runs / 'prox',
    [0.5, 0.5, 0.5],
    '--config.metrics=ece',
    '--config.algorithm=fedprox',
    test_ece=0.4,
  )
  report = Collected(two_runs)
  table = report.table('metrics')
  texts = {
    column.heading: [column.text(row) for row in table.rows] for column in table.columns
  }
  assert texts['n'] == ['2', '1']
  assert texts['Macro F1, test set, %'] == ['55.00 ± 7.07', '-']
  heading = 'Expected calibration error, test set'
  assert texts[f'{heading}, %'] == ['20.00 (1 of 2)', '40.00']
  line = f'FedAvg: only some runs have a number of "{heading}" (1 of 2): means are over'
  assert line in capsys.readouterr().err
  title = f'{heading} (without FedAvg: not in all of its runs)'
  assert report.charts()['test_ece'].title == title
  # In a table for a paper, too.
  table = Collected(two_runs, ['--paper=test_ece']).table('paper')
  assert table.texts() == [['FedAvg', '20.00 (1 of 2)'], ['FedProx', '40.00']]
  assert '(2 of 3): so many of the finished runs' in table.caption


def test_the_best_round_is_chosen_by_the_metric(two_runs):
  def choose(content):
    content['config']['best_by'] = 'ece'

  for seed in range(2):
    path = two_runs / f's{seed}/config.json'
    content = json.loads(path.read_text())
    choose(content)
    path.write_text(json.dumps(content))
  # The heading is true, though the final accuracy is higher: 0.6.
  row = first_row_of_accuracies(two_runs)
  assert row['accuracy of the best round, %'] == '40.00 ± 0.00'
  assert (row['final accuracy, %'], row['best by']) == ('60.00 ± 0.00', 'test ece')
  for run in read(two_runs):
    assert traces.best_column(run) == 'test_ece'
    assert traces.best_accuracy(run) == 0.4
    assert results.run_row(run)['best_by'] == 'test ece'

  def add_validation(line):
    line['validation_accuracy'] = 0.5

  edit_lines(two_runs / 's0/metrics.jsonl', add_validation)
  (run,) = read(two_runs / 's0')
  assert traces.best_column(run) == 'validation_accuracy'  # the tests choose nothing


def test_a_metric_of_a_user_whose_file_is_not_run(two_runs, own_parts):
  """Its title, its unit and what is better are in the run directory."""
  moon_jax.register_metric(
    'regret', lambda of: 0.0, title='Regret', lower_is_better=True
  )
  path = write_run(
    two_runs / 'mine',
    [0.5, 0.4],
    '--config.metrics=regret',
    '--config.best_by=regret',
    test_regret=0.5,
  )
  edit_lines(
    path / 'metrics.jsonl', lambda line: line.update(test_regret=1 / line['round'])
  )
  registry._parts.pop(('metric', 'regret'))
  registry.every_knob.cache_clear()
  (run,) = read(path)
  (test_metric,) = traces.test_metrics_of([run]).values()
  assert test_metric.metric.title == 'Regret, test set'
  assert test_metric.is_lower_better
  assert traces.best_accuracy(run) == 0.4
