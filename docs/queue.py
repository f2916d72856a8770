"""Runs the experiments of docs/queue.txt, the most important first.

  python -m docs.queue           runs until nothing is left; SIGTERM ends it after the
                                 current round, which is saved
  python -m docs.queue --list    prints how far each run is that is left, and estimates
                                 the hours

  --runs=DIR      folder of the run directories; default runs/queue. Its folder log/ has
                  the output of each process
  --data=DIR      folder of the TFDS data, as in --config.data.dir
  --jobs=N        number of processes, each with one lane on its own cores, or on a GPU;
                  default one for each core, or for each GPU if there are some
  --results=DIR   folder of the results that are kept; default docs/results
  --table=FILE    list of the experiments; default docs/queue.txt

The queue keeps the results of each run. It leaves most of a busy processor to other
programs. If it is killed at any instant, the same command continues it. Several queues
may share a folder of runs; each run is then done once.

Exit codes: 0 done, 1 a run failed (the log has the error, and the other runs go on), 2
wrong usage, 75 stopped by a signal.
"""

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence

from docs import records
from moon_jax.config import ConfigError, cli
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, RunError, UsageError, exit_code_of
from moon_jax.core.paths import file_name
from moon_jax.platform import devices
from moon_jax.runner import clock, loop, provenance, run_directory, signals
from moon_jax.runner.signals import Stop, StoppedError
from moon_jax.sweeps import running
from moon_jax.sweeps.cells import Cell, in_one_folder

DOCS = pathlib.Path(__file__).parent
_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_FLAGS = {'list': bool, 'jobs': int}
_FLAGS |= dict.fromkeys(('runs', 'data', 'results', 'table', 'share'), str)
_SAVING = 'checkpoint_every_rounds=1'  # so that a killed run loses at most one round


def cells(table: pathlib.Path, runs: pathlib.Path, data: str = '') -> list[Cell]:
  """The runs that a table lists, the most important first.

  Raises:
    ConfigError: every mistake in any of them, one line each.
  """
  if not table.is_file():
    raise UsageError(f'{table} is missing.')
  found, problems = [], []
  told = [line.partition('#')[0].strip() for line in table.read_text().splitlines()]
  for line in filter(None, told):
    head, _, tail = line.partition(':')
    seeds, _, file = head.partition(' ')
    variants = [word for word in tail.split() if '=' not in word]
    own = [word for word in tail.split() if '=' in word]
    if not (variants and seeds.replace(',', '').isdigit()):
      problems.append(f'{table}: {line!r} must be SEEDS FILE: VARIANT ...')
      continue
    for seed, variant in ((s, v) for s in seeds.split(',') for v in variants):
      name = file_name('_'.join([file.strip(), variant, *own, f'seed{seed}']))
      words = [*own, f'seed={seed}', *([f'data.dir={data}'] if data else [])]
      argv = [
        f'--config=configs/{file.strip()}.py:{variant}',
        f'--workdir={runs / name}',
      ]
      argv += [f'--config.{word}' for word in (*words, _SAVING)]
      try:
        found.append(Cell(name, argv, cli.parse(argv)))
      except ConfigError as error:
        problems += error.problems
  if problems := [*problems, *in_one_folder([cell.name for cell in found])]:
    raise ConfigError(dict.fromkeys(problems))
  return found


def work(given: Sequence[Cell], results: pathlib.Path, stop: Stop) -> ExitCode:
  """Runs what is left, except what another process is running, and keeps the results.

  After each run it starts again at the top of the list, because a run there may have
  become free: the process that ran it may have been killed.

  Raises:
    StoppedError: a stop was requested, and the run has saved its finished rounds.
  """
  load, failed, busy = running.remembered(), set(), set()
  while todo := [
    cell
    for cell in given
    if cell.name not in failed | busy and not _is_kept(cell, results)
  ]:
    cell, workdir = todo[0], todo[0].request.workdir
    try:
      # The run's own lock is free again while `records.add` runs, which must run once.
      with run_directory.held(workdir.parent / 'held' / cell.name):
        if not _is_kept(cell, results):
          print(f'{cell.name}: {running.state_of(cell)}', flush=True)
          loop.run(cell.request, stop, load=load)
          print('kept', *records.add(workdir, results), flush=True)
          stop.check(cell.request.config.num_rounds)  # asked in the last round
      busy.clear()
    except run_directory.BusyError:
      busy.add(cell.name)
    except (StoppedError, MemoryError):
      raise
    except Exception as error:  # it ends no other run
      if not isinstance(error, RunError):
        traceback.print_exc()
      print(f'{cell.name}: {error}', file=sys.stderr, flush=True)
      failed.add(cell.name)
  return ExitCode.FAILED if failed else ExitCode.DONE


def table(given: Sequence[Cell], results: pathlib.Path, jobs: int) -> Iterator[str]:
  """A line for each run that is left, and the hours, estimated from similar runs."""
  paces = collections.defaultdict(list)
  for cell in given:
    pace = _seconds_a_round(cell, results)
    for kind in _kinds(cell):
      paces[kind] += pace
  count = rounds = seconds = 0
  for cell in given:
    if _is_kept(cell, results):
      continue
    yield f'{running.state_of(cell):<20} {cell.name}'
    left = cell.request.config.num_rounds - running.rounds_done(cell)
    pace = next((found for kind in _kinds(cell) if (found := paces[kind])), [0.0])
    count, rounds = count + 1, rounds + left
    seconds += left * sum(pace) / len(pace)
  hours = f'{seconds / jobs / 3600:.1f} hours' if seconds or not count else '? hours'
  kept = len(given) - count
  yield f'kept: {kept} runs; left: {count}, {rounds} rounds, {hours} on {jobs} jobs'


def _kinds(cell: Cell) -> list[tuple]:
  """The kinds of runs to which a run belongs, from the narrowest to all runs."""
  config, choice = cell.request.config, cell.argv[0]
  algorithm = (config.model, config.algorithm)
  return [(choice,), (choice.partition(':')[0], *algorithm), algorithm, ()]


def _seconds_a_round(cell: Cell, results: pathlib.Path) -> list[float]:
  """[seconds of a round], of the kept run or of the rounds so far; [] without any.

  A run of a GPU says nothing about a machine without one, and the reverse.
  """
  with contextlib.suppress(RunError):
    kept = files.read_json(results / cell.name / 'config.json') or {}
    about = kept or files.read_json(cell.request.workdir / run_directory.CONFIG) or {}
    on_gpu = {device.startswith('gpu') for device in records.devices(about)}
    if on_gpu - {bool(devices.visible_gpus())}:
      return []
    if kept.get('cost'):
      return [kept['cost']['seconds'] / cell.request.config.num_rounds]
    lines = files.read_lines(cell.request.workdir / run_directory.TIMINGS)
    return [sum(clock.time_spent(lines).values()) / len(lines)] if lines else []
  return []


def _is_kept(cell: Cell, results: pathlib.Path) -> bool:
  return records.sums(results, cell.name).exists()


def _in_processes(argv: Sequence[str], jobs: int, logs: pathlib.Path) -> int:
  """Starts the processes, which end with this one; returns the exit code."""
  files.make_folder(logs)
  with contextlib.ExitStack() as stack:
    workers = []
    for index in range(jobs):
      log = stack.enter_context((logs / f'{index}.log').open('ab'))
      command = [sys.executable, '-m', 'docs.queue', *argv, f'--share={index}/{jobs}']
      workers.append(
        subprocess.Popen(
          command,
          stdout=log,
          stderr=subprocess.STDOUT,
          start_new_session=True,
        )
      )
    for number in _STOPS:
      signal.signal(number, lambda n, _: [each.send_signal(n) for each in workers])
    codes = {worker.wait() for worker in workers} - {ExitCode.DONE}
  if codes <= {ExitCode.PREEMPTED, ExitCode.INTERRUPTED, *(-n for n in _STOPS)}:
    return ExitCode.PREEMPTED if codes else ExitCode.DONE
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
    words, values = cli.read_flags(argv, _FLAGS)
    if words:
      raise UsageError(f'{words[0]!r} is a stray word; see --help.')
    if values.jobs is not None and values.jobs < 1:
      raise UsageError('--jobs must be at least 1.')
    runs = pathlib.Path(values.runs or 'runs/queue')
    results = pathlib.Path(values.results or DOCS / 'results')
    table_file = pathlib.Path(values.table or DOCS / 'queue.txt')
    given = cells(table_file, runs, values.data or '')
    jobs = values.jobs or len(devices.visible_gpus()) or provenance.machine()['cores']
    if values.list:
      print('\n'.join(table(given, results, jobs)))
      return ExitCode.DONE
    if not values.share:
      return _in_processes(argv, jobs, runs / 'log')
    stop = signals.listen()
    _yield_to_others()
    running.take_share(values.share)
    return work(given, results, stop)

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
