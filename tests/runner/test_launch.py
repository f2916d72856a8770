"""`python launch.py` as a process: its exit code, its output, the files it leaves.

The runs are tiny, 300 digits of 10 clients: what they cost is starting JAX.
"""

import io
import json
import os
import re
import signal

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager, image
from tensorboardX.proto import event_pb2

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.core.errors import ExitCode
from moon_jax.train import planning
from tests.processes import (
  ROOT,
  check_success,
  checkpoint,
  contents,
  launch,
  launch_until,
  read_lines,
)

pytestmark = pytest.mark.usefixtures('as_users')

TINY = (
  '--config.local_epochs=1',
  '--config.data.limit=300',
  '--config.partition.min_size=2',
  '--config.participation=0.5',
)
TWO = (*TINY, '--config.num_rounds=2')
# Tested after round 2, and after the last.
THREE = (*TINY, '--config.num_rounds=3', '--config.eval_every_rounds=2')
# Enough for a signal to arrive before the last round.
TWENTY = (*TINY, '--config.num_rounds=20')
EVERY = '--config.checkpoint_every_rounds='


@pytest.fixture(scope='module', autouse=True)
def _fonts():
  """The first user of matplotlib on a machine may say that it lists the fonts."""
  font_manager.findfont('DejaVu Sans')


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  """An uninterrupted run, in a folder of its own: (folder, process)."""
  folder = tmp_path_factory.mktemp('reference')
  return folder, launch(folder, *TWENTY, EVERY + '1')


@pytest.fixture(scope='module')
def workdir(reference):
  """The run directory of the reference."""
  folder, done = reference
  check_success(done)
  return folder / 'runs/digits_moon-moon-s0'


# --- what a run leaves ----------------------------------------------------------------


def test_run_directory(reference, workdir):
  folder = reference[0]
  assert list(contents(folder)) == [
    f'runs/digits_moon-moon-s0/{name}' for name in contents(workdir)
  ]
  top = {path.name for path in workdir.iterdir()}
  assert top == {
    '.lock',
    'checkpoints',
    'config.json',
    'curves.png',
    'metrics.jsonl',
    'partition.npz',
    'partition.png',
    'summary.json',
    'tensorboard',
    'timings.jsonl',
  }
  # The newest two are kept.
  assert sorted(p.name for p in (workdir / 'checkpoints').iterdir()) == ['19', '20']
  for picture in ('curves.png', 'partition.png'):
    assert (workdir / picture).read_bytes().startswith(b'\x89PNG')


def test_console(reference):
  lines = reference[1].stdout.splitlines()
  assert lines[1] == 'runs/digits_moon-moon-s0: a fresh run'
  assert 'num_rounds=20' in lines[2]
  assert lines[3].startswith('partition: dirichlet, 10 clients own 300 training exam')
  rounds = [line.split()[1] for line in lines if line.startswith('round ')]
  assert rounds == [f'{i}/20' for i in range(1, 21)]
  end = next(i for i, line in enumerate(lines) if line.startswith('finished after'))
  assert lines[end].startswith('finished after round 20: test accuracy 0.')
  spent, results = lines[end + 1 :]
  told, _, phases = spent.partition(': ')
  assert told == 'where the time went'
  assert [words.split()[0] for words in phases.split(', ')] == [
    *('compiling', 'training', 'testing', 'saving', 'idle'),
  ]
  assert results == 'results: runs/digits_moon-moon-s0'


def test_config_json(workdir):
  saved = json.loads((workdir / 'config.json').read_text())
  assert saved['command'] == ' '.join(['python', 'launch.py', *TWENTY, EVERY + '1'])
  flat = config_lib.flatten(saved['config'])
  assert list(flat) == list(catalog.every_knob())
  # From the command line, from configs/digits_moon.py and from configs/base.py.
  assert flat['num_rounds'] == 20
  assert flat['data.limit'] == 300
  assert flat['batch_size'] == 32
  assert flat['moon.tau'] == 0.5
  assert set(saved['versions']) >= {'python', 'jax', 'jaxlib', 'flax', 'optax', 'numpy'}
  assert saved['devices']
  # None outside git: the tests may run from an unpacked archive.
  assert re.fullmatch(r'[0-9a-f]{40}(\+changes)?', saved['git_commit'] or 'a' * 40)


def test_metrics_and_timings(workdir):
  metrics = read_lines(workdir / 'metrics.jsonl')
  timings = read_lines(workdir / 'timings.jsonl')
  for lines in (metrics, timings):
    assert [line['round'] for line in lines] == list(range(1, 21))
  with np.load(workdir / 'partition.npz') as saved:
    sizes = np.diff(saved['offsets'])
  for index, line in enumerate(metrics):
    chosen = planning.choose(seed=0, round_index=index, num_clients=10, size=5)
    assert line['clients'] == chosen.tolist()
    assert line['num_examples'] == sizes[chosen].sum()
    # In the first round nobody has a previous model to be compared with.
    cosines = {name for name in line if name.endswith('_cosine')}
    assert cosines == ({'positive_cosine', 'negative_cosine'} if index else set())
    assert all(-1 <= line[name] <= 1 for name in cosines)
    spread = [line[f'drift_{name}'] for name in ('min', 'q1', 'median', 'q3', 'max')]
    assert spread == sorted(spread)
    assert spread[0] < line['drift'] < spread[-1]
    assert set(line) == cosines | {
      'round',
      'train_loss',
      'train_accuracy',
      'supervised_loss',
      'contrastive_loss',
      'contrasted_fraction',
      'drift',
      'drift_min',
      'drift_q1',
      'drift_median',
      'drift_q3',
      'drift_max',
      'clients',
      'num_examples',
      'num_steps',
      'bytes_down',
      'bytes_up',
      'test_accuracy',
      'test_loss',
    }
    assert not [name for name in line if 'second' in name or 'time' in name]
    assert 0 <= line['test_accuracy'] <= 1
  assert [line['compile_seconds'] > 0 for line in timings] == [True] + 19 * [False]
  for line, metric in zip(timings, metrics, strict=True):
    assert line['train_seconds'] > 0
    assert line['save_seconds'] > 0
    speed = metric['num_examples'] / line['train_seconds']
    assert line['samples_per_second'] == pytest.approx(speed)


def test_summary_and_partition(workdir):
  metrics = read_lines(workdir / 'metrics.jsonl')
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['rounds'] == 20
  assert summary['test_accuracy'] == metrics[-1]['test_accuracy']
  assert summary['best_test_accuracy'] == max(m['test_accuracy'] for m in metrics)
  with np.load(workdir / 'partition.npz') as saved:
    assert sorted(saved['indices']) == list(range(300))
    assert list(saved['class_counts'].sum(1)) == list(np.diff(saved['offsets']))


def test_tensorboard(workdir):
  (path,) = (workdir / 'tensorboard').iterdir()
  points = tensorboard_points(path)
  metrics = read_lines(workdir / 'metrics.jsonl')
  assert [step for step, _ in points['metrics/train_loss']] == list(range(1, 21))
  np.testing.assert_allclose(
    [value for _, value in points['metrics/train_loss']],
    [line['train_loss'] for line in metrics],
    rtol=1e-6,
  )
  assert len(points['timings/train_seconds']) == 20
  values = {
    (value.tag, event.step): value
    for event in events(path)
    for value in event.summary.value
  }
  for line in metrics:
    histogram = values['clients/drift', line['round']].histo
    assert histogram.num == len(line['clients'])
    assert histogram.sum / histogram.num == pytest.approx(line['drift'], rel=1e-6)
    assert histogram.max == pytest.approx(line['drift_max'], rel=1e-6)
  picture = values['partition', 0].image
  drawn = image.imread(workdir / 'partition.png')
  shown = image.imread(io.BytesIO(picture.encoded_image_string))
  np.testing.assert_array_equal(shown, drawn)


def events(path):
  """The events of a TensorBoard file; a half-written last one is left out."""
  data = path.read_bytes()
  while len(data) > 12:
    # A record: its length in 8 bytes, their checksum in 4, the event, its checksum.
    size = int.from_bytes(data[:8], 'little')
    if len(data) < 12 + size + 4:
      return
    yield event_pb2.Event.FromString(data[12 : 12 + size])
    data = data[12 + size + 4 :]


def session_starts(path):
  """The steps from which the file's sessions say that they start."""
  start = event_pb2.SessionLog.SessionStatus.Value('START')
  return [e.step for e in events(path) if e.session_log.status == start]


def tensorboard_points(path):
  """Tag -> [(step, value)] of an event file."""
  points = {}
  for event in events(path):
    for value in event.summary.value:
      points.setdefault(value.tag, []).append((event.step, value.simple_value))
  return points


# --- the same command again, and others in the same place -----------------------------


def test_finished_run_is_left_alone(reference, workdir):
  before = contents(workdir)
  done = launch(reference[0], *TWENTY, EVERY + '1')
  check_success(done)
  ending = reference[1].stdout.partition('finished after')[1:]
  assert done.stdout == (
    f'nothing to do: the run has the 20 rounds asked for\n{"".join(ending)}'
  )
  assert 'compiling one round' not in done.stdout
  assert contents(workdir) == before


def test_another_experiment_is_refused(reference, workdir):
  before = contents(reference[0])
  done = launch(reference[0], *TWENTY, '--config.moon.mu=2', '--config.batch_size=8')
  assert done.returncode == ExitCode.USAGE
  assert done.stdout == ''
  assert done.stderr == (
    'The run directory runs/digits_moon-moon-s0 holds another experiment: '
    'batch_size: 32 -> 8; moon.mu: 1.0 -> 2.0 (saved -> given). '
    'Add --workdir=DIR with a new directory for this one.\n'
  )
  assert contents(reference[0]) == before


@pytest.mark.slow
def test_other_cadence_and_execution_at_a_place_of_any_name(tmp_path):
  # A terminal that has no such letters, and a name that is no formula.
  place = {'HOME': str(tmp_path), 'PYTHONIOENCODING': 'ascii'}
  place['MPLCONFIGDIR'] = matplotlib.get_configdir()  # else a list of fonts is made
  words = [*TINY, '--workdir=~/ein Lauf ✓ $x_{']
  check_success(launch(tmp_path, *words, '--config.num_rounds=1', **place))
  run = tmp_path / 'ein Lauf ✓ $x_{'
  first = read_lines(run / 'metrics.jsonl')
  knobs = ['num_rounds=2', 'eval_every_rounds=2', 'checkpoint_every_rounds=1']
  knobs += ['execution.lanes=3', 'execution.cache_mib=0', 'execution.devices=1']
  done = launch(tmp_path, *words, *(f'--config.{knob}' for knob in knobs), **place)
  check_success(done)
  assert resumed_after(done) == 1
  assert done.stdout.splitlines()[-1] == f'results: {tmp_path}/ein Lauf \\u2713 $x_{{'
  metrics = read_lines(run / 'metrics.jsonl')
  assert metrics[:1] == first
  assert [line['round'] for line in metrics] == [1, 2]
  assert [path.name for path in tmp_path.iterdir() if path.name[0] != '.'] == [run.name]


# --- interruption ---------------------------------------------------------------------


@pytest.mark.slow
def test_killed_run_ends_like_one_that_was_not(tmp_path, workdir):
  # With a save every three rounds, what came after it is done again.
  words = [*TWENTY, EVERY + '3', '--workdir=run']
  killed = launch_until('round 5/', signal.SIGKILL, tmp_path, *words)
  assert killed.returncode == -signal.SIGKILL
  written = len(read_lines(tmp_path / 'run/metrics.jsonl'))
  assert 5 <= written < 20
  assert not (tmp_path / 'run/summary.json').exists()

  words = [*TWENTY, EVERY + '1', '--workdir=run']
  stopped = launch_until('round 12/', signal.SIGINT, tmp_path, *words)
  start = resumed_after(stopped)
  assert start % 3 == 0
  assert written - 3 <= start <= written
  assert f'round {start + 1}/20' in stopped.stdout
  assert stopped.returncode == ExitCode.INTERRUPTED

  resumed = launch(tmp_path, *words)
  check_success(resumed)
  assert 11 <= resumed_after(resumed) < 20
  assert_same_results(tmp_path / 'run', workdir)
  timed = [line['round'] for line in read_lines(tmp_path / 'run/timings.jsonl')]
  assert timed == sorted(set(timed))
  assert timed[-1] == 20
  # What was run again does not stand twice in TensorBoard: each start says from which
  # step on the events before it are void.
  boards = sorted((tmp_path / 'run/tensorboard').iterdir(), key=os.path.getmtime)
  starts = [start for path in boards for start in session_starts(path)]
  assert starts == [1, start + 1, resumed_after(resumed) + 1]
  saved = json.loads((tmp_path / 'run/config.json').read_text())
  assert len(saved['earlier']) == 2
  assert EVERY + '3' in saved['earlier'][0]['command']


def resumed_after(done):
  """The number of rounds that the run did not have to do."""
  return int(re.search(r': resumed after round (\d+) of', done.stdout)[1])


@pytest.mark.slow
def test_more_rounds_continue_a_finished_run(tmp_path, workdir):
  check_success(launch(tmp_path, *TWO, '--workdir=run'))
  assert len(read_lines(tmp_path / 'run/metrics.jsonl')) == 2
  done = launch(tmp_path, *TWENTY, EVERY + '1', '--workdir=run')
  check_success(done)
  assert resumed_after(done) == 2
  assert json.loads((tmp_path / 'run/summary.json').read_text())['rounds'] == 20
  assert_same_results(tmp_path / 'run', workdir)


def assert_same_results(run, expected):
  for name in ('metrics.jsonl', 'partition.npz'):
    assert (run / name).read_bytes() == (expected / name).read_bytes(), name
  leaves = checkpoint(expected, 20)
  # Two copies of the weights at least: the server's, and each client's last upload.
  assert len(leaves) > 12
  assert checkpoint(run, 20) == leaves
  # Were they always equal, the line above would say nothing.
  assert checkpoint(expected, 19) != leaves


# --- endings --------------------------------------------------------------------------


def test_diverging_run(tmp_path):
  done = launch(
    tmp_path,
    *(*TINY, EVERY + '1', '--workdir=run'),
    '--config.optimizer.learning_rate=1e20',
    # Of a single round, so that the one that diverges is traced.
    *('--config.num_rounds=1', '--config.execution.profile=true'),
  )
  assert done.returncode == ExitCode.DIVERGED
  (line,) = done.stderr.splitlines()
  (record,) = read_lines(tmp_path / 'run/metrics.jsonl')
  assert record['round'] == 1
  assert record['train_loss'] is None
  who = ', '.join(str(client) for client in record['clients'])
  assert line.startswith('Diverged in round 1. Not f')
  assert re.search(rf'train_loss, .*test_loss \(clients {who}\)\.', line)
  assert list((tmp_path / 'run/checkpoints').iterdir()) == []
  assert not (tmp_path / 'run/summary.json').exists()
  # The trace is kept, and nothing is said about rounds that did not end.
  assert done.stdout.splitlines()[-1] == 'trace: run/profile'
  assert 'where the time went' not in done.stdout
  assert list((tmp_path / 'run/profile').rglob('*.xplane.pb'))


# The modules that a run may not load, told after it has ended; the last one it must.
WATCHED = """
import sys
sys.path.insert(0, sys.argv[1])
from moon_jax.__main__ import launch
code = launch(sys.argv[2:])
watched = 'tensorflow', 'tensorflow_datasets', 'scipy.sparse'
print('loaded:', [name for name in (*watched, 'jax') if name in sys.modules])
sys.exit(code)
"""


@pytest.mark.slow
def test_another_algorithm(tmp_path, workdir):
  words = [*THREE, '--config.algorithm=solo', '--config.seed=3']
  done = launch(tmp_path, str(ROOT), *words, program=('-c', WATCHED))
  check_success(done)
  assert done.stdout.splitlines()[-1] == "loaded: ['jax']"
  metrics = read_lines(tmp_path / 'runs/digits_moon-solo-s3/metrics.jsonl')
  assert [line['round'] for line in metrics] == [1, 2, 3]
  assert ['test_accuracy' in line for line in metrics] == [False, True, True]
  assert 'contrastive_loss' not in metrics[0]
  assert 'test_accuracy_std' in metrics[1]
  moon = read_lines(workdir / 'metrics.jsonl')
  assert [line['train_loss'] for line in metrics] != [m['train_loss'] for m in moon[:3]]


def test_fedavg_on_an_npz_file_which_then_changes(tmp_path):
  rng = np.random.default_rng(0)
  labels = np.arange(120) % 3
  # Class i is bright in column i.
  images = rng.integers(0, 60, (120, 6, 5, 3), dtype=np.uint8)
  images[np.arange(120), :, labels] += 180

  def save():
    np.savez(
      tmp_path / 'mine.npz',
      train_x=images[:90],
      train_y=labels[:90],
      test_x=images[90:],
      test_y=labels[90:],
    )

  save()
  words = [
    '--config.algorithm=fedavg',
    '--config.data.source=npz',
    '--config.data.path=mine.npz',
    '--config.num_clients=3',
    '--config.partition.name=iid',
    '--config.batch_size=8',
    '--config.optimizer.learning_rate=0.05',
    '--workdir=.',
  ]
  check_success(launch(tmp_path, *words, '--config.num_rounds=2'))
  for line in read_lines(tmp_path / 'metrics.jsonl'):
    assert line['train_loss'] == line['supervised_loss']
  summary = json.loads((tmp_path / 'summary.json').read_text())
  assert summary['rounds'] == 2
  # One in three by guessing.
  assert summary['test_accuracy'] > 0.8
  with np.load(tmp_path / 'partition.npz') as saved:
    assert saved['class_counts'].shape == (3, 3)

  images[0, 0, 0] += 1
  save()
  before = contents(tmp_path)
  done = launch(tmp_path, *words, '--config.num_rounds=3')
  # Who looked last stands in the lock.
  before['.lock'] = (tmp_path / '.lock').read_bytes()
  assert done.returncode == ExitCode.USAGE
  assert done.stderr == (
    'The run in . was trained on other data than this; give this one a --workdir.\n'
  )
  assert contents(tmp_path) == before


# --- the source -----------------------------------------------------------------------


def test_nothing_is_pickled():
  code = [
    *ROOT.glob('*.py'),
    *ROOT.glob('configs/*.py'),
    *ROOT.rglob('moon_jax/**/*.py'),
  ]
  assert len(code) > 20
  for path in code:
    text = path.read_text()
    assert not re.search(r'\b(import|from) (pickle|dill|cloudpickle|shelve)', text), (
      path
    )
    assert not re.search(r'allow_pickle\s*=\s*(?!False)', text), path


# --- the learning rate's schedule -----------------------------------------------------


@pytest.mark.slow
def test_each_round_has_its_learning_rate_after_resuming_too(tmp_path):
  flags = ['schedule=exponential', 'decay=1e-4', 'decay_every=1']
  words = [*TINY, *(f'--config.optimizer.{flag}' for flag in flags)]
  for num_rounds in (1, 3):
    check_success(launch(tmp_path, *words, f'--config.num_rounds={num_rounds}'))
  lines = read_lines(tmp_path / 'runs/digits_moon-moon-s0/metrics.jsonl')
  first, second, third = (line['drift'] for line in lines)
  # What a client moves is proportional to the rate, and otherwise of one size.
  assert 1e-5 < second / first < 1e-3
  # Below float32's resolution of the weights nearly nothing moves.
  assert third < second / 10
