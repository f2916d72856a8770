"""Do the experiments of the papers run? A tiny round of some, on made-up images.

Those trained have every network, algorithm and option of the papers between them.
"""

import json
import math
import pathlib
import re

import numpy as np
import pytest

from moon_jax import config
from moon_jax.__main__ import launch
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.runner import start
from tests.config import reported
from tests.selection import few

pytestmark = pytest.mark.usefixtures('quick_runs')

PAPERS = ('review', 'sa_moon', 'moonflower', 'dco_moon', 'moon_cvpr21')
VARIANTS = {paper: config.variants(f'configs/{paper}.py') for paper in PAPERS}
CHOICES = [
  f'configs/{paper}.py:{name}' for paper, names in VARIANTS.items() for name in names
]
# One file for each kind of convolutional network; other files compile slowly, or differ
# from these only in numbers.
PLAIN = ['configs/moonflower.py:default']
NUM_TESTED = 20


def image_shape(flat):
  """([H, W, C], classes) of a variant's data set."""
  if flat['data.source'] == 'imagefolder':  # Tiny-ImageNet
    return (64, 64, 3), 200
  shape = (28, 28, 1) if 'mnist' in flat['data.name'] else (32, 32, 3)
  num_classes = 100 if flat['data.name'] == 'cifar100' else 10
  return shape, num_classes


def options_of(choice):
  """All that decides the program but numbers: words, switches and shapes of images."""
  flat = config.load(choice)
  words = {
    (knob, flat[knob])
    for knob in config.used_knobs(flat)
    if isinstance(flat[knob], str | bool) and knob != 'data.name'
  }
  return words | {image_shape(flat)}


def with_every_option(choices):
  """Some of the variants that between them have all options that any of these has."""
  options = {choice: options_of(choice) for choice in choices}
  missing = {option for of_choice in options.values() for option in of_choice}
  chosen = []
  while missing:
    best = max(choices, key=lambda choice: len(options[choice] & missing))
    missing -= options[best]
    chosen.append(best)
  return chosen


# These are trained; a later test compares the numbers of all.
TRAINED = with_every_option(CHOICES)


def write_images(path, flat):
  """Writes images of the data set's shape and classes, at least two for each client."""
  shape, num_classes = image_shape(flat)
  rng = np.random.default_rng(0)
  arrays = {}
  # Every class must have an example.
  num_trained = max(2 * flat['num_clients'], num_classes)
  for split, count in (('train', num_trained), ('test', NUM_TESTED)):
    arrays[f'{split}_x'] = rng.integers(0, 256, (count, *shape), np.uint8)
    arrays[f'{split}_y'] = (num_classes - 1 - np.arange(count)) % num_classes
  np.savez(path, **arrays)


def smaller(flat):
  """Flags that keep a variant from compiling for minutes."""
  if flat['model'] == 'cnn_transformer':
    return ['--config.cnn_transformer.layers=1']
  if flat['model'] == 'resnet50':
    trained = {('cifar100', 'fedavg'): 'resnet50', ('cifar100', 'moon'): 'resnet18'}
    model = trained.get((flat['data.name'], flat['algorithm']), 'moon_cnn')
    return [f'--config.model={model}']
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
      # With batches of one image, a round has as many steps as images, whoever owns
      # them, so variants that differ only in numbers have the same program. On
      # CIFAR-100 a client has ten images: the large network then takes two steps in
      # place of ten.
      f'--config.batch_size={5 if flat["model"] == "resnet50" else 1}',
      '--config.partition.min_size=1',
      # With two images a client on average, plain Dirichlet leaves some without any.
      '--config.partition.balance=true',
      '--config.data.source=npz',
      f'--config.data.path={tmp_path / "images.npz"}',
      '--config.execution.devices=1',
      *smaller(flat),
    ]
  )
  assert start.run(request) is ExitCode.DONE
  (line,) = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  record = json.loads(line)
  assert math.isfinite(record['train_loss'])
  assert len(record['clients']) == round(flat['num_clients'] * flat['participation'])


ROWS = {f'configs/{row["file"]}.py:{row["variant"]}': row for row in reported.rows()}
# Column -> knob; `mu` and `tau` are knobs of the algorithm.
KNOBS = {
  'data': 'data.name',
  'model': 'model',
  'algorithm': 'algorithm',
  'beta': 'partition.beta',
  'balance': 'partition.balance',
  'rate': 'optimizer.learning_rate',
  'clients': 'num_clients',
  'part': 'participation',
  'rounds': 'num_rounds',
  'epochs': 'local_epochs',
  'augment': 'augmentation.name',
  'drop': 'drop_last',
}


def parse(cell):
  """A cell as the knob's value."""
  if cell in ('yes', 'no'):
    return cell == 'yes'
  return float(cell) if re.fullmatch(r'[0-9.]+', cell) else cell


def test_the_typed_table_has_every_variant():
  assert sorted(ROWS) == sorted(CHOICES)


def expected_settings(row):
  """Knob -> value, as the typed table has it."""
  settings = {knob: parse(row[column]) for column, knob in KNOBS.items()}
  for column, knob in knobs_of_algorithm(row).items():
    if row[column] != '-':
      settings[knob] = parse(row[column])
  if row['algorithm'] == 'dco_moon':
    _, _, theta = row['variant'].partition('theta_')
    settings['dco_moon.theta'] = float(theta or 0.06)
  same_batch = row['variant'] == 'same_batch'
  settings['sa_moon.acceptance'] = 'temperatures' if same_batch else 'steps'
  is_cifar100 = row['data'] == 'cifar100'
  settings['augmentation.padding'] = 'zero' if is_cifar100 else 'reflect'
  settings |= reported.COMMON
  if row['data'] == 'tiny':
    del settings['data.name']
    settings['data.source'] = 'imagefolder'
  return settings


def knobs_of_algorithm(row):
  """Columns `mu` and `tau` -> the knobs of the row's algorithm."""
  algorithm = row['algorithm']
  tau = 'initial_temperature' if algorithm == 'sa_moon' else 'tau'
  return {'mu': f'{algorithm}.mu', 'tau': f'{algorithm}.{tau}'}


@pytest.mark.parametrize('paper', PAPERS)
def test_the_settings_of_the_papers(paper):
  for name, variant in VARIANTS[paper].items():
    choice = f'configs/{paper}.py:{name}'
    row, flat = ROWS[choice], config.load(choice)
    expected = expected_settings(row)
    assert {knob: flat[knob] for knob in expected} == expected, choice
    figures = re.findall(r'\d+\.\d+', variant.reported)
    assert figures == row['reported'].removeprefix('-').split(), choice
    # A knob without a value in the table is unused; one that the variant sets is used.
    used = set(config.used_knobs(flat))
    for column, knob in knobs_of_algorithm(row).items():
      assert row[column] != '-' or knob not in used, choice
    assert set(variant.changes) <= used, choice
    assert {knob: flat[knob] for knob in variant.changes} == variant.changes, choice


@pytest.mark.parametrize('paper', few(['review', 'sa_moon'], PAPERS))
def test_the_list_holds_commands_that_work(paper):
  head, *lines = config.list_variants(f'configs/{paper}.py').splitlines()
  assert head.split() == ['command', 'setting', 'reported', 'accuracy,', '%']
  assert len(lines) == len(VARIANTS[paper])
  requests = [cli.parse(re.findall(r'--config=\S+', line)) for line in lines]
  # Each command has its own run directory and its own settings.
  assert len({request.workdir for request in requests}) == len(lines)
  assert len({request.config for request in requests}) == len(lines)


def test_the_run_directory_names_the_variant(tmp_path):
  text = 'from moon_jax.config import defaults as get_config\n'
  (tmp_path / 'my:own.py').write_text(text)  # no variant
  sparse = ['--config=configs/moonflower.py:sparse_0.05', '--config.seed=3']
  for argv, name in (
    ([f'--config={tmp_path / "my:own.py"}'], 'my:own-moon-s0'),
    (sparse, 'moonflower-sparse_0.05-s3'),
    ([*sparse, '--config.algorithm=solo'], 'moonflower-sparse_0.05-solo-s3'),
  ):
    assert cli.parse(argv).workdir == pathlib.Path('runs', name)


def test_launch_prints_the_list(capsys):
  assert launch(['--config', 'configs/review.py:list']) == ExitCode.DONE
  # From a checkout `python launch.py`, from a wheel `python -m moon_jax`.
  line = ' '.join([*cli.PROGRAM, '--config=configs/review.py:scaffold '])
  assert line in capsys.readouterr().out
