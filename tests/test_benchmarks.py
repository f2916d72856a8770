"""Counts and records, the baseline's model, and answers to bad input."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from benchmarks import __main__ as suites
from benchmarks import cpu, engine, gpu, processes
from benchmarks.rows import Row
from moon_jax.building import experiment
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from tests.processes import ROOT, launch


def test_the_gpu_suite_without_a_gpu_ends_with_a_line(monkeypatch, capsys):
  monkeypatch.setattr(sys, 'argv', ['benchmarks', '--suite=gpu'])
  monkeypatch.setattr(processes, 'run', lambda words: {'backend': 'cpu', 'kind': ''})
  with pytest.raises(SystemExit) as ended:
    suites.main()
  assert ended.value.code == ExitCode.USAGE
  told = '--suite=gpu needs a GPU that JAX can use; see docs/gpu.md.\n'
  assert capsys.readouterr().err == told


def test_what_the_minutes_leave_no_time_for_is_left_out():
  workload = gpu.Workload('', 640, 2, 1, quick=True, device='cpu')
  details = {}
  measured = gpu._until(0, 'a row', None, details)
  assert measured == [Row('a row', 'not run: the minutes were over', '')]
  both = (workload._replace(quick=quick) for quick in (True, False))
  quick, whole = (list(gpu.tasks(one, {})) for one in both)
  assert whole[: len(quick)] == quick


def test_a_row_is_written_before_the_next_is_measured(tmp_path, capsys):
  path, seen = tmp_path / 'results.json', []

  def second():
    seen.extend(json.loads(path.read_text())['rows'])
    assert 'a: 1' in capsys.readouterr().out
    return [Row('b', '2', '')]

  suites.measure({'first': lambda: [Row('a', '1', '')], 'second': second}, path, {})
  assert seen == [{'measured': 'a', 'value': '1', 'bar': ''}]
  assert [row['measured'] for row in json.loads(path.read_text())['rows']] == ['a', 'b']


def test_queues_of_clients_leave_few_steps_to_filler():
  assert 0.95 <= float(cpu._utilisation().value) <= 1


def test_the_cpu_suite_measures_each_network_beside_pytorch():
  quick, whole = (list(cpu.tasks('', 1, quick, {})) for quick in (True, False))
  for model in ('moon_cnn', 'dco_cnn', 'cnn_transformer', 'resnet18'):
    # Crops of the larger networks come last: they are left out when time is up.
    first, crops = (f'{model}, moon, {kind}, 1 core' for kind in ('none', 'crop_flip'))
    assert whole.index(first) < whole.index(crops)
    assert {first, crops} <= set(quick) or model != 'moon_cnn'


# --- what is counted, and the baseline's model ------------------------------------


def write_images(path, num_train, side, levels):
  """An .npz file of random pixels with `levels` values from 0 to 255; 10 classes."""
  arrays, rng = {}, np.random.default_rng(0)
  for split, count in (('train', num_train), ('test', 10)):
    drawn = rng.integers(0, levels, (count, side, side, 3)) * (255 // (levels - 1))
    arrays[f'{split}_x'] = drawn.astype(np.uint8)
    arrays[f'{split}_y'] = np.arange(count) % 10
  np.savez(path, **arrays)


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  path = tmp_path_factory.mktemp('data') / 'images.npz'
  write_images(path, 24, 32, 256)
  return path


def flags(images, model, *more):
  words = ['data.source=npz', f'data.path={images}', f'model={model}', 'num_clients=2']
  words += ['partition.name=iid', 'partition.min_size=1', 'batch_size=8']
  return [f'--config.{word}' for word in (*words, 'local_epochs=2')] + list(more)


def step_flops(images, *more):
  sizes = '--config.mlp.width=64', '--config.mlp.representation=16'
  built = experiment.build(cli.parse(flags(images, 'mlp', *sizes, *more)).config)
  return engine._step_flops(built, experiment.initial_state(built))


def test_frozen_networks_count_in_each_step_that_runs_them(images):
  crops = '--config.augmentation.name=crop_flip'
  per_step = {n: step_flops(images, f'--config.local_epochs={n}') for n in (2, 4)}
  once = 4 * (per_step[2] - per_step[4])  # both frozen networks, on one batch
  products = 32 * 32 * 3 * 64 + 64 * 64 + 64 * 16
  assert once == pytest.approx(2 * 8 * 2 * products, rel=0.05)
  augmented = step_flops(images, crops)
  assert augmented == pytest.approx(per_step[2] + once / 2, rel=1e-3)
  # In one epoch each representation is looked up once, so none is kept.
  assert step_flops(images, '--config.local_epochs=1') == pytest.approx(augmented)


def program(*words):
  done = launch(ROOT, program=['-m', *words], OPENBLAS_NUM_THREADS='1')
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


with_torch = pytest.mark.skipif(
  importlib.util.find_spec('torch') is None, reason='no torch'
)


@pytest.mark.slow  # starts three processes
@with_torch
@pytest.mark.parametrize('algorithm', ['fedavg', 'moon', 'moon_once'])
@pytest.mark.parametrize('model', ['moon_cnn', 'dco_cnn'])
def test_pytorch_ends_with_the_same_averaged_model(images, tmp_path, model, algorithm):
  file, result = tmp_path / 'round.npz', tmp_path / 'result.npz'
  more = f'--config.algorithm={algorithm.removesuffix("_once")}'
  words = '--repeats=1', f'--out={file}', *flags(images, model, more)
  program('benchmarks.engine', *words)
  words = f'--workload={file}', f'--out={result}', f'--algorithm={algorithm}'
  told = program('benchmarks.pytorch_baseline', *words, '--repeats=1', '--no-compile')
  assert len(told['step_seconds']) == 2
  with np.load(file) as ours, np.load(result) as theirs:
    assert_same_average(dict(ours), dict(theirs), 1e-3)


def assert_same_average(ours, theirs, bound):
  """ours: as `benchmarks.engine` writes it; bound: of the way a leaf went."""
  assert set(theirs) == {
    name.removeprefix('result/') for name in ours if name.startswith('result/')
  }
  for name, mean in theirs.items():
    start, end = ours[f'received/{name}'], ours[f'result/{name}']
    off, moved = np.linalg.norm(mean - end), np.linalg.norm(end - start)
    assert off <= bound * (moved + 1e-3), (name, off, moved)
