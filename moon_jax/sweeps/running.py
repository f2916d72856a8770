"""Runs what is left of a sweep, in this process or in several.

A run directory's lock is the queue: who finds a run that is neither finished nor locked
runs it. So several processes, or several machines, may work on one sweep.
"""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import jax
from rich import progress

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import Config
from moon_jax.engine import devices, experiment
from moon_jax.errors import ExitCode, RunError
from moon_jax.runner import files, lock, loop, run_directory
from moon_jax.runner.signals import Stop, StoppedError
from moon_jax.sweeps.cells import Cell
from moon_jax.types import Dataset

LOGS = 'jobs'  # the folder of the processes' output
FINISHED = 'finished'


def state_of(cell: Cell) -> str:
  """'finished', '12 of 30 rounds', 'new', or what is wrong with its directory."""
  workdir, num_rounds = cell.request.workdir, cell.request.config.num_rounds
  try:
    if run_directory.rounds_finished(workdir) >= num_rounds:
      return FINISHED
    done = rounds_done(cell)
  except RunError as error:
    return str(error)
  return f'{done} of {num_rounds} rounds' if done else 'new'


def rounds_done(cell: Cell) -> int:
  """How many rounds are recorded."""
  return len(files.read_lines(cell.request.workdir / run_directory.METRICS))


def left(cells: Sequence[Cell]) -> list[Cell]:
  """The runs that are not finished."""
  return [cell for cell in cells if state_of(cell) != FINISHED]


def run_here(cells: Sequence[Cell], stop: Stop) -> bool:
  """Runs one after another, each once: those that nobody else is running.

  Args:
    cells: all of the sweep.
    stop: what ends it early.

  Returns:
    Whether one failed; it has said so.

  Raises:
    StoppedError: it was asked to stop, and the run has saved what it did.
  """
  failed, load, begin = False, remembered(), time.monotonic()
  todo = left(cells)
  # Of all: a sweep that goes on has the same programs.
  most = room([cell.request.config for cell in cells], load) if todo else 0
  for number, cell in enumerate(todo):
    spent = (time.monotonic() - begin) / number * (len(todo) - number) if number else 0
    eta = f', {spent / 60:.0f} min left' if number else ''
    print(f'[{number + 1} of {len(todo)}{eta}] {cell.name}', flush=True)
    try:
      loop.run(cell.request, stop, load=load, room=most)
    except lock.BusyError:
      print('another process is running it', flush=True)
    except StoppedError:
      raise
    except RunError as error:
      failed = True
      print(error, file=sys.stderr)
  return failed


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


def room(configs: Sequence[Config], load: Callable[[Config], Dataset]) -> int:
  """The most steps that a lane of any of the runs may need."""
  execution = configs[0].execution
  devices.claim(execution.devices, deterministic=execution.deterministic)
  most = 0
  for config in map(experiment.with_its_clients, configs):
    with contextlib.suppress(RunError):  # it is told when the run begins
      split, _ = experiment.deal(config, load(config))
      planner = experiment.make_planner(config, split, jax.default_backend())
      most = max(most, planner.max_steps())
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
  total = sum(cell.request.config.num_rounds for cell in cells)
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
  gpus = visible_gpus()
  if gpus:
    os.environ['CUDA_VISIBLE_DEVICES'] = gpus[int(index) % len(gpus)]
  elif hasattr(os, 'sched_setaffinity'):  # Linux only
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[int(index) :: int(count)] or cores)


def visible_gpus() -> list[str]:
  """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
  if (named := os.environ.get('CUDA_VISIBLE_DEVICES')) is not None:
    return [name for name in named.split(',') if name]
  return [str(n) for n in range(len(glob.glob('/proc/driver/nvidia/gpus/*')))]
