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
--dry-run         runs nothing; prints how far each run is, and estimates the time and
                  the disk space that the sweep still needs, from its first rounds or
                  from earlier runs beside it
--jobs=N          number of processes, which share the cores; default one for each GPU,
                  and one without a GPU
--slurm=OPTIONS   submits an array job with these options of sbatch, e.g.
                  --slurm='--time=4:00:00 --gres=gpu:1'
--no-report       leaves out the report that is made when all runs are finished

Exit codes: 0 done, 1 a run failed or diverged, 2 wrong usage, 75 SIGTERM or SIGHUP,
130 Ctrl-C; after 75 and 130 the same command continues the sweep.
"""

import pathlib
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of
from moon_jax.core.paths import expand
from moon_jax.platform import devices
from moon_jax.runner.signals import Stop
from moon_jax.sweeps.cells import Cell, cells


def main(argv: list[str], stop: Stop) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  if {'-h', '--help'} & set(argv):
    print(__doc__.strip())
    return ExitCode.DONE
  stop.command = shlex.join(['python', '-m', 'moon_jax.sweep', *argv])
  return exit_code_of(lambda: _run(argv, stop))


def parse(argv: Sequence[str]) -> tuple[list[Cell], pathlib.Path, flags.FlagValues]:
  """Reads the command line, and checks every run; nothing is written.

  Returns:
    The runs, their folder, and the other flags.

  Raises:
    UsageError: every mistake found, one line each.
  """
  kinds = dict.fromkeys(('config', 'out', 'slurm', 'share'), str)
  kinds |= {'over': list, 'jobs': int, 'dry-run': bool, 'no-report': bool}
  words, values = cli.read_flags(argv, kinds, known_only=True)
  for word in words:
    if not word.startswith('--config.'):
      raise UsageError(cli.stray(word, *(f'--{name}' for name in kinds)))
    if '=' not in word:
      raise UsageError(f'{word} needs a value: {word}=VALUE.')
  if values.jobs is not None and values.jobs < 1:
    raise UsageError(f'--jobs={values.jobs} must be at least 1.')
  if values.jobs is not None and values.slurm is not None:
    raise UsageError('--jobs and --slurm exclude each other: a task has one run.')
  choice = values.config or cli.DEFAULT_CONFIG
  stem = pathlib.Path(config_lib.split(choice)[0]).stem
  out = expand(values.out or f'runs/{stem}-sweep')
  return cells(choice, words, cli.values_of('over', values.over), out), out, values


def _run(argv: Sequence[str], stop: Stop) -> int:
  every, out, values = parse(argv)
  # Imported here: a mistyped flag is answered before JAX is loaded.
  from moon_jax.report import __main__ as report
  from moon_jax.runner import run_directory
  from moon_jax.sweeps import estimate, running, slurm

  running.check(every)
  if values['dry-run'].value:
    print('\n'.join(estimate.table(every, out)))
    return ExitCode.DONE
  files.require_writable(out, 'out')
  todo = running.left(every)
  if values.slurm is not None:
    print(slurm.submit(todo, out, values.slurm) if todo else 'every run is finished')
    return ExitCode.DONE
  if values.share:
    running.take_share(values.share)
    errors = running.run_here(every, stop)
    failed = any(not isinstance(error, run_directory.BusyError) for error in errors)
    return ExitCode.FAILED if failed else ExitCode.DONE
  jobs = values.jobs or len(devices.visible_gpus()) or 1
  if jobs > 1 and todo:
    code = running.run_in_processes(argv, every, jobs)
    if code in (ExitCode.PREEMPTED, ExitCode.INTERRUPTED):
      print(
        'Stopped; what was saved stays. To go on: the same command', file=sys.stderr
      )
      return code
  else:
    running.run_here(every, stop)
  for cell in (unfinished := running.left(every)):
    print(f'{cell.name}: {running.state_of(cell)}', file=sys.stderr)
  if unfinished:
    if jobs > 1:
      print(f'The output of the processes is in {out / running.LOGS}.', file=sys.stderr)
    return ExitCode.FAILED
  if values['no-report'].value:
    return ExitCode.DONE
  return report.main([str(out), f'--out={out / "report"}'])
