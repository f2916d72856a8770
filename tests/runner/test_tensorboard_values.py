"""What TensorBoard is given of values that a run has come to."""

import contextlib

import numpy as np
import pytest

from moon_jax.runner.tensorboard import Board


@pytest.mark.parametrize('values', [[3e20], [3e20, 3e20], [np.nan]])
def test_values_of_which_no_histogram_is_made_end_no_run(tmp_path, values):
  """As of clients that are about to diverge, where the others are left out."""
  with contextlib.closing(Board(tmp_path / 'tensorboard', 1)) as board:
    (file,) = (tmp_path / 'tensorboard').iterdir()
    board.add_histogram('clients/drift', np.float32(values), 1)
    before = file.stat().st_size
    board.add_histogram('clients/drift', np.float32([1, 2]), 1)
    assert file.stat().st_size > before
