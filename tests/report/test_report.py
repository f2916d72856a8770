"""The report says what plain arithmetic over metrics.jsonl says, and nothing silently.

Everything here runs in this process and trains nothing; the trained models are in
test_models.py, the page in test_page.py. Most tests read what the files would hold, for
drawing takes the time; `reported` has the files.
"""

import csv
import errno
import io
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from moon_jax import catalog
from moon_jax import report as report_package
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.report import (
  build,
  charts,
  command,
  features,
  files,
  groups,
  latex,
  models,
  naming,
  results,
  runs,
  sections,
  tables,
  traces,
)
from moon_jax.report.__main__ import main
from moon_jax.report.groups import Choice
from moon_jax.report.tables import Column
from tests.run_directories import (
  BYTES_DOWN,
  BYTES_UP,
  EVALUATE,
  IDLE,
  TRAIN,
  edit_json,
  edit_lines,
  write_run,
)

ROOT = pathlib.Path(__file__).parents[2]
FEDAVG = (
  [0.30, 0.50, 0.60, 0.70, 0.72, 0.74, 0.76],
  [0.20, 0.45, 0.55, 0.66, 0.71, 0.75, 0.78],
  [0.25, 0.52, 0.61, 0.69, 0.70, 0.73, 0.71],
)
MOON = (
  [0.30, 0.55, 0.70, 0.76, 0.80, 0.82, 0.81],
  [0.20, 0.40, 0.65, 0.74, 0.78, 0.79, 0.80],
  [0.25, 0.50, 0.68, 0.70, 0.74, 0.74, 0.74],
)


def made(folder, given, **columns):
  """Makes runs: name -> accuracies, of MOON, or (accuracies, 'KNOB=VALUE ...')."""
  for name, run in given.items():
    accuracies, words = run if isinstance(run, tuple) else (run, '')
    knobs = dict(word.split('=', 1) for word in words.split())
    seed = int(knobs.pop('seed', 0))
    flags = [f'--config.{knob}={value}' for knob, value in knobs.items()]
    write_run(folder / name, accuracies, *flags, seed=seed, **columns)
  return folder


def of_seeds(algorithm, by_seed):
  """A run of an algorithm for each seed."""
  return {
    f'{algorithm}-s{seed}': (accuracies, f'algorithm={algorithm} seed={seed}')
    for seed, accuracies in enumerate(by_seed)
  }


class Collected:
  """What the files of a report would hold."""

  def __init__(self, *words):
    request = command.parse([*map(str, words), '--features=none'])
    self.report = build.collect(request)

  def table(self, name):
    tables = [table for section in self.report.sections for table in section.tables]
    (table,) = [table for table in tables if table.name == name]
    return table

  def rows(self, name):
    return list(csv.DictReader(io.StringIO(self.table(name).csv())))

  def write(self, out):
    """The files, with one figure of each section."""
    few = [part._replace(charts=part.charts[:1]) for part in self.report.sections]
    files.write(out, self.report._replace(sections=few))

  def charts(self):
    return {chart.name: chart for chart in self.report.charts}


@pytest.fixture(scope='module')
def reported(tmp_path_factory):
  """The folder of two algorithms' runs with three seeds, and that of their report."""
  folder = tmp_path_factory.mktemp('reported')
  made(folder / 'runs', of_seeds('fedavg', FEDAVG) | of_seeds('moon', MOON))
  words = [str(folder / 'runs'), f'--out={folder / "out"}', '--features=none']
  assert main(words) == ExitCode.DONE
  return folder / 'runs', folder / 'out'


def table(out, name):
  with (out / f'tables/{name}.csv').open(newline='') as file:
    return list(csv.DictReader(file))


def is_estimate(row, name, values):
  """Whether a row has the mean, the sample deviation and the number of the values."""
  found = [float(row[f'{name}_{of}']) for of in ('mean', 'std', 'n')]
  wanted = statistics.mean(values), statistics.stdev(values), len(values)
  return found == pytest.approx(wanted, rel=1e-12)


def settings_of(folder, group=None, over=('seed',)):
  return groups.settings(runs.find([folder], print), Choice(group, over, {}))


def find(folder):
  """The names of the runs below a folder, and the messages about them."""
  said = []
  found = runs.find([folder], said.append)
  return [run.path.name for run in found], said


# --- the numbers ----------------------------------------------------------------------


def test_accuracies_are_means_and_deviations_over_seeds(reported):
  rows = table(reported[1], 'accuracy')
  assert [row['series'] for row in rows] == ['FedAvg', 'MOON']
  for row, each in zip(rows, (FEDAVG, MOON), strict=True):
    assert (row['n'], row['rounds']) == ('3', '7')
    assert is_estimate(row, 'final_accuracy', [a[-1] for a in each])
    assert is_estimate(row, 'best_accuracy', [max(a) for a in each])
    last = [statistics.mean(a[-5:]) for a in each]
    assert is_estimate(row, 'mean_of_last_5', last)


def test_the_difference_to_fedavg_is_paired_by_seed(reported):
  row = table(reported[1], 'accuracy')[1]
  # 0.81 - 0.76, 0.80 - 0.78, 0.74 - 0.71
  differences = [0.05, 0.02, 0.03]
  assert is_estimate(row, 'difference_to_fedavg', differences)
  # Student's t with 2 degrees of freedom: P(|T| > t) = 1 - t / sqrt(t^2 + 2).
  t = statistics.mean(differences) / (statistics.stdev(differences) / math.sqrt(3))
  assert float(row['p_value']) == pytest.approx(1 - t / math.sqrt(t**2 + 2), rel=1e-9)


def test_what_it_takes_to_reach_the_target(reported):
  fedavg, moon = table(reported[1], 'target')
  # FedAvg's mean last accuracy is (0.76 + 0.78 + 0.71) / 3 = 0.75.
  assert float(fedavg['target']) == pytest.approx(0.75)
  # Seeds 0 and 1 are at 0.75 or above first in rounds 7 and 6; seed 2 never is.
  assert fedavg['reached'] == '2 of 3'
  assert is_estimate(fedavg, 'rounds_to_target', [7, 6])
  # MOON's in rounds 4 and 5; its seed 2 ends at 0.74.
  assert moon['reached'] == '2 of 3'
  for name, each in {
    'rounds': 1,
    'megabytes': (BYTES_DOWN + BYTES_UP) / 1e6,
    'seconds': TRAIN + EVALUATE + IDLE,
  }.items():
    assert is_estimate(moon, f'{name}_to_target', [4 * each, 5 * each])
  # The targets are means over seeds: FedAvg's is reached in round 7 by definition;
  # MOON's is 0.733 in round 4 and 0.773 in round 5, so it is reached in round 5.
  assert (fedavg['round_of_the_mean'], moon['round_of_the_mean']) == ('7', '5')
  assert float(moon['rounds_saved']) == pytest.approx(1 - 5 / 7)


def test_a_target_can_be_given(reported):
  rows = Collected(reported[0], '--target=0.6').rows('target')
  assert [row['reached'] for row in rows] == ['3 of 3'] * 2
  # MOON's best accuracies: 0.82, 0.80, 0.74.
  rows = Collected(reported[0], '--target=moon@best').rows('target')
  assert float(rows[0]['target']) == pytest.approx((0.82 + 0.80 + 0.74) / 3)


@pytest.mark.parametrize(('value', 'text'), [(3e-5, '<0.0001'), (0.0497, '0.0497')])
def test_a_p_value_is_never_zero(value, text):
  assert Column('p_value', 'p', '.4f').text({'p_value': value}) == text


@pytest.mark.parametrize(
  ('words', 'columns', 'share'),
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
def test_the_contrastive_share_is_weighted(tmp_path, words, columns, share):
  made(tmp_path, {'run': ([0.5, 0.6], words)}, **columns)
  (run,) = runs.find([tmp_path], print)
  found = traces.trace(run, 'contrastive_share').to_dict()
  assert found == pytest.approx({} if share is None else {1: share, 2: share})


# --- what belongs together ------------------------------------------------------------


def test_own_knobs_make_series_and_shared_knobs_make_settings(tmp_path):
  # The upper bound has no partition, so it belongs to both settings.
  given = {'c': ([0.9], 'algorithm=centralized')}
  for beta in (0.1, 0.5):
    for seed in (0, 1):
      shared = f'partition.beta={beta} seed={seed}'
      given |= {f'f{beta}{seed}': ([0.5], f'algorithm=fedavg {shared}')}
      for mu in (1, 10):
        given |= {f'm{beta}{mu}{seed}': ([0.6], f'moon.mu={mu} {shared}')}
  found = settings_of(made(tmp_path, given))
  assert [setting.title for setting in found] == ['beta=0.1', 'beta=0.5']
  numbers = {'FedAvg': 2, 'MOON, mu=1': 2, 'MOON, mu=10': 2, 'centralized': 1}
  for setting in found:
    assert {one.label: len(one.finished) for one in setting.series} == numbers
  by_beta = settings_of(tmp_path, ('partition.beta',))
  assert [setting.title for setting in by_beta] == list(numbers)
  assert [series.label for series in by_beta[1].series] == ['beta=0.1', 'beta=0.5']


def test_a_knob_of_series_is_not_averaged_over(tmp_path):
  made(tmp_path, {f'{seed}': ([0.5], f'seed={seed}') for seed in (0, 1)})
  rows = Collected(tmp_path, '--group=algorithm,seed').rows('accuracy')
  assert [row['series'] for row in rows] == ['MOON, seed=0', 'MOON, seed=1']


def test_two_versions_of_one_data_set_are_two_settings(tmp_path):
  tfds = 'data.source=tfds data.name='
  given = {f'c{n}': ([0.5], f'{tfds}cifar10 seed={n}') for n in (0, 1)}
  found = made(tmp_path, given | {'m': ([0.9], f'{tfds}mnist')})
  assert len(settings_of(found)) == 2
  change_data(tmp_path / 'c1')
  assert len(settings_of(found)) == 3


def change_data(run):
  """Makes it a run on other data of the same name."""
  edit_json(run / 'config.json', lambda saved: saved.update(data_digest='b' * 64))


def test_where_leaves_runs_that_do_not_use_a_knob(tmp_path):
  given = {'f': ([0.5], 'algorithm=fedavg')}
  given |= {f'm{mu}': ([0.6], f'moon.mu={mu}') for mu in (1, 5)}
  made(tmp_path, given)
  for mu in (1, 5):
    choice = Choice(None, ('seed',), {'moon.mu': (str(mu),)})
    chosen = groups.select(runs.find([tmp_path], print), choice)
    assert [run.path.name for run in chosen] == ['f', f'm{mu}']


def test_names_that_would_be_alike_have_their_group():
  names = ('attack.fraction', 'stragglers.fraction', 'partition.seed', 'seed')
  told = ['attack fraction', 'stragglers fraction', 'partition seed', 'seed']
  assert [naming.short_name(name) for name in names] == told
  key = (('resnet.head_width', 64),)
  assert naming.describe(key) == 'resnet.head_width=64'


def test_knobs_of_two_algorithms_make_settings_of_two_names(tmp_path):
  given = {
    f'{algorithm}{mu}': ([0.5], f'algorithm={algorithm} {algorithm}.mu={mu}')
    for algorithm in ('moon', 'fedprox')
    for mu in (1, 5)
  }
  found = settings_of(made(tmp_path, given), ('algorithm',))
  titles = [setting.title for setting in found]
  assert sorted(titles) == ['fedprox.mu=1', 'fedprox.mu=5', 'moon.mu=1', 'moon.mu=5']


def test_a_run_of_several_settings_is_described_by_its_own_knobs(tmp_path):
  given = {f'm{beta}': ([0.5], f'partition.beta={beta}') for beta in (0.1, 0.5)}
  made(tmp_path, given | {'c': ([0.9], 'algorithm=centralized')})
  setting, _ = settings_of(tmp_path)
  looked_at = features.Features(np.asarray(1), *[np.zeros(0)] * 3)
  told = [
    models.Model(setting, series, run, looked_at).describe()
    for series in setting.series
    for run in series.finished.values()
  ]
  assert told == ['MOON, seed=0, beta=0.1, 1 rounds', 'centralized, seed=0, 1 rounds']


def test_what_may_change_in_a_resumption_makes_no_setting(tmp_path):
  given = {'a': ([0.5] * 2, 'num_rounds=2')}
  given |= {'b': ([0.5] * 3, 'execution.lanes=2 seed=1')}
  (setting,) = settings_of(made(tmp_path, given))
  assert setting.title == ''
  assert [len(series.finished) for series in setting.series] == [2]


def test_a_setting_tells_the_data_set_that_one_source_has(tmp_path):
  tfds = 'data.source=tfds data.name=fashion_mnist'
  found = settings_of(made(tmp_path, {'a': [0.5, 0.6], 'b': ([0.7, 0.8], tfds)}))
  titles = [setting.title for setting in found]
  assert titles == ['source=digits', 'source=tfds, data=fashion_mnist']


def test_data_sets_of_one_of_two_sources_are_named_once(tmp_path):
  tfds = [f'data.source=tfds data.name={name}' for name in ('mnist', 'cifar10')]
  given = {'a': [0.5], 'b': ([0.6], tfds[0]), 'c': ([0.7], tfds[1])}
  titles = [setting.title for setting in settings_of(made(tmp_path, given))]
  assert titles[1:] == ['source=tfds, data=cifar10', 'source=tfds, data=mnist']


def test_an_experiment_and_seed_counts_once(tmp_path):
  made(tmp_path, {'a': [0.5, 0.6], 'b': ([0.5, 0.7], 'execution.lanes=2')})
  made(tmp_path, {'c': ([0.5, 0.6], 'seed=1'), 'd': ([0.5, 0.6, 0.7], 'seed=1')})
  said = []
  kept = groups.without_duplicates(runs.find([tmp_path], print), said.append)
  assert [run.path.name for run in kept] == ['a', 'd']
  assert said == [
    f'skipped {tmp_path}/{name}: the same experiment and seed as {tmp_path}/{longest}'
    for name, longest in (('b', 'a'), ('c', 'd'))
  ]


def test_long_values_keep_series_apart_in_a_few_words():
  texts = {naming.describe((('data.path', 'x' * 3000 + end),)) for end in '01'}
  assert len(texts) == 2
  assert max(map(len, texts)) < 320


# --- comparing with FedAvg ------------------------------------------------------------

PLAIN, MOMENTUM = (
  f'algorithm=fedavg server_optimizer.momentum={momentum}' for momentum in (0, 0.9)
)
SOLO = 'algorithm=solo'
TWO_BETAS = {
  f'{name}{beta}': ([last], f'algorithm={name} partition.beta={beta}')
  for beta, lasts in ((0.1, (0.3, 0.4)), (0.5, (0.6, 0.8)))
  for name, last in zip(('fedavg', 'moon'), lasts, strict=True)
}
MOON_WITH = 'server_optimizer.momentum=0.9'
# Runs, how they are grouped, the algorithm of the target -> label -> (difference of the
# final accuracy to FedAvg's, target).
COMPARED = {
  'plain FedAvg is what everything is compared with': (
    {'m': ([0.7], MOMENTUM), 'f': ([0.5], PLAIN), 's': ([0.3], SOLO), 'o': [0.6]},
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
    {'m': ([0.7], MOMENTUM), 'f': ([0.5], PLAIN), 'o': ([0.6], MOON_WITH)},
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
      'c': ([0.7], f'moon.mu=5 {MOON_WITH}'),
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
  given, group, algorithm, expected = COMPARED[case]
  (setting,) = settings_of(made(tmp_path, given), group)
  found = results.results(setting, results.Target(None, algorithm))
  assert expected == {
    row['series']: (
      round(row['difference_to_fedavg_mean'], 9) if row.get('pairs') else None,
      row['target'],
    )
    for row in (result.row for result in found)
  }


def test_a_rate_of_a_server_optimizer_is_named_even_if_it_is_that_of_the_mean(tmp_path):
  adam = 'algorithm=fedavg server_optimizer.name=adam server_optimizer.learning_rate='
  given = {'a': ([0.5], 'algorithm=fedavg')}
  given |= {rate: ([0.6], f'{adam}{rate}') for rate in ('0.1', '1')}
  (setting,) = settings_of(made(tmp_path, given))
  name = 'FedAvg, server_optimizer=adam, server learning_rate'
  labels = ['FedAvg', f'{name}=1', f'{name}=0.1']
  assert [series.label for series in setting.series] == labels
  shutil.rmtree(tmp_path / 'a')
  report = Collected(tmp_path)
  labels = [f'FedAvg, server learning_rate={rate}' for rate in ('1', '0.1')]
  assert [row['series'] for row in report.rows('accuracy')] == labels
  assert report.charts()['sweep-server_optimizer.learning_rate'].ticks == ['0.1', '1']
  words = ('--rows=server_optimizer.learning_rate', '--columns=algorithm')
  rows = Collected(tmp_path, *words).rows('pivot')
  assert [row['row'].rpartition('=')[2] for row in rows] == ['0.1', '1']


def test_the_plain_server_is_named_where_it_is_asked_for(tmp_path):
  made(tmp_path, {'a': ([0.5], PLAIN), 'b': ([0.6], MOMENTUM)})
  (setting,) = settings_of(tmp_path, ('server_optimizer.momentum',))
  labels = [series.label for series in setting.series]
  assert labels == ['server momentum=0', 'server momentum=0.9']
  (sweep,) = charts.sweeps([setting])
  assert [*sweep.lines] == ['any server momentum']


def test_pairs_have_one_seed_and_one_length_and_are_counted(tmp_path, capsys):
  given = of_seeds('fedavg', ([0.5, 0.75], [0.5, 0.6, 0.7], [0.5, 0.6, 0.7]))
  given |= of_seeds('moon', ([0.5, 0.6, 0.8],) * 2)
  given |= {'m3': ([0.5, 0.6, 0.9], 'seed=3')}
  rows = Collected(made(tmp_path / 'runs', given)).rows('accuracy')
  assert 'unequal numbers of rounds: ' in capsys.readouterr().err
  assert [row['rounds'] for row in rows] == ['2 to 3', '3']
  # Only the runs of seed 1 have equal numbers of rounds, so they alone are a pair.
  assert [(row['n'], row['pairs']) for row in rows] == [('3', ''), ('3', '1')]
  assert float(rows[1]['difference_to_fedavg_mean']) == pytest.approx(0.8 - 0.7)


def test_versions_of_an_algorithm_that_are_averaged_are_told(tmp_path, capsys):
  made(tmp_path / 'runs', of_seeds('fedavg', ([0.5, 0.6], [0.5, 0.7])))
  paths = sorted(tmp_path.glob('runs/*/config.json'))
  rest = {'title': '', 'knobs': {}, 'metrics': {}, 'traits': []}
  for path, digests in zip(paths, ('aa', 'ab'), strict=True):
    parts = [
      {'kind': 'model', 'name': name, 'sha256': digest, 'file': 'mine.py'} | rest
      for name, digest in zip(('one', 'two'), digests, strict=True)
    ]
    about = json.loads(path.read_text()) | {'registered': parts}
    path.write_text(json.dumps(about))
  Collected(tmp_path / 'runs')
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("FedAvg: the file of the model 'two' was changed between ")
  first = [parts[0] | {'sha256': 'c'}]
  path.write_text(json.dumps(about | {'earlier': [{'registered': first}]}))
  Collected(tmp_path / 'runs')
  assert "the file of the model 'one' was changed" in capsys.readouterr().err


def test_a_setting_without_its_target_is_told(tmp_path, capsys):
  Collected(made(tmp_path / 'runs', of_seeds('moon', MOON)))
  assert "no target for MOON: FedAvg's mean last accuracy " in capsys.readouterr().err


def validated(folder, given):
  """Makes runs: name -> (test accuracies, validation accuracies, 'KNOB=VALUE ...')."""
  for name, (tested, validation, words) in given.items():
    made(folder, {name: (tested, f'data.validation=0.1 {words}')})
    each = iter(validation)
    edit_lines(
      folder / name / 'metrics.jsonl',
      lambda line, each=each: line.update(validation_accuracy=next(each)),
    )
  return folder


def test_a_knob_may_be_auto_beside_numbers(tmp_path):
  rates = {'0.1': 0.6, 'auto': 0.7, '0.01': 0.8}
  words = 'algorithm=ditto ditto.learning_rate'
  given = {rate: ([0.5, last], f'{words}={rate}') for rate, last in rates.items()}
  report = Collected(made(tmp_path, given))
  assert report.charts()['sweep-ditto.learning_rate'].ticks == ['0.01', '0.1', 'auto']
  assert report.rows('chosen')[0]['value'] == '0.01'
  asked = ('--rows=ditto.learning_rate', '--columns=algorithm')
  rows = Collected(tmp_path, *asked).rows('pivot')
  assert [row['row'].rpartition('=')[2] for row in rows] == ['0.01', '0.1', 'auto']


def test_the_centralized_bound_chooses_no_value_of_a_partition(tmp_path):
  given = {'bound': ([0.8, 0.9], 'algorithm=centralized')}
  given |= {f'{b}': ([0.5, 0.5 + b / 10], f'partition.beta={b}') for b in (0.5, 1)}
  report = Collected(made(tmp_path, given))
  assert [row['series'] for row in report.rows('chosen')] == ['MOON']
  lines = report.charts()['sweep-partition.beta'].lines
  assert [line.label for line in lines] == ['MOON', 'centralized']


@pytest.mark.parametrize('seed', [4, 7])  # the two means differ in the last bit
def test_the_mean_of_many_runs_reaches_its_own_target(seed, tmp_path):
  """Both are means over runs, summed in different orders."""
  drawn = np.random.default_rng(seed).random(10).tolist()
  made(tmp_path, of_seeds('fedavg', [[0.0, last] for last in drawn]))
  assert Collected(tmp_path).rows('target')[0]['round_of_the_mean'] == '2'


def test_the_best_round_and_value_are_chosen_by_validation_where_there_is_one(tmp_path):
  given = {
    '1': ([0.5, 0.9, 0.6], [0.3, 0.4, 0.5], 'moon.mu=1'),
    '5': ([0.5, 0.6, 0.8], [0.6, 0.2, 0.4], 'moon.mu=5'),
  }
  report = Collected(validated(tmp_path, given))
  found = [(r['best_accuracy_mean'], r['best_by']) for r in report.rows('accuracy')]
  # These are the test accuracies in the rounds with the best validation accuracies, 0.5
  # and 0.6: not the best ones, 0.9 and 0.8.
  assert found == [('0.6', 'validation'), ('0.5', 'validation')]
  (chosen,) = report.rows('chosen')
  # On validation data mu = 1 has 0.5 and mu = 5 has 0.4; the test set would choose 5.
  names = ('knob', 'value', 'by', 'rounds', 'chosen_accuracy', 'test_accuracy')
  assert [chosen[n] for n in names] == ['moon.mu', '1', 'validation', '3', '0.5', '0.6']
  assert report.charts()['sweep-moon.mu'].y_label == 'validation accuracy, %'
  assert 'validation_accuracy' in report.charts()
  by_best = command.parse([str(tmp_path), '--target=moon@best']).target
  (setting,) = settings_of(tmp_path, ('algorithm', 'moon.mu'))
  targets = [results.target_accuracy(setting, one, by_best) for one in setting.series]
  assert targets[0] in (0.5, 0.6)


def test_without_a_validation_split_in_all_runs_the_test_set_chooses(tmp_path):
  validated(tmp_path, {'1': ([0.5, 0.7], [0.5, 0.4], 'moon.mu=1')})
  made(tmp_path, {'5': ([0.5, 0.6], 'moon.mu=5 data.validation=0.1')})
  report = Collected(tmp_path)
  assert [row['best_by'] for row in report.rows('accuracy')] == ['validation', 'test']
  (chosen,) = report.rows('chosen')
  assert (chosen['value'], chosen['by']) == ('1', 'test')
  assert report.charts()['sweep-moon.mu'].y_label == 'test accuracy, %'


# --- the charts and the files ---------------------------------------------------------


def test_sweeps_and_traces_are_drawn_where_there_are_some(tmp_path):
  given = {str(mu): ([0.5, 0.6], f'moon.mu={mu}') for mu in (1, 5, 10)}
  made(tmp_path, given, positive_cosine=0.5, train_accuracy=0.4)
  names = set(Collected(tmp_path).charts())
  # Algorithms minimise different losses, but the supervised loss is comparable.
  assert {'train_loss', 'supervised_loss', 'train_accuracy'} <= names
  assert {'sweep-moon.mu', 'positive_cosine', 'contrastive_share', 'drift'} <= names
  assert not names & {'temperature', 'p_t', 'consensus_distance'}


def test_a_sweep_looks_like_its_series_and_not_like_what_it_is_compared_with(tmp_path):
  # Seven series: the next style would have the colour of the first.
  given = {f'm{mu}': ([0.5, 0.6], f'moon.mu={mu}') for mu in range(1, 7)}
  found = settings_of(made(tmp_path, given | {'f': ([0.5, 0.6], 'algorithm=fedavg')}))
  chart = charts.of_sweep(*charts.sweeps(found))
  looks = charts.styles(found, [chart])
  assert [line.label for line in chart.lines] == ['MOON, any mu', 'FedAvg']
  assert looks['MOON, any mu'] == looks['MOON, mu=1']
  assert looks['MOON, any mu'].colour != looks['FedAvg'].colour


def test_a_sweep_is_after_equally_many_rounds(tmp_path):
  by_mu = {1: [0.2, 0.5], 5: [0.3, 0.6, 0.9], 10: [0.1, 0.4]}
  given = {str(mu): (accuracies, f'moon.mu={mu}') for mu, accuracies in by_mu.items()}
  given |= {'5b': ([0.3, 0.8], 'moon.mu=5 seed=1')}
  given |= {'f': ([0.2, 0.3, 0.7], 'algorithm=fedavg')}
  chart = charts.of_sweep(*charts.sweeps(settings_of(made(tmp_path, given))))
  line, level = chart.lines
  assert chart.title == 'Accuracy after 2 rounds against mu'
  assert chart.ticks == ['1', '5', '10']
  assert list(line.points.index) == list(level.points.index) == [0, 1, 2]
  assert list(line.points['mean']) == pytest.approx([50.0, 70.0, 40.0])
  assert list(line.points['n']) == [1, 2, 1]
  assert level.label == 'FedAvg'
  assert list(level.points['mean']) == pytest.approx([30.0] * 3)


def test_the_partition_has_clients_from_left_to_right(tmp_path):
  path = write_run(tmp_path / 'a', [0.5])
  (chart,) = sections.partition(settings_of(tmp_path)[0])
  with np.load(path / 'partition.npz') as arrays:
    counts = arrays['class_counts']
  assert (chart.x_label, chart.y_label) == ('client', 'class')
  # [clients, classes] is stored; the figure has one row for each class.
  assert chart.values.tolist() == [[row[y] for row in counts] for y in range(3)]


def test_with_many_clients_some_are_shown(tmp_path):
  path = write_run(tmp_path / 'a', [0.5])
  # Client i of 5,000 owns 5,000 - i examples of class i % 3.
  counts = np.zeros((5000, 3), int)
  counts[np.arange(5000), np.arange(5000) % 3] = 5000 - np.arange(5000)
  np.savez(path / 'partition.npz', class_counts=counts)
  owned = Collected(tmp_path).charts()['partition']
  assert owned.x_label == '200 of 5,000 clients, from fewest to most examples'
  totals = owned.values.sum(0)
  assert (totals[0], totals[-1], totals.size) == (1, 5000, 200)
  assert (np.abs(np.diff(totals) - 4999 / 199) < 1).all()


def test_every_figure_is_a_png_and_a_pdf(reported):
  figures = reported[1] / 'figures'
  names = {path.stem for path in figures.iterdir()}
  assert names == {*Collected(reported[0]).charts()}
  for name in names:
    with Image.open(figures / f'{name}.png') as image:
      assert image.width > 800
    assert (figures / f'{name}.pdf').read_bytes().startswith(b'%PDF')


def test_tables_are_markdown_and_latex_too(reported):
  markdown, latex = (
    (reported[1] / f'tables/accuracy.{ending}').read_text() for ending in ('md', 'tex')
  )
  assert '75.00 ± 3.61' in markdown
  assert markdown.count('\n|') >= 3
  assert r'\underline{75.00} & 3.61' in latex
  assert r'\multicolumn{2}{c}{final accuracy, \%}' in latex
  assert latex.startswith(r'\begin{tabular}')
  # No table is written without rows: these algorithms have no personal models.
  names = {path.stem for path in (reported[1] / 'tables').iterdir()}
  assert names == {'accuracy', 'target', 'runs'}


TEX = r"""\documentclass{article}
\usepackage[landscape,margin=1cm]{geometry}
\usepackage{booktabs}
\begin{document}\scriptsize
%s
\end{document}
"""


@pytest.mark.skipif(shutil.which('pdflatex') is None, reason='no pdflatex')
def test_latex_takes_every_table(reported, tmp_path):
  out = tmp_path / 'out'
  words = [str(reported[0]), '--rows=algorithm', '--columns=partition.beta']
  Collected(*words).write(out)
  paths = sorted((out / 'tables').glob('*.tex'))
  assert {path.stem for path in paths} == {'accuracy', 'pivot', 'runs', 'target'}
  body = '\n\n'.join(f'\\input{{{path}}}' for path in paths)
  (tmp_path / 'a.tex').write_text(TEX % body)
  done = subprocess.run(
    ['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'a.tex'],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout[-2000:]


def test_latex_of_numbers_of_all_kinds():
  columns = (
    tables.Column('name', 'a_b & c'),
    tables.percent_estimate('x', 'x, %'),
    tables.Column('d', 'd', '+.1f'),
    tables.Column('command', 'command'),
  )
  rows = [
    {'name': 'A', 'x_mean': 0.5, 'x_std': 0.01, 'd': -1.5, 'command': 'python'},
    {'name': 'B', 'x_mean': 0.7, 'x_std': None, 'd': 2.0, 'command': 'python'},
    {'name': 'C', 'x_mean': 0.70004, 'x_std': 0.1, 'd': None, 'command': 'python'},
    {'name': 'D', 'x_mean': 0.1, 'x_std': 0.1, 'd': 0.0, 'command': 'python'},
  ]
  got = latex.text(tables.Table('n', 't', 'c', columns, rows)).splitlines()
  assert got[0] == r'\begin{tabular}{lr@{\,$\pm$\,}lr}'
  assert got[2] == r'a\_b \& c & \multicolumn{2}{c}{x, \%} & d \\'
  a, b, c, d = got[4:8]
  assert a == r'A & \underline{50.00} & 1.00 & $-$1.5 \\'
  # B and C have equal printed means, so both are marked as best.
  assert b.startswith(r'B & \multicolumn{1}{r')
  assert r'\textbf{70.00}' in b
  assert b.endswith(r' & $+$2.0 \\')
  assert c == r'C & \textbf{70.00} & 10.00 & - \\'
  assert d == r'D & 10.00 & 10.00 & $+$0.0 \\'


def test_latex_leaves_room_where_a_number_has_fewer_decimals():
  rows = [{'beta': 0.05}, {'beta': 5.0}, {'beta': 0.5}, {'beta': None}]
  table = tables.Table('n', 't', 'c', [tables.Column('beta', 'beta')], rows)
  assert latex.text(table).splitlines()[4:8] == [
    *(r'0.05 \\', r'5\phantom{.05} \\', r'0.5\phantom{5} \\', r'- \\')
  ]


def test_the_best_is_that_of_its_setting():
  columns = (tables.Column('setting', 's'), tables.percent_estimate('x', 'x'))
  columns += (tables._cost_estimate('r', 'rounds'),)
  rows = [
    {'setting': setting, 'x_mean': x, 'r_mean': r}
    for setting, x, r in (('1', 0.5, 9.0), ('1', 0.6, 3.0), ('2', 0.1, 1.0))
  ]
  lines = latex.text(tables.Table('n', 't', 'c', columns, rows)).splitlines()[4:7]
  assert lines == [
    r'1 & \underline{50.00} & \underline{9.0} \\',
    r'1 & \textbf{60.00} & \textbf{3.0} \\',
    r'2 & 10.00 & 1.0 \\',  # nothing to compare with
  ]
  for row in rows:  # of unequal lengths nothing is best
    row['rounds'] = '5 to 30'
  assert 'textbf' not in latex.text(tables.Table('n', 't', 'c', columns, rows))


def test_a_pivot_has_a_row_and_a_column_for_each_value(tmp_path):
  given = {
    f'{name}-{beta}-{seed}': (
      # The last accuracy is not the best.
      [0.95, 0.1 * index + beta / 10 + seed / 100],
      f'algorithm={name} partition.beta={beta} seed={seed}',
    )
    for index, name in enumerate(('fedavg', 'moon'), 3)
    for beta in (0.5, 5)
    for seed in (0, 1)
    if (name, beta) != ('moon', 5)
  }
  made(tmp_path, given)
  words = ('--rows=algorithm', '--columns=partition.beta')
  rows = Collected(tmp_path, *words).rows('pivot')
  assert [row['row'] for row in rows] == ['FedAvg', 'MOON']
  means = [[row[f'of {beta}_mean'] for beta in (0.5, 5.0)] for row in rows]
  assert [float(mean) for mean in means[0]] == pytest.approx([0.355, 0.805])
  assert float(means[1][0]) == pytest.approx(0.455)
  assert means[1][1] == ''  # no run has these values
  assert rows[0]['of 0.5_n'] == '2'
  columns = Collected(tmp_path, *words).table('pivot').columns
  assert [column.better for column in columns] == [0, 1, 1]
  turned = ('--rows=partition.beta', '--columns=algorithm')  # no beta is the best
  columns = Collected(tmp_path, *turned).table('pivot').columns
  assert not any(column.better for column in columns)
  with pytest.raises(UsageError, match='differ in seed; choose'):
    Collected(tmp_path, *words, '--over=partition.beta')
  for wrong in (['--rows=seed'], ['--rows=seed', '--columns=seed']):
    with pytest.raises(UsageError, match='go together, each with another knob'):
      Collected(tmp_path, *wrong)
  with pytest.raises(UsageError, match=r"has no setting 'moon\.mu'"):
    Collected(tmp_path, '--rows=moon.mu', '--columns=algorithm')


def test_no_cell_of_markdown_is_html_code_a_link_or_two_cells():
  word = '<img src=x onerror=alert(1)> [a](javascript:b) `c` d|e \\'
  columns = [tables.Column('name', word)]
  text = files.markdown(tables.Table('n', 't', word, columns, [{'name': word}]))
  shown = r'&lt;img src=x onerror=alert(1)&gt; \[a](javascript:b) \`c\` d\|e \\'
  assert text.count(shown) == 3
  assert not set('<>') & set(text)


def test_a_second_report_leaves_nothing_of_the_first(tmp_path):
  given = {f'{beta}': ([0.5, 0.6], f'partition.beta={beta}') for beta in (0.1, 0.5)}
  made(tmp_path / 'runs', given)
  out = tmp_path / 'out'
  Collected(tmp_path / 'runs').write(out)
  (out / 'figures/mine.png').write_bytes(b'')
  assert (out / 'figures/test_accuracy-beta=0.1.png').exists()
  Collected(tmp_path / 'runs', '--where=partition.beta=0.5').write(out)
  names = {path.name for path in (out / 'figures').iterdir()}
  assert {'test_accuracy.png', 'mine.png'} <= names
  assert not [name for name in names if 'beta=0.1' in name]


# --- what is left out, and said -------------------------------------------------------


def change(path, **changes):
  """Changes entries of a run's config.json, those of `config` one by one."""

  def update(saved):
    saved['config'] |= changes.pop('config', {})
    saved |= changes

  edit_json(path / 'config.json', update)


def test_only_finished_runs_are_averaged(tmp_path, capsys):
  folder = tmp_path / 'runs'
  write_run(folder / 'good', [0.5, 0.75], seed=0)
  write_run(folder / 'diverged', [0.1, 0.2], seed=1, finished=False)
  edit_lines(
    folder / 'diverged/metrics.jsonl',
    lambda line: line.update(train_loss=None) if line['round'] == 2 else None,
  )
  write_run(folder / 'killed', [0.1], seed=2, finished=False)
  write_run(folder / 'failed', [], seed=3, finished=False)
  report = Collected(folder)
  report.write(tmp_path)
  said, page = capsys.readouterr().err, (tmp_path / 'index.html').read_text()
  endings = {
    'diverged': 'diverged after round 2',
    'killed': 'unfinished after round 1',
    'failed': 'without a round',
  }
  for name, words in endings.items():
    assert f'{folder}/{name} is {words}: in no average' in said
    assert f'{folder}/{name} is {words}: in no average' in page
  (row,) = report.rows('accuracy')
  assert (row['n'], row['final_accuracy_mean']) == ('1', '0.75')
  states = {pathlib.Path(row['run']).name: row['state'] for row in report.rows('runs')}
  assert states == {'good': 'finished'} | {
    name: words.split(' after')[0] for name, words in endings.items()
  }


LONG = json.dumps({'config': {'moon': {'x' * 3000: 1.0}}})


@pytest.mark.parametrize(
  ('file', 'text', 'words'),
  [
    ('metrics.jsonl', '{"round": 1}\nx\n{"round": 3}\n', '{} is damaged: '),
    ('config.json', '{"a', '{} is damaged: '),
    ('config.json', '{}', 'config.json is not what a run writes'),
    ('config.json', '{"config": {"seed": 1}}', 'config.json is not what a run writes'),
    ('config.json', LONG, '{} is damaged: '),
    ('summary.json', '[', '{} is damaged: '),
  ],
)
def test_a_damaged_run_is_skipped_with_a_line(tmp_path, file, text, words):
  made(tmp_path, {'good': [0.5], 'bad': [0.5, 0.6]})
  bad = tmp_path / 'bad'
  (bad / file).write_text(text)
  names, (line,) = find(tmp_path)
  assert names == ['good']
  assert line.startswith(f'skipped {bad}: {words.format(bad / file)}')


def test_what_an_older_version_did_not_have_is_as_in_base(tmp_path):
  path = write_run(tmp_path / 'a', [0.5]) / 'config.json'
  edit_json(path, lambda saved: saved['config'].pop('drop_last'))
  (run,) = runs.find([tmp_path], print)
  assert run.knobs['drop_last'] is run.identity['drop_last'] is False


def test_a_damaged_partition_is_not_drawn(tmp_path):
  path = write_run(tmp_path / 'a', [0.5, 0.6]) / 'partition.npz'
  path.write_bytes(path.read_bytes()[:-50])
  drawn = Collected(tmp_path).charts()
  assert 'partition' not in drawn
  assert 'test_accuracy' in drawn


def test_a_missing_column_is_left_out_of_its_numbers(tmp_path):
  made(tmp_path, {'a': ([0.5, 0.6], 'algorithm=fedavg')})
  edit_lines(tmp_path / 'a/metrics.jsonl', lambda line: line.pop('bytes_up'))
  (row,) = Collected(tmp_path).rows('target')
  assert row['megabytes_to_target_mean'] == ''
  assert float(row['seconds_to_target_mean']) == 2 * (TRAIN + EVALUATE + IDLE)
  # If a round has no time, the sum is not given either.
  path = tmp_path / 'a/timings.jsonl'
  edit_lines(path, lambda line: line['round'] == 1 and line.pop('idle_seconds'))
  (row,) = Collected(tmp_path).rows('target')
  assert row['seconds_to_target_mean'] == ''


# --- the command ----------------------------------------------------------------------


@pytest.fixture(scope='module')
def some_of_each(tmp_path_factory):
  folder = tmp_path_factory.mktemp('each')
  write_run(folder / 'runs/a', [0.5])
  write_run(folder / 'killed/a', [0.5], finished=False)
  (folder / 'empty').mkdir()
  (folder / 'file').write_text('')
  return folder


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    ('nowhere', "'nowhere' is not a folder."),
    ('empty', 'No run was found below empty.'),
    ('killed', 'There is no finished run among 1 below killed.'),
    ('', 'A FOLDER is missing; see --help.'),
    ('compare', 'A RUN is missing; see --help.'),
    ('compare empty', 'No run was found below empty.'),
    ('compare runs/a --over=seed', "Unknown command line flag 'over'"),
    ('runs --config=nowhere.py', "--config='nowhere.py' is not a file."),
    (
      'runs --where=data.nme=x',
      "no run has a setting 'data.nme'. Did you mean ",
    ),
    ('runs --where=seed=7', '--where: none of the 1 runs is chosen.'),
    ('runs --where=seed', "--where='seed' must be KNOB=VALUE"),
    ('runs --where=seed=1 --where=seed=2', "--where names 'seed' twice."),
    ('runs --group=moon.nu', "--group: no run has a setting 'moon.nu'. Did you mean "),
    ('runs --over=algorithm', "--over='algorithm' needs a --group without algorithm."),
    ('runs --over=execution.lanes', "--over: no run has a setting 'execution.lanes'."),
    ('runs --target=fedavg', "--target='fedavg' must be an accuracy in (0, 1]"),
    ('runs --target=97', "--target='97' must be an accuracy in (0, 1]"),
    ('runs --target=fedvag@last', "Did you mean 'fedavg'?"),
    ('compare runs/a --target=fedvag@last', "Did you mean 'fedavg'?"),
    ('runs --features=x', "--features='x' is not among the finished runs."),
    ('runs --out=file --features=none', "--out='file' cannot be written: "),
    ('runs --ouy=x', "Unknown command line flag 'ouy'. Did you mean: out ?"),
  ],
)
def test_bad_input_is_one_line(some_of_each, monkeypatch, capsys, words, complaint):
  monkeypatch.chdir(some_of_each)
  assert main(words.split()) == ExitCode.USAGE
  out, err = capsys.readouterr()
  assert 'report: ' not in out
  assert complaint in err.splitlines()[-1]
  # Nothing was written.
  there = {path.name for path in some_of_each.iterdir()}
  assert there == {'runs', 'killed', 'empty', 'file'}


def test_where_takes_a_value_as_it_is_written(tmp_path):
  made(tmp_path, {'a': ([0.5], 'moon.mu=5'), 'b': ([0.5], 'seed=1 moon.mu=0.5')})
  change(tmp_path / 'b', config={'drop_last': True})
  one, two = ('seed=1', 'moon.mu=5', 'drop_last=true'), ('data.source=digits,npz',)
  for word in (*one, *two, 'moon.mu=.5,5.0'):
    request = command.parse([str(tmp_path), f'--where={word}'])
    found = groups.select(runs.find([tmp_path], print), request.choice)
    assert len(found) == (1 if word in one else 2), word
  # A text that is a numeral is chosen as it is written.
  assert [groups._is('1.0', word) for word in ('1.0', '1')] == [True, False]


def test_compare_prints_a_line_for_each_run(reported, tmp_path, capsys):
  folder = reported[0]
  killed = write_run(tmp_path / 'killed', [0.1, 0.2], seed=9, finished=False)
  (empty := tmp_path / 'empty').mkdir()
  words = [f'{folder}/fedavg-s0', f'{folder}/moon-s0', str(killed), str(empty)]
  assert main(['compare', *words]) == ExitCode.DONE
  out, err = capsys.readouterr()
  assert err == f'no run was found below {empty}\n'
  lines = out.splitlines()
  cells = [[word.strip() for word in line.split('│')[1:-1]] for line in lines]
  # A long name takes several lines; the numbers are in the first.
  rows = [row[1:] for row in cells if row and row[1]]
  seconds = f'{7 * (TRAIN + EVALUATE + IDLE):.1f}'
  # FedAvg's 0.76 is reached by itself in round 7, by MOON in round 4; 1.5 MB a round.
  assert [' '.join(row) for row in rows] == [
    f'finished 7 76.00 76.00 test 70.40 76.00 7 10.5 {seconds} 50',
    f'finished 7 81.00 82.00 test 77.80 76.00 4 6.0 {seconds} 50',
    'unfinished 2 20.00 20.00 test 15.00 76.00 - - 5.5 50',
  ]


def test_help_tells_every_flag(capsys):
  assert main(['--help']) == ExitCode.DONE
  out = capsys.readouterr().out
  assert all(f'--{flag}=' in out for flag in command._REPORT_FLAGS)


def test_a_full_disk_is_one_line(some_of_each, tmp_path, monkeypatch, capsys):
  full = OSError(errno.ENOSPC, 'No space left on device')
  monkeypatch.setattr(files.figures, 'save', mock.Mock(side_effect=full))
  words = [f'{some_of_each}/runs', f'--out={tmp_path}', '--features=none']
  assert main(words) == ExitCode.USAGE
  (*_, line) = capsys.readouterr().err.splitlines()
  assert line == f'--out={str(tmp_path)!r} cannot be written: No space left on device.'


def test_a_missing_library_is_one_line(tmp_path, monkeypatch, capsys):
  write_run(tmp_path / 'a', [0.5, 0.6])
  # None in sys.modules makes an import fail.
  monkeypatch.setitem(sys.modules, 'tabulate', None)
  for name in [name for name in sys.modules if name.startswith('moon_jax.report.')]:
    monkeypatch.delitem(sys.modules, name)
  for name in [name for name in vars(report_package) if not name.startswith('_')]:
    monkeypatch.delattr(report_package, name)
  assert main([str(tmp_path), f'--out={tmp_path / "out"}']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.endswith("pip install 'moon_jax[report]'")
  assert not (tmp_path / 'out').exists()


def run_python(code, *words, **given):
  words, given = [sys.executable, '-u', '-c', code, *words], {'cwd': ROOT} | given
  return subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False, **given)


def test_training_loads_no_library_of_a_report():
  libraries = {'pandas', 'plotly', 'sklearn.manifold', 'tabulate'}
  code = f'assert not {libraries} & set(sys.modules)'
  done = run_python(f'import sys; from moon_jax.runner import loop; {code}')
  assert done.returncode == 0, done.stderr


def test_a_report_outlives_its_output_and_does_without_jax(tmp_path):
  write_run(tmp_path / 'runs/a', [0.5, 0.6])
  code = """
import runpy, sys
from matplotlib.figure import Figure
Figure.savefig = lambda *given, **how: None
try:
  runpy.run_module('moon_jax.report', run_name='__main__')
finally:
  assert 'jax' not in sys.modules
"""
  words = [tmp_path / 'runs', f'--out={tmp_path / "out"}', '--features=none']
  with open('/dev/full', 'w') as full:
    done = run_python(code, *words, stdout=full)
  assert done.returncode == ExitCode.DONE, done.stderr
  assert (tmp_path / 'out/index.html').exists()


# --- what users register --------------------------------------------------------------

OF_USERS = """
import moon_jax
from moon_jax import config as config_lib
from tests.report.test_report import no_algorithm

moon_jax.register_algorithm(
  'turtle',
  no_algorithm,
  title='Turtle',
  knobs={'rho': moon_jax.knob(float, 0.5, 'slowness', moon_jax.above(0))},
  metrics={'shell': moon_jax.Metric('Thickness of the shell', 'cm', 100.0)},
)


def get_config():
  config = config_lib.defaults()
  config.algorithm = 'turtle'
  return config
"""


def no_algorithm(rho):
  raise AssertionError('A report needs no code of an algorithm.')


def forget():
  """Forgets registrations, as in a new process."""
  catalog.registry._parts.pop(('algorithm', 'turtle'))
  catalog.every_knob.cache_clear()


@pytest.fixture
def turtles(tmp_path, own_parts):
  """Runs of an algorithm that is not registered now, and one of FedAvg; the flag."""
  (tmp_path / 'turtle.py').write_text(OF_USERS)
  flag = f'--config={tmp_path / "turtle.py"}'
  for rho in (0.5, 2):
    words = (flag, f'--config.turtle.rho={rho}')
    write_run(tmp_path / f'runs/{rho}', [0.5, 0.6], *words, shell=0.25)
  write_run(tmp_path / 'runs/f', [0.5, 0.7], flag, '--config.algorithm=fedavg')
  forget()
  return tmp_path / 'runs', flag


def test_runs_of_an_algorithm_that_is_not_registered_now(turtles, capsys):
  folder, flag = turtles
  # The registration in config.json is enough.
  report = Collected(folder, '--target=turtle@last')
  labels = [row['series'] for row in report.rows('accuracy')]
  assert labels == ['FedAvg', 'Turtle, rho=0.5', 'Turtle, rho=2']
  shell = report.charts()['shell']
  assert (shell.title, shell.y_label) == ('Thickness of the shell', 'cm')
  assert list(shell.lines[0].points['mean']) == [25.0, 25.0]
  assert 'sweep-turtle.rho' in report.charts()
  # Without the registration a line names the algorithm.
  for rho in (0.5, 2):
    change(folder / str(rho), registered=[])
  capsys.readouterr()
  assert [row['series'] for row in Collected(folder).rows('accuracy')] == ['FedAvg']
  line = f"skipped {folder}/2: There is no algorithm 'turtle'."
  assert line in capsys.readouterr().err.splitlines()
  # The user's file registers it too.
  assert len(Collected(folder, flag).rows('accuracy')) == 3


def test_what_a_run_registers_counts_for_it_alone(turtles):
  folder, _ = turtles
  (told,) = json.loads((folder / '2/config.json').read_text())['registered']
  change(folder / '2', registered=[told | {'title': 'Hare', 'metrics': {}}])
  turtle, hare, _ = runs.find([folder], print)
  assert (turtle.algorithm.part.title, hare.algorithm.part.title) == ('Turtle', 'Hare')
  assert list(turtle.algorithm.part.metrics) == ['shell']
  assert 'turtle' not in catalog.names('algorithm')
  assert 'turtle.rho' not in catalog.every_knob()


# Kind, name, knob and trait in a run's registration -> why it is refused.
HOSTILE = {
  ('algorithm', 'moon', 'mu', ''): 'the name is taken',
  ('model', 'moon', 'mu', ''): 'the name is taken, as a group of knobs',
  ('data', 'optimizer', 'learning_rate', ''): 'the name is taken, as a group of knobs',
  ('model', 'served', 'a', ''): 'the name is taken, as a trait',
  ('algorithm', 'mine', 'a', 'moon'): "there is no trait 'moon'",
}


def known_knobs():
  every = catalog.every_knob()
  return {name: knob._replace(bound=()) for name, knob in every.items()}


@pytest.mark.parametrize('part', HOSTILE)
def test_a_strangers_run_changes_no_other(tmp_path, capsys, part):
  made(tmp_path / 'b', {f'{mu}': ([0.5, 0.6], f'moon.mu={mu}') for mu in (1, 2)})
  told, knobs = Collected(tmp_path / 'b').rows('accuracy'), known_knobs()
  kind, name, knob, trait = part
  stranger = write_run(tmp_path / 'a', [0.9, 0.9])
  description = {'kind': kind, 'name': name, 'title': 'T', 'metrics': {}}
  description |= {'knobs': {knob: ['str', 'x', 'y']}, 'traits': [trait] * bool(trait)}
  change(stranger, registered=[description | {'file': 'f.py', 'sha256': ''}])
  capsys.readouterr()
  assert Collected(tmp_path).rows('accuracy') == told
  line = f'config.json registers the {kind} {name!r}: {HOSTILE[part]}.'
  assert f'skipped {stranger}: {line}' in capsys.readouterr().err
  assert known_knobs() == knobs


@pytest.mark.parametrize('content', ['{}', '[]', 'a', '{"files": 3}'])
def test_a_folder_with_the_manifest_of_another_program_is_refused(content, tmp_path):
  (tmp_path / 'report.json').write_text(content)
  with pytest.raises(UsageError, match=r'its report\.json is of another program'):
    files.write(tmp_path, None)


def test_a_table_by_class_names_its_setting():
  captions = [tables.by_class(1, told, {}, []).caption for told in ('', 'beta=0.5')]
  common = 'Trained global model on the test images of each class'
  assert captions == [f'{common}.', f'{common}: beta=0.5.']
