"""The command of the report: its mistakes, its table in the terminal, its libraries."""

import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from moon_jax import report as report_package
from moon_jax.core.errors import ExitCode
from moon_jax.report import command
from moon_jax.report.__main__ import PACKAGES, main
from tests.report.reports import FEDAVG, MOON, runs_of_seeds, write_runs
from tests.run_directories import EVALUATE, IDLE, TRAIN, write_run

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with a finished run, an unfinished one, an empty folder and a file."""
  folder = tmp_path_factory.mktemp('command')
  write_run(folder / 'runs/a', [0.5])
  write_run(folder / 'killed/a', [0.5], finished=False)
  (folder / 'empty').mkdir()
  (folder / 'file').write_text('')
  return folder


@pytest.mark.parametrize(
  ('words', 'complaint'),
  [
    ('nowhere', "'nowhere' is not a folder."),
    ('empty', 'No run was found below empty.'),
    ('killed', 'There is no finished run among 1 below killed.'),
    ('', 'A FOLDER is missing; see --help.'),
    ('compare', 'A RUN is missing; see --help.'),
    ('compare empty', 'No run was found below empty.'),
    ('compare runs/a --over=seed', "Unknown command line flag 'over'"),
    ('runs --config=nowhere.py', "--config='nowhere.py' is not a file."),
    ('runs --where=data.nme=x', "no run has a setting 'data.nme'. Did you mean "),
    ('runs --where=seed=7', '--where: no run has seed=7, only 0.'),
    ('runs --where=seed', "--where='seed' must be KNOB=VALUE"),
    ('runs --where=seed=1 --where=seed=2', "--where names 'seed' twice."),
    ('runs --group=moon.nu', "--group: no run has a setting 'moon.nu'. Did you mean "),
    ('runs --over=algorithm', "--over='algorithm' needs a --group without algorithm."),
    ('runs --over=execution.lanes', "--over: no run has a setting 'execution.lanes'."),
    ('runs --formats=png,gif', "--formats='png,gif' must be names of png, pdf, svg"),
    ('runs --target=fedavg', "--target='fedavg' must be an accuracy in (0, 1]"),
    ('runs --target=97', "--target='97' must be an accuracy in (0, 1]"),
    ('runs --target=fedvag@last', "Did you mean 'fedavg'?"),
    ('compare runs/a --target=fedvag@last', "Did you mean 'fedavg'?"),
    ('runs --features=x', "--features='x' is not among the finished runs."),
    ('runs --out=file --features=none', "--out='file' cannot be written: "),
    ('runs --ouy=x', "Unknown command line flag 'ouy'. Did you mean: out ?"),
  ],
)
def test_bad_input_is_one_line(folder, monkeypatch, capsys, words, complaint):
  monkeypatch.chdir(folder)
  assert main(words.split()) == ExitCode.USAGE
  stdout, stderr = capsys.readouterr()
  assert 'report: ' not in stdout
  assert complaint in stderr.splitlines()[-1]
  # Nothing was written.
  names = {path.name for path in folder.iterdir()}
  assert names == {'runs', 'killed', 'empty', 'file'}


def test_compare_prints_a_line_for_each_run(tmp_path, capsys):
  write_runs(tmp_path, runs_of_seeds('fedavg', FEDAVG[:1]))
  write_runs(tmp_path, runs_of_seeds('moon', MOON[:1]))
  write_run(tmp_path / 'killed', [0.1, 0.2], seed=9, finished=False)
  (tmp_path / 'empty').mkdir()
  names = ('fedavg-s0', 'moon-s0', 'killed', 'empty')
  words = [str(tmp_path / name) for name in names]
  assert main(['compare', *words]) == ExitCode.DONE
  stdout, stderr = capsys.readouterr()
  assert stderr == f'no run was found below {tmp_path}/empty\n'
  rows = []
  for line in stdout.splitlines():
    _, *cells = [word.strip() for word in line.split('│')[1:-1]] or ['']
    # A long name takes several lines; the numbers are in the first.
    if cells and cells[0]:
      rows.append(' '.join(cells))
  seconds = f'{7 * (TRAIN + EVALUATE + IDLE):.1f}'
  # FedAvg's 0.76 is reached by itself in round 7, by MOON in round 4; 1.5 MB a round.
  assert rows == [
    f'finished 7 76.00 76.00 test 70.40 76.00 7 10.5 {seconds} 50',
    f'finished 7 81.00 82.00 test 77.80 76.00 4 6.0 {seconds} 50',
    'unfinished 2 20.00 20.00 test - 76.00 - - 5.5 50',
  ]


def test_help_tells_every_flag(capsys):
  assert main(['--help']) == ExitCode.DONE
  stdout = capsys.readouterr().out
  for flag in command._REPORT_FLAGS:
    assert f'--{flag}=' in stdout


# --- libraries ------------------------------------------------------------------------


def test_the_packages_of_a_report_are_those_of_its_extra():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  requirements = project['optional-dependencies']['report']
  names = [re.match('[a-z0-9]+', requirement)[0] for requirement in requirements]
  assert sorted(names) == sorted(PACKAGES)


def test_a_missing_library_is_one_line(tmp_path, monkeypatch, capsys):
  write_run(tmp_path / 'a', [0.5, 0.6])
  # None in sys.modules makes an import fail.
  monkeypatch.setitem(sys.modules, 'tabulate', None)
  for name in [name for name in sys.modules if name.startswith('moon_jax.report.')]:
    monkeypatch.delitem(sys.modules, name)
  for name in [name for name in vars(report_package) if not name.startswith('_')]:
    monkeypatch.delattr(report_package, name)
  assert main([str(tmp_path), f'--out={tmp_path / "out"}']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.endswith("pip install 'moon_jax[report]'")
  assert not (tmp_path / 'out').exists()


def run_python(code, words=(), stdout=None):
  return subprocess.run(
    [sys.executable, '-u', '-c', code, *words],
    cwd=ROOT,
    stdout=stdout,
    stderr=subprocess.PIPE,
    text=True,
    check=False,
  )


@pytest.mark.slow
def test_training_loads_no_library_of_a_report():
  libraries = {'pandas', 'plotly', 'sklearn.manifold', 'tabulate'}
  code = f'assert not {libraries} & set(sys.modules)'
  process = run_python(f'import sys; from moon_jax.runner import loop; {code}')
  assert process.returncode == 0, process.stderr


def test_a_report_outlives_its_output_and_does_without_jax(tmp_path):
  write_run(tmp_path / 'runs/a', [0.5, 0.6])
  code = """
import runpy, sys
from matplotlib.figure import Figure
Figure.savefig = lambda figure, file, **options: None
try:
  runpy.run_module('moon_jax.report', run_name='__main__')
finally:
  assert 'jax' not in sys.modules
"""
  words = [tmp_path / 'runs', f'--out={tmp_path / "out"}', '--features=none']
  with open('/dev/full', 'w') as full:
    process = run_python(code, words, stdout=full)
  assert process.returncode == ExitCode.DONE, process.stderr
  assert (tmp_path / 'out/index.html').exists()
