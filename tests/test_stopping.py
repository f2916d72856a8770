"""Ctrl-C and SIGTERM end every program at once, whatever its main thread is doing."""

import signal
import time

import numpy as np
import pytest

from moon_jax.core.errors import ExitCode
from tests.processes import ROOT, Running

AT_ONCE = 'Stopped at once by {name}; the same command begins anew.\n'
pytestmark = pytest.mark.usefixtures('this_package')
LIMIT_SECONDS = 5  # what takes 0.1 s on a quiet machine
CODES = {
  signal.SIGINT: ('Ctrl-C', ExitCode.INTERRUPTED),
  signal.SIGTERM: ('SIGTERM', ExitCode.PREEMPTED),
}


@pytest.fixture
def this_package(monkeypatch):
  """The processes import the package of this checkout."""
  monkeypatch.setenv('PYTHONPATH', str(ROOT))


def check_ends(process, number, *, is_logged=False):
  """The process ends soon after a signal, with one line and the code of the signal.

  If JAX logs what it compiles, its lines come before.
  """
  begin = time.monotonic()
  process.send(number)
  ended = process.finish()
  assert time.monotonic() - begin < LIMIT_SECONDS
  name, exit_code = CODES[number]
  printed = ended.stderr.splitlines(keepends=True)
  assert AT_ONCE.format(name=name) in (printed[-1:] if is_logged else [ended.stderr])
  assert ended.returncode == exit_code


# A library that does not return to Python, while a file is half written.
BUSY = """
import pathlib, sqlite3
from moon_jax.core import signals
signals.listen(signals.StopAtOnce())
from moon_jax.core import files
query = 'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) '
with files.new_file(pathlib.Path('a')) as file:
  print('begun', flush=True)
  sqlite3.connect(':memory:').execute(query + 'SELECT max(i) FROM n')
"""


@pytest.mark.parametrize('number', CODES)
def test_a_library_that_does_not_return(number, tmp_path):
  (tmp_path / 'a').write_text('old')
  with Running(tmp_path, program=('-c', BUSY)) as process:
    process.wait_for('begun')
    assert (tmp_path / 'a.partial').exists()
    check_ends(process, number)
  assert [path.name for path in tmp_path.iterdir()] == ['a']
  assert (tmp_path / 'a').read_text() == 'old'


@pytest.mark.slow
@pytest.mark.parametrize('number', CODES)
def test_a_conversion_leaves_nothing(number, tmp_path):
  words = ('--out=out', '--synthetic=1000000x50')
  program = ('-m', 'moon_jax.data.convert')
  with Running(tmp_path, *words, program=program) as process:
    while not list(tmp_path.glob('out.partial-*/*')):
      time.sleep(0.01)
    check_ends(process, number)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize('number', CODES)
def test_predictions_leave_nothing(number, two_rounds, tmp_path):
  """In the middle of a prediction that takes far longer."""
  np.savez(tmp_path / 'in.npz', images=np.zeros((2_000_000, 8, 8), np.uint8))
  words = (f'--workdir={two_rounds}', '--input=in.npz', '--output=out.csv')
  program = ('-m', 'moon_jax.predict')
  with Running(tmp_path, *words, program=program, JAX_LOG_COMPILES='1') as process:
    process.wait_for('Finished XLA compilation of jit(forward)', stream='stderr')
    time.sleep(1)
    check_ends(process, number, is_logged=True)
  assert [path.name for path in tmp_path.iterdir()] == ['in.npz']


# In the place of a library that takes long to load.
SLOW_LIBRARY = """
import time
print('loading', flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize('program', ['predict', 'report', 'export', 'data.convert'])
def test_a_program_that_is_loaded(program, tmp_path):
  """Signals are heeded before the slow imports, so no traceback of them is seen."""
  (tmp_path / 'numpy.py').write_text(SLOW_LIBRARY)
  with Running(tmp_path, program=('-m', f'moon_jax.{program}')) as process:
    process.wait_for('loading')
    check_ends(process, signal.SIGINT)


@pytest.mark.slow
def test_a_sweep_passes_ctrl_c_on(tmp_path):
  """Only the sweep gets the signal; its processes end with it."""
  words = ('--over', 'seed=0,1', '--jobs=2', '--out=out', '--no-report')
  with Running(tmp_path, *words, program=('-m', 'moon_jax.sweep')) as process:
    logs = [tmp_path / f'out/jobs/{index}.log' for index in range(2)]
    while not all(log.exists() and log.stat().st_size for log in logs):
      time.sleep(0.05)
    process.send(signal.SIGINT)
    process.wait_for('Ctrl-C: saving after this round', stream='stderr')
    process.send(signal.SIGINT)
    begin = time.monotonic()
    ended = process.finish()
  assert time.monotonic() - begin < LIMIT_SECONDS
  assert ended.returncode == ExitCode.INTERRUPTED
  assert 'Traceback' not in ended.stderr
