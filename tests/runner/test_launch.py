"""`python launch.py`: its exit code, its output, and its files."""

import io
import json
import os
import re
import shutil

import numpy as np
import pytest
from matplotlib import image
from tensorboardX.proto import event_pb2

import moon_jax
from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.core.keys import Purpose, host_rng
from tests.processes import (
  ROOT,
  check_same_records,
  check_success,
  checkpoint,
  contents,
  launched,
  read_lines,
)
from tests.runner.conftest import RUN, SIX, TINY

# --- what a run leaves ----------------------------------------------------------------


def test_run_directory(six_rounds, workdir):
  folder = six_rounds[0]
  assert list(contents(folder)) == [
    f'runs/digits_moon-moon-s0/{name}' for name in contents(workdir)
  ]
  assert {path.name for path in workdir.iterdir()} == {
    *('.lock', 'checkpoints', 'config.json', 'curves.png', 'metrics.jsonl'),
    *('partition.npz', 'partition.png', 'summary.json', 'tensorboard', 'timings.jsonl'),
  }
  # The newest two checkpoints are kept.
  assert sorted(p.name for p in (workdir / 'checkpoints').iterdir()) == ['5', '6']
  with pytest.raises(UsageError, match='has no numbers of single clients'):
    _ = moon_jax.load(workdir).clients
  for picture in ('curves.png', 'partition.png'):
    assert (workdir / picture).read_bytes().startswith(b'\x89PNG')


def test_console(six_rounds):
  lines = six_rounds[1].stdout.splitlines()
  assert lines[1] == 'runs/digits_moon-moon-s0: a fresh run'
  assert 'num_rounds=6' in lines[2]
  assert lines[3].startswith('partition: dirichlet, 10 clients own 300 training exam')
  rounds = [line.split()[1] for line in lines if line.startswith('round ')]
  assert rounds == [f'{i}/6' for i in range(1, 7)]
  end, spent, results = lines[-3:]
  assert end.startswith('finished after round 6: test accuracy 0.')
  title, _, phases = spent.partition(': ')
  assert title == 'where the time went'
  assert [words.split()[0] for words in phases.split(', ')] == [
    *('compiling', 'training', 'testing', 'saving', 'idle')
  ]
  assert results == 'results: runs/digits_moon-moon-s0'


def test_config_json(workdir):
  saved = json.loads((workdir / 'config.json').read_text())
  assert saved['command'] == ' '.join(['python', 'launch.py', *SIX])
  flat = config_lib.flatten(saved['config'])
  assert list(flat) == list(catalog.every_knob())
  # The values are from the command line, configs/digits_moon.py and configs/base.py.
  assert flat['num_rounds'] == 6
  assert flat['data.limit'] == 300
  assert flat['batch_size'] == 32
  assert flat['moon.tau'] == 0.5
  assert set(saved['versions']) >= {'python', 'jax', 'jaxlib', 'flax', 'optax', 'numpy'}
  assert saved['devices']
  # Outside git there is no commit: the tests may run from an unpacked archive.
  assert re.fullmatch(r'[0-9a-f]{40}(\+changes)?', saved['git_commit'] or 'a' * 40)


COLUMNS = """
  round train_loss train_accuracy supervised_loss contrastive_loss contrasted_fraction
  drift drift_min drift_q1 drift_median drift_q3 drift_max clients num_examples
  num_steps bytes_down bytes_up test_accuracy test_loss
"""


def test_metrics_and_timings(workdir):
  metrics = read_lines(workdir / 'metrics.jsonl')
  timings = read_lines(workdir / 'timings.jsonl')
  for lines in (metrics, timings):
    assert [line['round'] for line in lines] == list(range(1, 7))
  with np.load(workdir / 'partition.npz') as saved:
    sizes = np.diff(saved['offsets'])
    assert sorted(saved['indices']) == list(range(300))
    assert list(saved['class_counts'].sum(1)) == list(sizes)
  for index, line in enumerate(metrics):
    chosen = np.sort(host_rng(0, Purpose.COHORT, index).choice(10, 5, replace=False))
    assert line['clients'] == chosen.tolist()
    assert line['num_examples'] == sizes[chosen].sum()
    # In the first round no client has a previous model to compare with.
    cosines = {name for name in line if name.endswith('_cosine')}
    assert cosines == ({'positive_cosine', 'negative_cosine'} if index else set())
    assert all(-1 <= line[name] <= 1 for name in cosines)
    spread = [line[f'drift_{name}'] for name in ('min', 'q1', 'median', 'q3', 'max')]
    assert spread == sorted(spread)
    assert spread[0] < line['drift'] < spread[-1]
    assert set(line) == cosines | set(COLUMNS.split())
    assert 0 <= line['test_accuracy'] <= 1
  assert [line['compile_seconds'] > 0 for line in timings] == [True] + 5 * [False]
  for line, metric in zip(timings, metrics, strict=True):
    assert line['train_seconds'] > 0
    assert line['save_seconds'] > 0
    speed = metric['num_examples'] / line['train_seconds']
    assert line['samples_per_second'] == pytest.approx(speed)
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['rounds'] == 6
  assert summary['test_accuracy'] == metrics[-1]['test_accuracy']
  assert summary['best_test_accuracy'] == max(m['test_accuracy'] for m in metrics)


def test_tensorboard(workdir):
  (path,) = (workdir / 'tensorboard').iterdir()
  metrics = read_lines(workdir / 'metrics.jsonl')
  values = {
    (value.tag, event.step): value
    for event in events(path)
    for value in event.summary.value
  }
  for line in metrics:
    loss = values['metrics/train_loss', line['round']].simple_value
    assert loss == pytest.approx(line['train_loss'], rel=1e-6)
    assert ('timings/train_seconds', line['round']) in values
    histogram = values['clients/drift', line['round']].histo
    assert histogram.num == len(line['clients'])
    assert histogram.sum / histogram.num == pytest.approx(line['drift'], rel=1e-6)
    assert histogram.max == pytest.approx(line['drift_max'], rel=1e-6)
  picture = values['partition', 0].image
  drawn = image.imread(workdir / 'partition.png')
  pixels = image.imread(io.BytesIO(picture.encoded_image_string))
  np.testing.assert_array_equal(pixels, drawn)


def events(path):
  """The events of a TensorBoard file."""
  data = path.read_bytes()
  while data:
    # A record: its length in 8 bytes, their checksum in 4, the event, its checksum.
    size = int.from_bytes(data[:8], 'little')
    yield event_pb2.Event.FromString(data[12 : 12 + size])
    data = data[12 + size + 4 :]


# --- the same command again, and others in the same place -----------------------------


def test_finished_run_is_left_alone(six_rounds, workdir):
  before = contents(workdir)
  completed = launched(six_rounds[0], SIX)
  check_success(completed)
  ending = six_rounds[1].stdout.partition('finished after')[1:]
  start = 'nothing to do: the run has 6 rounds; 6 were asked for\n'
  assert completed.stdout == start + ''.join(ending)
  assert contents(workdir) == before


def test_what_a_finished_run_does_not_use_is_told(six_rounds):
  words = (*SIX, '--config.best_by=loss', '--config.num_rounds=5')
  completed = launched(six_rounds[0], [*words, '--config.execution.lanes=1'])
  check_success(completed)
  first, second, *_ = completed.stdout.splitlines()
  assert first.startswith('nothing to do: the run has 6 rounds; 5 were asked for')
  assert second == (
    "not used, because the run is finished: best_by: 'accuracy' -> 'loss' (saved -> "
    'given)'
  )


def test_more_rounds_continue_a_finished_run(tmp_path, workdir):
  words = (*TINY, '--config.num_rounds=4', '--config.checkpoint_every_rounds=2')
  check_success(launched(tmp_path, [*words, '--workdir=run']))
  run = tmp_path / 'run'
  assert json.loads((run / 'summary.json').read_text())['rounds'] == 4
  shutil.rmtree(run / 'checkpoints/4')  # like a kill before the last round was saved
  for name in ('timings.jsonl', 'metrics.jsonl'):
    lines = (run / name).read_text().splitlines(keepends=True)
    (run / name).write_text(''.join(lines[: 2 if name[0] == 't' else 3]))
  (run / 'summary.json').unlink()
  completed = launched(tmp_path, [*SIX, '--workdir=run'])
  check_success(completed)
  assert 'run: resumed after round 2 of 6' in completed.stdout
  assert 'rounds recorded but not saved, and run again: 1' in completed.stdout
  assert 'where the time went in all 2 starts: compiling' in completed.stdout
  assert json.loads((run / 'summary.json').read_text())['rounds'] == 6
  check_same_records(run, workdir)
  leaves = checkpoint(workdir, 6)
  # There are at least two copies of the weights: the server's and the clients' uploads.
  assert len(leaves) > 12
  assert checkpoint(run, 6) == leaves
  # Checkpoints of different rounds differ, so the line above proves something.
  assert checkpoint(workdir, 5) != leaves
  # Rounds that were trained again are not twice in TensorBoard: each start names the
  # step from which on earlier events are void.
  begin = event_pb2.SessionLog.SessionStatus.Value('START')
  boards = sorted((run / 'tensorboard').iterdir(), key=os.path.getmtime)
  all_events = [event for path in boards for event in events(path)]
  assert [e.step for e in all_events if e.session_log.status == begin] == [1, 3]
  (earlier,) = json.loads((run / 'config.json').read_text())['earlier']
  assert 'checkpoint_every_rounds=2' in earlier['command']


# --- endings --------------------------------------------------------------------------


def test_diverging_run(tmp_path):
  words = [
    f'--config.{word}' for word in ('optimizer.learning_rate=1e20', 'num_rounds=1')
  ]
  completed = launched(tmp_path, [*RUN, *words, '--workdir=run'])
  assert completed.returncode == ExitCode.DIVERGED
  (line,) = completed.stderr.splitlines()
  (record,) = read_lines(tmp_path / 'run/metrics.jsonl')
  assert record['round'] == 1
  assert record['train_loss'] is None
  who = ', '.join(str(client) for client in record['clients'])
  assert line.startswith('Diverged in round 1. Not f')
  assert re.search(rf'train_loss, .*test_loss \(clients {who}\)\.', line)
  assert list((tmp_path / 'run/checkpoints').iterdir()) == []
  assert not (tmp_path / 'run/summary.json').exists()
  assert 'where the time went' not in completed.stdout


def test_each_round_has_its_learning_rate_after_resuming_too(tmp_path):
  flags = ['schedule=exponential', 'decay=1e-4', 'decay_every=1']
  words = [*TINY, *(f'--config.optimizer.{flag}' for flag in flags), '--workdir=run']
  for num_rounds in (1, 3):
    check_success(launched(tmp_path, [*words, f'--config.num_rounds={num_rounds}']))
  lines = read_lines(tmp_path / 'run/metrics.jsonl')
  first, second, third = (line['drift'] for line in lines)
  # The drift of a client is proportional to the rate and otherwise of one size.
  assert 1e-5 < second / first < 1e-3
  # With a rate below float32's resolution of the weights nearly nothing moves.
  assert third < second / 10


# --- the source -----------------------------------------------------------------------


def test_pickles_are_read_in_two_places_that_ask():
  globs = ('*.py', 'configs/*.py', 'moon_jax/**/*.py')
  code = [path for pattern in globs for path in ROOT.glob(pattern)]
  assert len(code) > 20
  # These two ask first whether a file is published or trusted.
  code.remove(ROOT / 'moon_jax/data/pickles.py')
  code.remove(ROOT / 'moon_jax/data/federated/pfllib.py')
  for path in code:
    text = path.read_text()
    assert not re.search(r'\b(import|from) (pickle|dill|cloudpickle|shelve)\b', text), (
      path
    )
    assert not re.search(r'allow_pickle\s*=\s*(?!False)', text), path
