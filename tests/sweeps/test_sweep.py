"""A sweep gives what launch.py gives, but sooner; after a stop the rest is trained."""

import functools
import importlib
import os
import pathlib
import re
import shutil
import signal
import statistics
import sys
import time
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import moon_jax
from moon_jax import __main__, api, catalog, config
from moon_jax.building import programs
from moon_jax.building.data import DataOptions
from moon_jax.core.errors import DivergedError, ExitCode, RunError
from moon_jax.runner import run_directory
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.record_files import Records
from moon_jax.runner.stop_requests import Stop
from moon_jax.sweeps import command, running
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


def sweep(folder, words, program=command.main, stop=None):
  """Runs the sweep's program in this process, in a folder, to its end."""
  if program is command.main and not any('--slurm' in word for word in words):
    words = ['--jobs=1', *words]  # however many cores there are
  with pytest.MonkeyPatch.context() as environment:
    environment.setenv('XLA_FLAGS', os.environ['XLA_FLAGS'])  # a run adds to it
    return processes.launched(
      folder, words, program=lambda argv: program(argv, stop or Stop())
    )


def dry_run(folder, words):
  """The lines about what is left."""
  process = sweep(folder, [*words, '--dry-run'])
  check_success(process)
  return process.stdout.splitlines()


@pytest.fixture(autouse=True, scope='module')
def _quick_runs_without_figures(quick_runs, empty_figures):
  """The runs of this file share programs, and no pictures are drawn."""


class Swept(NamedTuple):
  """A sweep that has ended."""

  folder: pathlib.Path
  stdout: str


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
  folder = tmp_path_factory.mktemp('swept')
  process = sweep(folder, [*TINY, *OVER])
  assert process.returncode == ExitCode.DONE, process.stderr
  # So short a training may learn nothing, which the report says; nothing else is wrong.
  assert all('runs at chance' in line for line in process.stderr.splitlines())
  return Swept(folder, process.stdout)


@pytest.mark.slow
def test_each_run_is_what_launch_py_makes_alone(swept, tmp_path, monkeypatch):
  # The single run compiles its own program.
  monkeypatch.setattr(programs, 'compile_programs', compile_programs)
  words = ('--config.algorithm=moon', '--config.seed=1', '--workdir=run')
  check_success(sweep(tmp_path, [*TINY, *words], program=__main__.launch))
  run = swept.folder / 'out/moon-seed=1'
  processes.check_same_records(run, tmp_path / 'run')
  assert checkpoint(run, 2) == checkpoint(tmp_path / 'run', 2)


def test_the_sweep_tells_its_runs_and_ends_with_a_report(swept):
  for number, name in enumerate(RUNS, 1):
    assert f'[run {number} of 4' in swept.stdout
    assert f'] {name}\n' in swept.stdout
  for line_start in ('devices', 'partition'):  # the same in all runs
    assert swept.stdout.count(f'\n{line_start}: ') == 1
  assert (swept.folder / 'out/report/index.html').exists()


def test_finished_runs_are_left_alone_and_another_value_is_added(swept):
  runs = swept.folder / 'out'
  timings = {name: read_lines(runs / name / 'timings.jsonl') for name in RUNS}
  over = (*OVER[:3], 'seed=0,1,2', '--out=out')
  *state_lines, cost_line = dry_run(swept.folder, [*TINY, *over])
  states = [line.split()[0] for line in state_lines]
  assert states == ['finished', 'finished', 'new'] * 2
  # Two runs are left, like those that have finished: each some seconds and some 100 kB.
  minutes, megabytes = map(float, re.findall(r'[\d.]+', cost_line))
  seconds = sum(sum_of_seconds(runs / name) for name in RUNS)
  assert minutes == pytest.approx(seconds / 2 / 60, abs=0.06)
  num_bytes = sum(
    path.stat().st_size for name in RUNS for path in (runs / name).rglob('*')
  )
  assert megabytes == pytest.approx(num_bytes / 2 / 1e6, abs=0.06)
  check_success(sweep(swept.folder, [*TINY, *over, '--no-report']))
  for name in RUNS:
    assert read_lines(runs / name / 'timings.jsonl') == timings[name]
  assert len(read_lines(runs / 'moon-seed=2/metrics.jsonl')) == 2


def sum_of_seconds(run):
  """The seconds of compiling, training, testing and saving of a run of two rounds."""
  phases = ('compile', 'train', 'evaluate', 'save')
  lines = read_lines(run / 'timings.jsonl')
  return sum(line[f'{phase}_seconds'] for line in lines for phase in phases)


def test_what_is_left_of_a_sweep_that_has_not_begun_or_has_more_rounds(swept, tmp_path):
  *state_lines, cost_line = dry_run(tmp_path, [*TINY, *OVER])
  assert len(state_lines) == 4
  assert cost_line == 'left: unknown; the first rounds of a run give an estimate'
  assert list(tmp_path.iterdir()) == []
  # The time is estimated from another sweep of the same clients on this machine.
  other_sweep = ('--over', 'algorithm=fedavg', '--over', 'seed=5,6', '--out=other')
  *_, cost_line = dry_run(swept.folder, [*TINY, *other_sweep])
  assert cost_line.endswith(' MB of disk, by earlier runs on this machine')
  minutes, _ = map(float, re.findall(r'[\d.]+', cost_line))
  seconds = [sum_of_seconds(run) for run in (swept.folder / 'out').glob('fedavg-*')]
  assert minutes == pytest.approx(2 * statistics.mean(seconds) / 60, abs=0.06)
  *_, cost_line = dry_run(swept.folder, [*TINY, *other_sweep, '--config.batch_size=3'])
  assert 'unknown' in cost_line
  *_, cost_line = dry_run(swept.folder, [*TINY, '--config.num_rounds=1', *OVER])
  assert cost_line == 'left: about 0.0 minutes of one process, 0.0 MB of disk'


def test_compiling_is_not_counted_for_every_round(tmp_path):
  times = {'compile_seconds': 60.0, 'train_seconds': 6.0}
  write_run(tmp_path / 'out/seed=0', [0.5], *TINY, '--config.algorithm=fedavg')
  write_lines(tmp_path / 'out/seed=0/timings.jsonl', [{'round': 1} | times])
  (tmp_path / 'out/seed=0/summary.json').unlink()
  words = ('--config.algorithm=fedavg', '--over', 'seed=0,1', '--out=out')
  *_, cost_line = dry_run(tmp_path, [*TINY, *words, '--config.num_rounds=11'])
  # 10 rounds of 6 s and a start, 11 rounds and a start: 60 + 60 + 66 + 60 s.
  assert cost_line.startswith('left: about 4.1 minutes')


def test_a_run_that_diverged_is_told(tmp_path):
  words = (*TINY, '--config.algorithm=fedavg')
  write_run(tmp_path / 'out/seed=0', [0.5, 0.1], *words, finished=False, drift=None)
  first, second, _ = dry_run(tmp_path, [*words, '--over', 'seed=0,1', '--out=out'])
  assert 'diverged in round 2' in first
  assert second.split()[0] == 'new'


def test_runs_of_another_experiment_are_told_before_anything_starts(swept):
  over = ('--over', 'algorithm=fedavg,moon', '--over', 'seed=0,7', '--out=out')
  process = sweep(swept.folder, [*TINY, '--config.batch_size=5', *over])
  assert process.returncode == ExitCode.USAGE
  lines = process.stderr.splitlines()
  assert len(lines) == 2
  for line, name in zip(lines, ('fedavg-seed=0', 'moon-seed=0'), strict=True):
    assert f'{name} holds another experiment: batch_size: ' in line
  assert not (swept.folder / 'out/fedavg-seed=7').exists()


@pytest.mark.slow
def test_processes_share_the_runs(swept, tmp_path):
  words = (*TINY, *OVER, '--jobs=2', '--no-report')
  check_success(launch(tmp_path, *words, program=SWEEP))
  for name in RUNS:
    metrics = (tmp_path / 'out' / name / 'metrics.jsonl').read_bytes()
    assert metrics == (swept.folder / 'out' / name / 'metrics.jsonl').read_bytes()
  assert len(list((tmp_path / 'out/jobs').iterdir())) == 2


@pytest.mark.parametrize(
  ('program', 'code'), [('true', ExitCode.DONE), ('false', ExitCode.FAILED)]
)
def test_a_process_that_fails_is_told_from_one_that_leaves_runs_to_others(
  program, code, tmp_path, monkeypatch
):
  monkeypatch.setattr(sys, 'executable', shutil.which(program))
  runs = command.parse(['--over', 'seed=0', f'--out={tmp_path / "out"}']).runs
  assert running.run_in_processes([], runs, 2, Stop()) == code


def test_a_missing_package_of_the_report_is_told_before_anything_trains(
  tmp_path, monkeypatch
):
  monkeypatch.setitem(sys.modules, 'tabulate', None)  # makes an import fail
  words = [*TINY, '--over', 'seed=0', '--out=out']
  process = sweep(tmp_path, words)
  assert (process.returncode, process.stdout) == (ExitCode.USAGE, '')
  assert process.stderr == (
    "A report needs tabulate: pip install 'moon_jax[report]'; --no-report leaves it "
    'out.\n'
  )
  assert list(tmp_path.iterdir()) == []
  monkeypatch.setattr(running, 'run_here', lambda *given: [RunError('the end')])
  process = sweep(tmp_path, [*words, '--no-report'])
  assert process.stderr == 'seed=0: new\n'
  dry_run(tmp_path, words)  # makes no report


@pytest.mark.slow
def test_processes_that_are_stopped_save_their_rounds_first(tmp_path):
  over = ('--over', 'seed=0,1', '--out=out', '--jobs=2', '--no-report')
  words = (
    *TINY,
    '--config.num_rounds=100000',
    '--config.checkpoint_every_rounds=100000',
  )
  logs = [tmp_path / f'out/jobs/{index}.log' for index in range(2)]
  with Running(tmp_path, *words, *over, program=SWEEP) as process:
    for log in logs:
      while not log.exists() or 'round 3/100000' not in log.read_text():
        time.sleep(0.05)
    process.send(signal.SIGTERM)
    ended = process.finish()
  assert ended.returncode == ExitCode.PREEMPTED
  assert ended.stderr == (
    'SIGTERM: saving after this round; SIGTERM or Ctrl-C now stops at once.\n'
    'Stopped; what was saved stays. To go on: the same command\n'
  )
  assert all('which is saved. To go on: ' in log.read_text() for log in logs)


# Words of the command line -> what the complaint has.
MISTAKES = {
  ('--over', 'seed'): "--over='seed' must be KNOB=VALUE,VALUE",
  ('--jobs=0',): 'jobs',
  ('--jobs=2', '--slurm=-t 1'): '--jobs and --slurm exclude each other',
  ("--slurm=--comment='",): 'No closing quotation.',
  ('--config.num_rounds',): '--config.num_rounds needs a value',
  ('--jbos=2',): "'--jbos=2' is an unknown flag; see --help. Did you mean '--jobs'?",
}


@pytest.mark.parametrize('words', MISTAKES)
def test_mistakes_are_one_line_and_nothing_is_written(words, tmp_path):
  process = sweep(tmp_path, words)
  assert (process.returncode, process.stdout) == (ExitCode.USAGE, '')
  (line,) = process.stderr.splitlines()
  assert MISTAKES[words] in line
  assert list(tmp_path.iterdir()) == []


def test_the_program_of_its_name_does_not_hide_the_function():
  with pytest.raises(ImportError, match='is a function'):
    importlib.import_module('moon_jax.sweep')
  assert moon_jax.sweep is api.sweep


def common():
  """The settings that the runs share, as a configuration."""
  knobs = dict(word.removeprefix('--config.').split('=') for word in TINY)
  changes = {knob: config.from_word(knob, word) for knob, word in knobs.items()}
  return moon_jax.load_config('configs/digits_moon.py', changes)


def name_of(learning_rate, seed):
  """The name of a run of a sweep over rates and seeds."""
  return f'optimizer.learning_rate={learning_rate}-seed={seed}'


def test_an_error_that_ends_a_run_stops_no_other(tmp_path, capsys, monkeypatch):
  save = Checkpoints.save
  over = {'optimizer.learning_rate': [1e30, 0.01], 'seed': [0, 1, 2]}
  busy_run = tmp_path / name_of(0.01, 1)

  def save_unless_the_disk_is_full(checkpoints, *state_and_entries):
    if checkpoints._directory.parent.name == name_of(0.01, 0):
      raise RunError('the disk is full')
    save(checkpoints, *state_and_entries)

  with monkeypatch.context() as patch, run_directory.locked(busy_run):
    patch.setattr(Checkpoints, 'save', save_unless_the_disk_is_full)
    with pytest.raises(DivergedError, match='Diverged in round 1'):
      moon_jax.sweep(common(), over, tmp_path)
  stderr = capsys.readouterr().err
  assert f'{name_of(1e30, 2)}: Diverged in round 1.' in stderr
  assert f'{name_of(0.01, 0)}: the disk is full' in stderr
  assert f'{name_of(0.01, 1)}: another process is running it' in stderr
  finished = [path.parent.name for path in tmp_path.glob('*/summary.json')]
  assert finished == [name_of(0.01, 2)]
  # A run that another process is running has not failed.
  words = ('--config.optimizer.learning_rate=0.01', '--over', 'seed=1', '--no-report')
  busy = tmp_path / 'busy'
  with run_directory.locked(busy / 'seed=1'):
    process = sweep(tmp_path, [*TINY, *words, f'--out={busy}'])
  assert process.returncode == ExitCode.DONE
  assert process.stderr.splitlines() == [
    'seed=1: another process is running it',
    'seed=1: new',
    'Other processes are running what is left.',
  ]
  # A callback that fails is no RunError.
  settings = common()
  moon_jax.register_callback(lambda round: 1 / 0)
  with pytest.raises(RunError, match=r'seed=4: ZeroDivisionError'):
    moon_jax.sweep(settings, {'seed': np.arange(4, 6)}, tmp_path)
  catalog.forget_callbacks()
  assert capsys.readouterr().err.count('ZeroDivisionError: ') == 2
  # The runs that are left are named, and the others reported.
  over_words = ('--over', 'optimizer.learning_rate=1e30,0.01', '--over', 'seed=0')
  process = sweep(tmp_path, [*TINY, *over_words, '--out=.'])
  assert process.returncode == ExitCode.FAILED
  assert f'{name_of("1e30", 0)}: diverged in round 1\n' in process.stderr
  assert (tmp_path / 'report/index.html').exists()


def test_from_python_a_failure_comes_before_a_busy_run(tmp_path, monkeypatch):
  busy = run_directory.BusyError('Another process is running')
  errors = [busy, DivergedError('Diverged in round 1.'), RunError('the disk is full')]
  monkeypatch.setattr(api.running, 'run_here', lambda runs, stop, load: errors)
  with pytest.raises(DivergedError, match='Diverged in round 1'):
    moon_jax.sweep(common(), {'seed': [0, 1]}, tmp_path)
  del errors[1:]
  with pytest.raises(run_directory.BusyError, match='Another process is running'):
    moon_jax.sweep(common(), {'seed': [0, 1]}, tmp_path)


def test_runs_that_cannot_begin_are_told_before_any_trains(tmp_path):
  over = ('--over', 'algorithm=fedavg,fedbn', '--over', 'seed=0,1', '--out=out')
  for words in (
    (*TINY, *over),
    (*TINY, *over, '--dry-run'),
    (*TINY, *over, '--jobs=2'),
  ):
    process = sweep(tmp_path, words)
    assert (process.returncode, process.stdout) == (ExitCode.USAGE, '')
    (line,) = process.stderr.splitlines()
    assert line.startswith('fedbn-seed=0 (and 1 more): ')
    assert 'the network has none' in line
    assert list(tmp_path.iterdir()) == []
  # A step of Per-FedAvg takes two batches; the clients have 22 examples.
  words = [f'--config.{knob}' for knob in ('batch_size=16', 'drop_last=true')]
  words += ['--config.data.local_test=0.25', '--over', 'algorithm=fedavg,per_fedavg']
  process = sweep(tmp_path, [*TINY, *words, '--out=out'])
  (line,) = process.stderr.splitlines()
  assert line.startswith('per_fedavg: Client ')
  assert 'less than 2 batches of --config.batch_size=16' in line


def test_a_request_to_stop_in_the_last_round_of_a_run_begins_no_other(
  tmp_path, monkeypatch
):
  write_metrics = Records.write_metrics
  stop = Stop()

  def interrupt_in_the_last_round(records):
    write_metrics(records)
    if records.rounds[-1]['round'] == 2:
      stop.request(signal.SIGINT)

  monkeypatch.setattr(Records, 'write_metrics', interrupt_in_the_last_round)
  process = sweep(tmp_path, [*TINY, '--over', 'seed=0,1', '--out=.'], stop=stop)
  assert process.returncode == ExitCode.INTERRUPTED
  assert 'To go on: python -m moon_jax.sweep' in process.stderr
  # The round is saved; the same command draws its pictures and ends it.
  assert (tmp_path / 'seed=0/checkpoints/2').exists()
  assert not (tmp_path / 'seed=0/summary.json').exists()
  assert not (tmp_path / 'seed=1').exists()


def test_from_python_auto_and_own_knobs_are_those_of_each_run(
  tmp_path, monkeypatch, own_parts
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine.py').write_text(MINE)
  common_config = moon_jax.load_config('mine.py', {'algorithm': 'fedavg'})
  assert common_config.mine.mu == 5.0
  configs = []

  def run_here(runs, stop, load):
    configs.extend(run.request.config for run in runs)
    return [RunError('the end')]

  monkeypatch.setattr(api.running, 'run_here', run_here)
  over = {'algorithm': ['fedavg', 'mine'], 'server_optimizer.name': ['sgd', 'adam']}
  with pytest.raises(RunError, match='the end'):
    moon_jax.sweep(common_config, over, tmp_path / 'out')
  rates = [run_config.server_optimizer.learning_rate for run_config in configs]
  assert rates == [1.0, 0.01] * 2
  assert [run_config.mine.mu for run_config in configs[2:]] == [5.0, 5.0]


def test_from_python_it_is_one_table(swept, tmp_path):
  over = {'algorithm': ['fedavg', 'moon'], 'seed': [0, 1]}
  rows = moon_jax.sweep(common(), over, tmp_path / 'out')
  assert [(row['algorithm'], row['seed']) for row in rows] == [
    (name, seed) for name in ('fedavg', 'moon') for seed in (0, 1)
  ]
  for name, row in zip(RUNS, rows, strict=True):
    assert row['workdir'] == str(tmp_path / 'out' / name)
    (*_, last_round) = read_lines(swept.folder / 'out' / name / 'metrics.jsonl')
    accuracy = last_round['test_accuracy']
    assert row['test_accuracy'] == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.parametrize(
  ('device_counts', 'num_cores', 'num_gpus', 'number', 'reason'),
  [
    ([8, 8], 2, 0, 1, '1 process: a run can use 2 of 2 cores'),
    ([4, 1, 4, 4], 16, 0, 4, '4 processes: a run can use 4 of 16 cores'),
    ([4, 4], 16, 0, 2, '2 processes: a run can use 4 of 16 cores'),
    ([4, 4], 6, 0, 1, '1 process: a run can use 4 of 6 cores'),
    ([1, 1, 1], 2, 0, 2, '2 processes: a run can use 1 of 2 cores'),
    ([8, 8, 8], 16, 2, 2, '2 processes: 2 GPUs'),
    ([8], 16, 2, 1, '1 process: 2 GPUs'),
  ],
)
def test_a_second_process_begins_where_a_run_cannot_use_all_cores(
  device_counts, num_cores, num_gpus, number, reason
):
  jobs = running.choose_jobs(device_counts, num_cores, num_gpus)
  assert jobs == (number, f'{reason}; --jobs chooses another number')


@pytest.mark.parametrize(
  ('seeds', 'trains_here', 'lines'),
  [('0', True, ''), ('0,1', False, '2 processes: 2 GPUs; --jobs chooses another numb')],
)
def test_one_run_that_is_left_trains_in_this_process_on_a_gpu(
  seeds, trains_here, lines, tmp_path, monkeypatch
):
  done = []
  monkeypatch.setattr(running.devices, 'visible_gpus', lambda: ['0', '1'])

  def claim_devices(runs, *, trains_here):
    done.append(trains_here)

  def run_in_processes(*given):
    done.append('in processes')

  monkeypatch.setattr(running, 'claim_devices', claim_devices)
  monkeypatch.setattr(running, 'run_in_processes', run_in_processes)

  def run_here(*given):
    done.append('here')
    return [RunError('the end')]

  monkeypatch.setattr(running, 'run_here', run_here)
  words = [*TINY, '--over', f'seed={seeds}', '--out=out']
  program = functools.partial(command.main)  # to which `sweep` gives no --jobs
  process = sweep(tmp_path, words, program=program)
  assert process.returncode == ExitCode.FAILED  # no run is finished
  assert done == [trains_here, 'here' if trains_here else 'in processes']
  assert process.stdout.startswith(lines)


def test_what_any_run_asks_for_is_claimed_once(monkeypatch):
  claimed = []

  def claim(requested, *, deterministic):
    claimed.append((requested, deterministic))

  monkeypatch.setattr(running.devices, 'claim', claim)
  monkeypatch.setattr(running.devices, 'visible_gpus', lambda: [])
  words = [word for word in TINY if 'devices' not in word]
  over = ('--over', 'execution.deterministic=false,true', '--out=out', '--over')
  for counts in ('1,3,2', '3,auto'):
    runs = command.parse([*words, *over, f'execution.devices={counts}']).runs
    running.claim_devices(runs, trains_here=True)
    running.most_steps([run.request.config for run in runs], running.caching_loader())
  assert claimed == [(3, True), (3, True), ('auto', True), ('auto', True)]


def test_processes_that_share_a_gpu_are_told_whether_mps_runs(tmp_path, monkeypatch):
  monkeypatch.setenv('CUDA_MPS_PIPE_DIRECTORY', str(tmp_path))
  assert running.describe_sharing(3, 1).startswith(
    "3 processes share 1 GPU. NVIDIA's MPS is not found"
  )
  os.mkfifo(tmp_path / 'control')
  sharing = running.describe_sharing(3, 2)
  assert sharing == "3 processes share 2 GPUs by NVIDIA's MPS."
  # A GPU for each, or none at all.
  assert running.describe_sharing(2, 2) == running.describe_sharing(3, 0) == ''


def test_a_run_uses_a_device_for_each_client_of_a_round():
  words = [*TINY, '--over', 'participation=0.5,1.0', '--over', 'seed=0', '--out=o']
  words.remove('--config.execution.devices=1')
  load = running.caching_loader()
  assert running.check_parts(command.parse(words).runs, load) == [1, 2]
  words.append('--config.execution.devices=1')
  assert running.check_parts(command.parse(words).runs, load) == [1, 1]


def test_a_sweep_is_estimated_by_its_first_run(tmp_path):
  over = ('--over', 'algorithm=fedavg,moon', '--over', 'local_epochs=1,3')
  argv = [*(word for word in TINY if 'local_epochs' not in word), *over]
  runs = command.parse([*argv, f'--out={tmp_path / "o"}']).runs
  first_config = runs[0].request.config
  # FedAvg with one epoch and with three: two rounds of 5 and of 15 s.
  assert running.describe_rest(first_config, 5.0, runs) == (
    'about 40 s for 2 runs of the sweep (2 runs of other kinds are not counted)'
  )
  # Rounds that are done do not count.
  begun = tmp_path / 'o' / runs[1].name
  begun.mkdir(parents=True)
  write_lines(begun / 'metrics.jsonl', [{'round': 1}])
  assert running.describe_rest(first_config, 5.0, runs).startswith('about 25 s for 2')
  assert running.describe_rest(first_config, 300.0, runs[:1]) == (
    'about 10 min for 1 run of the sweep'
  )
  assert running.describe_rest(first_config, 4.0, runs[:1]) == ''


def test_each_run_of_a_sweep_has_its_own_data():
  load = running.caching_loader()
  settings = config.flatten(common().to_dict())
  dataset, smaller, same = (
    load(DataOptions(config.validate(settings | {'data.limit': limit})))
    for limit in (90, 60, 60)
  )
  assert len(dataset.train_labels) == 90
  assert len(smaller.train_labels) == 60
  assert same is smaller


def test_lines_about_a_data_set_are_printed_once(tmp_path, capsys):
  for folder in ('one', 'two'):
    for row in range(16):
      site, name = ('rural', 'city')[row // 8], ('cat', 'dog')[row % 2]
      path = tmp_path / folder / site / name / f'{row}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      Image.fromarray(np.full((4, 4), row, np.uint8)).save(path)
  load = running.caching_loader()
  for folder in ('one', 'two', 'one'):
    knobs = {'data.source': 'imagefolder', 'data.path': str(tmp_path / folder)}
    load(DataOptions(config.validate(knobs | {'data.test_fraction': 0.5})))
  stderr = capsys.readouterr().err
  for folder in ('one', 'two'):
    assert stderr.count(f"{folder}' is read as DOMAIN/CLASS/*") == 1


@pytest.mark.slow
def test_seeds_betas_and_mus_share_one_program(tmp_path):
  knobs = ('partition.beta=0.1,0.5', 'moon.mu=1,5', 'seed=0,1')
  over = [word for knob in knobs for word in ('--over', knob)]
  words = (
    *over,
    *(word for word in TINY if 'partition' not in word),
    '--config.partition.min_size=1',
    '--config.batch_size=8',
    f'--config.execution.compile_cache={tmp_path / "programs"}',
    '--out=out',
    '--no-report',
  )
  check_success(launch(tmp_path, *words, program=SWEEP))
  assert len(list(tmp_path.glob('out/*/summary.json'))) == 8
  names = sorted(path.name for path in tmp_path.glob('programs/programs/*-cache'))
  programs_kept = [name.partition('-')[0] for name in names]
  assert programs_kept == ['jit_evaluate', 'jit_run_round']


@pytest.mark.parametrize(
  ('share', 'gpu', 'takes_in_advance'), [('1/2', '7', None), ('2/3', '4', 'false')]
)
def test_processes_that_share_a_gpu_do_not_take_its_memory_in_advance(
  share, gpu, takes_in_advance, monkeypatch
):
  # Else this process would compile in turn with others, or lose its cores.
  take_turns, set_cores = mock.Mock(), mock.Mock()
  monkeypatch.setattr(running.compile_cache, 'take_turns', take_turns)
  monkeypatch.setattr(os, 'sched_setaffinity', set_cores)
  monkeypatch.setenv('JAX_PLATFORMS', '')
  with mock.patch.dict(os.environ, {'CUDA_VISIBLE_DEVICES': '4,7'}):
    os.environ.pop('XLA_PYTHON_CLIENT_PREALLOCATE', None)
    running.take_share(share)
    assert os.environ['CUDA_VISIBLE_DEVICES'] == gpu
    assert os.environ.get('XLA_PYTHON_CLIENT_PREALLOCATE') == takes_in_advance
  take_turns.assert_called_once_with()
  set_cores.assert_not_called()
