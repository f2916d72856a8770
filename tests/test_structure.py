"""Imports point one way; an algorithm is two files; the reference is its own."""

import ast
import pathlib
import shutil
import textwrap

import pytest

from moon_jax.core.errors import ExitCode
from tests.processes import check_success, launch, read_lines

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'moon_jax'

# Inside the report a file may import itself and the files before it.
ROOMS = (
  *(
    'statistics',
    'escaping',
    'runs',
    'naming',
    'groups',
    'traces',
    'results',
    'tables',
    'latex',
  ),
  *('pivot', 'features', 'models'),
  *('charts', 'sections', 'figures', 'interactive', 'files'),
  *('command', 'build', 'compare', '__main__'),
)
# A module may import its own layer and the layers before it.
LAYERS = (
  ('core', 'core.types', 'core.flags'),
  ('core.errors',),
  ('core.files',),
  ('core.tree', 'core.keys', 'core.cache', 'core.weights'),
  ('catalog',),
  ('config',),
  ('algorithms',),
  ('models',),
  ('data',),
  ('planning',),
  ('round',),
  ('platform',),
  ('building',),
  ('runner',),
  ('predict',),
  ('export',),
  ('report',),
  *((f'report.{room}',) for room in ROOMS),
  ('sweeps',),
  ('api', 'sweep'),
  ('__main__',),
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
      names = [alias.name for alias in node.names if alias.name != '__version__']
      yield from (layered(*inside, name) for name in names)
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
  assert foreign <= {'typing', 'collections', 'statistics', 'jax', 'numpy'}


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
  help_ = run(copy, '--help')
  check_success(help_)
  assert '  --config.fedprox_l1.mu=0.01 ' in help_.stdout
  wrong = '--config.fedprox_l1.mu=-1'
  done = run(copy, '--config.algorithm=fedprox_l1', wrong)
  assert done.returncode == ExitCode.USAGE
  assert done.stderr == f'{wrong}.0 must be at least 0.\n'


@pytest.mark.slow
def test_an_added_algorithm_is_recorded(copy):
  tiny = ('--config.num_rounds=2', '--config.local_epochs=1', '--config.data.limit=300')
  check_success(run(copy, '--config.algorithm=fedprox_l1', '--workdir=run', *tiny))
  losses = [record['l1_loss'] for record in read_lines(copy / 'run/metrics.jsonl')]
  assert len(losses) == 2
  assert min(losses) > 0
