"""Runs the experiments of papers/queue.txt, the most important first.

  python -m papers.queue         runs until nothing is left; SIGTERM ends it after the
                                 current round, which is saved
  python -m papers.queue --list  prints how far each run is that is left, and estimates
                                 the hours

  --runs=DIR      folder of the run directories; default runs/queue. Its folder log/ has
                  the output of each process
  --data=DIR      folder of the TFDS data, as in --config.data.dir
  --jobs=N        number of processes, each with one lane on its own cores, or on a GPU;
                  default one for each core, or for each GPU if there are some
  --results=DIR   folder of the kept runs; default papers/runs
  --table=FILE    list of the experiments; default papers/queue.txt

The queue keeps the results of each run; those of one that diverges, in the folder
diverged/ of the kept runs. It leaves most of a busy processor to other
programs. If it is killed at any instant, the same command continues it. Several queues
may share a folder of runs; each run is then done once.

Exit codes: 0 done, 1 a run failed or diverged (the log has the error, and the other
runs go on), 2 wrong usage, 75 stopped by a signal.
"""

import collections
import contextlib
import os
import pathlib
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from moon_jax.config import ConfigError, cli
from moon_jax.core import files, signals
from moon_jax.core.errors import (
  DivergedError,
  ExitCode,
  RunError,
  UsageError,
  exit_code_of,
)
from moon_jax.core.paths import file_name
from moon_jax.platform import devices
from moon_jax.runner import clock, provenance, run_directory, start
from moon_jax.runner.stop_requests import Stop, StoppedError
from moon_jax.sweeps import running
from moon_jax.sweeps.planned_runs import SweepRun, in_one_folder
from papers import kept_runs, partitions

PAPERS = pathlib.Path(__file__).parent
_FLAGS = {
  'list': bool,
  'jobs': int,
  'runs': str,
  'data': str,
  'results': str,
  'table': str,
  'share': str,
}
_SAVING = 'checkpoint_every_rounds=1'  # so that a killed run loses at most one round


# --- the table ------------------------------------------------------------------------


class Line(NamedTuple):
  """A line of the table: SEEDS  FILE: VARIANT ... [KNOB=VALUE ...]."""

  seeds: list[str]
  file: str
  variants: list[str]
  settings: list[str]


def queued_runs(
  table: pathlib.Path, runs: pathlib.Path, data: str = ''
) -> list[SweepRun]:
  """The runs that a table lists, the most important first.

  Args:
    table: the file.
    runs: folder of the run directories.
    data: folder of the TFDS data; '' for the default.

  Raises:
    ConfigError: every mistake in any of them, one line each.
  """
  if not table.is_file():
    raise UsageError(f'{table} is missing.')
  listed_runs = []
  problems = []
  for text in table.read_text().splitlines():
    words = text.partition('#')[0].strip()
    if not words:
      continue
    line = _parse(words)
    if line is None:
      problems.append(f'{table}: {words!r} must be SEEDS FILE: VARIANT ...')
      continue
    for seed in line.seeds:
      for variant in line.variants:
        try:
          listed_runs.append(_queued_run(line, variant, seed, runs, data))
        except ConfigError as error:
          problems += error.problems
  problems += in_one_folder([run.name for run in listed_runs])
  if problems:
    raise ConfigError(dict.fromkeys(problems))
  return listed_runs


def _parse(words: str) -> Line | None:
  """A line without its comment; None if it has another form."""
  head, _, tail = words.partition(':')
  seeds, _, file = head.partition(' ')
  variants = [word for word in tail.split() if '=' not in word]
  settings = [word for word in tail.split() if '=' in word]
  if not variants or not seeds.replace(',', '').isdigit():
    return None
  return Line(seeds.split(','), file.strip(), variants, settings)


def _queued_run(
  line: Line, variant: str, seed: str, runs: pathlib.Path, data: str
) -> SweepRun:
  name = file_name('_'.join([line.file, variant, *line.settings, f'seed{seed}']))
  settings = [*line.settings, f'seed={seed}']
  if data:
    settings.append(f'data.dir={data}')
  settings.append(_SAVING)
  argv = [
    f'--config=configs/{line.file}.py:{variant}',
    f'--workdir={runs / name}',
    *(f'--config.{setting}' for setting in settings),
  ]
  return SweepRun(name, argv, cli.parse(argv))


# --- running --------------------------------------------------------------------------


def work(
  queued_runs: Sequence[SweepRun], results: pathlib.Path, stop: Stop
) -> ExitCode:
  """Runs what is left, except what another process is running, and keeps the results.

  After each run it starts again at the top of the list, because a run there may have
  become free: the process that ran it may have been killed.

  Raises:
    StoppedError: a stop was requested, and the run has saved its finished rounds.
  """
  load = running.caching_loader()
  failed_names = set()
  busy_names = set()
  while True:
    left = [
      run
      for run in queued_runs
      if run.name not in failed_names | busy_names and not _is_kept(run, results)
    ]
    if not left:
      return ExitCode.FAILED if failed_names else ExitCode.DONE
    run = left[0]
    workdir = run.request.workdir
    try:
      # The run's own lock is free again while the run is kept, which must happen once.
      with run_directory.locked(workdir.parent / 'held' / run.name):
        if not _is_kept(run, results):
          print(f'{run.name}: {running.state_of(run)}', flush=True)
          try:
            start.run(run.request, stop, load=load)
          except DivergedError:
            with contextlib.suppress(UsageError):  # all numbers of its end are finite
              _keep(workdir, results)
            raise
          _keep(workdir, results)
          stop.check(run.request.config.num_rounds)  # requested in the last round
      busy_names.clear()
    except run_directory.BusyError:
      busy_names.add(run.name)
    except (StoppedError, MemoryError):
      raise
    except Exception as error:  # it ends no other run
      if not isinstance(error, RunError):
        traceback.print_exc()
      print(f'{run.name}: {error}', file=sys.stderr, flush=True)
      failed_names.add(run.name)


def _keep(workdir: pathlib.Path, results: pathlib.Path) -> None:
  """Keeps a run that is finished or has diverged, and its partition."""
  # Before the run counts as kept: a kill in between must lose nothing.
  partitions.add(results.parent / partitions.TABLE.name, workdir)
  print('kept', kept_runs.keep_run(workdir, results), flush=True)


def _is_kept(run: SweepRun, results: pathlib.Path) -> bool:
  folders = (results, results / kept_runs.DIVERGED)
  return any(kept_runs.path_of(folder, run.name).exists() for folder in folders)


# --- the list of what is left ---------------------------------------------------------


def table(
  queued_runs: Sequence[SweepRun], results: pathlib.Path, jobs: int
) -> Iterator[str]:
  """A line for each run that is left, and the hours, estimated from similar runs."""
  paces = collections.defaultdict(list)  # kind -> seconds of a round
  for run in queued_runs:
    is_kept_elsewhere = not _is_kept(run, results) and _is_kept(run, PAPERS / 'runs')
    history = PAPERS / 'runs' if is_kept_elsewhere else results
    seconds_of_a_round = _seconds_of_a_round(run, history)
    if seconds_of_a_round is not None:
      for kind in _kinds(run):
        paces[kind].append(seconds_of_a_round)
  left = [run for run in queued_runs if not _is_kept(run, results)]
  num_rounds = 0
  seconds = 0.0
  for run in left:
    yield f'{running.state_of(run):<20} {run.name}'
    rounds_left = run.request.config.num_rounds - running.rounds_done(run)
    num_rounds += rounds_left
    seconds += rounds_left * _pace(run, paces)
  is_known = seconds or not left
  hours = f'{seconds / jobs / 3600:.1f} hours' if is_known else '? hours'
  yield (
    f'kept: {len(queued_runs) - len(left)} runs; left: {len(left)}, '
    f'{num_rounds} rounds, {hours} on {jobs} jobs'
  )


def _pace(run: SweepRun, paces: dict[tuple, list[float]]) -> float:
  """Mean seconds of a round of the narrowest kind that has run; 0 if none has."""
  for kind in _kinds(run):
    if kind in paces:
      return sum(paces[kind]) / len(paces[kind])
  return 0.0


def _kinds(run: SweepRun) -> list[tuple]:
  """The kinds of runs to which a run belongs, from the narrowest to all runs."""
  config = run.request.config
  config_choice = run.argv[0]
  file = config_choice.partition(':')[0]
  return [
    (config_choice,),
    (file, config.model, config.algorithm),
    (config.model, config.algorithm),
    (),
  ]


def _seconds_of_a_round(run: SweepRun, results: pathlib.Path) -> float | None:
  """Of the kept run, or of the rounds so far; None without any, or if it says nothing.

  A run of a GPU says nothing about a machine without one, and the reverse.
  """
  try:
    cost = {}
    kept_file = kept_runs.path_of(results, run.name)
    if kept_file.exists():
      description = kept_runs.read_description(kept_file)
      cost = description.get('cost', {})
    else:
      workdir = run.request.workdir
      description = files.read_json(workdir / run_directory.CONFIG) or {}
    kinds = {name.partition(': ')[0] for name in kept_runs.devices(description)}
    is_gpu_here = bool(devices.visible_gpus())
    if any((kind == 'gpu') != is_gpu_here for kind in kinds):
      return None
    if cost:
      return cost['seconds'] / run.request.config.num_rounds
    lines = files.read_lines(run.request.workdir / run_directory.TIMINGS)
  except RunError:
    return None
  return sum(clock.time_spent(lines).values()) / len(lines) if lines else None


# --- processes ------------------------------------------------------------------------


def _in_processes(
  argv: Sequence[str], jobs: int, logs: pathlib.Path, stop: Stop
) -> int:
  """Starts the processes, which end with this one; returns the exit code."""
  if sharing := running.describe_sharing(jobs, len(devices.visible_gpus())):
    print(sharing)
  files.make_folder(logs)
  workers: list[subprocess.Popen] = []
  with contextlib.ExitStack() as open_logs:
    for index in range(jobs):
      log = open_logs.enter_context(files.appended(logs / f'{index}.log'))
      worker = subprocess.Popen(
        [sys.executable, '-m', 'papers.queue', *argv, f'--share={index}/{jobs}'],
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
      workers.append(worker)
      stop.pass_on_to(worker)
    failures = {worker.wait() for worker in workers} - {ExitCode.DONE}
  if not failures:
    return ExitCode.DONE
  killed_by_signal = {-number for number in signals.ENDINGS}
  if failures <= {ExitCode.PREEMPTED, ExitCode.INTERRUPTED, *killed_by_signal}:
    return ExitCode.PREEMPTED
  print(f'A run or a process failed; see {logs}.', file=sys.stderr)
  return ExitCode.FAILED


def _yield_to_others() -> None:
  """Takes a tenth of a core that other programs want too, and all of an idle core.

  Where the system divides the processor among sessions, the nice value of the session's
  group decides. The lowest value (19, or SCHED_IDLE) is too low: beside other work, no
  round was finished in an hour.
  """
  os.nice(10)
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/autogroup').write_text('10')


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code."""

  def program():
    if {'-h', '--help'} & set(argv):
      print(__doc__.strip())
      return ExitCode.DONE
    words, flags = cli.read_flags(argv, _FLAGS)
    if words:
      raise UsageError(f'{words[0]!r} is a stray word; see --help.')
    if flags.jobs is not None and flags.jobs < 1:
      raise UsageError('--jobs must be at least 1.')
    runs = pathlib.Path(flags.runs or 'runs/queue')
    results = pathlib.Path(flags.results or PAPERS / 'runs')
    table_file = pathlib.Path(flags.table or PAPERS / 'queue.txt')
    listed_runs = queued_runs(table_file, runs, flags.data or '')
    jobs = flags.jobs or len(devices.visible_gpus()) or provenance.machine()['cores']
    if flags.list:
      print('\n'.join(table(listed_runs, results, jobs)))
      return ExitCode.DONE
    stop = signals.listen(Stop())
    if not flags.share:
      return _in_processes(argv, jobs, runs / 'log', stop)
    _yield_to_others()
    running.take_share(flags.share)
    return work(listed_runs, results, stop)

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
