"""The real libraries' records of a run, of a resumed one, and of a sweep."""

import contextlib
import importlib.util
import json
import math
import shutil
import sqlite3
import struct
import types

import pytest

from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.runner import callbacks, loggers
from tests.processes import check_success, launch, launched, read_lines
from tests.run_directories import FEDAVG

BLOCK = 32768  # bytes, of LevelDB
PICTURE = 'partition._type'
PLACES = {'WANDB_MODE': 'offline', 'WANDB_SILENT': 'true'}


def needs(package):
  """A test of some ten seconds that needs a library."""
  absent = importlib.util.find_spec(package) is None

  def mark(test):
    return pytest.mark.slow(pytest.mark.skipif(absent, reason=f'no {package}')(test))

  return mark


def run(folder, *words, program=None, **environment):
  """Runs launch.py as a process, because the libraries keep state in one."""
  more = {} if program is None else {'program': program}
  done = launch(folder, *FEDAVG, *words, **more, **PLACES, **environment)
  assert done.returncode == ExitCode.DONE, done.stderr  # for the libraries' messages


def numbers(line, timing):
  """The values of a round that a logger gets."""
  of = {'metrics': line, 'timings': timing}
  return {
    f'{group}/{name}': value
    for group, values in of.items()
    for name, value in values.items()
    if name != 'round' and isinstance(value, int | float)
  }


# --- Weights & Biases -----------------------------------------------------------------


def starts(folder):
  """W&B's record of each offline start: the run, its config, rows and summary."""
  from wandb.proto.wandb_internal_pb2 import Record

  for path in sorted(folder.glob('wandb/offline-run-*/*.wandb')):
    rows, summary, of = {}, {}, None
    for record in map(Record.FromString, entries(path.read_bytes())):
      kind = record.WhichOneof('record_type')
      if kind == 'run':
        of = of or record.run
      elif kind == 'history':
        row = values(record.history.item)
        rows.setdefault(row.pop('_step'), {}).update(row)
      elif kind == 'summary':
        summary |= values(record.summary.update)
    yield of, rows, summary


def entries(data):
  """Entries of a LevelDB log: checksum in 4 bytes, size in 2, kind in 1, in blocks."""
  place, whole = 7, b''
  while place < len(data):
    left = BLOCK - place % BLOCK
    if left < 7:  # filled up
      place += left
      continue
    size, kind = struct.unpack('<HB', data[place + 4 : place + 7])
    whole += data[place + 7 : place + 7 + size]
    place += 7 + size
    if kind in (1, 4):  # all of it, or its last part
      yield whole
      whole = b''


def values(items):
  return {i.key or '.'.join(i.nested_key): json.loads(i.value_json) for i in items}


@needs('wandb')
def test_a_run_and_its_resumption_are_one_run_of_wandb(tmp_path):
  run(tmp_path, '--config.logger=wandb', '--workdir=mine/a')
  run(tmp_path, '--config.logger=wandb', '--workdir=mine/a', '--config.num_rounds=3')
  assert not (tmp_path / 'mine/a/tensorboard').exists()
  (first, rows, summary), (again, more, _) = starts(tmp_path)
  about = json.loads((tmp_path / 'mine/a/loggers.json').read_text())
  assert first.run_id == again.run_id == about['wandb']
  told = (first.project, first.run_group, first.display_name)
  assert told == ('moon_jax', 'mine', 'a')
  knobs = {item.key: json.loads(item.value_json) for item in first.config.update}
  assert knobs['batch_size'] == 32
  assert knobs['data.limit'] == 200
  assert 'moon.mu' not in knobs  # FedAvg has no such column
  lines = read_lines(tmp_path / 'mine/a/metrics.jsonl')
  timings = read_lines(tmp_path / 'mine/a/timings.jsonl')
  assert set(more) >= {3}
  assert not {1, 2} & set(more)
  for line, timing in zip(lines, timings, strict=True):
    row = (rows | more)[line['round']]
    assert numbers(line, timing).items() <= row.items()
  assert summary['best_test_accuracy'] == max(x['test_accuracy'] for x in lines[:2])
  kinds = [row[key] for row in rows.values() for key in row if key == PICTURE]
  assert kinds == ['image-file']


SWEEP = ('-m', 'moon_jax.sweep')


@needs('wandb')
def test_the_runs_of_a_sweep_are_a_group_of_wandb(tmp_path):
  words = ('--over', 'seed=0,1', '--out=mu', '--no-report', '--config.logger=wandb')
  run(tmp_path, *words, program=SWEEP)
  found = {(of.run_group, of.display_name) for of, _, _ in starts(tmp_path)}
  assert found == {('mu', 'seed=0'), ('mu', 'seed=1')}
  assert len({of.run_id for of, _, _ in starts(tmp_path)}) == 2


# --- MLflow ---------------------------------------------------------------------------


def stored(folder):
  """MLflow's store: name -> status, tags, parameters, (metric, step)."""
  found = {}
  with contextlib.closing(sqlite3.connect(folder / 'mlflow.db')) as store:
    for run_id, name, status in store.execute(
      'SELECT run_uuid, name, status FROM runs'
    ):

      def of(table, columns, key=run_id):
        query = f'SELECT {columns} FROM {table} WHERE run_uuid = ?'
        return store.execute(query, [key]).fetchall()

      tags, params = dict(of('tags', 'key, value')), dict(of('params', 'key, value'))
      found[name] = run_id, status, tags, params, of('metrics', 'key, step, value')
  return found


@needs('mlflow')
def test_a_run_and_its_resumption_are_one_run_of_mlflow(tmp_path):
  store = {'MLFLOW_TRACKING_URI': f'sqlite:///{tmp_path}/mlflow.db'}
  words = ('--config.logger=mlflow', '--workdir=mine/a')
  run(tmp_path, *words, **store)
  run(tmp_path, *words, '--config.num_rounds=3', **store)
  ((name, (run_id, status, tags, params, metrics)),) = stored(tmp_path).items()
  about = json.loads((tmp_path / 'mine/a/loggers.json').read_text())
  assert (name, run_id, status) == ('a', about['mlflow'], 'FINISHED')
  assert tags['group'] == 'mine'
  assert params['batch_size'] == '32'
  assert params['data.limit'] == '200'
  assert not {'moon.mu', 'num_rounds'} & set(params)
  found = {(key, step): value for key, step, value in metrics}
  assert len(found) == len(metrics)  # no round twice
  lines = read_lines(tmp_path / 'mine/a/metrics.jsonl')
  timings = read_lines(tmp_path / 'mine/a/timings.jsonl')
  wanted = {
    (name, line['round']): value
    for line, timing in zip(lines, timings, strict=True)
    for name, value in numbers(line, timing).items()
  }
  assert found == wanted
  assert list(tmp_path.rglob('artifacts/partition.png'))
  # The run directory may be moved to where the store does not know it.
  (tmp_path / 'mlflow.db').unlink()
  run(tmp_path, *words, '--config.num_rounds=4', **store)
  ((name, (run_id, _, _, _, metrics)),) = stored(tmp_path).items()
  about = json.loads((tmp_path / 'mine/a/loggers.json').read_text())
  assert (name, run_id) == ('a', about['mlflow'])
  assert {step for _, step, _ in metrics} == {4}


@needs('mlflow')
def test_a_round_that_is_run_again_is_not_logged_twice(tmp_path):
  """After a crash the state of round 2 is lost, but MLflow has its metrics."""
  store = {'MLFLOW_TRACKING_URI': f'sqlite:///{tmp_path}/mlflow.db'}
  words = ('--config.logger=mlflow', '--workdir=a')
  run(tmp_path, *words, **store)
  shutil.rmtree(tmp_path / 'a/checkpoints/2')
  (tmp_path / 'a/summary.json').unlink()
  run(tmp_path, *words, **store)
  metrics = stored(tmp_path)['a'][4]
  assert len(metrics) == len({(key, step) for key, step, _ in metrics})


# --- without them ---------------------------------------------------------------------


def test_a_missing_library_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  done = launched(tmp_path, *FEDAVG, '--config.logger=tensorboard,wandb')
  assert done.returncode == ExitCode.USAGE
  assert done.stderr == (
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
  given = []

  class Own(callbacks.Logger):
    def log_numbers(self, values, number):
      given.append((values, number))

  line = {'round': 3, 'test_accuracy': 0.5, 'loss': math.nan, 'clients': [0, 1]}
  timing = {'round': 3, 'train_seconds': 2}
  round = types.SimpleNamespace(number=3, metrics=line, timings=timing)
  Own().after_round(round)
  assert given == [({'metrics/test_accuracy': 0.5, 'timings/train_seconds': 2}, 3)]


def test_no_logger_leaves_no_trace(tmp_path):
  words = (*FEDAVG, '--config.logger=', '--config.num_rounds=1', '--workdir=a')
  check_success(launched(tmp_path, *words))
  names = {path.name for path in (tmp_path / 'a').iterdir()}
  assert 'metrics.jsonl' in names
  assert not {'tensorboard', 'loggers.json'} & names


@pytest.mark.parametrize('name', ['comet', 'wandb,wandb', 'wandb,', 'wandb, mlflow'])
def test_other_names(name, tmp_path):
  done = launched(tmp_path, f'--config.logger={name}')
  assert done.returncode == ExitCode.USAGE
  assert 'must be names of tensorboard, wandb and mlflow' in done.stderr
