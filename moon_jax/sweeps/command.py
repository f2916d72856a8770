"""Runs many experiments: every combination of some knobs' values.

  python -m moon_jax.sweep --config=FILE[:PATTERN] --over KNOB=VALUE,... [flags]

Example, 3 algorithms x 2 betas x 3 seeds, and all variants of a paper:

  python -m moon_jax.sweep --config=configs/fashion_mnist_moon.py \\
    --over algorithm=fedavg,moon,sa_moon --over partition.beta=0.1,0.5 --over seed=0,1,2
  python -m moon_jax.sweep --config=configs/dco_moon.py:'fashion_mnist_*'

Each run is a run directory as `launch.py` makes it. The same command continues with the
runs that are left; finished runs are left alone. A knob that a run does not use, such
as moon.mu with FedAvg, multiplies only the runs that use it.

--config=FILE     the config file; with FILE:PATTERN, every variant whose name matches
--over KNOB=VALUES
                  a knob that is varied, and its values with commas between them; give
                  the flag once for each such knob
--config.KNOB=VALUE
                  a knob that every run has
--out=DIR         folder of the run directories; default runs/<config>-sweep
--dry-run         trains nothing; checks every run with its data, as a sweep does before
                  its first run, prints how far each is, and estimates the time and the
                  disk space that the sweep still needs, from its first rounds or
                  from earlier runs in the folder that contains the sweep
--jobs=N          number of processes, which share the cores or the GPUs; by default
                  one for each GPU, or for as many cores as a run can use; several
                  on one GPU need NVIDIA's MPS to be faster, and a line says if it runs
--slurm=OPTIONS   submits an array job with these options of sbatch, e.g.
                  --slurm='--time=4:00:00 --gres=gpu:1'
--no-report       leaves out the report that is made at the end, of the finished runs;
                  a report needs pip install 'moon_jax[report]'

Exit codes: 0 done, or other processes are running what is left, 1 a run failed or
diverged, 2 wrong usage, 75 SIGTERM or SIGHUP, 130 Ctrl-C; after 75 and 130 the same
command continues the sweep.
"""

import os
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files, signals
from moon_jax.core.errors import ExitCode, RunError, UsageError, exit_code_of
from moon_jax.core.flags import flag, option
from moon_jax.core.paths import expand
from moon_jax.report import __main__ as report
from moon_jax.runner import run_files
from moon_jax.runner.stop_requests import Stop
from moon_jax.sweeps.planned_runs import SweepRun, sweep_runs

if TYPE_CHECKING:  # JAX is loaded after the flags have been read
  from moon_jax.building.data import DataOptions
  from moon_jax.core.types import Dataset


def main(argv: list[str], stop: Stop) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  stop.command = shlex.join(['python', '-m', 'moon_jax.sweep', *argv])
  return exit_code_of(lambda: _run(argv, stop))


class SweepRequest(NamedTuple):
  """A sweep.

  Attributes:
    runs: its runs.
    out: their folder.
    jobs: number of processes; None: the sweep chooses it.
    share: 'i/n', if this process is one of a sweep's; None otherwise.
    parent: id of the sweep's process, if this is one of its processes; None otherwise.
    slurm: flags of sbatch, if SLURM is to run the sweep; None otherwise.
    is_dry_run: whether nothing is run.
    wants_report: whether a report is made at the end.
  """

  runs: list[SweepRun]
  out: pathlib.Path
  jobs: int | None
  share: str | None
  parent: int | None
  slurm: str | None
  is_dry_run: bool
  wants_report: bool


# Flag -> what `cli.read_flags` takes it for.
_FLAGS = {
  'config': str,
  'out': str,
  'slurm': str,
  'share': str,  # 'i/n', of a process of the sweep
  'parent': int,  # the sweep's, of such a process
  'over': list,
  'jobs': int,
  'dry-run': bool,
  'no-report': bool,
}


def parse(argv: Sequence[str]) -> SweepRequest:
  """Reads the command line, and checks every run; nothing is written.

  Raises:
    UsageError: every mistake found, one line each.
  """
  words, values = cli.read_flags(argv, _FLAGS, known_only=True)
  for word in words:
    if not word.startswith(flag('')):
      raise UsageError(cli.stray(word, _FLAGS))
    if '=' not in word:
      raise UsageError(f'{word} needs a value: {word}=VALUE.')
  if values.jobs is not None and values.jobs < 1:
    raise UsageError(f'{option("jobs", values.jobs)} must be at least 1.')
  if values.share is not None and not re.fullmatch(r'\d+/[1-9]\d*', values.share):
    raise UsageError(f'{option("share", values.share)} must be i/n, such as 0/2.')
  if values.jobs is not None and values.slurm is not None:
    raise UsageError('--jobs and --slurm exclude each other: a task has one run.')
  choice = values.config or cli.DEFAULT_CONFIG
  path, _ = config_lib.split(choice)
  out = expand(values.out or f'runs/{pathlib.Path(path).stem}-sweep')
  over = cli.values_of('over', values.over)
  return SweepRequest(
    runs=sweep_runs(choice, words, over, out),
    out=out,
    jobs=values.jobs,
    share=values.share,
    parent=values.parent,
    slurm=values.slurm,
    is_dry_run=values['dry-run'].value,
    wants_report=not values['no-report'].value,
  )


def _run(argv: Sequence[str], stop: Stop) -> int:
  if {'-h', '--help'} & set(argv):
    print(__doc__.strip())
    return ExitCode.DONE
  request = parse(argv)
  if request.parent is not None:
    signals.end_with_parent(request.parent)
  _check_files(request)
  is_run_here = not (request.is_dry_run or request.share or request.slurm is not None)
  if request.wants_report and is_run_here:
    report.require_packages(f'{option("no-report")} leaves it out')
  # Imported here: a mistyped flag is answered before JAX is loaded.
  from moon_jax.sweeps import estimate, running, slurm

  running.check(request.runs)
  load = running.caching_loader()
  unfinished = running.unfinished_runs(request.runs)
  device_counts = _check_parts(request, load, len(unfinished))
  if request.is_dry_run:
    print('\n'.join(estimate.table(request.runs, request.out)))
    return ExitCode.DONE
  if request.slurm is not None:
    if unfinished:
      print(slurm.submit(unfinished, request.out, request.slurm))
    else:
      print('every run is finished')
    return ExitCode.DONE
  if request.share:
    return _run_share(request.share, request.runs, stop)
  num_processes = _num_processes(request.jobs, device_counts)
  if num_processes > 1 and unfinished:
    del load  # each process has data of its own
    exit_code = running.run_in_processes(argv, request.runs, num_processes, stop)
    has_failed = exit_code != ExitCode.DONE
    if exit_code in (ExitCode.PREEMPTED, ExitCode.INTERRUPTED):
      print(
        'Stopped; what was saved stays. To go on: the same command', file=sys.stderr
      )
      return exit_code
  else:
    has_failed = _is_failure(running.run_here(request.runs, stop, load))
  return _conclude(request, num_processes, has_failed=has_failed)


def _check_files(request: SweepRequest) -> None:
  """Refuses a folder that cannot be written, and input files that are not there."""
  if not (request.is_dry_run and os.path.isdir(request.out)):
    files.require_writable(request.out, 'out')
  if request.slurm is None:  # otherwise other machines read the data
    config_lib.require_input_files(
      run.request.config
      for run in request.runs
      if not (run.request.workdir / run_files.SUMMARY).exists()
    )


def _check_parts(
  request: SweepRequest, load: 'Callable[[DataOptions], Dataset]', num_unfinished: int
) -> list[int]:
  """Checks data, network and algorithm of every run that is left.

  Returns:
    The number of CPU devices that each of them can use; [] where that is not asked:
    SLURM's tasks and a sweep's processes check the runs that they run.
  """
  from moon_jax.platform import devices
  from moon_jax.sweeps import running

  if request.share or request.slurm is not None:
    return []
  # As `_num_processes` chooses it where there are GPUs.
  num_processes = request.jobs or min(len(devices.visible_gpus()), num_unfinished)
  trains_here = num_unfinished > 0 and num_processes <= 1 and not request.is_dry_run
  running.claim_devices(request.runs, trains_here=trains_here)
  return running.check_parts(request.runs, load)


def _num_processes(jobs: int | None, device_counts: Sequence[int]) -> int:
  """How many processes share what is left; prints why, and what they share.

  Args:
    jobs: number of processes that is asked for; None: it is chosen.
    device_counts: see `_check_parts`.
  """
  from moon_jax.platform import cores, devices
  from moon_jax.sweeps import running

  num_unfinished = len(device_counts)
  num_gpus = len(devices.visible_gpus())
  num_processes = jobs or 1
  if num_unfinished and not jobs:
    choice = running.choose_jobs(device_counts, cores.count_usable(), num_gpus)
    num_processes = choice.number
    if num_unfinished > 1:
      print(choice.reason)
  if num_processes > 1 and num_unfinished:
    sharing = running.describe_sharing(num_processes, num_gpus)
    if sharing:
      print(sharing)
  return num_processes


def _run_share(share: str, runs: Sequence[SweepRun], stop: Stop) -> int:
  """Runs what is left, in one of the processes of a sweep."""
  from moon_jax.sweeps import running

  running.take_share(share)
  has_failed = _is_failure(running.run_here(runs, stop))
  return ExitCode.FAILED if has_failed else ExitCode.DONE


def _is_failure(errors: Sequence[RunError]) -> bool:
  """Whether a run has failed; one that another process is running has not."""
  from moon_jax.runner import run_directory

  return any(not isinstance(error, run_directory.BusyError) for error in errors)


def _conclude(request: SweepRequest, num_processes: int, *, has_failed: bool) -> int:
  """Names the runs that are not finished, and reports on the others.

  Args:
    request: the sweep.
    num_processes: number of its processes.
    has_failed: whether a run has failed; otherwise other processes are running what is
      left.
  """
  from moon_jax.sweeps import running

  unfinished = running.unfinished_runs(request.runs)
  for run in unfinished:
    print(f'{run.name}: {running.state_of(run)}', file=sys.stderr)
  if unfinished and not has_failed:
    print('Other processes are running what is left.', file=sys.stderr)
  if unfinished and num_processes > 1:
    logs = request.out / running.LOGS
    print(f'The output of the processes is in {logs}.', file=sys.stderr)
  exit_code = ExitCode.FAILED if unfinished and has_failed else ExitCode.DONE
  has_runs_to_report = len(unfinished) < len(request.runs)
  if not request.wants_report or not has_runs_to_report:
    return exit_code
  report_folder = request.out / 'report'
  report_code = report.main([str(request.out), f'{option("out")}={report_folder}'])
  return exit_code or report_code
