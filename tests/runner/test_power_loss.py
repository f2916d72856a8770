"""From what was flushed when the power was lost, a run goes on to the same end."""

import numpy as np
import pytest

import moon_jax
from moon_jax.runner import checkpoint, client_file, files, manifest
from tests import power_loss, processes
from tests.selection import few

CHANGES = {
  'num_rounds': 4,
  'local_epochs': 1,
  'checkpoint_every_rounds': 1,
  'data.limit': 200,
  'partition.min_size': 2,
  'execution.devices': '1',
}


def run(folder, tier):
  changes = CHANGES | {'execution.client_store': tier}
  config = moon_jax.load_config('configs/digits_moon.py', changes)
  return moon_jax.run(config, folder / 'deep' / 'run')


@pytest.fixture(scope='module', params=few(['device'], ['disk']))
def recorded(request, tmp_path_factory):
  """The tier, the instants of a run, its metrics.jsonl and its last checkpoint."""
  folder = tmp_path_factory.mktemp('disk')
  timings = folder / 'deep' / 'run' / 'timings.jsonl'
  # A round's line is written when its state is saved.
  disk = power_loss.Disk(folder, lambda: len(files.read_lines(timings)))
  with disk.recording():
    run(folder, request.param)
  return request.param, disk.points, *end_of(folder)


def end_of(folder):
  workdir = folder / 'deep' / 'run'
  metrics = (workdir / 'metrics.jsonl').read_bytes()
  index, memories = workdir / f'checkpoints/{CHANGES["num_rounds"]}/clients.npz', ()
  if index.exists():
    found = client_file.read_index(index)
    memories = (found.clients.tolist(), found.checksums.tolist())
  return metrics, processes.checkpoint(workdir, CHANGES['num_rounds']), memories


def check(point, tier, kind, expected, folder):
  """What is left at a point goes on to the same end, and from what was counted on."""
  left = getattr(point, kind)
  power_loss.restore(left, folder)
  workdir = folder / 'deep' / 'run'
  whole = [
    int(path.name)
    for path in checkpoint.folders(workdir / 'checkpoints')
    if not manifest.fault(path, int(path.name))
  ]
  assert max(whole, default=0) >= point.promised
  assert not list(workdir.glob('checkpoints/bad-*'))
  assert run(folder, tier).metrics
  assert end_of(folder) == expected
  assert not list(workdir.glob('checkpoints/bad-*'))


def chosen(points, count):
  """So many instants, evenly spread, and in turn with each kind of loss."""
  places = np.linspace(0, len(points) - 1, count).astype(int)
  kinds = ('flushed', 'named')
  return [(number, points[i], kinds[number % 2]) for number, i in enumerate(places)]


@pytest.mark.faults
def test_four_losses_of_power(recorded, tmp_path):
  tier, points, *expected = recorded
  for number, point, kind in chosen(points, 6)[1:-1]:
    check(point, tier, kind, tuple(expected), tmp_path / str(number))


@pytest.mark.faults
@pytest.mark.slow
def test_fifty_losses_of_power(recorded, tmp_path):
  tier, points, *expected = recorded
  assert len(points) > 50
  for number, point, kind in chosen(points, 50):
    check(point, tier, kind, tuple(expected), tmp_path / str(number))
