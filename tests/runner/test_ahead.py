"""The programs of a run are compiled while its pictures are decoded."""

import threading

import jax
import numpy as np
import pytest

from moon_jax.building import experiment, programs
from moon_jax.building.data import DataOptions, load_data
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode
from moon_jax.core.types import Dataset
from moon_jax.data import holdout
from moon_jax.data.federated import users
from moon_jax.runner import ahead, compiled_ahead
from tests.data.test_sources import prepare
from tests.processes import ROOT, launched

COMPILED = '/jax/core/compile/backend_compile_duration'
MAX_PROGRAMS = 5


def words(folder, workdir='run'):
  return [
    '--config=configs/cifar10_moon.py',
    f'--config.data.dir={folder}',
    f'--workdir={folder / workdir}',
    '--config.model=mlp',
    '--config.algorithm=fedavg',
    '--config.execution.compile_cache=off',
    '--config.partition.min_size=1',
    '--config.num_clients=3',
    '--config.num_rounds=2',
    '--config.local_epochs=2',
    '--config.batch_size=8',
    '--config.data.validation=0.1',
  ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A small CIFAR-10 that no start has decoded, and that is not too small."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(ahead, 'MIN_PICTURES', 1)
  prepare(tmp_path, 'cifar10', {'train': 60, 'test': 20})
  return tmp_path


def test_a_first_start_compiles_beside_decoding_and_a_later_one_records_the_same(
  folder,
):
  compiled = []

  def count(event, seconds, **_):
    if event == COMPILED:
      compiled.append(threading.current_thread().name)

  jax.clear_caches()
  jax.monitoring.register_event_duration_secs_listener(count)
  try:
    first = launched(ROOT, words(folder))
  finally:
    jax.monitoring.unregister_event_duration_listener(count)
  assert first.returncode == ExitCode.DONE, first.stderr
  assert 's beside decoding' in first.stdout
  assert 'compiling ahead' in compiled
  assert len(compiled) <= MAX_PROGRAMS
  later = launched(ROOT, words(folder, 'later'))
  assert later.returncode == ExitCode.DONE, later.stderr
  assert 'beside decoding' not in later.stdout
  records = [folder / name / 'metrics.jsonl' for name in ('run', 'later')]
  assert records[0].read_bytes() == records[1].read_bytes()


def test_a_picture_that_cannot_be_decoded_is_reported_while_the_compiler_runs(
  tmp_path, monkeypatch
):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(ahead, 'MIN_PICTURES', 1)
  sizes = {'train': 60, 'test': 20}
  prepare(tmp_path, 'cifar10', sizes, last={'image': b'no picture'})
  is_reported = threading.Event()
  reported_in_time = []

  def build_late(*_, **__):
    reported_in_time.append(is_reported.wait(timeout=60))

  monkeypatch.setattr(compiled_ahead, 'build', build_late)
  refused = launched(ROOT, words(tmp_path))
  is_reported.set()
  for thread in threading.enumerate():
    if thread.name == 'compiling ahead':
      thread.join()
  assert refused.returncode == ExitCode.USAGE
  assert 'test example 19 cannot be used' in refused.stderr
  assert reported_in_time == [True]


def test_a_failure_of_the_compiler_ahead_is_reported_and_the_run_compiles(
  folder, monkeypatch
):
  def build(*_, **__):
    raise ValueError('no pixels')

  monkeypatch.setattr(compiled_ahead, 'build', build)
  first = launched(ROOT, words(folder))
  assert first.returncode == ExitCode.DONE, first.stderr
  failure = 'compiling beside the decoding failed, so it begins again: ValueError: '
  assert f'{failure}no pixels\n' in first.stderr
  assert 'beside decoding' not in first.stdout


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['fedavg', 'moon'])
def test_the_programs_are_those_of_the_run_or_none(folder, algorithm):
  config = cli.parse([*words(folder), f'--config.algorithm={algorithm}']).config
  compiler = ahead.CompilerAhead(config, claim_devices=lambda: None)
  data = compiler.load(DataOptions(config))
  built = experiment.build(config, lambda options: data)
  state = experiment.initial_state(built)
  inputs = programs.round_inputs(built, 1, built.planner.plan(1).for_device())
  without_pixels = compiler.compiled()
  assert without_pixels.fits(built, state, inputs)
  assert without_pixels.seconds > 0
  texts = [
    lowered.as_text()
    for lowered in (
      *programs.lower_programs(built, state, inputs),
      *programs.lower_programs(
        without_pixels.experiment, without_pixels.state, without_pixels.inputs
      ),
    )
  ]
  assert texts[:2] == texts[2:]
  longer = experiment.build(config, lambda options: data, 1000)
  inputs = programs.round_inputs(longer, 0, longer.planner.plan(0).for_device())
  assert not without_pixels.fits(longer, state, inputs)
  other = load_data(DataOptions(config))
  assert (other.train_images == data.train_images).all()


def test_images_without_pixels_take_no_memory_when_some_are_chosen():
  num_bytes = 2**40
  images = np.broadcast_to(np.uint8(0), (20, num_bytes, 1, 1))
  labels = np.repeat(np.int32([0, 1]), 10)
  data = Dataset(
    name='cifar10',
    train_images=images,
    train_labels=labels,
    test_images=images,
    test_labels=labels,
    num_classes=2,
    mean=np.zeros(1, np.float32),
    std=np.ones(1, np.float32),
  )
  limited = users.limited(data, 10)
  remaining, (validation, _) = holdout.validation_split(limited, 0.5, seed=0)
  assert limited.test_images.shape == (10, num_bytes, 1, 1)
  assert len(remaining.train_images) + len(validation) == 10
  assert not any((*remaining.train_images.strides, *validation.strides))
