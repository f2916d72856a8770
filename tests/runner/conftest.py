"""One undisturbed run whose files tests read or copy."""

import shutil

import pytest

from moon_jax.runner import callbacks
from tests.conftest import draw_pictures
from tests.processes import check_success, launched
from tests.run_directories import words_of

TINY = words_of()
RUN = (*TINY, '--config.checkpoint_every_rounds=1')
PLACE = 'runs/digits_moon-moon-s0'
SIX = (*RUN, '--config.num_rounds=6', f'--workdir={PLACE}')


@pytest.fixture(autouse=True, scope='module')
def _quick_runs_in_all_files(quick_runs):
  """All of these files have such runs; but for `six_rounds`."""


@pytest.fixture(scope='session')
def six_rounds(tmp_path_factory):
  """Six rounds of MOON in a folder of their own: (folder, process)."""
  folder = tmp_path_factory.mktemp('whole')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(callbacks.PictureDrawer, 'end', draw_pictures)
    return folder, launched(folder, SIX)


@pytest.fixture(scope='session')
def workdir(six_rounds):
  """The run directory of `six_rounds`."""
  folder, completed = six_rounds
  check_success(completed)
  return folder / PLACE


@pytest.fixture
def unfinished(workdir, tmp_path):
  """A copy of that run, `run` in a folder, as if killed after the last save."""
  run = shutil.copytree(workdir, tmp_path / 'run')
  (run / 'summary.json').unlink()
  return run
