"""A program whose output nobody can take does what it would have done."""

import os
import shlex
import subprocess
import sys

import pytest

from moon_jax.errors import ExitCode
from tests.processes import LAUNCH, LIMIT_SECONDS, ROOT, read_lines
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


def test_a_reader_that_does_not_read_is_not_waited_for(tmp_path):
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  with os.fdopen(reader), os.fdopen(writer, 'wb', buffering=0) as pipe:
    while pipe.write(bytes(4096)):
      pass
    done = subprocess.run(
      [sys.executable, LAUNCH, '--help'],
      stdout=pipe,
      stderr=subprocess.PIPE,
      text=True,
      timeout=LIMIT_SECONDS,
      check=False,
    )
  assert done.returncode == ExitCode.DONE
  assert done.stderr == LOST.format('Resource temporarily unavailable')


def test_a_line_of_a_signal_does_not_wait_for_its_reader():
  reader, writer = os.pipe()
  with os.fdopen(reader), os.fdopen(writer, 'wb', buffering=0) as pipe:
    os.set_blocking(writer, False)
    while pipe.write(bytes(4096)):
      pass
    os.set_blocking(writer, True)
    program = "from moon_jax import streams; streams.tell('x')"
    words = [sys.executable, '-c', program]
    subprocess.run(words, cwd=ROOT, stderr=pipe, timeout=LIMIT_SECONDS, check=True)


@pytest.mark.faults
def test_a_run_outlives_its_reader_and_needs_none(tmp_path):
  words = (*TINY, '--config.num_rounds=6')
  done = shell(tmp_path, '{} | head -1', *words, '--workdir=read')
  assert done.returncode == ExitCode.DONE
  assert done.stdout.startswith('devices: ')
  assert done.stderr == LOST.format('Broken pipe')
  done = shell(tmp_path, '{} <&- >&- 2>&-', *words, '--workdir=closed')
  assert (done.returncode, done.stdout, done.stderr) == (ExitCode.DONE, '', '')

  names = sorted(path.name for path in (tmp_path / 'read').iterdir())
  assert 'summary.json' in names
  assert sorted(path.name for path in (tmp_path / 'closed').iterdir()) == names
  metrics, timings = (tmp_path / f'closed/{n}.jsonl' for n in ('metrics', 'timings'))
  assert metrics.read_bytes() == (tmp_path / 'read/metrics.jsonl').read_bytes()
  assert len(read_lines(metrics)) == len(read_lines(timings)) == 6
