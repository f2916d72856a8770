"""Output without a reader, and output with names that a stranger chose."""

import io
import os
import shlex
import signal
import subprocess
import sys

import pytest

from moon_jax import __main__
from moon_jax.core.errors import ExitCode, UsageError, exit_code_of
from moon_jax.data import convert, sources
from moon_jax.predict import command as predict
from moon_jax.predict import inference
from moon_jax.report import __main__ as report
from moon_jax.report import build
from moon_jax.runner.signals import Stop
from moon_jax.sweeps import command as sweep
from moon_jax.sweeps import running
from tests.processes import LAUNCH, LIMIT_SECONDS, read_lines
from tests.run_directories import words_of


def without_a_reader():
  reader, writer = os.pipe()
  os.close(reader)
  return open(writer, 'w')


def on_a_full_disk():
  return open('/dev/full', 'w')


def test_the_exit_codes_are_those_of_the_documentation():
  codes = ' '.join(f'{code.name.lower()}={int(code)}' for code in ExitCode)
  start = 'done=0 failed=1 usage=2 no_checkpoint=3 diverged=4'
  assert codes == f'{start} preempted=75 interrupted=130'


@pytest.mark.parametrize('name', ['stdout', 'stderr'])
@pytest.mark.parametrize('opened', [without_a_reader, on_a_full_disk])
def test_output_that_is_not_taken_changes_no_exit_code(monkeypatch, name, opened):
  def program():
    for _ in range(3):
      print('much ' * 10_000, file=getattr(sys, name), flush=True)
    raise UsageError('typo')

  with opened() as stream:  # a stream that can be closed
    monkeypatch.setattr(sys, name, stream)
    assert exit_code_of(program) == ExitCode.USAGE
    monkeypatch.undo()


def test_an_error_commands_no_terminal_and_keeps_its_lines(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())

  def program():
    raise UsageError('the file \x1b[31mred\x9b\nis bad')

  assert exit_code_of(program) == ExitCode.USAGE
  assert sys.stderr.getvalue() == 'the file \\x1b[31mred\\x9b\nis bad\n'


def test_what_a_terminal_has_no_letter_for_is_escaped(monkeypatch):
  screen = io.TextIOWrapper(io.BytesIO(), 'ascii')
  monkeypatch.setattr(sys, 'stdout', screen)
  assert exit_code_of(lambda: print('Lauf ✓') or 7) == 7
  assert screen.buffer.getvalue() == b'Lauf \\u2713\n'


@pytest.mark.parametrize('name', ['stdout', 'stderr'])
def test_a_stream_that_is_closed_takes_nothing(monkeypatch, name):
  monkeypatch.setattr(sys, name, None)  # as Python has it after `>&-`
  assert exit_code_of(lambda: print('much', file=getattr(sys, name)) or 7) == 7


def test_a_process_outlives_its_reader():
  line = f'{shlex.join([sys.executable, LAUNCH, "--help"])} | head -1'
  words = ['bash', '-o', 'pipefail', '-c', line]
  process = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS)
  assert (process.returncode, process.stderr) == (ExitCode.DONE, '')
  assert process.stdout.count('\n') == 1


@pytest.mark.faults
def test_a_run_outlives_its_reader(tmp_path, monkeypatch, quick_runs):
  with without_a_reader() as pipe:
    monkeypatch.setattr(sys, 'stdout', pipe)
    words = [*words_of(num_rounds=2), f'--workdir={tmp_path}/read']
    assert __main__.launch(words) == ExitCode.DONE
    monkeypatch.undo()
  assert (tmp_path / 'read/summary.json').exists()
  for name in ('metrics', 'timings'):
    assert len(read_lines(tmp_path / f'read/{name}.jsonl')) == 2


# The function that computes, and a command line that would call it.
OUT = (
  (build, 'collect', report.main, '. --out={}'),
  (
    running,
    'unfinished_runs',
    lambda words: sweep.main(words, Stop()),
    '--over=seed=1 --out={}',
  ),
  (sources, 'read', convert.main, '--out={}'),
  (inference, 'load', predict.main, '--input=a.npz --workdir=run --output={}/b.npz'),
)


@pytest.mark.parametrize(('module', 'name', 'main', 'words'), OUT)
def test_a_folder_that_cannot_be_written_is_refused_first(
  module, name, main, words, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail('it computes'))
  (tmp_path / 'file').touch()
  for folder in ('file', 'file/below', '/proc/none'):
    assert main(words.format(folder).split()) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(('--out=', '--output='))
  assert [path.name for path in tmp_path.iterdir()] == ['file']


@pytest.mark.skipif(sys.platform != 'linux', reason='other systems have no prctl')
def test_a_worker_ends_when_its_sweep_has_ended():
  worker = 'from moon_jax.sweeps import running; running.take_share("0/1"); '
  worker += 'import time; print("begun", flush=True); time.sleep(600)'
  parent = f'import subprocess; subprocess.run([{sys.executable!r}, "-c", {worker!r}])'
  words = [sys.executable, '-c', parent]
  with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout.readline() == 'begun\n'
    process.send_signal(signal.SIGKILL)
    assert process.stdout.read() == ''  # ends when the worker has closed it
