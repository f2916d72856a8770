"""Runs what is left of a sweep, in this process or in several.

A run directory's lock is the queue: who finds a run that is neither finished nor locked
runs it. So several processes, or several machines, may work on one sweep.
"""

import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
from rich import progress

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import Config, ConfigError
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, NoCheckpointError, RunError, UsageError
from moon_jax.core.types import Dataset
from moon_jax.data.federated import users
from moon_jax.engine import devices, experiment, scheduling
from moon_jax.runner import clock, lock, loop, run_directory
from moon_jax.runner.console import Console
from moon_jax.runner.signals import Stop, StoppedError
from moon_jax.sweeps.cells import Cell

LOGS = 'jobs'  # the folder of the processes' output
FINISHED = 'finished'


def state_of(cell: Cell) -> str:
  """'finished', '12 of 30 rounds', 'new', or what is wrong with its directory."""
  workdir, num_rounds = cell.request.workdir, rounds_asked(cell)
  try:
    if run_directory.why_finished(workdir, cell.request.config):
      return FINISHED
    done = len(files.read_lines(workdir / run_directory.METRICS))
  except RunError as error:
    return str(error)
  return f'{done} of {num_rounds} rounds' if done else 'new'


def rounds_done(cell: Cell) -> int:
  """How many rounds are recorded; 0 if the records are damaged."""
  with contextlib.suppress(NoCheckpointError):
    return len(files.read_lines(cell.request.workdir / run_directory.METRICS))
  return 0


def rounds_asked(cell: Cell) -> int:
  """How many rounds the run is to have."""
  return cell.request.config.num_rounds


def left(cells: Sequence[Cell]) -> list[Cell]:
  """The runs that are not finished."""
  return [cell for cell in cells if state_of(cell) != FINISHED]


def check(runs: Iterable[tuple[pathlib.Path, Config]]) -> None:
  """Looks whether every run can be in its directory; writes nothing.

  Raises:
    ConfigError: some hold another experiment; one line each.
  """
  problems = []
  for workdir, config in runs:
    try:
      run_directory.check(workdir, config)
    except NoCheckpointError:
      pass  # told when the run begins, and holds no other back
    except UsageError as error:
      problems.append(str(error))
  if problems:
    raise ConfigError(problems)


def table(cells: Sequence[Cell]) -> Iterator[str]:
  """A line for each run, how far it is; then about how much time and disk is left.

  A run is taken to need what those of the same algorithm that have begun need on
  average, or all that have begun if none of them has.
  """
  for cell in cells:
    yield f'{state_of(cell):<20} {cell.name}'
  costs = {cell.name: _cost(cell) for cell in cells}
  seconds = size = 0.0
  for cell in left(cells):
    config, mine = cell.request.config, costs[cell.name]
    begun = [one for one in costs.values() if one.rounds]
    alike = [one for one in begun if one.algorithm == config.algorithm] or begun
    if not alike:
      yield 'left: time and disk are estimated when a run has some rounds'
      return
    of_a_round = statistics.fmean(one.seconds / one.rounds for one in alike)
    seconds += of_a_round * (config.num_rounds - mine.rounds)
    size += max(0, statistics.fmean(one.size for one in alike) - mine.size)
  minutes, megabytes = seconds / 60, size / 1e6
  yield f'left: about {minutes:.1f} minutes, one run at a time, and {megabytes:.1f} MB'


class _Cost(NamedTuple):
  algorithm: str
  rounds: int
  seconds: float
  size: int


def _cost(cell: Cell) -> _Cost:
  """What a run has needed so far; nothing if its records are damaged."""
  workdir = cell.request.workdir
  try:
    timings = files.read_lines(workdir / run_directory.TIMINGS)
  except NoCheckpointError:
    timings = []
  spent = sum(clock.time_spent(timings).values())
  size = 0
  for path in files.below(workdir):
    with contextlib.suppress(FileNotFoundError):  # the run may be going on
      size += path.lstat().st_size
  return _Cost(cell.request.config.algorithm, len(timings), spent, size)


def run_here(cells: Sequence[Cell], stop: Stop) -> list[RunError]:
  """Runs one after another, each once: those that nobody else is running.

  Args:
    cells: all of the sweep.
    stop: what ends it early.

  Returns:
    What ended some of them; it has been told. `lock.BusyError` is of one that another
    process runs.

  Raises:
    StoppedError: it was asked to stop, and the run has saved what it did.
  """
  errors, load, begin = [], remembered(), time.monotonic()
  todo = left(cells)
  if not todo:
    return errors
  # Of all: a sweep that goes on has the same programs.
  min_steps = most_steps([cell.request.config for cell in cells], load)
  for number, cell in enumerate(todo):
    if number:  # a request in the last round of a run, which ended
      stop.check(rounds_done(todo[number - 1]))
    spent = (time.monotonic() - begin) / number * (len(todo) - number) if number else 0
    eta = f', {spent / 60:.0f} min left' if number else ''
    print(f'[{number + 1} of {len(todo)}{eta}] {cell.name}', flush=True)
    here = _console(cells, cell)
    try:
      loop.run(cell.request, stop, here, load=load, min_steps=min_steps)
    except StoppedError:
      raise
    except lock.BusyError as error:
      print(f'{cell.name}: another process is running it', flush=True)
      errors.append(error)
    except RunError as error:  # it ends no other run
      print(f'{cell.name}: {error}', file=sys.stderr)
      errors.append(error)
  return errors


def _console(cells: Sequence[Cell], here: Cell) -> Console:
  """What tells of one run of a sweep, with a bar of all."""
  others = [cell for cell in cells if cell is not here]
  return Console(others=(sum(map(rounds_done, others)), sum(map(rounds_asked, others))))


def remembered() -> Callable[[Config], Dataset]:
  """Loads data as the engine does; what the run before had is not loaded again."""
  kept: dict[str, Dataset] = {}

  def load(config):
    options = catalog.options('data', config_lib.flatten(config))
    key = repr((config.data.source, config.data.limit, options))
    if key not in kept:
      kept.clear()  # first: two data sets may not fit
      kept[key] = experiment.load_data(config)
    return kept[key]

  return load


def most_steps(configs: Sequence[Config], load: Callable[[Config], Dataset]) -> int:
  """The most steps that a lane of any of the runs may need."""
  execution = configs[0].execution
  devices.claim(execution.devices, deterministic=execution.deterministic)
  most = 0
  for config in map(experiment.with_its_clients, configs):
    with contextlib.suppress(RunError):  # it is told when the run begins
      config, data, _ = users.clients_of(config, load(config))
      split, _ = experiment.deal(config, data)
      planner = scheduling.make_planner(config, split, jax.default_backend())
      most = max(most, planner.max_steps)
  return most


def run_in_processes(words: Sequence[str], cells: Sequence[Cell], jobs: int) -> int:
  """Runs what is left in so many processes, each with its share of cores or GPUs.

  Args:
    words: of the command line.
    cells: all of the sweep.
    jobs: how many processes.

  Returns:
    The exit code of the process that was stopped or failed, else ExitCode.DONE.
  """
  logs = cells[0].request.workdir.parent / LOGS
  logs.mkdir(parents=True, exist_ok=True)
  command = [sys.executable, '-m', 'moon_jax.sweep', *words, '--no-report']
  with contextlib.ExitStack() as stack:
    workers = []
    for index in range(jobs):
      log = stack.enter_context((logs / f'{index}.log').open('ab'))
      share = f'--share={index}/{jobs}'
      workers.append(
        subprocess.Popen([*command, share], stdout=log, stderr=subprocess.STDOUT)
      )
    _forward_signals(workers)
    _show(cells, workers)
  codes = {worker.wait() for worker in workers}
  stops = (ExitCode.PREEMPTED, ExitCode.INTERRUPTED)
  return next((code for code in stops if code in codes), max(codes))


def _forward_signals(workers: Sequence[subprocess.Popen]) -> None:
  """SIGTERM and SIGHUP go to the workers, Ctrl-C reaches them by itself."""

  def forward(number, frame):
    for worker in workers:
      worker.send_signal(number)

  for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, forward)
  signal.signal(signal.SIGINT, lambda number, frame: None)


def _show(cells: Sequence[Cell], workers: Sequence[subprocess.Popen]) -> None:
  """A bar of the rounds of all runs, until the workers have ended."""
  total = sum(map(rounds_asked, cells))
  columns = (progress.MofNCompleteColumn(), progress.BarColumn(20))
  left_column = progress.TimeRemainingColumn()
  with progress.Progress('rounds', *columns, left_column, '{task.fields[runs]}') as bar:
    task = bar.add_task('', total=total, runs='')
    while any(worker.poll() is None for worker in workers):
      done = sum(rounds_done(cell) for cell in cells)
      runs = f'{len(cells) - len(left(cells))} of {len(cells)} runs'
      bar.update(task, completed=done, runs=runs)
      time.sleep(1.0)


def take_share(share: str) -> None:
  """Leaves this process its part, 'i/n': of the GPUs if there are any, or of the cores.

  To be called before JAX computes.
  """
  index, _, count = share.partition('/')
  gpus = devices.visible_gpus()
  if gpus:
    os.environ['CUDA_VISIBLE_DEVICES'] = gpus[int(index) % len(gpus)]
  elif hasattr(os, 'sched_setaffinity'):  # Linux only
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[int(index) :: int(count)] or cores)
