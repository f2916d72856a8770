"""TensorBoard's values of a run, at extremes and on a full disk."""

import contextlib
import subprocess
import sys
import time

import numpy as np
import pytest

from moon_jax.runner.loggers import events
from tests.processes import ROOT
from tests.runner.test_files import fill


@pytest.mark.parametrize('values', [[3e20], [3e20, 3e20], [np.nan]])
def test_values_of_which_no_histogram_is_made_end_no_run(tmp_path, values):
  """As of clients that are about to diverge, where the others are left out."""
  with contextlib.closing(events.EventFile(tmp_path / 'tensorboard', 1)) as board:
    (file,) = (tmp_path / 'tensorboard').iterdir()
    board.add_histogram('clients/drift', np.float32(values), 1)
    board.add_histogram('clients/drift', np.float32([1, 2]), 1)
  assert file.read_bytes().count(b'clients/drift') == 1


def test_two_starts_within_a_second_have_a_file_each(tmp_path, monkeypatch):
  monkeypatch.setattr(time, 'time', lambda: 1e9)
  for first_round in (1, 3):
    events.EventFile(tmp_path, first_round).close()
  assert len(list(tmp_path.iterdir())) == 2


def test_on_a_full_disk_its_file_ends_and_the_run_goes_on(disk):
  folder = disk('small', '64k')
  with contextlib.closing(events.EventFile(folder / 'tensorboard', 1)) as board:
    board.add_numbers({'metrics/loss': 0.5}, 1)
    fill(folder)
    for number in range(2, 1000):
      board.add_numbers({'metrics/loss': 0.5}, number)
  (file,) = (folder / 'tensorboard').iterdir()
  assert b'metrics/loss' in file.read_bytes()


def test_pytorch_is_not_loaded_for_it_and_can_be_loaded_later(tmp_path):
  """tensorboardX imports PyTorch wherever it is installed."""
  for package in ('torch', 'boto3', 'comet_ml'):
    (tmp_path / f'{package}.py').write_text('loaded = True\n')
  code = """
import sys
from moon_jax.runner.loggers import events
assert not {'torch', 'boto3', 'comet_ml'} & set(sys.modules)
events.EventFile(__import__('pathlib').Path('board'), 1).close()
import torch
assert torch.loaded
"""
  path = {'PYTHONPATH': f'{tmp_path}:{ROOT}'}
  subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=path, check=True)
