"""A sweep has the runs that its knobs multiply, each once, as launch.py reads them."""

import pathlib

import pytest

import moon_jax
from moon_jax.config import ConfigError, cli
from moon_jax.sweeps.planned_runs import sweep_runs

OUT = pathlib.Path('out')
DIGITS = 'configs/digits_moon.py'


def names(choice=DIGITS, words=(), **over):
  values_by_knob = {knob.replace('__', '.'): values for knob, values in over.items()}
  return [run.name for run in sweep_runs(choice, words, values_by_knob, OUT)]


def test_a_knob_multiplies_only_the_runs_that_use_it():
  assert names(algorithm=['fedavg', 'moon'], moon__mu=['1', '5']) == [
    'fedavg',
    'moon-moon.mu=1',
    'moon-moon.mu=5',
  ]
  # A knob that others need may be set for all runs, or be a choice of the sweep itself.
  iid = ['--config.partition.name=iid']
  with pytest.raises(ConfigError, match=r'partition\.beta: no run of the sweep uses'):
    names(words=iid, partition__beta=['0.1', '0.5'])


def test_a_knob_that_another_value_decides_about_is_used_as_in_launch_py():
  fraction = ['--config.stragglers.fraction=0.3']
  assert names(words=fraction, stragglers__send=['nothing', 'partial']) == [
    'stragglers.send=nothing',
    'stragglers.send=partial',
  ]
  adaptive = ['--config.algorithm=fedsam', '--config.fedsam.adaptive=true']
  assert names(words=adaptive, fedsam__xi=['0.1', '0.2']) == [
    'fedsam.xi=0.1',
    'fedsam.xi=0.2',
  ]
  fractions = {'stragglers.fraction': ['0', '0.3'], 'stragglers.send': ['partial']}
  runs = sweep_runs(DIGITS, [], fractions, OUT)
  assert [run.name for run in runs] == [
    'stragglers.fraction=0',
    'stragglers.fraction=0.3-stragglers.send=partial',
  ]
  with pytest.raises(ConfigError, match="fraction='x' must be a number"):
    names(words=['--config.stragglers.fraction=x'], stragglers__send=['nothing'])


def test_knobs_that_a_file_leaves_out_have_their_defaults(tmp_path):
  file = tmp_path / 'two.py'
  file.write_text("""
from ml_collections import ConfigDict
def get_config():
  return ConfigDict({'num_rounds': 2, 'num_clients': 3})
""")
  assert names(str(file), moon__mu=['1', '5']) == ['moon.mu=1', 'moon.mu=5']


def test_all_variants_that_match():
  run_names = names('configs/moon_cvpr21.py:niid_*', seed=['0', '1'])
  assert len(run_names) == 6
  assert run_names[0] == 'niid_bench_fedavg-seed=0'
  with pytest.raises(ConfigError, match='no variant matches'):
    names('configs/moon_cvpr21.py:nothing*')


def test_a_knob_may_be_used_by_one_of_the_variants():
  variants = 'configs/moon_cvpr21.py:[fm][eo]*'
  assert names(variants, moon__mu=['1', '2']) == [
    'moon-moon.mu=1',
    'moon-moon.mu=2',
    'fedavg',
    'fedprox',
  ]
  with pytest.raises(ConfigError) as caught:
    names(variants, fedsam__xi=['0.1', '0.2'])
  assert caught.value.problems == ('--over=fedsam.xi: no run of the sweep uses it.',)
  fedavg = moon_jax.load_config(DIGITS, {'algorithm': 'fedavg'})
  with pytest.raises(ConfigError, match=r'moon\.mu: no run of the sweep uses it'):
    moon_jax.sweep(fedavg, {'moon.mu': [1, 5]}, OUT)


@pytest.mark.parametrize('values', [3, 'fedavg', None, iter(())])
def test_from_python_a_knob_needs_a_list_of_values(values):
  with pytest.raises(ConfigError, match=r'^--over=seed needs a list of values\.$'):
    moon_jax.sweep(moon_jax.load_config(DIGITS), {'seed': values}, OUT)


def test_a_run_is_what_launch_py_makes_of_its_words():
  (run,) = sweep_runs(DIGITS, ['--config.num_rounds=3'], {'moon.mu': ['5']}, OUT)
  words = ['--config.num_rounds=3', '--config.moon.mu=5', '--workdir=out/moon.mu=5']
  assert run.argv == [f'--config={DIGITS}', *words]
  assert run.request == cli.parse(run.argv)
  assert run.request.config.moon.mu == 5.0


def test_all_mistakes_are_told_at_once():
  with pytest.raises(ConfigError) as caught:
    names(moon__mu=['1', '-1', 'x'], seed=['0', '1'])
  assert caught.value.problems == (
    '--config.moon.mu=-1.0 must be at least 0.',
    "--config.moon.mu='x' must be a number.",
  )
  with pytest.raises(ConfigError, match=r'--config\.mu is not a knob'):
    names(mu=['1'])
  with pytest.raises(ConfigError) as caught:
    names(words=['--config.sedd=1', '--config.num_rounds=x'], seed=['0', '1'])
  assert caught.value.problems == (
    "--config.num_rounds='x' must be a whole number.",
    "--config.sedd is not a knob. Did you mean 'seed'?",
  )
  with pytest.raises(ConfigError, match='--over=seed needs values'):
    names(seed=[])


def test_no_mistake_is_told_that_a_value_of_the_sweep_removes():
  fraction = ['--config.attack.fraction=0.2']
  with pytest.raises(ConfigError) as caught:
    names(words=fraction, attack__name=['sign_flip'], sedd=['0', '1'])
  assert caught.value.problems == ("--config.sedd is not a knob. Did you mean 'seed'?",)


def test_a_value_is_run_once():
  assert names(seed=['1', '1']) == ['seed=1']
  assert names(moon__mu=['1', '1.0']) == ['moon.mu=1']
  with pytest.raises(ConfigError, match='--over and --config both set seed'):
    names(words=['--config.seed=7'], seed=['0', '1'])


def test_two_runs_in_one_directory_are_refused():
  with pytest.raises(ConfigError, match=r'Several runs would be in data\.path=a_b'):
    names(words=['--config.data.source=npz'], data__path=['a/b', 'a b'])
