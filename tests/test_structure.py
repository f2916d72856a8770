"""Imports point one way; an algorithm is two files; the reference is its own."""

import ast
import functools
import pathlib
import re
import shutil
import textwrap

import pytest

from moon_jax.core.errors import ExitCode
from tests.processes import check_success, launch, read_lines

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'moon_jax'

# The rooms of the package, from the bottom up. A module may import its own layer and
# the layers before it. Modules of core and of the report have layers of their own.
LAYERS = (
  ('core', 'core.types', 'core.flags', 'core.activity'),
  ('core.errors',),
  ('core.signals',),
  ('core.files', 'core.machine_memory'),
  ('core.output_files', 'core.client_names'),
  ('core.tree', 'core.keys', 'core.user_cache', 'core.weights', 'core.imports'),
  ('core.device_keys',),
  ('catalog',),
  ('config',),
  ('metrics',),
  ('algorithms',),
  ('models',),
  ('exchange',),
  ('data',),
  ('planning',),
  ('round',),
  ('platform',),
  ('building',),
  ('runner',),
  ('predict',),
  ('export',),
  ('report',),
  ('report.statistics',),
  ('report.escaping',),
  ('report.naming',),
  ('report.request',),
  ('report.directories',),
  ('report.runs',),
  ('report.groups',),
  ('report.traces',),
  ('report.results',),
  ('report.tables',),
  ('report.latex',),
  ('report.pivot',),
  ('report.paper',),
  ('report.features',),
  ('report.models',),
  ('report.charts',),
  ('report.clients',),
  ('report.sections',),
  ('report.labels',),
  ('report.figures',),
  ('report.interactive',),
  ('report.report_files',),
  ('report.command',),
  ('report.build',),
  ('report.compare',),
  ('report.__main__',),
  ('sweeps',),
  ('api', 'sweep'),
  ('__main__',),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = [path for path in PACKAGE.rglob('*.py') if path != PACKAGE / '__init__.py']


@functools.cache
def tree_of(path):
  return ast.parse(path.read_text())


def name_in_layers(*names):
  """('report', 'figures', ...) -> 'report.figures', or 'report': as LAYERS has it."""
  module_name = '.'.join(names[:2])
  return module_name if module_name in RANK else names[0]


def layer_name(path):
  return name_in_layers(*path.relative_to(PACKAGE).with_suffix('').parts)


def imported_names(path):
  """The names in LAYERS of what a file imports from the package."""
  for node in ast.walk(tree_of(path)):
    if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('moon_jax'):
      parents = node.module.split('.')[1:]
      for alias in node.names:
        if alias.name != '__version__':
          yield name_in_layers(*parents, alias.name)
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
      assert not any(name.startswith('moon_jax') for name in names), path


def test_imports_point_downwards():
  upward = [
    f'{path.relative_to(PACKAGE)} imports {imported}'
    for path in FILES
    for imported in imported_names(path)
    if RANK[imported] > RANK[layer_name(path)]
  ]
  assert not upward


def test_every_module_has_a_layer():
  assert {layer_name(path) for path in FILES} == set(RANK)


# A line of a package's docstring that lists modules: their names, and what they hold.
LISTED = re.compile(r'^ *([a-z_0-9]+(?:, [a-z_0-9]+)*)(?:, \.\.\.)?  +\w', re.M)


def test_the_modules_that_a_package_lists_exist():
  absent = [
    f'{path.relative_to(PACKAGE)}: {name}'
    for path in FILES
    if path.name == '__init__.py'
    for names in LISTED.findall(ast.get_docstring(tree_of(path)) or '')
    for name in names.split(', ')
    if not (path.parent / f'{name}.py').exists()
  ]
  assert not absent


# --- one place that spells flags ------------------------------------------------------

FLAG = re.compile(r'--(config|workdir|out)\b')


def docstrings(tree):
  """The docstrings of a file, which may show a user's command."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
      first = node.body[0] if node.body else None
      if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        yield first.value


def spelled_flags(path):
  """The texts of a file, other than docstrings, in which a flag is spelled."""
  tree = tree_of(path)
  exempt = {id(node) for node in docstrings(tree)}
  for node in ast.walk(tree):
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    if is_text and id(node) not in exempt and FLAG.search(node.value):
      yield f'{path.relative_to(PACKAGE)}, line {node.lineno}: {node.value!r}'


def test_only_core_flags_spells_flags():
  spelled = [
    text
    for path in FILES
    if path != PACKAGE / 'core/flags.py'
    for text in spelled_flags(path)
  ]
  assert not spelled, '\n'.join(['use moon_jax.core.flags in', *spelled])


# --- the reference --------------------------------------------------------------------


def test_nothing_outside_the_reference_is_shared_with_it():
  modules = set()
  for path in (ROOT / 'tests/reference').glob('*.py'):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom):
        modules.add(node.module)
      elif isinstance(node, ast.Import):
        modules |= {alias.name for alias in node.names}
  inside = {name for name in modules if name.startswith('tests.reference')}
  assert inside
  packages = {name.split('.')[0] for name in modules - inside}
  assert packages <= {'typing', 'collections', 'statistics', 'jax', 'numpy'}


# --- an algorithm with a knob, as CONTRIBUTING.md adds it -----------------------------


def example(marker):
  """The code of CONTRIBUTING.md below the first line that holds `marker`."""
  _, _, text = (ROOT / 'CONTRIBUTING.md').read_text().partition(marker)
  lines = text.splitlines()[1:]
  is_code = [not line or line.startswith(' ' * 8) for line in lines]
  return textwrap.dedent('\n'.join(lines[: is_code.index(False)])).strip() + '\n'


@pytest.fixture(scope='module')
def copy(tmp_path_factory):
  """The repository with one more algorithm, in one new file and one entry."""
  folder = tmp_path_factory.mktemp('copy')
  for name in ('moon_jax', 'configs'):
    ignored = shutil.ignore_patterns('__pycache__')
    shutil.copytree(ROOT / name, folder / name, ignore=ignored)
  shutil.copy(ROOT / 'launch.py', folder)
  algorithm = folder / 'moon_jax/algorithms/fedprox_l1.py'
  algorithm.write_text(example('`moon_jax/algorithms/fedprox_l1.py`, with'))
  catalog = folder / 'moon_jax/catalog/algorithms.py'
  parts = catalog.read_text().rstrip().removesuffix(')')
  entry = textwrap.indent(example('`moon_jax/catalog/algorithms.py`:'), '  ')
  catalog.write_text(f'{parts}{entry})\n')
  return folder


def run(copy, *words):
  return launch(copy, *words, program=(str(copy / 'launch.py'),))


def test_an_added_algorithm_is_in_the_help_and_checked(copy):
  shows_help = run(copy, '--help')
  check_success(shows_help)
  assert '  --config.fedprox_l1.mu=0.01 ' in shows_help.stdout
  negative = '--config.fedprox_l1.mu=-1'
  refuses = run(copy, '--config.algorithm=fedprox_l1', negative)
  assert refuses.returncode == ExitCode.USAGE
  assert refuses.stderr == f'{negative}.0 must be at least 0.\n'


@pytest.mark.slow
def test_an_added_algorithm_is_recorded(copy):
  tiny = ('--config.num_rounds=2', '--config.local_epochs=1', '--config.data.limit=300')
  check_success(run(copy, '--config.algorithm=fedprox_l1', '--workdir=run', *tiny))
  losses = [record['l1_loss'] for record in read_lines(copy / 'run/metrics.jsonl')]
  assert len(losses) == 2
  assert min(losses) > 0
