"""Imports point one way, and the names of the project stay in the project."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'moon_jax'

# A module imports its own layer and those before it.
LAYERS = (
  ('types', 'errors'),
  ('tree', 'keys'),
  ('config',),
  ('cli',),
  ('algorithms',),
  ('models',),
  ('data',),
  ('engine',),
  ('runner',),
  ('inference',),
  ('predict',),
  ('report',),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def layered(*names):
  """The name of a module as LAYERS has it: 'report.figures', else 'report'."""
  whole = '.'.join(names[:2])
  return whole if whole in RANK else names[0]


def imported(path):
  """Names below the package that a file imports."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('moon_jax'):
      inside = node.module.split('.')[1:]
      yield from (layered(*inside, alias.name) for alias in node.names)
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
      assert not any(name.startswith('moon_jax') for name in names), path


def module_of(path):
  return layered(*path.relative_to(PACKAGE).with_suffix('').parts)


FILES = [path for path in PACKAGE.rglob('*.py') if path != PACKAGE / '__init__.py']


@pytest.mark.parametrize('path', FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
  here = module_of(path)
  for there in imported(path):
    assert RANK[there] <= RANK[here], f'{here} imports {there}'


# The same inside the report.
ROOMS = ('read', 'numbers', 'draw', 'page', 'command', 'build', 'compare', '__main__')


@pytest.mark.parametrize('room', ROOMS)
def test_a_room_of_the_report_imports_those_before_it(room):
  report = PACKAGE / 'report'
  inside = [*report.glob(f'{room}.py'), *report.glob(f'{room}/*.py')]
  assert inside
  for path in inside:
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and 'moon_jax.report' in (node.module or ''):
        names = (*node.module.split('.')[2:], *(alias.name for alias in node.names))
        assert ROOMS.index(names[0]) <= ROOMS.index(room), f'{path} imports {names}'


def test_every_file_of_the_report_has_a_room():
  names = {path.stem for path in (PACKAGE / 'report').iterdir()}
  assert names - {'__init__', '__pycache__'} == set(ROOMS)


def test_every_module_has_a_layer():
  assert {module_of(path) for path in FILES} == set(RANK)


def test_nothing_outside_the_reference_is_shared_with_it():
  modules = set()
  for path in (ROOT / 'tests/reference').glob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom):
        modules.add(node.module)
      elif isinstance(node, ast.Import):
        modules |= {alias.name for alias in node.names}
  own = {name for name in modules if name.startswith('tests.reference')}
  assert own
  foreign = {name.split('.')[0] for name in modules - own}
  assert foreign <= {'typing', 'collections', 'jax', 'numpy'}
