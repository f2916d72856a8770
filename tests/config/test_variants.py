"""Does every experiment of the papers run? A tiny round of each, on made-up images."""

import json
import math
import pathlib

import numpy as np
import pytest

from configs import dco_moon, moon_cvpr21, moonflower, review, sa_moon
from moon_jax import cli, config
from moon_jax.__main__ import launch
from moon_jax.errors import ExitCode
from moon_jax.runner import loop
from tests.selection import few

PAPERS = {
  'review': review,
  'sa_moon': sa_moon,
  'moonflower': moonflower,
  'dco_moon': dco_moon,
  'moon_cvpr21': moon_cvpr21,
}
CHOICES = [
  f'configs/{paper}.py:{name}'
  for paper, module in PAPERS.items()
  for name in module.VARIANTS
]
# One of each paper; the others differ in numbers, or in parts tested elsewhere.
FIRST = {paper: next(iter(module.VARIANTS)) for paper, module in PAPERS.items()}
PLAIN = [f'configs/{paper}.py:{name}' for paper, name in FIRST.items()]
PLAIN.remove(f'configs/sa_moon.py:{FIRST["sa_moon"]}')  # its network compiles slowly
# Of SA-MOON's, whose network compiles slowly, a temperature of each algorithm.
TRAINED = [
  choice
  for choice in CHOICES
  if 'sa_moon.py' not in choice or choice.endswith(('tau_0.05', 'temperature_0.5'))
]
NUM_TESTED = 20


def write_images(path, flat):
  """Images of the data set's shape and classes, two or more for each client."""
  side, channels = (28, 1) if 'mnist' in flat['data.name'] else (32, 3)
  num_classes = 100 if flat['data.name'] == 'cifar100' else 10
  rng = np.random.default_rng(0)
  arrays = {}
  # Every class has to be there.
  num_trained = max(2 * flat['num_clients'], num_classes)
  for split, count in (('train', num_trained), ('test', NUM_TESTED)):
    arrays[f'{split}_x'] = rng.integers(0, 256, (count, side, side, channels), np.uint8)
    arrays[f'{split}_y'] = (num_classes - 1 - np.arange(count)) % num_classes
  np.savez(path, **arrays)


def smaller(flat):
  """What keeps a variant from compiling for minutes."""
  if flat['model'] == 'cnn_transformer':
    return ['--config.cnn_transformer.layers=1']
  if flat['model'] == 'resnet50' and flat['algorithm'] != 'fedavg':
    return ['--config.model=resnet18']
  return []


@pytest.mark.parametrize('choice', few(PLAIN, TRAINED))
def test_one_tiny_round(choice, tmp_path):
  flat = config.load(choice)
  write_images(tmp_path / 'images.npz', flat)
  request = cli.parse(
    [
      f'--config={choice}',
      f'--workdir={tmp_path / "run"}',
      '--config.num_rounds=1',
      '--config.local_epochs=1',
      # Then a round has a step for each image, however these are dealt out: variants
      # that differ in numbers alone have the same program.
      '--config.batch_size=1',
      '--config.partition.min_size=1',
      '--config.data.source=npz',
      f'--config.data.path={tmp_path / "images.npz"}',
      '--config.execution.devices=1',
      *smaller(flat),
    ]
  )
  assert loop.run(request) is ExitCode.DONE
  (line,) = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  record = json.loads(line)
  assert math.isfinite(record['train_loss'])
  assert len(record['clients']) == round(flat['num_clients'] * flat['participation'])


_LI = {
  'num_clients': 10,
  'local_epochs': 10,
  'batch_size': 64,
  'participation': 1.0,
  'partition.name': 'dirichlet',
  'partition.beta': 0.5,
  'optimizer.name': 'sgd',
  'optimizer.learning_rate': 0.01,
  'optimizer.momentum': 0.9,
  'optimizer.weight_decay': 1e-5,
  'data.name': 'cifar10',
}
# As the papers state them.
SETTINGS = {
  'review.py:moon': _LI | {'num_clients': 20, 'num_rounds': 40, 'moon.mu': 0.1},
  'sa_moon.py:initial_temperature_1': _LI
  | {
    'model': 'cnn_transformer',
    'num_rounds': 100,
    'sa_moon.initial_temperature': 1.0,
    'sa_moon.min_temperature': 0.001,
    'sa_moon.sigma': 0.005,
    'cnn_transformer.layers': 6,
    'cnn_transformer.heads': 8,
    'cnn_transformer.dropout': 0.1,
  },
  'moonflower.py:default': _LI
  | {
    'model': 'tutorial_cnn',
    'num_rounds': 100,
    'moon.mu': 5.0,
    'optimizer.learning_rate': 0.001,
  },
  'moonflower.py:sparse_0.05': _LI
  | {'num_clients': 100, 'num_rounds': 250, 'participation': 0.05},
  'moonflower.py:epochs_20': {'num_rounds': 50, 'local_epochs': 20},
  'dco_moon.py:mnist_fedprox': {
    'model': 'dco_cnn',
    'num_rounds': 100,
    'fedprox.mu': 0.001,
    'data.name': 'mnist',
  },
  'dco_moon.py:cifar10_moon': {'num_rounds': 100, 'moon.mu': 1.0},
  'dco_moon.py:cifar10_dco_moon': {'num_rounds': 100, 'dco_moon.mu': 5.0},
  'moon_cvpr21.py:moon': _LI
  | {
    'model': 'moon_cnn',
    'num_rounds': 100,
    'moon.mu': 5.0,
    'moon.tau': 0.5,
    'augmentation.name': 'crop_flip',
    'augmentation.padding': 'reflect',
    'drop_last': True,
  },
  'moon_cvpr21.py:niid_bench_fedavg': _LI
  | {'num_rounds': 50, 'augmentation.name': 'crop_flip', 'drop_last': False},
  'moon_cvpr21.py:cifar100_moon': {'model': 'resnet50', 'data.name': 'cifar100'},
}


@pytest.mark.parametrize('choice', SETTINGS)
def test_the_settings_of_the_papers(choice):
  flat = config.load(f'configs/{choice}')
  assert {knob: flat[knob] for knob in SETTINGS[choice]} == SETTINGS[choice]


@pytest.mark.parametrize('bound', ['solo', 'centralized'])
@pytest.mark.parametrize('paper', PAPERS)
def test_every_table_has_its_bounds(paper, bound):
  argv = [f'--config=configs/{paper}.py', f'--config.algorithm={bound}']
  assert cli.parse(argv).config.algorithm == bound


@pytest.mark.parametrize('paper', PAPERS)
def test_the_list_holds_commands_that_work(paper):
  head, *lines = config.list_variants(f'configs/{paper}.py').splitlines()
  assert head.split() == ['command', 'setting', 'reported', 'accuracy,', '%']
  assert len(lines) == len(PAPERS[paper].VARIANTS)
  requests = [cli.parse(line.split()[2:3]) for line in lines]
  # Each its own run directory, and each another experiment.
  assert len({request.workdir for request in requests}) == len(lines)
  assert len({request.config for request in requests}) == len(lines)


def test_a_file_may_have_a_colon_in_its_name(tmp_path):
  text = 'from configs import base\nget_config = base.get_config\n'
  (tmp_path / 'my:own.py').write_text(text)
  request = cli.parse([f'--config={tmp_path / "my:own.py"}'])
  assert request.workdir == pathlib.Path('runs/my:own-moon-s0')


def test_the_run_directory_names_the_variant():
  argv = ['--config=configs/moonflower.py:sparse_0.05', '--config.seed=3']
  workdir = cli.parse(argv).workdir
  assert workdir == pathlib.Path('runs/moonflower-sparse_0.05-s3')
  workdir = cli.parse([*argv, '--config.algorithm=solo']).workdir
  assert workdir == pathlib.Path('runs/moonflower-sparse_0.05-solo-s3')


def test_launch_prints_the_list(capsys):
  assert launch(['--config', 'configs/review.py:list']) == ExitCode.DONE
  assert (
    'python launch.py --config=configs/review.py:scaffold' in capsys.readouterr().out
  )


@pytest.mark.parametrize('choice', CHOICES)
def test_a_variant_uses_every_knob_it_sets(choice):
  _, name = config.split(choice)
  module = PAPERS[choice.removeprefix('configs/').partition('.')[0]]
  settings = config.load(choice)
  changes = module.VARIANTS[name].changes
  assert set(changes) <= set(config.used(settings))
  assert {knob: settings[knob] for knob in changes} == changes
