"""A program whose output nobody takes does what it would have done."""

import shlex
import subprocess
import sys

import pytest

from moon_jax.core.errors import ExitCode
from tests.processes import LAUNCH, LIMIT_SECONDS, read_lines
from tests.runner.test_launch import TINY

LOST = 'Standard output cannot be written ({}); going on.\n'


def shell(folder, line, *words):
  """Runs a line of bash in which {} is launch.py with these words."""
  program = shlex.join([sys.executable, LAUNCH, *words])
  return subprocess.run(
    ['bash', '-o', 'pipefail', '-c', line.format(program)],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=LIMIT_SECONDS,
    check=False,
  )


@pytest.mark.parametrize(
  ('line', 'code', 'said'),
  [
    ('{} --help > /dev/full', ExitCode.DONE, LOST.format('No space left on device')),
    ('{} --help > /dev/full 2>&1', ExitCode.DONE, ''),
    ('{} --typo 2> /dev/full', ExitCode.USAGE, ''),
  ],
)
def test_the_exit_code_is_that_of_what_was_done(tmp_path, line, code, said):
  done = shell(tmp_path, line)
  assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.faults
def test_a_run_outlives_its_reader(tmp_path):
  words = (*TINY, '--config.num_rounds=6')
  done = shell(tmp_path, '{} | head -1', *words, '--workdir=read')
  assert done.returncode == ExitCode.DONE
  assert done.stdout.startswith('devices: ')
  assert done.stderr == LOST.format('Broken pipe')
  assert (tmp_path / 'read/summary.json').exists()
  for name in ('metrics', 'timings'):
    assert len(read_lines(tmp_path / f'read/{name}.jsonl')) == 6
