"""Runs that belong together are a series or a setting, and have its name."""

import shutil

import numpy as np
import pytest

from moon_jax.core.errors import UsageError
from moon_jax.report import command, features, groups, models, naming, runs
from tests.report.reports import Collected, change_config, settings_of, write_runs
from tests.run_directories import edit_json


def test_own_knobs_make_series_and_shared_knobs_make_settings(tmp_path):
  # The upper bound has no partition, so it belongs to both settings.
  write_runs(tmp_path, {'c': ([0.9], 'algorithm=centralized')})
  for beta in (0.1, 0.5):
    for seed in (0, 1):
      shared = f'partition.beta={beta} seed={seed}'
      runs_by_name = {
        f'fedavg-{shared}': ([0.5], f'algorithm=fedavg {shared}'),
        f'moon-1-{shared}': ([0.6], f'moon.mu=1 {shared}'),
        f'moon-10-{shared}': ([0.6], f'moon.mu=10 {shared}'),
      }
      write_runs(tmp_path, runs_by_name)
  settings = settings_of(tmp_path)
  assert [setting.title for setting in settings] == ['beta=0.1', 'beta=0.5']
  num_runs = {'FedAvg': 2, 'MOON, mu=1': 2, 'MOON, mu=10': 2, 'centralized': 1}
  for setting in settings:
    assert num_runs == {series.label: len(series.finished) for series in setting.series}
  by_beta = settings_of(tmp_path, ('partition.beta',))
  assert [setting.title for setting in by_beta] == list(num_runs)
  assert [series.label for series in by_beta[1].series] == ['beta=0.1', 'beta=0.5']


def test_a_knob_of_series_is_not_averaged_over(tmp_path):
  write_runs(tmp_path, {f'{seed}': ([0.5], f'seed={seed}') for seed in (0, 1)})
  rows = Collected(tmp_path, ['--group=algorithm,seed']).rows('accuracy')
  assert [row['series'] for row in rows] == ['MOON, seed=0', 'MOON, seed=1']


def test_what_may_change_in_a_resumption_makes_no_setting(tmp_path):
  write_runs(
    tmp_path,
    {'a': ([0.5] * 2, 'num_rounds=2'), 'b': ([0.5] * 3, 'execution.lanes=2 seed=1')},
  )
  (setting,) = settings_of(tmp_path)
  assert setting.title == ''
  assert [len(series.finished) for series in setting.series] == [2]


def test_an_experiment_and_seed_counts_once(tmp_path):
  write_runs(
    tmp_path,
    {
      'a': ([0.5, 0.6], ''),
      'b': ([0.5, 0.7], 'execution.lanes=2'),
      'c': ([0.5, 0.6], 'seed=1'),
      'd': ([0.5, 0.6, 0.7], 'seed=1'),
    },
  )
  notes = []
  unique_runs = groups.without_duplicates(runs.find([tmp_path], print), notes.append)
  assert [run.path.name for run in unique_runs] == ['a', 'd']
  assert notes == [
    f'skipped {tmp_path}/{name}: the same experiment and seed as {tmp_path}/{longest}'
    for name, longest in (('b', 'a'), ('c', 'd'))
  ]


# --- data sets ------------------------------------------------------------------------


def test_what_does_not_vary_may_be_of_some_runs(tmp_path):
  write_runs(
    tmp_path,
    {
      'a': ([0.5], 'algorithm=fedavg'),
      'b': ([0.5], 'algorithm=moon'),
      'c': ([0.5], 'algorithm=moon seed=1'),
    },
  )
  common = groups.common(runs.find([tmp_path], print))
  assert common['moon.mu'] == 1.0
  assert {'algorithm', 'seed', 'data_digest'}.isdisjoint(common)


def test_two_versions_of_one_data_set_are_two_settings(tmp_path):
  cifar10 = 'data.source=tfds data.name=cifar10'
  write_runs(
    tmp_path,
    {
      'c0': ([0.5], f'{cifar10} seed=0'),
      'c1': ([0.5], f'{cifar10} seed=1'),
      'm': ([0.9], 'data.source=tfds data.name=mnist'),
    },
  )
  assert len(settings_of(tmp_path)) == 2
  change_config(tmp_path / 'c1', data_digest='b' * 64)
  assert len(settings_of(tmp_path)) == 3


@pytest.mark.parametrize(
  ('flags', 'digest', 'word', 'other_name', 'knob_words'),
  [
    (
      'initial_weights=w.npz',
      'weights_digest',
      'weights',
      {'initial_weights': 'other.npz'},
      ('initial_weights=w.npz', 'initial_weights='),
    ),
    (
      'availability.name=trace availability.path=t.csv',
      'trace_digest',
      'availability',
      {'availability': {'name': 'trace', 'path': 'other.csv'}},
      ('availability=trace', 'availability=uniform'),
    ),
  ],
)
def test_two_versions_of_a_file_are_two_settings(
  tmp_path, flags, digest, word, other_name, knob_words
):
  runs_by_name = {
    f'{letter}{seed}': ([0.5, 0.6], f'{flags} seed={seed}')
    for letter in 'ab'
    for seed in (0, 1)
  }
  write_runs(tmp_path, runs_by_name)
  for name in runs_by_name:
    edit_json(
      tmp_path / name / 'config.json',
      lambda config, letter=name[0]: config.update({digest: 64 * letter}),
    )
  titles = [setting.title for setting in settings_of(tmp_path)]
  assert titles == [f'{word} aaaaaaaa', f'{word} bbbbbbbb']
  # None is taken for a repetition of another.
  all_runs = runs.find([tmp_path], print)
  assert len(groups.without_duplicates(all_runs, print)) == 4
  # Runs that read no such file have no digest of it.
  write_runs(tmp_path, {f'c{seed}': ([0.5, 0.6], f'seed={seed}') for seed in (0, 1)})
  titles = {setting.title for setting in settings_of(tmp_path)}
  with_file, without_file = knob_words
  versions = {f'{with_file}, {word} {8 * letter}' for letter in 'ab'}
  assert titles == versions | {without_file}
  for seed in (0, 1):
    shutil.rmtree(tmp_path / f'c{seed}')
  # Two files with names of their own are told by the names.
  for seed in (0, 1):
    change_config(tmp_path / f'b{seed}', config=other_name)
  assert digest not in groups.varying(runs.find([tmp_path], print))


def test_draws_of_a_test_are_averaged_if_asked(tmp_path):
  drawn = 'data.source=imagefolder data.path=x data.test_fraction=0.2 data.test_seed'
  write_runs(tmp_path, {f'r{seed}': ([0.5], f'{drawn}={seed}') for seed in range(3)})
  for seed in range(3):  # the digest is that of the data after the draw
    change_config(tmp_path / f'r{seed}', data_digest=str(seed) * 64)
  assert len(settings_of(tmp_path)) == 3
  (setting,) = settings_of(tmp_path, over=('data.test_seed',))
  assert len(setting.series[0].finished) == 3


def test_a_setting_tells_the_data_set_that_one_source_has(tmp_path):
  tfds = 'data.source=tfds data.name=fashion_mnist'
  write_runs(tmp_path, {'a': ([0.5, 0.6], ''), 'b': ([0.7, 0.8], tfds)})
  titles = [setting.title for setting in settings_of(tmp_path)]
  assert titles == ['source=digits', 'source=tfds, data=fashion_mnist']


def test_data_sets_of_one_of_two_sources_are_named_once(tmp_path):
  write_runs(
    tmp_path,
    {
      'a': ([0.5], ''),
      'b': ([0.6], 'data.source=tfds data.name=mnist'),
      'c': ([0.7], 'data.source=tfds data.name=cifar10'),
    },
  )
  titles = [setting.title for setting in settings_of(tmp_path)]
  assert titles[1:] == ['source=tfds, data=cifar10', 'source=tfds, data=mnist']


# --- names ----------------------------------------------------------------------------


def test_names_that_would_be_alike_have_their_group():
  knobs = ('attack.fraction', 'stragglers.fraction', 'partition.seed', 'seed')
  names = ['attack fraction', 'stragglers fraction', 'partition seed', 'seed']
  assert [naming.short_name(knob) for knob in knobs] == names
  key = (('resnet.head_width', 64),)
  assert naming.describe(key) == 'resnet.head_width=64'


def test_knobs_of_two_algorithms_make_settings_of_two_names(tmp_path):
  runs_by_name = {
    f'{algorithm}{mu}': ([0.5], f'algorithm={algorithm} {algorithm}.mu={mu}')
    for algorithm in ('moon', 'fedprox')
    for mu in (1, 5)
  }
  settings = settings_of(write_runs(tmp_path, runs_by_name), ('algorithm',))
  titles = [setting.title for setting in settings]
  assert sorted(titles) == ['fedprox.mu=1', 'fedprox.mu=5', 'moon.mu=1', 'moon.mu=5']


def test_a_run_of_several_settings_is_described_by_its_own_knobs(tmp_path):
  runs_by_name = {f'm{beta}': ([0.5], f'partition.beta={beta}') for beta in (0.1, 0.5)}
  write_runs(tmp_path, runs_by_name | {'c': ([0.9], 'algorithm=centralized')})
  setting, _ = settings_of(tmp_path)
  empty = np.zeros(0)
  examined = features.Features(
    round=np.asarray(1), confusion=empty, classes=empty, embedded=empty
  )
  descriptions = [
    models.Model(setting, series, run, examined).describe()
    for series in setting.series
    for run in series.finished.values()
  ]
  assert descriptions == [
    'MOON, seed=0, beta=0.1, 1 rounds',
    'centralized, seed=0, 1 rounds',
  ]


def test_long_values_keep_series_apart_in_a_few_words():
  texts = {naming.describe((('data.path', 'x' * 3000 + end),)) for end in '01'}
  assert len(texts) == 2
  assert max(map(len, texts)) < 320


# --- --where --------------------------------------------------------------------------


def names_where(folder, words):
  """The names of the runs that --where chooses."""
  request = command.parse([str(folder), f'--where={words}'])
  chosen_runs = groups.select(runs.find([folder], print), request.choice)
  return [run.path.name for run in chosen_runs]


def test_where_leaves_runs_that_do_not_use_a_knob(tmp_path):
  write_runs(
    tmp_path,
    {
      'f': ([0.5], 'algorithm=fedavg'),
      'm1': ([0.6], 'moon.mu=1'),
      'm5': ([0.6], 'moon.mu=5'),
    },
  )
  assert names_where(tmp_path, 'moon.mu=1') == ['f', 'm1']
  assert names_where(tmp_path, 'moon.mu=5') == ['f', 'm5']


def test_where_takes_a_value_with_commas(tmp_path):
  write_runs(tmp_path, {'a': ([0.5], 'metrics=auc,ece'), 'b': ([0.6], 'metrics=auc')})
  assert names_where(tmp_path, 'metrics=auc,ece') == ['a', 'b']
  assert names_where(tmp_path, 'metrics=ece,auc') == ['b']


@pytest.fixture(scope='module')
def two_runs(tmp_path_factory):
  folder = tmp_path_factory.mktemp('where')
  write_runs(folder, {'a': ([0.5], 'moon.mu=5'), 'b': ([0.5], 'seed=1 moon.mu=0.5')})
  change_config(folder / 'b', config={'drop_last': True})
  return folder


@pytest.mark.parametrize(
  ('words', 'names'),
  [
    ('seed=1', ['b']),
    ('moon.mu=5', ['a']),
    ('drop_last=true', ['b']),
    ('data.source=digits,npz', ['a', 'b']),
    ('moon.mu=.5,5.0', ['a', 'b']),
  ],
)
def test_where_takes_a_value_as_it_is_written(two_runs, words, names):
  assert names_where(two_runs, words) == names


def test_where_lists_the_values_if_no_run_has_that_one(two_runs):
  with pytest.raises(
    UsageError, match=r'--where: no run has moon.mu=7, only 0\.5, 5\.'
  ):
    names_where(two_runs, 'moon.mu=7')
  with pytest.raises(UsageError, match='no run has algorithm=fedavg, only moon'):
    names_where(two_runs, 'algorithm=fedavg')
  with pytest.raises(UsageError, match='no run has drop_last=maybe, only False, True'):
    names_where(two_runs, 'drop_last=maybe')


def test_a_text_that_is_a_numeral_is_chosen_as_it_is_written():
  assert groups._is('1.0', '1.0')
  assert not groups._is('1.0', '1')
