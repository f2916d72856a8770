"""One run that nothing happened to, of which tests look at the files or take copies."""

import shutil

import pytest

from tests.processes import check_success, launched

TINY = (
  '--config.local_epochs=1',
  '--config.data.limit=300',
  '--config.partition.min_size=2',
  '--config.participation=0.5',
  '--config.execution.devices=1',
)
RUN = (*TINY, '--config.checkpoint_every_rounds=1')
SIX = (*RUN, '--config.num_rounds=6')


@pytest.fixture(scope='session')
def whole(tmp_path_factory):
  """Six rounds of MOON in a folder of their own: (folder, process)."""
  folder = tmp_path_factory.mktemp('whole')
  return folder, launched(folder, *SIX)


@pytest.fixture(scope='session')
def workdir(whole):
  """The run directory of `whole`."""
  folder, done = whole
  check_success(done)
  return folder / 'runs/digits_moon-moon-s0'


@pytest.fixture
def unfinished(workdir, tmp_path):
  """A copy of it, `run` in a folder, as if it had been killed after the last save."""
  run = shutil.copytree(workdir, tmp_path / 'run')
  (run / 'summary.json').unlink()
  return run
