"""Runs of parts that users register; a stranger's registration changes nothing."""

import json
import pathlib
from typing import NamedTuple

import pytest

from moon_jax import catalog
from moon_jax.report import runs
from tests.report.reports import Collected, change_config, write_runs
from tests.run_directories import write_run

TURTLE = """
import moon_jax
from moon_jax import config as config_lib
from tests.report.test_registered import no_algorithm

moon_jax.register_algorithm(
  'turtle',
  no_algorithm,
  title='Turtle',
  knobs={'rho': moon_jax.knob(float, 0.5, 'slowness', moon_jax.above(0))},
  metrics={'shell': moon_jax.Metric('Thickness of the shell', 'cm', 100.0)},
)


def get_config():
  config = config_lib.defaults()
  config.algorithm = 'turtle'
  return config
"""


def no_algorithm(rho):
  raise AssertionError('A report needs no code of an algorithm.')


def forget_turtle():
  """Forgets the registration, as in a new process."""
  catalog.registry._parts.pop(('algorithm', 'turtle'))
  catalog.every_knob.cache_clear()


class Turtles(NamedTuple):
  """Runs of an algorithm that is not registered now, and the flag that registers it."""

  folder: pathlib.Path
  config_flag: str


@pytest.fixture
def turtles(tmp_path, own_parts):
  (tmp_path / 'turtle.py').write_text(TURTLE)
  flag = f'--config={tmp_path / "turtle.py"}'
  folder = tmp_path / 'runs'
  for rho in (0.5, 2):
    rho_flag = f'--config.turtle.rho={rho}'
    write_run(folder / str(rho), [0.5, 0.6], flag, rho_flag, shell=0.25)
  write_run(folder / 'f', [0.5, 0.7], flag, '--config.algorithm=fedavg')
  forget_turtle()
  return Turtles(folder, flag)


def test_runs_of_an_algorithm_that_is_not_registered_now(turtles, capsys):
  # The registration in config.json is enough.
  report = Collected(turtles.folder, ['--target=turtle@last'])
  labels = [row['series'] for row in report.rows('accuracy')]
  assert labels == ['FedAvg', 'Turtle, rho=0.5', 'Turtle, rho=2']
  shell = report.charts()['shell']
  assert (shell.title, shell.y_label) == ('Thickness of the shell', 'cm')
  assert list(shell.lines[0].points['mean']) == [25.0, 25.0]
  assert 'sweep-turtle.rho' in report.charts()
  # Without the registration a line names the algorithm.
  for rho in (0.5, 2):
    change_config(turtles.folder / str(rho), registered=[])
  capsys.readouterr()
  rows = Collected(turtles.folder).rows('accuracy')
  assert [row['series'] for row in rows] == ['FedAvg']
  line = f"skipped {turtles.folder}/2: There is no algorithm 'turtle'."
  assert line in capsys.readouterr().err.splitlines()
  # The user's file registers it too.
  assert len(Collected(turtles.folder, [turtles.config_flag]).rows('accuracy')) == 3


def test_what_a_run_registers_counts_for_it_alone(turtles):
  document = json.loads((turtles.folder / '2/config.json').read_text())
  (description,) = document['registered']
  hare_description = description | {'title': 'Hare', 'metrics': {}}
  change_config(turtles.folder / '2', registered=[hare_description])
  turtle, hare, _ = runs.find([turtles.folder], print)
  assert (turtle.algorithm.part.title, hare.algorithm.part.title) == ('Turtle', 'Hare')
  assert list(turtle.algorithm.part.metrics) == ['shell']
  assert 'turtle' not in catalog.names('algorithm')
  assert 'turtle.rho' not in catalog.every_knob()


# Kind, name, knob and traits in a run's registration -> why it is refused.
HOSTILE = {
  ('algorithm', 'moon', 'mu', ()): 'the name is taken',
  ('model', 'moon', 'mu', ()): 'the name is taken, as a group of knobs',
  ('data', 'optimizer', 'learning_rate', ()): 'the name is taken, as a group of knobs',
  ('model', 'served', 'a', ()): 'the name is taken, as a trait',
  ('algorithm', 'mine', 'a', ('moon',)): "there is no trait 'moon'",
}


def all_knobs():
  """The knobs of the catalog, without their bounds, which are functions."""
  return {name: knob._replace(bound=()) for name, knob in catalog.every_knob().items()}


@pytest.fixture(scope='module')
def two_runs(tmp_path_factory):
  """A folder with two runs below 'b'."""
  folder = tmp_path_factory.mktemp('hostile')
  runs_by_name = {f'{mu}': ([0.5, 0.6], f'moon.mu={mu}') for mu in (1, 2)}
  write_runs(folder / 'b', runs_by_name)
  write_run(folder / 'a', [0.9, 0.9])
  return folder


@pytest.fixture(scope='module')
def rows(two_runs):
  """The rows of the two runs alone."""
  return Collected(two_runs / 'b').rows('accuracy')


@pytest.mark.parametrize('registration', HOSTILE)
def test_a_strangers_run_changes_no_other(two_runs, rows, capsys, registration):
  knobs = all_knobs()
  kind, name, knob, traits = registration
  description = {
    'kind': kind,
    'name': name,
    'title': 'T',
    'metrics': {},
    'knobs': {knob: ['str', 'x', 'y']},
    'traits': list(traits),
    'file': 'f.py',
    'sha256': '',
  }
  change_config(two_runs / 'a', registered=[description])
  capsys.readouterr()
  assert Collected(two_runs).rows('accuracy') == rows
  complaint = f'config.json registers the {kind} {name!r}: {HOSTILE[registration]}.'
  assert f'skipped {two_runs}/a: {complaint}' in capsys.readouterr().err
  assert all_knobs() == knobs
