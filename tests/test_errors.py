"""Output without a reader, and output with names that a stranger chose."""

import ast
import io
import os
import shlex
import signal
import subprocess
import sys
import warnings

import pytest

from moon_jax import __main__
from moon_jax.core.errors import (
  ExitCode,
  UsageError,
  exit_code_of,
  print_or_help,
  warnings_as_lines,
)
from moon_jax.data import convert, sources
from moon_jax.predict import command as predict
from moon_jax.predict import inference
from moon_jax.report import __main__ as report
from moon_jax.report import build
from moon_jax.runner.stop_requests import Stop
from moon_jax.sweeps import command as sweep
from moon_jax.sweeps import running
from tests.processes import LAUNCH, LIMIT_SECONDS, read_lines
from tests.run_directories import words_of, write_run


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


def test_a_warning_of_a_program_is_a_line(capsys):
  def program():
    for _ in range(2):
      warnings.warn('checkpoint 3 is \x1b[31mdamaged', stacklevel=1)
    with warnings_as_lines('--input=x: '):
      warnings.warn('it is dark', stacklevel=1)
    return 'done'

  assert print_or_help([], 'the page', program) == ExitCode.DONE
  captured = capsys.readouterr()
  assert captured.out == 'done\n'
  assert captured.err.splitlines() == [
    r'checkpoint 3 is \x1b[31mdamaged',
    '--input=x: it is dark',
  ]

  def old_program():
    warnings.warn('old', DeprecationWarning, stacklevel=1)
    return 'done'

  # One for developers is left to Python.
  with pytest.warns(DeprecationWarning, match='old'):
    print_or_help([], 'the page', old_program)
  assert capsys.readouterr().err == ''


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


LONG = 'long' * 75
# A program, its words, and what its line says: found before JAX, pandas or any record
# of a run is read. `runs/a` is a run, which has registered no part.
EARLY = f"""
export runs/a --output={LONG}.npz -> File name too long
export runs/a --output=a.txt -> must end in .safetensors, .npz, .py or .onnx
export runs/a --output=none/a.npz -> no folder 'none'
export none --output=a.npz -> 'none' is not a run directory
export {LONG} --output=a.npz -> is not a run directory
export runs/a --output=a.npz --config=none.py -> --config='none.py'
export runs/a --output=runs/b.npz -> is a folder
predict --workdir=runs/a --input=none.npz -> --input='none.npz'
predict --workdir=none --input=none.npz -> 'none' is not a run directory
predict --workdir=runs/a --input=runs/a/config.json -> --input='runs/a/config.json'
predict --workdir=runs/a --input=a.npz --output={LONG}.npz -> File name too long
predict --workdir=runs/a --input=a.npz --output=a.txt -> must end in .csv or .npz
report runs --rows=nope --columns=seed -> --rows: no run has a setting 'nope'
report runs --rows=seed --columns=moon.nu -> --columns: no run has a setting 'moon.nu'
report runs --group=nope -> --group: no run has a setting 'nope'
report runs --over=nope -> --over: no run has a setting 'nope'
report runs --where=nope=1 -> --where: no run has a setting 'nope'
report runs --target=fedvag@last -> Did you mean 'fedavg'?
report runs --features=none_there -> --features='none_there'
report runs --out={LONG} -> File name too long
report empty -> No run was found
report runs none -> 'none' is not a folder
report compare none -> 'none' is not a folder
report compare runs --target=2 -> --target='2'
sweep --over=seed=1 --out={LONG} -> File name too long
sweep --over=sed=1 -> --config.sed
sweep --over=seed=x -> --config.seed='x'
sweep --over=seed=1 --jobs=0 -> --jobs=0
sweep --over=seed=1 --share=2 -> --share='2'
sweep --over=seed=1 --config=none.py -> --config='none.py'
sweep --over=seed=1 --config.data.source=npz --config.data.path=none -> No such file
launch --config.data.source=npz --config.data.path=none.npz -> data.path='none.npz'
launch --config.initial_weights=none.npz -> --config.initial_weights='none.npz'
launch --config.availability.name=trace --config.availability.path=none -> path='none'
convert --out=a --config.data.source=npz --config.data.path=none -> data.path='none'
convert --out={LONG} -> File name too long
convert --out={LONG[:-50]}.npz --synthetic=3 -> --synthetic='3'
convert --out=runs -> exists already
convert --out=a.npz --config.data.limit=3 -> --config.data.limit=3
convert --out=a --config.data.source=nope -> --config.data.source='nope'
"""
# Found after that, in the data. `two` has tables of two classes.
DATA = """
launch --config.num_clients=5000 -> 5000 clients with at least 10 examples need 50000
launch --config.data.source=table --config.data.path=two --config.data.label=x -> 'x'
launch --config.data.source=table --config.data.path=two --config.metrics=top5 -> top5
launch --config.data.source=imagefolder --config.data.path=runs -> runs
"""
EARLY_PROGRAM = """
import contextlib, io, sys
from moon_jax import __main__, export
from moon_jax.data import convert
from moon_jax.predict import command as predict
from moon_jax.report import __main__ as report
from moon_jax.runner.stop_requests import Stop
from moon_jax.sweeps import command as sweep
mains = {
  'export': export.main,
  'predict': predict.main,
  'report': report.main,
  'sweep': lambda words: sweep.main(words, Stop()),
  'convert': convert.main,
  'launch': __main__.launch,
}
for case in sys.stdin.read().splitlines():
  program, *words = case.split()
  err = io.StringIO()
  with contextlib.redirect_stderr(err):
    code = mains[program](words)
  slow = {'jax', 'pandas', 'matplotlib', 'sklearn', 'plotly', 'rich'} & {*sys.modules}
  print((int(code), sorted(slow), err.getvalue().splitlines()))
"""


def test_a_mistake_of_a_command_line_is_found_before_anything_slow(tmp_path):
  write_run(tmp_path / 'runs/a', [0.5])
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'runs/b.npz').mkdir()
  (tmp_path / 'two').mkdir()
  for name in ('train.csv', 'test.csv'):
    table = 'length,label\n' + '1.5,iris\n2.5,rose\n' * 100
    (tmp_path / 'two' / name).write_text(table)
  early, late = (
    [line.split(' -> ') for line in lines.strip().splitlines()]
    for lines in (EARLY, DATA)
  )
  process = subprocess.run(
    [sys.executable, '-c', EARLY_PROGRAM],
    input='\n'.join(words for words, _ in early + late),
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': os.path.dirname(LAUNCH)},
    capture_output=True,
    text=True,
    timeout=LIMIT_SECONDS,
  )
  assert process.returncode == 0, process.stderr
  faults = []
  answers = process.stdout.splitlines()
  for (words, fragment), answer in zip(early + late, answers, strict=True):
    code, slow, lines = ast.literal_eval(answer)
    is_too_late = 'jax' in slow if [words, fragment] in late else slow
    if code != ExitCode.USAGE or is_too_late or fragment not in ''.join(lines[-1:]):
      faults.append(f'{words}: {answer}')
  assert not faults, '\n'.join(faults)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='other systems have no prctl')
def test_a_worker_ends_when_its_sweep_has_ended():
  worker = 'import os, time; from moon_jax.core import signals; '
  worker += 'signals.end_with_parent(os.getppid()); '
  worker += 'print("begun", flush=True); time.sleep(600)'
  parent = f'import subprocess; subprocess.run([{sys.executable!r}, "-c", {worker!r}])'
  words = [sys.executable, '-c', parent]
  with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout.readline() == 'begun\n'
    process.send_signal(signal.SIGKILL)
    assert process.stdout.read() == ''  # ends when the worker has closed it


def test_a_worker_ends_whose_sweep_has_ended_before():
  words = ('-m', 'moon_jax.sweep', '--over=seed=0,1', '--share=0/2', '--parent=0')
  process = subprocess.run([sys.executable, *words], capture_output=True, check=False)
  assert process.returncode == ExitCode.PREEMPTED
  assert b'SIGTERM' in process.stderr
  assert process.stdout == b''
