"""Runs what is left of a sweep, in this process or in several.

The lock of a run directory is the queue: a process that finds a run that is neither
finished nor locked runs it. So several processes, or machines, may share one sweep.
"""

import contextlib
import io
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, TextIO

import jax
from rich import progress

from moon_jax.building import data, experiment, scheduling
from moon_jax.config import Config, ConfigError
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, NoCheckpointError, RunError, UsageError
from moon_jax.core.flags import option
from moon_jax.core.types import Dataset
from moon_jax.platform import compile_cache, devices
from moon_jax.runner import loggers, run_directory, run_files, start
from moon_jax.runner.console import MIN_ESTIMATE_SECONDS, duration
from moon_jax.runner.screen import SILENT_SECONDS
from moon_jax.runner.stop_requests import Stop, StoppedError
from moon_jax.sweeps.planned_runs import SweepRun

LOGS = 'jobs'  # the folder of the processes' output
FINISHED = 'finished'


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
  if run_files.has_diverged(rounds):
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


def claim_devices(runs: Sequence[SweepRun], *, trains_here: bool) -> None:
  """Claims the devices of the runs, or leaves them to the processes that train.

  Call this before `check_parts`, for which some algorithms compute a little.
  """
  if trains_here:
    _claim_for_all([run.request.config for run in runs])
  elif devices.visible_gpus():
    jax.config.update('jax_platforms', 'cpu')  # the memory of the GPUs stays free


def _claim_for_all(configs: Sequence[Config]) -> None:
  """Claims what any of the runs asks for: it cannot change between two runs."""
  requested = [config.execution.devices for config in configs]
  devices.claim(
    'auto' if 'auto' in requested else max(requested),
    deterministic=any(config.execution.deterministic for config in configs),
  )


def check_parts(
  runs: Sequence[SweepRun], load: Callable[[data.DataOptions], Dataset]
) -> list[int]:
  """Checks data, network and algorithm of every run that is left; trains nothing.

  Args:
    runs: all runs of the sweep.
    load: loads the data of a run.

  Returns:
    The number of CPU devices that each run that is left can use.

  Raises:
    ConfigError: some runs cannot begin; a line for each reason, which names them.
  """
  runs_by_problem: dict[str, list[str]] = {}
  device_counts = []
  for run in unfinished_runs(runs):
    try:
      prepared = data.prepare(run.request.config, load)
      options = experiment.Options(prepared.config)
      assembled = experiment.assemble(options, prepared.divided, backend=None)
      setup_options = options.training_setup
      sizes = assembled.client_examples.training_partition.sizes
      scheduling.local_work(
        setup_options,
        sizes,
        batches_per_step=assembled.algorithm.num_batches,
        client_name=prepared.divided.client_name,
      )
      cohort_size = scheduling.who_takes_part(setup_options, sizes).cohort_size
      device_counts.append(_num_devices(setup_options, cohort_size))
    except RunError as error:
      runs_by_problem.setdefault(str(error), []).append(run.name)
  problems = []
  for problem, names in runs_by_problem.items():
    others = f' (and {len(names) - 1} more)' if len(names) > 1 else ''
    problems.append(f'{names[0]}{others}: {problem}')
  if problems:
    raise ConfigError(problems)
  return device_counts


def _num_devices(options: scheduling.TrainingSetupOptions, cohort_size: int) -> int:
  """The number of CPU devices that a run can use, each for a lane."""
  limits = [cohort_size, devices.MAX_CPU_DEVICES]
  limits += [count for count in (options.lanes, options.devices) if count != 'auto']
  return min(limits)


class Jobs(NamedTuple):
  """In how many processes a sweep runs.

  Attributes:
    number: number of processes.
    reason: a line that says why.
  """

  number: int
  reason: str


def choose_jobs(device_counts: Sequence[int], num_cores: int, num_gpus: int) -> Jobs:
  """Chooses the number of processes.

  The devices of one process share its compiling and its data, so they come first: a
  second process begins only where a run cannot use all cores.

  Args:
    device_counts: number of CPU devices that each run can use, at least one.
    num_cores: number of cores.
    num_gpus: number of GPUs.

  Returns:
    One process for each GPU, or for as many cores as the largest run can use.
  """
  num_runs = len(device_counts)
  if num_gpus:
    number = min(num_gpus, num_runs)
    reason = f'{num_gpus} GPUs' if num_gpus > 1 else '1 GPU'
  else:
    cores_of_run = min(max(device_counts), num_cores)
    number = max(1, min(num_cores // cores_of_run, num_runs))
    reason = f'a run can use {cores_of_run} of {num_cores} cores'
  processes = f'{number} processes' if number > 1 else '1 process'
  return Jobs(number, f'{processes}: {reason}; {option("jobs")} chooses another number')


def describe_sharing(num_processes: int, num_gpus: int) -> str:
  """A line that says how processes share GPUs; '' if none is shared."""
  if not 0 < num_gpus < num_processes:
    return ''
  gpus = f'{num_gpus} GPUs' if num_gpus > 1 else '1 GPU'
  if devices.is_mps_running():
    return f"{num_processes} processes share {gpus} by NVIDIA's MPS."
  return (
    f"{num_processes} processes share {gpus}. NVIDIA's MPS is not found: without it "
    'their kernels take turns, which is hardly faster than one process. '
    '"nvidia-cuda-mps-control -d" starts it.'
  )


def run_here(
  runs: Sequence[SweepRun],
  stop: Stop,
  load: Callable[[data.DataOptions], Dataset] | None = None,
) -> list[RunError]:
  """Runs one run after another, each once, unless another process is running it.

  Args:
    runs: all runs of the sweep.
    stop: what can end it early.
    load: see `caching_loader`, which makes another one for None.

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
  lines_of_sweep: dict[str, str] = {}
  load = load or caching_loader()
  begin = time.monotonic()

  def describe_sweep(seconds_of_round):
    return describe_rest(unfinished[0].request.config, seconds_of_round, unfinished)

  # Over all runs, so that a sweep that continues has the same programs.
  min_steps = most_steps([run.request.config for run in runs], load)
  for index, run in enumerate(unfinished):
    time_left = ''
    if index:
      # A request may have come in the last round of the run before, which has ended.
      stop.check(rounds_done(unfinished[index - 1]))
      seconds_per_run = (time.monotonic() - begin) / index
      seconds_left = seconds_per_run * (len(unfinished) - index)
      time_left = f', {_about_minutes(seconds_left)} left'
    print(f'[run {index + 1} of {len(unfinished)}{time_left}] {run.name}', flush=True)
    try:
      start.run(
        run.request,
        stop,
        load=load,
        min_steps=min_steps,
        describe_sweep=describe_sweep if index == 0 else None,
        lines_of_sweep=lines_of_sweep,
      )
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


def _about_minutes(seconds: float) -> str:
  """'about 3 min', or 'under 1 min'."""
  minutes = round(seconds / 60)
  return f'about {minutes} min' if minutes else 'under 1 min'


def describe_rest(
  config: Config, seconds_of_round: float, unfinished: Sequence[SweepRun]
) -> str:
  """A line that estimates a sweep by one run that it begins with; '' if it is short.

  A round counts as its passes over the data, times the share of clients. Runs with
  another network or other data are not estimated.

  Args:
    config: the run's.
    seconds_of_round: of this run.
    unfinished: the runs that are left; rounds that they have recorded do not count.
  """
  alike = [
    run
    for run in unfinished
    if _knobs_of_a_step(run.request.config) == _knobs_of_a_step(config)
  ]
  seconds_of_sweep = 0.0
  for run in alike:
    run_config = run.request.config
    num_rounds = max(0, run_config.num_rounds - rounds_done(run))
    work = num_rounds * _work_of_a_round(run_config)
    seconds_of_sweep += work * seconds_of_round / _work_of_a_round(config)
  if seconds_of_sweep < MIN_ESTIMATE_SECONDS:
    return ''
  runs = f'{len(alike)} runs' if len(alike) > 1 else '1 run'
  others = ''
  if len(alike) < len(unfinished):
    others = f' ({len(unfinished) - len(alike)} runs of other kinds are not counted)'
  return f'about {duration(seconds_of_sweep)} for {runs} of the sweep{others}'


def _work_of_a_round(config):
  """Passes over the data in a round, if all clients took part in them."""
  return config.local_epochs * config.participation


def _knobs_of_a_step(config):
  """What runs must have in common if their steps are to take about the same time."""
  return config.algorithm, config.model, config.data.to_dict(), config.batch_size


def caching_loader() -> Callable[[data.DataOptions], Dataset]:
  """A function that loads data, but not again if the last run had the same.

  If it loads a data set again, the lines about it are not printed again.
  """
  datasets: dict[str, Dataset] = {}  # one at most
  lines_before: set[str] = set()

  def load(options):
    key = repr((options.source, options.limit, options.source_options))
    if key not in datasets:
      datasets.clear()  # first, because two data sets may not fit in memory
      new_lines = _NewLines(sys.stderr, lines_before)
      with contextlib.redirect_stderr(new_lines):
        datasets[key] = data.load_data(options)
      new_lines.write_everything()
    return datasets[key]

  return load


class _NewLines(io.TextIOBase):
  """Writes each line that was not written before; bars, with \\r, at once."""

  def __init__(self, stream: TextIO, lines_before: set[str]):
    """stream: where it writes; lines_before: the lines so far, to which it adds."""
    self._stream, self._lines_before = stream, lines_before
    self._line_begun = ''
    self._writes_everything = False

  def write_everything(self) -> None:
    """From now on writes all lines; whoever logs may keep this stream."""
    self._stream.write(self._line_begun)
    self._line_begun = ''
    self._writes_everything = True

  def isatty(self) -> bool:
    return self._stream.isatty()

  def write(self, text: str) -> int:
    if '\r' in text or self._writes_everything:
      return self._stream.write(text)
    *lines, self._line_begun = (self._line_begun + text).split('\n')
    for line in lines:
      if line not in self._lines_before:
        self._lines_before.add(line)
        self._stream.write(f'{line}\n')
    return len(text)

  def flush(self) -> None:
    self._stream.flush()


def most_steps(
  configs: Sequence[Config], load: Callable[[data.DataOptions], Dataset]
) -> int:
  """The largest number of steps that a lane of any of the runs may need."""
  _claim_for_all(configs)
  max_steps = 0
  for config in configs:
    with contextlib.suppress(RunError):  # reported when the run begins
      prepared = data.prepare(config, load, reads_texts=False)
      steps = scheduling.max_steps(
        scheduling.TrainingSetupOptions(prepared.config),
        prepared.divided.partition.sizes,
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
    The exit code of a process that was stopped; otherwise ExitCode.FAILED if one has
    failed, or ExitCode.DONE.
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
        [*command, f'--share={index}/{num_processes}', f'--parent={os.getpid()}'],
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
  return ExitCode.DONE if exit_codes == {ExitCode.DONE} else ExitCode.FAILED


def _show_progress(
  runs: Sequence[SweepRun], workers: Sequence[subprocess.Popen]
) -> None:
  """Shows a bar of the rounds of all runs until the workers have ended."""
  num_rounds = sum(run.request.config.num_rounds for run in runs)
  bar = progress.Progress(
    'rounds',
    progress.MofNCompleteColumn(),
    progress.BarColumn(20),
    progress.TimeElapsedColumn(),
    progress.TimeRemainingColumn(),
    '{task.fields[runs]}',
  )
  begin = spoken_at = time.monotonic()
  with bar:
    task = bar.add_task('', total=num_rounds, runs='')
    while any(worker.poll() is None for worker in workers):
      num_finished = len(runs) - len(unfinished_runs(runs))
      text = f'{num_finished} of {len(runs)} runs'
      num_done = sum(map(rounds_done, runs))
      bar.update(task, completed=num_done, runs=text)
      now = time.monotonic()
      if not bar.console.is_terminal and now - spoken_at >= SILENT_SECONDS:
        spoken_at = now
        seconds = f'{now - begin:.0f} s'
        print(f'{num_done} of {num_rounds} rounds, {text}, {seconds}', flush=True)
      _wait_for_all(workers, seconds=1.0)


def _wait_for_all(workers: Sequence[subprocess.Popen], seconds: float) -> None:
  """Waits until all have ended, or for some seconds."""
  end = time.monotonic() + seconds
  with contextlib.suppress(subprocess.TimeoutExpired):
    for worker in workers:
      worker.wait(max(0.0, end - time.monotonic()))


def take_share(share: str) -> None:
  """Gives this process its part, 'i/n', of the GPUs, or of the cores if there is none.

  If several processes share a GPU, none takes its memory in advance, as JAX does. Call
  this before JAX computes.
  """
  index, num_processes = map(int, share.split('/'))
  compile_cache.take_turns()
  gpus = devices.visible_gpus()
  if gpus:
    os.environ['CUDA_VISIBLE_DEVICES'] = gpus[index % len(gpus)]
    if num_processes > len(gpus):
      os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  elif hasattr(os, 'sched_setaffinity'):  # Linux only
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[index::num_processes] or cores)
