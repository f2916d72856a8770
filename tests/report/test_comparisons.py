"""Which FedAvg a series is compared with, and what a reader is told about it."""

import shutil

import pytest

from moon_jax.report import charts, results
from moon_jax.report.request import Target
from tests.report.reports import (
  MOON,
  Collected,
  change_config,
  runs_of_seeds,
  settings_of,
  write_runs,
)

PLAIN = 'algorithm=fedavg server_optimizer.momentum=0'
MOMENTUM = 'algorithm=fedavg server_optimizer.momentum=0.9'
SOLO = 'algorithm=solo'
MOON_WITH_MOMENTUM = 'server_optimizer.momentum=0.9'
TWO_BETAS = {
  'f0.1': ([0.3], 'algorithm=fedavg partition.beta=0.1'),
  'm0.1': ([0.4], 'algorithm=moon partition.beta=0.1'),
  'f0.5': ([0.6], 'algorithm=fedavg partition.beta=0.5'),
  'm0.5': ([0.8], 'algorithm=moon partition.beta=0.5'),
}
# Runs, how they are grouped, the algorithm of the target -> label -> (difference of the
# final accuracy to FedAvg's, target).
COMPARED = {
  'plain FedAvg is what everything is compared with': (
    {
      'm': ([0.7], MOMENTUM),
      'f': ([0.5], PLAIN),
      's': ([0.3], SOLO),
      'o': ([0.6], ''),
    },
    None,
    'fedavg',
    {
      'FedAvg': (None, 0.5),
      'FedAvg, server momentum=0.9': (0.2, 0.5),
      'MOON': (0.1, 0.5),
      'SOLO': (-0.2, 0.5),
    },
  ),
  'with the same server optimizer FedAvg has it too': (
    {'m': ([0.7], MOMENTUM), 'f': ([0.5], PLAIN), 'o': ([0.6], MOON_WITH_MOMENTUM)},
    None,
    'fedavg',
    {
      'FedAvg': (None, 0.5),
      'FedAvg, server momentum=0.9': (0.2, 0.5),
      'MOON, server momentum=0.9': (-0.1, 0.7),
    },
  ),
  'another server optimizer is compared with its own algorithm': (
    {
      'a': ([0.5], 'moon.mu=5'),
      'b': ([0.6], 'moon.mu=1'),
      'c': ([0.7], f'moon.mu=5 {MOON_WITH_MOMENTUM}'),
    },
    None,
    'moon',
    {
      'MOON, mu=5': (None, 0.5),
      'MOON, mu=1': (None, 0.6),
      'MOON, server momentum=0.9, mu=5': (None, 0.5),
    },
  ),
  # `centralized` has no beta, so no FedAvg run has its knobs.
  'each series is compared with FedAvg of its own knobs': (
    TWO_BETAS | {'c': ([0.9], 'algorithm=centralized')},
    ('algorithm', 'partition.beta'),
    'fedavg',
    {
      'FedAvg, beta=0.1': (None, 0.3),
      'FedAvg, beta=0.5': (None, 0.6),
      'MOON, beta=0.1': (0.1, 0.3),
      'MOON, beta=0.5': (0.2, 0.6),
      'centralized': (None, None),
    },
  ),
}


@pytest.mark.parametrize('case', COMPARED)
def test_what_a_series_is_compared_with(tmp_path, case):
  runs_by_name, group, algorithm, expected = COMPARED[case]
  (setting,) = settings_of(write_runs(tmp_path, runs_by_name), group)
  target = Target(accuracy=None, algorithm=algorithm)
  compared = {}
  for result in results.results(setting, target):
    difference = None
    if result.row.get('pairs'):
      difference = round(result.row['difference_to_fedavg_mean'], 9)
    compared[result.row['series']] = difference, result.row['target']
  assert compared == expected


def test_a_rate_of_a_server_optimizer_is_named_even_if_it_is_that_of_the_mean(tmp_path):
  adam = 'algorithm=fedavg server_optimizer.name=adam server_optimizer.learning_rate'
  write_runs(
    tmp_path,
    {
      'a': ([0.5], 'algorithm=fedavg'),
      '0.1': ([0.6], f'{adam}=0.1'),
      '1': ([0.6], f'{adam}=1'),
    },
  )
  (setting,) = settings_of(tmp_path)
  name = 'FedAvg, server_optimizer=adam, server learning_rate'
  labels = ['FedAvg', f'{name}=1', f'{name}=0.1']
  assert [series.label for series in setting.series] == labels
  shutil.rmtree(tmp_path / 'a')
  flags = ['--rows=server_optimizer.learning_rate', '--columns=algorithm']
  report = Collected(tmp_path, flags)
  labels = [f'FedAvg, server learning_rate={rate}' for rate in ('1', '0.1')]
  assert [row['series'] for row in report.rows('accuracy')] == labels
  assert report.charts()['sweep-server_optimizer.learning_rate'].ticks == ['0.1', '1']
  rates = [row['row'].rpartition('=')[2] for row in report.rows('pivot')]
  assert rates == ['0.1', '1']


def test_the_plain_server_is_named_where_it_is_asked_for(tmp_path):
  write_runs(tmp_path, {'a': ([0.5], PLAIN), 'b': ([0.6], MOMENTUM)})
  (setting,) = settings_of(tmp_path, ('server_optimizer.momentum',))
  labels = [series.label for series in setting.series]
  assert labels == ['server momentum=0', 'server momentum=0.9']
  (sweep,) = charts.sweeps([setting])
  assert [*sweep.lines] == ['any server momentum']


def test_a_line_over_the_rate_of_the_server_has_that_of_the_mean_too(tmp_path):
  runs = {}
  for name in ('sgd', 'adam'):
    for rate in ('0.1', '1'):
      server = f'server_optimizer.name={name} server_optimizer.learning_rate={rate}'
      runs[f'{name}{rate}'] = ([0.5], f'algorithm=fedavg {server}')
  write_runs(tmp_path, runs)
  (sweep,) = charts.sweeps(settings_of(tmp_path))
  assert {label: sorted(line) for label, line in sweep.lines.items()} == {
    f'FedAvg, server_optimizer={name}, any server learning_rate': [0.1, 1.0]
    for name in ('sgd', 'adam')
  }


def registered_model(name, digest):
  """The entry of a registered model in config.json."""
  return {
    'kind': 'model',
    'name': name,
    'sha256': digest,
    'file': 'mine.py',
    'title': '',
    'knobs': {},
    'metrics': {},
    'traits': [],
  }


def test_versions_of_an_algorithm_that_are_averaged_are_told(tmp_path, capsys):
  write_runs(tmp_path, runs_of_seeds('fedavg', ([0.5, 0.6], [0.5, 0.7])))
  unchanged = registered_model('one', 'a')
  first_two, changed_two = registered_model('two', 'a'), registered_model('two', 'b')
  change_config(tmp_path / 'fedavg-s0', registered=[unchanged, first_two])
  change_config(tmp_path / 'fedavg-s1', registered=[unchanged, changed_two])
  Collected(tmp_path)
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("FedAvg: the file of the model 'two' was changed between ")
  # Also between the starts of one run.
  earlier = {'registered': [registered_model('one', 'c')]}
  change_config(tmp_path / 'fedavg-s1', earlier=[earlier])
  Collected(tmp_path)
  assert "the file of the model 'one' was changed" in capsys.readouterr().err


def test_a_setting_without_its_target_is_told(tmp_path, capsys):
  Collected(write_runs(tmp_path, runs_of_seeds('moon', MOON)))
  assert "no target for MOON: FedAvg's mean last accuracy " in capsys.readouterr().err
