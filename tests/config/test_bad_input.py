"""Command lines that cannot be run: one line for each mistake, and nothing else.

Each of bad_input.txt goes through `launch`; that file says what its answers must name.
"""

import os
import pathlib
import re
import shlex

import numpy as np
import pytest
from matplotlib import font_manager

from moon_jax.__main__ import launch
from moon_jax.core import user_cache
from moon_jax.core.errors import ExitCode
from moon_jax.platform import cores
from tests.data import test_sources

TEXT = pathlib.Path(__file__).with_name('bad_input.txt').read_text()
TEXT = TEXT.replace('{LONG}', 'long' * 100)
# Title -> its command lines and answers.
SECTIONS = dict(re.findall(r'^# (.*)\n((?:(?!# ).*\n)+)', TEXT, re.M))
DATA = 'Only the data, or the machine, can tell.'

# File -> its text.
FILES = {
  'raises.py': "raise ValueError('no luck\\nat all')",
  'broken.py': 'def get_config(:',
  'empty.py': '',
  'leaves.py': 'raise SystemExit(0)',
  'forgets.py': 'def get_config(): pass',
  'flags.txt': '--config.seed=-3',
  'taken': 'mine',
  'folder.py/inside': '',
}
# Config file -> what it does to the settings of configs/base.py.
CHANGES = {
  'misspelt.py': 'config.sed = 1',
  'scalar.py': 'del config.moon; config.moon = 5.0',
}


def cases(section):
  """Command line -> for each line of its answer, what that line names, in its order."""
  entries = re.findall(r'^\$ (.*)\n((?:.+\n)+)', SECTIONS[section], re.M)
  assert len(entries) == SECTIONS[section].count('$ ') > 0
  return {
    command: [line.split(' … ') for line in answer.splitlines()]
    for command, answer in entries
  }


def contents(folder):
  """Path -> bytes of a file below a folder, or None for a folder."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }


def names_in_order(line, fragments):
  """Whether a line holds all fragments, one after the other."""
  return re.search('.*'.join(map(re.escape, fragments)), line) is not None


@pytest.fixture(scope='module', autouse=True)
def _fonts():
  """matplotlib's first use in a home writes a list of fonts: it must come earlier."""
  font_manager.findfont('DejaVu Sans')


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The working folder, with the files of the tables; it is the home, too."""
  cache = user_cache.folder().parent  # it stays, with the kernels in it
  for name, text in FILES.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  for name, change in CHANGES.items():
    (tmp_path / name).write_text(
      'from moon_jax.config import defaults\n'
      'def get_config():\n'
      f'  config = defaults()\n  {change}\n  return config\n'
    )
  labels = np.arange(30)
  for name, test_y in (('labels', labels % 4), ('objects', labels.astype(object))):
    np.savez(tmp_path / f'{name}.npz', **(test_sources.arrays() | {'test_y': test_y}))
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('XDG_CACHE_HOME', str(cache))
  return tmp_path


@pytest.mark.parametrize('section', SECTIONS)
def test_bad_command_lines(section, folder, capsys, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', os.environ['XLA_FLAGS'])  # a run adds to it
  before = contents(folder)
  faults = []
  for command, answer in cases(section).items():
    code = launch(shlex.split(command))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    if code != ExitCode.USAGE:
      faults.append(f'{command}: exit code {code}')
    if len(lines) != len(answer) or not all(map(names_in_order, lines, answer)):
      faults.append(f'{command}: {answer} is not named by {lines}')
    if out and section != DATA:
      faults.append(f'{command}: prints {out!r}')
    if contents(folder) != before:
      faults.append(f'{command}: writes {contents(folder).keys() - before.keys()}')
  assert not faults, '\n'.join(faults)


def test_more_devices_than_a_cpu_may_have(folder, capsys):
  highest = max(cores.count_usable(), 8)
  assert launch(['--config.execution.devices=100000000']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert names_in_order(line, ['--config.execution.devices=100000000', str(highest)])
