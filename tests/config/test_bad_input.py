"""Command lines that cannot be run: one line for each mistake, and nothing else.

Each of bad_input.txt goes through `launch`.
"""

import os
import pathlib
import re
import shlex

import numpy as np
import pytest
from matplotlib import font_manager

from moon_jax import catalog
from moon_jax.__main__ import launch
from moon_jax.core.errors import ExitCode
from moon_jax.platform import cores
from tests.data import test_sources


def table(text):
  """Command line -> the lines of its answer."""
  parts = re.findall(r'^\$ (.*)\n((?:.+\n)+)', text, re.M)
  assert len(parts) == text.count('\n$ ') > 10
  return {line: answer.splitlines() for line, answer in parts}


TEXT = pathlib.Path(__file__).with_name('bad_input.txt').read_text()
TEXT = TEXT.replace('{LONG}', 'long' * 100)
TEXT = TEXT.replace('{ALGORITHMS}', ', '.join(catalog.names('algorithm')))
# BAD: what the command line finds; UNFIT: what only the data or the machine shows.
BAD, UNFIT = map(table, TEXT.split('\n## '))

# File -> its text.
FILES = {
  'README.md': 'Not a config.',
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
  'wrong.py': 'config.seed = -1',
  'scalar.py': 'del config.moon; config.moon = 5.0',
}


def everything(folder):
  """Path -> bytes of a file below a folder, or None for a folder."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }


@pytest.fixture(scope='module', autouse=True)
def _fonts():
  """matplotlib's first use in a home writes a list of fonts: it must come earlier."""
  font_manager.findfont('DejaVu Sans')


@pytest.fixture
def folder(tmp_path, tmp_path_factory, monkeypatch):
  """The working folder, with the files of the tables; it is the home, too."""
  texts = FILES | {
    name: 'from moon_jax.config import defaults\ndef get_config():\n'
    f'  config = defaults()\n  {change}\n  return config\n'
    for name, change in CHANGES.items()
  }
  for name, text in texts.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
  labels = np.arange(30)
  for name, test_y in (('labels', labels % 4), ('objects', labels.astype(object))):
    np.savez(tmp_path / f'{name}.npz', **test_sources.arrays(test_y=test_y))
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
  return tmp_path


@pytest.mark.parametrize('line', BAD | UNFIT)
def test_bad_command_line(line, folder, capsys, monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', os.environ['XLA_FLAGS'])  # a run adds to it
  before = everything(folder)
  code = launch(shlex.split(line))
  out, err = capsys.readouterr()
  assert err.splitlines() == (BAD | UNFIT)[line]
  assert code == ExitCode.USAGE
  assert out == '' or line in UNFIT
  assert everything(folder) == before


def test_more_devices_than_a_cpu_may_have(folder, capsys):
  most = max(cores.count_usable(), 8)
  assert launch(['--config.execution.devices=100000000']) == ExitCode.USAGE
  wanted = f'--config.execution.devices=100000000 must be at most {most} here.'
  assert capsys.readouterr().err == wanted + '\n'
