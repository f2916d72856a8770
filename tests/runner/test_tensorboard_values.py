"""TensorBoard's values of a run, at extremes and on a full disk."""

import contextlib
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from moon_jax.runner import callbacks
from moon_jax.runner.loggers import events
from moon_jax.runner.loggers.board import TensorBoard
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


def test_each_start_has_a_file_that_is_read_after_those_of_earlier_ones(
  tmp_path, monkeypatch
):
  """TensorBoard reads them by name. The clock stands still, then goes back."""
  names = ['events.out.tfevents.1000000000.host.1']  # of an older version
  (tmp_path / names[0]).touch()
  for clock in (1e9, 1e9, 1e9 - 3600):
    monkeypatch.setattr(time, 'time', lambda clock=clock: clock)
    events.EventFile(tmp_path, first_round=2).close()
    names += {path.name for path in tmp_path.iterdir()} - set(names)
    assert names == sorted(names)
  assert len(names) == 4
  (tmp_path / names[1]).unlink()
  events.EventFile(tmp_path, first_round=2).close()
  assert max(path.name for path in tmp_path.iterdir()) not in names


def test_a_start_that_only_draws_the_pictures_logs_them(tmp_path):
  picture = tmp_path / 'partition.png'
  Image.new('L', (2, 3)).save(picture)
  logger = TensorBoard()
  logger.begin(callbacks.Run(None, tmp_path, None, [], range(3, 3)))
  logger.log_picture(picture)
  logger.close()
  (file,) = (tmp_path / 'tensorboard').iterdir()
  assert picture.read_bytes() in file.read_bytes()


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
