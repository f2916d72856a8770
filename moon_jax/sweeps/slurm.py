"""An array job of a sweep: one task for each run, requeued when its time is over."""

import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from moon_jax.errors import ExitCode, RunError, UsageError
from moon_jax.runner import files
from moon_jax.sweeps.cells import Cell

SCRIPT = 'sweep.sbatch'
_TEXT = """#!/bin/bash
#SBATCH --job-name=moon_jax
#SBATCH --array=0-{last}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={out}/slurm-%a.log
#SBATCH --signal=B:TERM@300
{options}
# Options above are those of --slurm; each task runs one of these commands.
commands=(
{commands}
)
${{commands[$SLURM_ARRAY_TASK_ID]}} &
trap 'kill -TERM %1' TERM
wait %1; code=$?
[ $code -gt 128 ] && {{ wait %1; code=$?; }}  # a signal ends the first wait
if [ $code -eq {preempted} ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit $code
"""


def submit(cells: Sequence[Cell], out: pathlib.Path, options: Sequence[str]) -> str:
  """Writes the script of the runs that are left, and submits it.

  Args:
    cells: those that are left, at least one.
    out: the folder of the sweep.
    options: for sbatch, such as '--gres=gpu:1'.

  Returns:
    What sbatch says.

  Raises:
    UsageError: there is no sbatch.
    RunError: it refuses the job.
  """
  if shutil.which('sbatch') is None:
    raise UsageError('--slurm: there is no sbatch here.')
  out.mkdir(parents=True, exist_ok=True)
  text = _TEXT.format(
    last=len(cells) - 1,
    out=shlex.quote(str(out.absolute())),
    options='\n'.join(f'#SBATCH {option}' for option in options),
    commands='\n'.join(f'  {shlex.quote(_command(cell))}' for cell in cells),
    preempted=int(ExitCode.PREEMPTED),
  )
  files.replace(out / SCRIPT, text)
  done = subprocess.run(
    ['sbatch', str(out / SCRIPT)], capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise RunError(f'sbatch: {done.stderr.strip()}')
  return done.stdout.strip()


def _command(cell: Cell) -> str:
  return shlex.join([sys.executable, '-m', 'moon_jax', *cell.argv])
