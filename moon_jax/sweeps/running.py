"""Runs what is left of a sweep, in this process or in several.

The lock of a run directory is the queue: a process that finds a run that is neither
finished nor locked runs it. So several processes, or machines, may share one sweep.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import jax
from rich import progress

from moon_jax.building import data, scheduling
from moon_jax.config import Config, ConfigError
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, NoCheckpointError, RunError, UsageError
from moon_jax.core.types import Dataset
from moon_jax.platform import devices
from moon_jax.runner import loggers, loop, run_directory
from moon_jax.runner.signals import Stop, StoppedError
from moon_jax.sweeps.runs import SweepRun

LOGS = 'jobs'  # the folder of the processes' output
FINISHED = 'finished'
_PR_SET_PDEATHSIG = 1  # a constant of Linux


def state_of(run: SweepRun) -> str:
  """'finished', '12 of 30 rounds', 'new', 'diverged in round 3', or a complaint.

  A run whose records are finite, though it has diverged, counts as one with rounds.
  """
  workdir, config = run.request.workdir, run.request.config
  try:
    if run_directory.why_finished(workdir, config):
      return FINISHED
    rounds = files.read_lines(workdir / run_directory.METRICS)
  except RunError as error:
    return str(error)
  if rounds and None in rounds[-1].values():  # NaN or an infinity
    return f'diverged in round {rounds[-1]["round"]}'
  return f'{len(rounds)} of {config.num_rounds} rounds' if rounds else 'new'


def rounds_done(run: SweepRun) -> int:
  """Number of recorded rounds."""
  path = run.request.workdir / run_directory.METRICS
  with contextlib.suppress(OSError), files.opened(path) as file:
    return file.read().count(b'\n')
  return 0


def unfinished_runs(runs: Sequence[SweepRun]) -> list[SweepRun]:
  """The runs that are not finished."""
  return [run for run in runs if not _is_finished(run)]


def _is_finished(run: SweepRun) -> bool:
  with contextlib.suppress(RunError):
    return bool(run_directory.why_finished(run.request.workdir, run.request.config))
  return False


def check(runs: Sequence[SweepRun]) -> None:
  """Checks whether every run can be in its directory, and prints what to know of it.

  Raises:
    ConfigError: some directories hold another experiment; one line each.
  """
  problems = []
  for run in runs:
    try:
      loggers.require(run.request.config.logger)
      notices = run_directory.check(run.request.workdir, run.request.config)
      if state_of(run) == FINISHED:  # other runs print them when they begin
        for notice in notices:
          print(f'{run.name}: {notice}', file=sys.stderr)
    except NoCheckpointError:
      pass  # reported when the run begins, and no reason to hold other runs back
    except UsageError as error:
      problems.append(str(error))
  if problems:
    raise ConfigError(dict.fromkeys(problems))


def run_here(runs: Sequence[SweepRun], stop: Stop) -> list[RunError]:
  """Runs one run after another, each once, unless another process is running it.

  Args:
    runs: all runs of the sweep.
    stop: what can end it early.

  Returns:
    The errors that ended some runs, after they have been printed. A
    `run_directory.BusyError` means that another process is running the run.

  Raises:
    StoppedError: it was asked to stop, and the run has saved its finished rounds.
  """
  unfinished = unfinished_runs(runs)
  if not unfinished:
    return []
  errors: list[RunError] = []
  load = caching_loader()
  begin = time.monotonic()
  # Over all runs, so that a sweep that continues has the same programs.
  min_steps = most_steps([run.request.config for run in runs], load)
  for index, run in enumerate(unfinished):
    time_left = ''
    if index:
      # A request may have come in the last round of the run before, which has ended.
      stop.check(rounds_done(unfinished[index - 1]))
      seconds_per_run = (time.monotonic() - begin) / index
      seconds_left = seconds_per_run * (len(unfinished) - index)
      time_left = f', about {seconds_left / 60:.0f} min left'
    print(f'[run {index + 1} of {len(unfinished)}{time_left}] {run.name}', flush=True)
    try:
      loop.run(run.request, stop, load=load, min_steps=min_steps)
    except (StoppedError, MemoryError):
      raise
    except RunError as error:  # it ends no other run
      is_busy = isinstance(error, run_directory.BusyError)
      reason = 'another process is running it' if is_busy else error
      print(f'{run.name}: {reason}', file=sys.stderr)
      errors.append(error)
    except Exception as error:  # of a callback, for example
      traceback.print_exc()
      errors.append(RunError(f'{run.name}: {error!r}'))
  return errors


def caching_loader() -> Callable[[data.DataOptions], Dataset]:
  """A function that loads data, but not again if the last run had the same."""
  datasets: dict[str, Dataset] = {}  # one at most

  def load(options):
    key = repr((options.source, options.limit, options.source_options))
    if key not in datasets:
      datasets.clear()  # first, because two data sets may not fit in memory
      datasets[key] = data.load_data(options)
    return datasets[key]

  return load


def most_steps(
  configs: Sequence[Config], load: Callable[[data.DataOptions], Dataset]
) -> int:
  """The largest number of steps that a lane of any of the runs may need."""
  execution = configs[0].execution
  devices.claim(execution.devices, deterministic=execution.deterministic)
  max_steps = 0
  for config in map(data.with_one_client_if_centralized, configs):
    with contextlib.suppress(RunError):  # reported when the run begins
      options = data.DataOptions(config)
      divided = data.divide(load(options), options)
      if options.users_are_clients:
        config = data.with_num_clients(config, divided.num_clients)
      steps = scheduling.max_steps(
        scheduling.TrainingSetupOptions(config),
        divided.partition.sizes,
        jax.default_backend(),
      )
      max_steps = max(max_steps, steps)
  return max_steps


def run_in_processes(
  argv: Sequence[str], runs: Sequence[SweepRun], num_processes: int, stop: Stop
) -> int:
  """Runs what is left in several processes, each with its share of cores or GPUs.

  Args:
    argv: words of the command line.
    runs: all runs of the sweep.
    num_processes: number of processes.
    stop: what can end them early.

  Returns:
    The exit code of a process that was stopped; otherwise ExitCode.DONE.
  """
  logs = runs[0].request.workdir.parent / LOGS
  files.require_no_link(logs)
  files.make_folder(logs)
  command = [sys.executable, '-m', 'moon_jax.sweep', *argv, '--no-report']
  workers: list[subprocess.Popen] = []
  with contextlib.ExitStack() as open_logs:
    for index in range(num_processes):
      log = open_logs.enter_context(files.appended(logs / f'{index}.log'))
      worker = subprocess.Popen(
        [*command, f'--share={index}/{num_processes}'],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,  # signals of the terminal reach it by `stop` alone
      )
      workers.append(worker)
      stop.pass_on_to(worker)
    _show_progress(runs, workers)
  # A worker that had just started ends by the signal, without a code of its own.
  exit_codes = {stop.exit_code, *(worker.wait() for worker in workers)}
  for exit_code in (ExitCode.PREEMPTED, ExitCode.INTERRUPTED):
    if exit_code in exit_codes:
      return exit_code
  return ExitCode.DONE


def _show_progress(
  runs: Sequence[SweepRun], workers: Sequence[subprocess.Popen]
) -> None:
  """Shows a bar of the rounds of all runs until the workers have ended."""
  num_rounds = sum(run.request.config.num_rounds for run in runs)
  bar = progress.Progress(
    'rounds',
    progress.MofNCompleteColumn(),
    progress.BarColumn(20),
    progress.TimeRemainingColumn(),
    '{task.fields[runs]}',
  )
  with bar:
    task = bar.add_task('', total=num_rounds, runs='')
    while any(worker.poll() is None for worker in workers):
      num_finished = len(runs) - len(unfinished_runs(runs))
      text = f'{num_finished} of {len(runs)} runs'
      bar.update(task, completed=sum(map(rounds_done, runs)), runs=text)
      _wait_for_all(workers, seconds=1.0)


def _wait_for_all(workers: Sequence[subprocess.Popen], seconds: float) -> None:
  """Waits until all have ended, or for some seconds."""
  end = time.monotonic() + seconds
  with contextlib.suppress(subprocess.TimeoutExpired):
    for worker in workers:
      worker.wait(max(0.0, end - time.monotonic()))


def take_share(share: str) -> None:
  """Gives this process its part, 'i/n', of the GPUs, or of the cores if there is none.

  If several processes share a GPU, none takes its memory in advance, as JAX does. The
  process also gets SIGTERM when its parent has ended. Call this before JAX computes.
  """
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
  index, num_processes = map(int, share.split('/'))
  gpus = devices.visible_gpus()
  if gpus:
    os.environ['CUDA_VISIBLE_DEVICES'] = gpus[index % len(gpus)]
    if num_processes > len(gpus):
      os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  elif hasattr(os, 'sched_setaffinity'):  # Linux only
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[index::num_processes] or cores)
