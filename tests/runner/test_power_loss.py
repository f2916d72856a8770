"""From the files flushed before a loss of power, a run goes on to the same end."""

import functools
import itertools
import shutil

import numpy as np
import pytest

import moon_jax
from moon_jax.core import files
from moon_jax.runner import checkpoint, client_store, saved_state
from tests import power_loss, processes
from tests.run_directories import TINY
from tests.selection import few

KINDS = ('flushed', 'named')
CHANGES = TINY | {'num_rounds': 4, 'checkpoint_every_rounds': 1}


def run(folder, tier):
  changes = CHANGES | {'execution.client_store': tier}
  config = moon_jax.load_config('configs/digits_moon.py', changes)
  return moon_jax.run(config, folder / 'deep' / 'run')


@pytest.fixture(scope='module')
def record(tmp_path_factory):
  """Tier -> the instants of a run, and its end."""

  @functools.cache
  def recorded(tier):
    folder = tmp_path_factory.mktemp('disk')
    timings = folder / 'deep' / 'run' / 'timings.jsonl'
    # A round's line is written when its state has been saved.
    disk = power_loss.Disk(folder, lambda: len(files.read_lines(timings)))
    with disk.recording():
      run(folder, tier)
    return disk.points, end_of(folder)

  return recorded


def end_of(folder):
  workdir = folder / 'deep' / 'run'
  metrics = (workdir / 'metrics.jsonl').read_bytes()
  index, memories = workdir / f'checkpoints/{CHANGES["num_rounds"]}/clients.npz', ()
  if index.exists():
    found = client_store.read_index(index)
    memories = (found.clients.tolist(), found.checksums.tolist())
  return metrics, processes.checkpoint(workdir, CHANGES['num_rounds']), memories


def left_at(point, kind, folder):
  """The run directory that is left; all that the program counted on is whole."""
  power_loss.restore(getattr(point, kind), folder)
  workdir = folder / 'deep' / 'run'
  whole = [
    int(path.name)
    for path in checkpoint.folders(workdir / 'checkpoints')
    if not saved_state.fault(path, int(path.name))
  ]
  assert max(whole, default=0) >= point.promised
  return workdir


def some(points, count):
  """This many instants, evenly spread, with each kind of loss in turn."""
  places = np.linspace(0, len(points) - 1, count + 2).astype(int)[1:-1]
  return [(points[i], KINDS[number % 2]) for number, i in enumerate(places)]


@pytest.mark.faults
@pytest.mark.parametrize(
  ('tier', 'count'), few([('device', 2)], [('device', 10), ('disk', 10)])
)
def test_losses_of_power(record, tier, count, tmp_path):
  points, expected = record(tier)
  assert len(points) > 50
  for number, (point, kind) in enumerate(some(points, count)):
    folder = tmp_path / str(number)
    workdir = left_at(point, kind, folder)
    assert not list(workdir.glob('checkpoints/bad-*'))
    assert run(folder, tier).metrics
    assert end_of(folder) == expected
    assert not list(workdir.glob('checkpoints/bad-*'))


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize('tier', ['device', 'disk'])
def test_at_any_instant_what_was_counted_on_is_whole(record, tier, tmp_path):
  points, _ = record(tier)
  promised = {point.promised for point in points}
  assert promised == set(range(CHANGES['num_rounds'] + 1))
  for point, kind in itertools.product(points, KINDS):
    left_at(point, kind, tmp_path / 'left')
    shutil.rmtree(tmp_path / 'left')
