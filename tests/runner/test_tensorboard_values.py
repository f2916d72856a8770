"""TensorBoard's values of a run, at extremes and on a full disk."""

import contextlib
import time

import numpy as np
import pytest

from moon_jax.runner.loggers import events
from tests.runner.test_files import fill


@pytest.mark.parametrize('values', [[3e20], [3e20, 3e20], [np.nan]])
def test_values_of_which_no_histogram_is_made_end_no_run(tmp_path, values):
  """As of clients that are about to diverge, where the others are left out."""
  with contextlib.closing(events.writer(tmp_path / 'tensorboard', 1)) as board:
    (file,) = (tmp_path / 'tensorboard').iterdir()
    events.add_histogram(board, 'clients/drift', np.float32(values), 1)
    events.add_histogram(board, 'clients/drift', np.float32([1, 2]), 1)
  assert file.read_bytes().count(b'clients/drift') == 1


def test_two_starts_within_a_second_have_a_file_each(tmp_path, monkeypatch):
  monkeypatch.setattr(time, 'time', lambda: 1e9)
  for first_round in (1, 3):
    events.writer(tmp_path, first_round).close()
  assert len(list(tmp_path.iterdir())) == 2


def test_on_a_full_disk_its_file_ends_and_nobody_waits(disk):
  folder = disk('small', '64k')
  with contextlib.closing(events.writer(folder / 'tensorboard', 1)) as board:
    board.add_scalar('metrics/loss', 0.5, 1)
    fill(folder)
    for number in range(2, 1000):
      board.add_scalar('metrics/loss', 0.5, number)
  (file,) = (folder / 'tensorboard').iterdir()
  assert b'metrics/loss' in file.read_bytes()
