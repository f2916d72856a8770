"""The real libraries' records of a run, of a resumed one, and of a sweep."""

import contextlib
import importlib.util
import json
import math
import pathlib
import shutil
import sqlite3
import struct
import sys
import types
from unittest import mock

import pytest

from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.runner import callbacks, loggers
from tests.processes import LAUNCH, check_success, launch, launched, read_lines
from tests.run_directories import FEDAVG

BLOCK = 32768  # bytes, of LevelDB
PICTURE = 'partition._type'
PLACES = {'WANDB_MODE': 'offline', 'WANDB_SILENT': 'true'}


def slow_with(package):
  """A test of some ten seconds that needs a library."""
  absent = importlib.util.find_spec(package) is None

  def mark(test):
    return pytest.mark.slow(pytest.mark.skipif(absent, reason=f'no {package}')(test))

  return mark


def run(folder, *words, program=(LAUNCH,), **environment):
  """Runs launch.py as a process, because the libraries keep state in one."""
  completed = launch(folder, *FEDAVG, *words, program=program, **(PLACES | environment))
  # The libraries may write to standard error.
  assert completed.returncode == ExitCode.DONE, completed.stderr


def numbers(line, timing):
  """The values of a round that a logger gets."""
  records = {'metrics': line, 'timings': timing}
  return {
    f'{group}/{name}': value
    for group, values in records.items()
    for name, value in values.items()
    if name != 'round' and isinstance(value, int | float)
  }


# --- Weights & Biases -----------------------------------------------------------------


def starts(folder):
  """W&B's record of each offline start: the run, its config, rows and summary."""
  from wandb.proto.wandb_internal_pb2 import Record

  for path in sorted(folder.glob('wandb/offline-run-*/*.wandb')):
    rows, summary, run_of_start = {}, {}, None
    for record in map(Record.FromString, entries(path.read_bytes())):
      kind = record.WhichOneof('record_type')
      if kind == 'run':
        run_of_start = run_of_start or record.run
      elif kind == 'history':
        row = values(record.history.item)
        rows.setdefault(row.pop('_step'), {}).update(row)
      elif kind == 'summary':
        summary |= values(record.summary.update)
    yield run_of_start, rows, summary


def entries(data):
  """Entries of a LevelDB log: checksum in 4 bytes, size in 2, kind in 1, in blocks."""
  position, entry = 7, b''
  while position < len(data):
    space_in_block = BLOCK - position % BLOCK
    if space_in_block < 7:  # filled up
      position += space_in_block
      continue
    size, kind = struct.unpack('<HB', data[position + 4 : position + 7])
    entry += data[position + 7 : position + 7 + size]
    position += 7 + size
    if kind in (1, 4):  # all of it, or its last part
      yield entry
      entry = b''


def values(items):
  return {i.key or '.'.join(i.nested_key): json.loads(i.value_json) for i in items}


@slow_with('wandb')
def test_a_run_and_its_resumption_are_one_run_of_wandb(tmp_path):
  for num_rounds in (2, 3):
    run(
      tmp_path,
      '--config.logger=wandb',
      '--config.best_by=loss',
      '--config.metrics=nll',
      '--workdir=mine/a',
      f'--config.num_rounds={num_rounds}',
    )
  assert not (tmp_path / 'mine/a/tensorboard').exists()
  (first, rows, _), (second, second_rows, summary) = starts(tmp_path)
  ids = json.loads((tmp_path / 'mine/a/loggers.json').read_text())
  assert first.run_id == second.run_id == ids['wandb']
  names = (first.project, first.run_group, first.display_name)
  assert names == ('moon_jax', 'mine', 'a')
  knobs = {item.key: json.loads(item.value_json) for item in first.config.update}
  assert knobs['batch_size'] == 32
  assert knobs['data.limit'] == 200
  assert 'moon.mu' not in knobs  # FedAvg has no such column
  lines = read_lines(tmp_path / 'mine/a/metrics.jsonl')
  timings = read_lines(tmp_path / 'mine/a/timings.jsonl')
  assert set(second_rows) >= {3}
  assert not {1, 2} & set(second_rows)
  for line, timing in zip(lines, timings, strict=True):
    row = (rows | second_rows)[line['round']]
    assert numbers(line, timing).items() <= row.items()
  saved_summary = json.loads((tmp_path / 'mine/a/summary.json').read_text())
  assert summary['best_by'] == saved_summary['best_by'] == 'test_loss'
  assert summary['best_round'] == saved_summary['best_round']
  assert summary['best_test_accuracy'] == saved_summary['best_test_accuracy']
  kinds = [row[key] for row in rows.values() for key in row if key == PICTURE]
  assert kinds == ['image-file']


SWEEP = ('-m', 'moon_jax.sweep')


@slow_with('wandb')
def test_the_runs_of_a_sweep_are_a_group_of_wandb(tmp_path):
  words = ('--over', 'seed=0,1', '--out=mu', '--no-report', '--config.logger=wandb')
  run(tmp_path, *words, program=SWEEP)
  names = {(record.run_group, record.display_name) for record, _, _ in starts(tmp_path)}
  assert names == {('mu', 'seed=0'), ('mu', 'seed=1')}
  assert len({record.run_id for record, _, _ in starts(tmp_path)}) == 2


def test_the_picture_of_a_start_without_rounds_takes_no_step_of_wandb(
  tmp_path, monkeypatch
):
  """The run may go on, and W&B then has to take its next round. No wandb is needed."""
  library = types.ModuleType('wandb')
  library.Image = str
  monkeypatch.setitem(sys.modules, 'wandb', library)
  path = pathlib.Path(loggers.__file__).with_name('weights_and_biases.py')
  spec = importlib.util.spec_from_file_location('with_that_library', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  logger = module.WeightsAndBiases()
  wandb_run = logger._wandb_run = mock.Mock(starting_step=4, summary={})
  picture = tmp_path / 'partition.png'
  logger.log_picture(picture)
  wandb_run.log.assert_not_called()
  assert wandb_run.summary == {'partition': str(picture)}
  logger.log_numbers({'metrics/train_loss': 0.5}, 4)
  logger.log_picture(picture)
  wandb_run.log.assert_called_with({'partition': str(picture)}, step=4)


# --- MLflow ---------------------------------------------------------------------------


def run_with_mlflow(folder, words):
  run(folder, *words, MLFLOW_TRACKING_URI=f'sqlite:///{folder}/mlflow.db')


def stored(folder):
  """MLflow's store: name -> status, tags, parameters, (metric, step)."""
  runs = {}
  with contextlib.closing(sqlite3.connect(folder / 'mlflow.db')) as store:
    for run_id, name, status in store.execute(
      'SELECT run_uuid, name, status FROM runs'
    ):

      def rows_of(table, columns, key=run_id):
        query = f'SELECT {columns} FROM {table} WHERE run_uuid = ?'
        return store.execute(query, [key]).fetchall()

      tags, params = (
        dict(rows_of('tags', 'key, value')),
        dict(rows_of('params', 'key, value')),
      )
      runs[name] = run_id, status, tags, params, rows_of('metrics', 'key, step, value')
  return runs


@slow_with('mlflow')
def test_a_run_and_its_resumption_are_one_run_of_mlflow(tmp_path):
  words = ('--config.logger=mlflow', '--workdir=mine/a')
  run_with_mlflow(tmp_path, words)
  run_with_mlflow(tmp_path, [*words, '--config.num_rounds=3'])
  ((name, (run_id, status, tags, params, metrics)),) = stored(tmp_path).items()
  ids = json.loads((tmp_path / 'mine/a/loggers.json').read_text())
  assert (name, run_id, status) == ('a', ids['mlflow'], 'FINISHED')
  assert tags['group'] == 'mine'
  assert params['batch_size'] == '32'
  assert params['data.limit'] == '200'
  assert not {'moon.mu', 'num_rounds'} & set(params)
  logged = {(key, step): value for key, step, value in metrics}
  assert len(logged) == len(metrics)  # no round twice
  lines = read_lines(tmp_path / 'mine/a/metrics.jsonl')
  timings = read_lines(tmp_path / 'mine/a/timings.jsonl')
  expected = {
    (name, line['round']): value
    for line, timing in zip(lines, timings, strict=True)
    for name, value in numbers(line, timing).items()
  }
  assert logged == expected
  assert list(tmp_path.rglob('artifacts/partition.png'))
  # The run directory may be moved to where the store does not know it.
  (tmp_path / 'mlflow.db').unlink()
  run_with_mlflow(tmp_path, [*words, '--config.num_rounds=4'])
  ((name, (run_id, _, _, _, metrics)),) = stored(tmp_path).items()
  ids = json.loads((tmp_path / 'mine/a/loggers.json').read_text())
  assert (name, run_id) == ('a', ids['mlflow'])
  assert {step for _, step, _ in metrics} == {4}


@slow_with('mlflow')
def test_a_round_that_is_run_again_is_not_logged_twice(tmp_path):
  """After a crash the state of round 2 is lost, but MLflow has its metrics."""
  words = ('--config.logger=mlflow', '--workdir=a')
  run_with_mlflow(tmp_path, words)
  shutil.rmtree(tmp_path / 'a/checkpoints/2')
  (tmp_path / 'a/summary.json').unlink()
  run_with_mlflow(tmp_path, words)
  metrics = stored(tmp_path)['a'][4]
  assert len(metrics) == len({(key, step) for key, step, _ in metrics})


# --- without them ---------------------------------------------------------------------


def test_a_missing_library_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  completed = launched(tmp_path, [*FEDAVG, '--config.logger=tensorboard,wandb'])
  assert completed.returncode == ExitCode.USAGE
  assert completed.stderr == (
    "--config.logger='tensorboard,wandb' needs a package that is not installed; type: "
    'pip install tensorboardX\n'
  )
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda name: None if name == 'wandb' else object()
  )
  with pytest.raises(UsageError, match=r'pip install wandb$'):
    loggers.require('tensorboard,wandb')
  loggers.require('')


def test_what_a_logger_is_given():
  logged = []

  class Own(callbacks.Logger):
    def log_numbers(self, values, number):
      logged.append((values, number))

  line = {'round': 3, 'test_accuracy': 0.5, 'loss': math.nan, 'clients': [0, 1]}
  timing = {'round': 3, 'train_seconds': 2}
  round = types.SimpleNamespace(number=3, metrics=line, timings=timing)
  Own().after_round(round)
  assert logged == [({'metrics/test_accuracy': 0.5, 'timings/train_seconds': 2}, 3)]


@pytest.mark.slow
def test_no_logger_leaves_no_trace(tmp_path):
  words = (*FEDAVG, '--config.logger=', '--config.num_rounds=1', '--workdir=a')
  check_success(launched(tmp_path, words))
  names = {path.name for path in (tmp_path / 'a').iterdir()}
  assert 'metrics.jsonl' in names
  assert not {'tensorboard', 'loggers.json'} & names


@pytest.mark.parametrize('name', ['comet', 'wandb,wandb', 'wandb,', 'wandb, mlflow'])
def test_other_names(name, tmp_path):
  completed = launched(tmp_path, [f'--config.logger={name}'])
  assert completed.returncode == ExitCode.USAGE
  assert 'must be names of tensorboard, wandb and mlflow' in completed.stderr
