"""An array job of a sweep: one task for each run, requeued when its time is over."""

import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from moon_jax.core import files
from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.core.flags import option
from moon_jax.sweeps.planned_runs import SweepRun

SCRIPT = 'sweep.sbatch'
_TEXT = """#!/bin/bash
#SBATCH --job-name=moon_jax
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@300
# Each task runs one of these commands. The sweep gives sbatch --array and --output too.
commands=(
{commands}
)
trap 'got=1; kill -TERM $!' TERM  # $! is the command below as soon as it runs
eval "exec ${{commands[$SLURM_ARRAY_TASK_ID]}}" &
pid=$!; wait $pid; code=$?
[ -n "$got" ] && [ $code -gt 128 ] && {{ wait $pid; code=$?; }}  # TERM ended that wait
task="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
state=$(squeue --noheader --jobs="$task" --format=%T)
if [ $code -eq {preempted} ] && [ "$state" = RUNNING ]; then  # not cancelled
  scontrol requeue "$task"
fi
exit $code
"""


def submit(runs: Sequence[SweepRun], out: pathlib.Path, options: str) -> str:
  """Writes the script of the runs that are left, and submits it.

  Args:
    runs: the runs that are left, at least one.
    out: the folder of the sweep.
    options: options of sbatch, such as '--time=4:00:00 --gres=gpu:1'.

  Returns:
    The output of sbatch.

  Raises:
    UsageError: there is no sbatch, or the options are no words.
    RunError: sbatch refuses the job.
  """
  try:
    option_words = shlex.split(options)
  except ValueError as error:
    raise UsageError(f'{option("slurm", options)}: {error}.') from None
  if shutil.which('sbatch') is None:
    raise UsageError('--slurm: there is no sbatch here.')
  out.mkdir(parents=True, exist_ok=True)
  files.replace(out / SCRIPT, _script(runs))
  words = [
    'sbatch',
    f'--array=0-{len(runs) - 1}',
    f'--output={str(out.absolute()).replace("%", "%%")}/slurm-%a.log',
    *option_words,  # of two equal options, the last wins
    str(out / SCRIPT),
  ]
  # Without an input, which sbatch would read if an option took the script as its value.
  process = subprocess.run(
    words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
  )
  if process.returncode:
    raise RunError(f'sbatch: {process.stderr.strip()}')
  return process.stdout.strip()


def _script(runs: Sequence[SweepRun]) -> str:
  """The script, whose task i runs the i-th run."""
  commands = []
  for run in runs:
    command = shlex.join([sys.executable, '-m', 'moon_jax', *run.argv])
    commands.append(f'  {shlex.quote(command)}')
  return _TEXT.format(commands='\n'.join(commands), preempted=int(ExitCode.PREEMPTED))
