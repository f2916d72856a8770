"""The script of an array job: each task trains its own run, with any words."""

import os
import signal
import subprocess
import sys

import pytest

from moon_jax.core.errors import ExitCode, RunError, UsageError
from moon_jax.sweeps import slurm
from moon_jax.sweeps.planned_runs import sweep_runs

DIGITS = 'configs/digits_moon.py'
# Program -> the script in its place; the run is asked to stop and saves.
STUBS = {
  'sbatch': 'printf "%s\\0" "$@" > "$STUBS/options"; echo Submitted batch job 7',
  'scontrol': 'echo "$@" > "$STUBS/requeued"',
  'squeue': '[ "$2" = --jobs=7_1 ] && echo "$STATE" || printf "RUNNING\\nPENDING\\n"',
  'the python': """
    printf '%s\\0' "$@" > "$STUBS/words"
    trap 'exit 75' TERM
    echo begun
    while :; do sleep 0.05; done""",
}


@pytest.fixture
def stubs(tmp_path, monkeypatch):
  folder = tmp_path / 'its stubs'
  folder.mkdir()
  for name, text in STUBS.items():
    (folder / name).write_text(f'#!/bin/bash\n{text}\n')
    (folder / name).chmod(0o755)
  monkeypatch.setenv('PATH', f'{folder}:{os.environ["PATH"]}')
  monkeypatch.setenv('STUBS', str(folder))
  monkeypatch.setattr(sys, 'executable', str(folder / 'the python'))
  return folder


def two_runs(out, *words):
  return sweep_runs(DIGITS, words, {'seed': ['0', '1']}, out)


@pytest.mark.parametrize('state', ['RUNNING', 'COMPLETING'])
def test_a_task_runs_its_command_and_is_requeued_when_its_time_is_over(
  stubs, tmp_path, state
):
  out = tmp_path / "o u't\n$HOME 50%a"
  path = 'a "b";\n c/*.npz'
  runs = two_runs(out, '--config.data.source=npz', f'--config.data.path={path}')
  options = "-t 1:00:00 --comment='two words'"
  assert slurm.submit(runs, out, options) == 'Submitted batch job 7'
  *options_given, script, _ = (stubs / 'options').read_text().split('\0')
  folder = str(out).replace('%', '%%')
  assert options_given[:2] == ['--array=0-1', f'--output={folder}/slurm-%a.log']
  assert options_given[2:] == ['-t', '1:00:00', '--comment=two words']
  environment = os.environ | {
    'SLURM_ARRAY_TASK_ID': '1',
    'SLURM_ARRAY_JOB_ID': '7',
    'STATE': state,
  }
  with subprocess.Popen(
    ['bash', script], env=environment, stdout=subprocess.PIPE
  ) as process:
    assert process.stdout.readline() == b'begun\n'
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == ExitCode.PREEMPTED
  words = (stubs / 'words').read_text().split('\0')
  assert words == ['-m', 'moon_jax', *runs[1].argv, '']
  if state == 'RUNNING':
    assert (stubs / 'requeued').read_text() == 'requeue 7_1\n'
  else:  # it was cancelled
    assert not (stubs / 'requeued').exists()


def test_a_task_that_is_killed_says_so(stubs, tmp_path):
  (stubs / 'the python').write_text('#!/bin/bash\nkill -9 $$\n')
  slurm.submit(two_runs(tmp_path), tmp_path, '')
  environment = os.environ | {'SLURM_ARRAY_TASK_ID': '0', 'STATE': ''}
  script = tmp_path / slurm.SCRIPT
  task = subprocess.run(['bash', script], env=environment, check=False)
  assert task.returncode == 128 + signal.SIGKILL


def test_a_job_that_sbatch_refuses_is_told(stubs, tmp_path, monkeypatch):
  (stubs / 'sbatch').write_text('#!/bin/bash\necho no such partition >&2; exit 1\n')
  with pytest.raises(RunError, match='sbatch: no such partition'):
    slurm.submit(two_runs(tmp_path), tmp_path, '')
  (stubs / 'sbatch').unlink()
  monkeypatch.setenv('PATH', str(stubs))  # not the cluster's
  with pytest.raises(UsageError, match='there is no sbatch here'):
    slurm.submit(two_runs(tmp_path), tmp_path, '')
