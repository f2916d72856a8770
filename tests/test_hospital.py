"""The story of docs/hospital.md, command by command."""

import csv
import os
import re
import shlex
import subprocess
import sys

import pytest

from moon_jax import export
from moon_jax.core.errors import ExitCode
from moon_jax.predict import command as predict_command
from moon_jax.report import __main__ as report
from tests.processes import ROOT, launched

PAGE = (ROOT / 'docs/hospital.md').read_text()
SITES = ['city', 'clinic', 'coast', 'north', 'rural']


def commands():
  """The words of each command of the page, but for the installation."""
  blocks = '\n'.join(re.findall(r'^```sh\n(.*?)^```', PAGE, re.M | re.S))
  lines = blocks.replace('\\\n', ' ').splitlines()
  return [shlex.split(line) for line in lines if line.strip() and 'venv' not in line]


# What the page calls `python -m NAME` -> the same in this process.
MODULES = {
  'moon_jax.report': report.main,
  'moon_jax.predict': predict_command.main,
  'moon_jax.export': export.main,
}


def run(words, folder):
  """Runs a command of the page, in this process if it is of MODULES; what it prints."""
  if words[1] == '-m':
    process = launched(folder, words[3:], MODULES[words[2]])
    assert process.returncode == ExitCode.DONE, process.stderr
    return process.stdout
  program = [sys.executable, *words[1:]]
  if words[1] == 'launch.py':
    program[1] = str(ROOT / 'launch.py')
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  process = subprocess.run(
    program, cwd=folder, env=environment, capture_output=True, text=True
  )
  assert process.returncode == 0, process.stderr
  return process.stdout


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The folder of the story after all commands but the last."""
  folder = tmp_path_factory.mktemp('hospital')
  (code,) = re.findall(r'```python\n# make_sites\.py\n(.*?)```', PAGE, re.S)
  (folder / 'make_sites.py').write_text(code)
  for words in commands()[:-1]:
    run(words, folder)
  return folder


def rows_of(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


@pytest.mark.slow
def test_from_folders_to_tables(folder):
  assert len(commands()) <= 12
  sites = rows_of(folder / 'report/tables/each_client.csv')
  assert sorted(row['client'] for row in sites) == SITES
  for chart in ('clients-user_accuracy', 'rounds-user_accuracy-FedAvg'):
    assert (folder / f'report/figures/{chart}.png').exists()
  assert (folder / 'report/figures/confusion-runs_hospitals_fedavg.png').exists()
  assert (folder / 'runs/hospitals/fedper/confusion_personal.png').exists()
  predictions = rows_of(folder / 'new.csv')
  assert len(predictions) == 299
  is_right = [row['label'] == row['predicted'] for row in predictions]
  assert sum(is_right) > 0.9 * len(is_right)
  confusion = rows_of(folder / 'new_confusion.csv')
  on_diagonal = [int(row[f'predicted {row["label"]}']) for row in confusion]
  assert sum(on_diagonal) == sum(is_right)
  compile((folder / 'model.py').read_text(), 'model.py', 'exec')


@pytest.mark.slow
def test_to_a_prediction_in_pytorch(folder):
  pytest.importorskip('torch', reason='no torch')
  printed = run(commands()[-1], folder)
  rows = {row['name']: row for row in rows_of(folder / 'new.csv')}
  row = rows['digit 3/1217.png']
  probability = float(row[f'probability of {row["predicted"]}'])
  assert printed.strip() == (
    f'new/digit 3/1217.png: {row["predicted"]}, probability {probability:.4f}'
  )
