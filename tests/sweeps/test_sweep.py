"""A sweep gives what launch.py gives, but sooner; after a stop the rest is trained."""

import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import moon_jax
from moon_jax import __main__, api, catalog, config
from moon_jax.building import programs
from moon_jax.core.errors import DivergedError, ExitCode, RunError
from moon_jax.data import sources
from moon_jax.runner import run_directory
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.records import Records
from moon_jax.runner.signals import Stop
from moon_jax.sweeps import command
from tests import processes
from tests.processes import Running, check_success, checkpoint, launch, read_lines
from tests.programs import compile_programs
from tests.run_directories import write_lines, write_run

SWEEP = ('-m', 'moon_jax.sweep')
MINE = """
import moon_jax
from moon_jax.config import import_config
digits_moon = import_config('configs/digits_moon.py')
knobs = {'mu': moon_jax.knob(float, 0.25, 'x', moon_jax.at_least(0))}
moon_jax.register_algorithm('mine', lambda mu: moon_jax.Algorithm(), knobs=knobs)
def get_config():
  config = digits_moon.get_config()
  config.mine.mu = 5.0
  return config
"""
# With one device, processes that share the cores round alike.
TINY = (
  '--config.execution.devices=1',
  '--config.data.limit=60',
  '--config.num_clients=2',
  '--config.partition.name=iid',
  '--config.mlp.width=8',
  '--config.mlp.representation=8',
  '--config.local_epochs=1',
  '--config.num_rounds=2',
)
OVER = ('--over', 'algorithm=fedavg,moon', '--over', 'seed=0,1', '--out=out')
RUNS = [f'{name}-seed={seed}' for name in ('fedavg', 'moon') for seed in (0, 1)]


def sweep(folder, *words, program=command.main, stop=None):
  """Runs the sweep's program in this process, in a folder, to its end."""
  with pytest.MonkeyPatch.context() as environ:
    environ.setenv('XLA_FLAGS', os.environ['XLA_FLAGS'])  # a run adds to it
    return processes.launched(
      folder, *words, program=lambda argv: program(argv, stop or Stop())
    )


def dry_run(folder, *words):
  """The lines about what is left."""
  done = sweep(folder, *words, '--dry-run')
  check_success(done)
  return done.stdout.splitlines()


@pytest.fixture(autouse=True, scope='module')
def quick(quick_runs, empty_figures):
  """The runs of this file share programs, and no pictures are drawn."""


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
  """A folder with a sweep that has ended, and its output."""
  folder = tmp_path_factory.mktemp('swept')
  done = sweep(folder, *TINY, *OVER)
  check_success(done)
  return folder, done.stdout


def test_each_run_is_what_launch_py_makes_alone(swept, tmp_path, monkeypatch):
  folder, _ = swept
  # The single run compiles its own program.
  monkeypatch.setattr(programs, 'compile_programs', compile_programs)
  words = ('--config.algorithm=moon', '--config.seed=1', '--workdir=run')
  check_success(sweep(tmp_path, *TINY, *words, program=__main__.launch))
  run = folder / 'out/moon-seed=1'
  processes.check_same_records(run, tmp_path / 'run')
  assert checkpoint(run, 2) == checkpoint(tmp_path / 'run', 2)


def test_the_sweep_tells_its_runs_and_ends_with_a_report(swept):
  folder, said = swept
  for number, name in enumerate(RUNS, 1):
    assert f'[run {number} of 4' in said
    assert f'] {name}\n' in said
  assert (folder / 'out/report/index.html').exists()


def test_finished_runs_are_left_alone_and_another_value_is_added(swept):
  folder, _ = swept
  before = {name: read_lines(folder / 'out' / name / 'timings.jsonl') for name in RUNS}
  over = (*OVER[:3], 'seed=0,1,2', '--out=out')
  *runs, left = dry_run(folder, *TINY, *over)
  assert [line.split()[0] for line in runs] == ['finished', 'finished', 'new'] * 2
  # Two runs are left, like those that have finished: each some seconds and some 100 kB.
  minutes, megabytes = map(float, re.findall(r'[\d.]+', left))
  spent = [sum_of_seconds(folder / 'out' / name) for name in RUNS]
  assert minutes == pytest.approx(sum(spent) / 2 / 60, abs=0.06)
  sizes = [sum(p.stat().st_size for p in (folder / 'out' / n).rglob('*')) for n in RUNS]
  assert megabytes == pytest.approx(sum(sizes) / 2 / 1e6, abs=0.06)
  check_success(sweep(folder, *TINY, *over, '--no-report'))
  for name in RUNS:
    assert read_lines(folder / 'out' / name / 'timings.jsonl') == before[name]
  assert len(read_lines(folder / 'out/moon-seed=2/metrics.jsonl')) == 2


def sum_of_seconds(run):
  """The seconds of compiling, training, testing and saving of a run of two rounds."""
  phases = ('compile', 'train', 'evaluate', 'save')
  lines = read_lines(run / 'timings.jsonl')
  return sum(line[f'{phase}_seconds'] for line in lines for phase in phases)


def test_what_is_left_of_a_sweep_that_has_not_begun_or_has_more_rounds(swept, tmp_path):
  *runs, left = dry_run(tmp_path, *TINY, *OVER)
  assert len(runs) == 4
  assert left == 'left: unknown; the first rounds of a run give an estimate'
  assert list(tmp_path.iterdir()) == []
  # The time is estimated from another sweep of the same clients on this machine.
  beside = (*TINY, '--over', 'algorithm=fedavg', '--over', 'seed=5,6', '--out=other')
  *_, left = dry_run(swept[0], *beside)
  assert left.endswith(' MB of disk, by earlier runs on this machine')
  minutes, _ = map(float, re.findall(r'[\d.]+', left))
  spent = list(map(sum_of_seconds, (swept[0] / 'out').glob('fedavg-*')))
  assert minutes == pytest.approx(2 * sum(spent) / len(spent) / 60, abs=0.06)
  *_, left = dry_run(swept[0], *beside, '--config.batch_size=3')
  assert 'unknown' in left
  *_, left = dry_run(swept[0], *TINY, '--config.num_rounds=1', *OVER)
  assert left == 'left: about 0.0 minutes of one process, 0.0 MB of disk'


def test_compiling_is_not_counted_for_every_round(tmp_path):
  times = {'compile_seconds': 60.0, 'train_seconds': 6.0}
  write_run(tmp_path / 'out/seed=0', [0.5], *TINY, '--config.algorithm=fedavg')
  write_lines(tmp_path / 'out/seed=0/timings.jsonl', [{'round': 1} | times])
  (tmp_path / 'out/seed=0/summary.json').unlink()
  words = ('--config.algorithm=fedavg', '--over', 'seed=0,1', '--out=out')
  *_, left = dry_run(tmp_path, *TINY, *words, '--config.num_rounds=11')
  # 10 rounds of 6 s and a start, 11 rounds and a start: 60 + 60 + 66 + 60 s.
  assert left.startswith('left: about 4.1 minutes')


def test_a_run_that_diverged_is_told(tmp_path):
  words = (*TINY, '--config.algorithm=fedavg')
  write_run(tmp_path / 'out/seed=0', [0.5, 0.1], *words, finished=False, drift=None)
  first, second, _ = dry_run(tmp_path, *words, '--over', 'seed=0,1', '--out=out')
  assert 'diverged in round 2' in first
  assert second.split()[0] == 'new'


def test_runs_of_another_experiment_are_told_before_anything_starts(swept):
  folder, _ = swept
  over = ('--over', 'algorithm=fedavg,moon', '--over', 'seed=0,7', '--out=out')
  words = (*TINY, '--config.batch_size=5', *over)
  done = sweep(folder, *words)
  assert done.returncode == ExitCode.USAGE
  lines = done.stderr.splitlines()
  assert len(lines) == 2
  for line, name in zip(lines, ('fedavg-seed=0', 'moon-seed=0'), strict=True):
    assert f'{name} holds another experiment: batch_size: ' in line
  assert not (folder / 'out/fedavg-seed=7').exists()


@pytest.mark.slow
def test_processes_share_the_runs(swept, tmp_path):
  folder, _ = swept
  words = (*TINY, *OVER, '--jobs=2', '--no-report')
  check_success(launch(tmp_path, *words, program=SWEEP))
  for name in RUNS:
    metrics = (tmp_path / 'out' / name / 'metrics.jsonl').read_bytes()
    assert metrics == (folder / 'out' / name / 'metrics.jsonl').read_bytes()
  assert len(list((tmp_path / 'out/jobs').iterdir())) == 2


@pytest.mark.slow
def test_processes_that_are_stopped_save_their_rounds_first(tmp_path):
  over = ('--over', 'seed=0,1', '--out=out', '--jobs=2', '--no-report')
  words = (*TINY, '--config.num_rounds=2000', '--config.checkpoint_every_rounds=2000')
  logs = [tmp_path / f'out/jobs/{index}.log' for index in range(2)]
  with Running(tmp_path, *words, *over, program=SWEEP) as process:
    for log in logs:
      while not log.exists() or 'round 3/2000' not in log.read_text():
        time.sleep(0.05)
    process.send(signal.SIGTERM)
    done = process.finish()
  told = 'Stopped; what was saved stays. To go on: the same command\n'
  assert (done.returncode, done.stderr) == (ExitCode.PREEMPTED, told)
  assert all('which is saved. To go on: ' in log.read_text() for log in logs)


BAD = {
  ('--over', 'seed'): "--over='seed' must be KNOB=VALUE,VALUE",
  ('--jobs=0',): 'jobs',
  ('--jobs=2', '--slurm=-t 1'): '--jobs and --slurm exclude each other',
  ("--slurm=--comment='",): '--slurm="--comment=\'": No closing quotation.',
  ('--config.num_rounds',): '--config.num_rounds needs a value',
  ('--jbos=2',): "'--jbos=2' is an unknown flag; see --help. Did you mean '--jobs'?",
}


@pytest.mark.parametrize('words', BAD)
def test_mistakes_are_one_line_and_nothing_is_written(words, tmp_path):
  done = sweep(tmp_path, *words)
  assert (done.returncode, done.stdout) == (ExitCode.USAGE, '')
  (line,) = done.stderr.splitlines()
  assert BAD[words] in line
  assert list(tmp_path.iterdir()) == []


def test_the_program_of_its_name_does_not_hide_the_function():
  with pytest.raises(ImportError, match='is a function'):
    importlib.import_module('moon_jax.sweep')
  assert moon_jax.sweep is api.sweep


def common():
  """The settings that the runs share, as a configuration."""
  given = dict(word.removeprefix('--config.').split('=') for word in TINY)
  changes = {name: config.from_word(name, word) for name, word in given.items()}
  return moon_jax.load_config('configs/digits_moon.py', changes)


def test_an_error_that_ends_a_run_stops_no_other(tmp_path, capsys, monkeypatch):
  save, place = Checkpoints.save, 'optimizer.learning_rate={}-seed={}'.format
  over = {'optimizer.learning_rate': [1e30, 0.01], 'seed': [0, 1, 2]}

  def save_but_of_one(self, state):
    if self._directory.parent.name == place(0.01, 0):
      raise RunError('the disk is full')
    save(self, state)

  with monkeypatch.context() as patch, run_directory.locked(tmp_path / place(0.01, 1)):
    patch.setattr(Checkpoints, 'save', save_but_of_one)
    with pytest.raises(DivergedError, match='Diverged in round 1'):
      moon_jax.sweep(common(), over, tmp_path)
  told = capsys.readouterr()
  assert f'{place(1e30, 2)}: Diverged in round 1.' in told.err
  assert f'{place(0.01, 1)}: another process is running it' in told.err
  finished = [path.parent.name for path in tmp_path.glob('*/summary.json')]
  assert finished == [place(0.01, 2)]
  # A callback that fails is no RunError.
  with monkeypatch.context() as patch:
    patch.setattr(catalog, 'callbacks', lambda: [lambda round: 1 / 0])
    with pytest.raises(RunError, match=r'seed=4: ZeroDivisionError'):
      moon_jax.sweep(common(), {'seed': np.arange(4, 6)}, tmp_path)
  assert capsys.readouterr().err.count('ZeroDivisionError: ') == 2
  # The last line names the runs that are left.
  over = ('--over', 'optimizer.learning_rate=1e30,0.01', '--over', 'seed=0')
  done = sweep(tmp_path, *TINY, *over, '--out=.', '--no-report')
  assert done.returncode == ExitCode.FAILED
  last = done.stderr.splitlines()[-1]
  assert last.startswith(f'{place("1e30", 0)}: ')


def test_a_request_to_stop_in_the_last_round_of_a_run_begins_no_other(
  tmp_path, monkeypatch
):
  add = Records.add_metrics
  stop, over = Stop(), ('--over', 'seed=0,1', '--out=.')

  def interrupt_in_the_last(records, record):
    add(records, record)
    if record['round'] == 2:
      stop.request(signal.SIGINT)

  monkeypatch.setattr(Records, 'add_metrics', interrupt_in_the_last)
  done = sweep(tmp_path, *TINY, *over, stop=stop)
  assert done.returncode == ExitCode.INTERRUPTED
  assert 'To go on: python -m moon_jax.sweep' in done.stderr
  assert (tmp_path / 'seed=0/summary.json').exists()
  assert not (tmp_path / 'seed=1').exists()


def test_from_python_auto_and_own_knobs_are_those_of_each_run(
  tmp_path, monkeypatch, own_parts
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine.py').write_text(MINE)
  given, seen = moon_jax.load_config('mine.py', {'algorithm': 'fedavg'}), []
  assert given.mine.mu == 5.0
  ends = [RunError('the end')]
  monkeypatch.setattr(
    api.running, 'run_here', lambda cells, stop: seen.extend(cells) or ends
  )
  over = {'algorithm': ['fedavg', 'mine'], 'server_optimizer.name': ['sgd', 'adam']}
  with pytest.raises(RunError, match='the end'):
    moon_jax.sweep(given, over, tmp_path / 'out')
  configs = [cell.request.config for cell in seen]
  assert [one.server_optimizer.learning_rate for one in configs] == [1.0, 0.01] * 2
  assert [one.mine.mu for one in configs[2:]] == [5.0, 5.0]


def test_from_python_it_is_one_table(swept, tmp_path):
  folder, _ = swept
  over = {'algorithm': ['fedavg', 'moon'], 'seed': [0, 1]}
  rows = moon_jax.sweep(common(), over, tmp_path / 'out')
  assert [(row['algorithm'], row['seed']) for row in rows] == [
    (name, seed) for name in ('fedavg', 'moon') for seed in (0, 1)
  ]
  for name, row in zip(RUNS, rows, strict=True):
    assert row['workdir'] == str(tmp_path / 'out' / name)
    (*_, last) = read_lines(folder / 'out' / name / 'metrics.jsonl')
    assert row['test_accuracy'] == pytest.approx(last['test_accuracy'], abs=1e-6)


def test_each_run_of_a_sweep_has_its_own_data(tmp_path):
  rows = moon_jax.sweep(common(), {'data.limit': [60, 90]}, tmp_path / 'out')
  for row, limit in zip(rows, (60, 90), strict=True):
    digest = sources.digest(sources.load('digits', limit=limit))
    saved = json.loads((pathlib.Path(row['workdir']) / 'config.json').read_text())
    assert saved['data_digest'] == digest


@pytest.mark.slow
def test_seeds_betas_and_mus_share_one_program(tmp_path):
  over = ('partition.beta=0.1,0.5', 'moon.mu=1,5', 'seed=0,1')
  words = [word for knob in over for word in ('--over', knob)]
  tiny = ('--config.partition.min_size=1', *(w for w in TINY if 'partition' not in w))
  cache = f'--config.execution.compile_cache={tmp_path / "programs"}'
  words += [*tiny, cache, '--config.batch_size=8', '--out=out', '--no-report']
  check_success(launch(tmp_path, *words, program=SWEEP))
  assert len(list(tmp_path.glob('out/*/summary.json'))) == 8
  programs = sorted(p.name for p in tmp_path.glob('programs/programs/*-cache'))
  assert [n.partition('-')[0] for n in programs] == ['jit_evaluate', 'jit_run_round']


@pytest.mark.parametrize(
  ('share', 'told'),
  [('1/2', ['7', None]), ('2/3', ['4', 'false'])],
  ids=['a GPU each', 'a shared GPU'],
)
def test_processes_that_share_a_gpu_do_not_take_its_memory_in_advance(share, told):
  program = f"""
import json, os
from moon_jax.sweeps import running
running.take_share({share!r})
names = 'CUDA_VISIBLE_DEVICES', 'XLA_PYTHON_CLIENT_PREALLOCATE'
print(json.dumps([os.environ.get(name) for name in names]))
"""
  # A process of its own: it would end with this one's parent.
  words, given = [sys.executable, '-c', program], {'CUDA_VISIBLE_DEVICES': '4,7'}
  given |= {n: os.environ[n] for n in os.environ if not n.startswith(('CUDA_', 'XLA_'))}
  done = subprocess.run(words, env=given, capture_output=True, check=True)
  assert json.loads(done.stdout) == told
