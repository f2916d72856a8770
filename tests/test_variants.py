"""Does every experiment of the papers run? A tiny round of each, on made-up images."""

import json
import math
import pathlib

import numpy as np
import pytest

import launch
from configs import dco_moon, moon_cvpr21, moonflower, review, sa_moon
from moon_jax import command_line, config, simulation
from moon_jax.errors import ExitCode

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


def write_images(path, flat):
  """As many images as the data set's shape and the variant's clients need."""
  side, channels = (28, 1) if 'mnist' in flat['data.name'] else (32, 3)
  num_classes = 100 if flat['data.name'] == 'cifar100' else 10
  rng = np.random.default_rng(0)
  arrays = {}
  for split, count in (('train', 8 * flat['num_clients']), ('test', 20)):
    arrays[f'{split}_x'] = rng.integers(0, 256, (count, side, side, channels), np.uint8)
    arrays[f'{split}_y'] = rng.permutation(np.arange(count) % num_classes)
  np.savez(path, **arrays)


@pytest.mark.parametrize('choice', CHOICES)
def test_one_tiny_round(choice, tmp_path):
  flat = config.load(choice)
  write_images(tmp_path / 'images.npz', flat)
  request = command_line.parse(
    [
      f'--config={choice}',
      f'--workdir={tmp_path / "run"}',
      '--config.num_rounds=1',
      '--config.local_epochs=1',
      '--config.batch_size=2',
      '--config.partition.min_size=2',
      '--config.data.source=npz',
      f'--config.data.path={tmp_path / "images.npz"}',
      '--config.execution.devices=1',
    ]
  )
  assert simulation.run(request) is ExitCode.DONE
  (line,) = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  record = json.loads(line)
  assert math.isfinite(record['train_loss'])
  assert len(record['clients']) == round(flat['num_clients'] * flat['participation'])


@pytest.mark.parametrize('paper', PAPERS)
def test_the_list_holds_commands_that_work(paper):
  head, *lines = config.list_variants(f'configs/{paper}.py').splitlines()
  assert head.split() == ['command', 'setting', 'reported', 'accuracy,', '%']
  assert len(lines) == len(PAPERS[paper].VARIANTS)
  requests = [command_line.parse(line.split()[2:3]) for line in lines]
  # Each its own run directory, and each another experiment.
  assert len({request.workdir for request in requests}) == len(lines)
  assert len({request.config for request in requests}) == len(lines)


def test_a_file_may_have_a_colon_in_its_name(tmp_path):
  text = 'from configs import base\nget_config = base.get_config\n'
  (tmp_path / 'my:own.py').write_text(text)
  request = command_line.parse([f'--config={tmp_path / "my:own.py"}'])
  assert request.workdir == pathlib.Path('runs/my:own-moon-s0')


def test_the_run_directory_names_the_variant():
  argv = ['--config=configs/moonflower.py:sparse_0.05', '--config.seed=3']
  workdir = command_line.parse(argv).workdir
  assert workdir == pathlib.Path('runs/moonflower-sparse_0.05-s3')
  workdir = command_line.parse([*argv, '--config.algorithm=solo']).workdir
  assert workdir == pathlib.Path('runs/moonflower-sparse_0.05-solo-s3')


def test_launch_prints_the_list(capsys):
  assert launch.main(['--config', 'configs/review.py:list']) == ExitCode.DONE
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
