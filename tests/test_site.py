"""The pages' examples run, their commands are valid, and the reference is complete."""

import doctest
import importlib
import json
import pathlib
import re
import shlex

import numpy as np
import pytest

import moon_jax
from docs import images, reference
from moon_jax import catalog, export
from moon_jax.catalog.registry import part
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import ExitCode
from moon_jax.data import convert
from moon_jax.predict import command as predict_command
from moon_jax.report import command as report_command
from moon_jax.sweeps import command as sweep_command
from papers import kept_runs
from tests.processes import launched

pytestmark = pytest.mark.usefixtures('quick_runs')

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
BLOCK = re.compile(r'^```(\w+)\n(.*?)^```$', re.M | re.S)
WITH_EXAMPLES = [
  path for path in (ROOT / 'moon_jax').rglob('*.py') if '>>>' in path.read_text()
]
# A code block that is a file: its name and its code.
FILE = re.compile(r'^```python\n# (\w+\.py)\n(.*?)^```$', re.M | re.S)
PAGES_WITH_FILES = [
  (ROOT / f'docs/{name}.md').read_text() for name in ('own_algorithm', 'metrics')
]
# A program -> the parser of its arguments.
PARSERS = {
  'python launch.py': cli.parse,
  'moon-jax': cli.parse,
  'python -m moon_jax.sweep': sweep_command.parse,
  'python -m moon_jax.report': report_command.parse,
  'python -m moon_jax.export': export.parse,
  'python -m moon_jax.predict': predict_command.parse,
  'python -m moon_jax.data.convert': convert.parse,
}


def blocks(page, language):
  """The code of a page in a language, in its order."""
  return [code for name, code in BLOCK.findall(page.read_text()) if name == language]


# Their examples train many networks; what they show has tests of its own.
SLOW = ('from_python', 'metrics', 'parts')


def pages_with(language, slow=()):
  return [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * (page.stem in slow))
    for page in PAGES
    if blocks(page, language)
  ]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """An empty folder with the config files of the repository."""
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  (tmp_path / 'examples').symlink_to(ROOT / 'examples')
  monkeypatch.chdir(tmp_path)
  return tmp_path


PAGES_WITH_PYTHON = [
  page
  for page in pages_with('python', SLOW)
  if page.id != 'data'  # tests/data/test_page.py runs each of its blocks alone
]


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize('page', PAGES_WITH_PYTHON)
def test_the_python_of_a_page_runs(page, folder):
  """One block after the other; a block that begins with a file's name is that file."""
  names = {}
  for code in blocks(page, 'python'):
    if file := re.match(r'# (\w+\.py)\n', code):
      (folder / file[1]).write_text(code)
      if 'get_config' in code:
        assert cli.parse([f'--config={file[1]}']).config
    else:
      exec(compile(code, page.name, 'exec'), names)


@pytest.mark.usefixtures('own_parts')
def test_the_metric_of_the_page_is_defined_for_examples_of_one_class():
  code = dict(FILE.findall((ROOT / 'docs/metrics.md').read_text()))['specific.py']
  names = {}
  exec(code.partition('moon_jax.register_metric')[0], names)
  logits = np.eye(3)[[1, 1, 0, 2]]  # two of four are taken for other classes
  classified = moon_jax.Classified(labels=np.ones(4, int), logits=logits)
  # Of the others of classes 0 and 2, all four, one is taken for each.
  assert names['specificity'](classified) == 0.75


def test_the_kinds_of_parts_that_users_cannot_add_are_named():
  knobs = catalog.KINDS | catalog.LISTED_KINDS
  closed_kinds = [kind for kind in knobs if not hasattr(moon_jax, f'register_{kind}')]
  (row,) = re.findall(r'^\| part \| .*', (ROOT / 'docs/concepts.md').read_text(), re.M)
  assert re.findall(r'`([\w.]+)`', row) == [knobs[kind] for kind in closed_kinds]


@pytest.mark.usefixtures('own_parts')
def test_a_config_file_may_have_a_module_beside_it(folder):
  (folder / 'inner').mkdir()
  (folder / 'inner/my_losses.py').write_text('BATCH = 17\n')
  (folder / 'inner/mine.py').write_text(
    'from moon_jax.config import defaults, import_config\n'
    "my_losses = import_config('my_losses.py', relative_to=__file__)\n"
    'def get_config():\n'
    '  config = defaults()\n'
    '  config.batch_size = my_losses.BATCH\n'
    '  return config\n'
  )
  assert cli.parse(['--config=inner/mine.py']).config.batch_size == 17


@pytest.mark.parametrize('page', pages_with('pycon'))
def test_what_a_page_shows_of_python_is_so(page):
  code = '\n'.join(blocks(page, 'pycon'))
  examples = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
  assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.parametrize('path', WITH_EXAMPLES, ids=lambda path: path.stem)
def test_what_a_docstring_shows_is_so(path):
  name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
  outcome = doctest.testmod(importlib.import_module(name))
  assert outcome.attempted
  assert not outcome.failed


def test_the_first_run_looks_as_the_start_shows_it(folder):
  """All is equal but the numbers of this machine and the lines that `...` replaces."""
  (block,) = blocks(ROOT / 'docs/start.md', 'console')
  command, *lines_of_page = block.splitlines()
  assert command == '$ python launch.py'
  run = launched(folder)
  assert run.returncode == ExitCode.DONE, run.stderr
  lines = run.stdout.splitlines()
  assert lines_of_page[1:4] == lines[1:4]
  comparable_lines = list(map(without_machine, lines))
  for line in lines_of_page:
    if line != '...':
      assert without_machine(line) in comparable_lines, line


def without_machine(line):
  """A line without what depends on the machine."""
  line = re.sub(r'devices: .*|lanes: \d+ on \d+ devices?', '', line)
  return re.sub(r'\d+\.\d+ s\b', 's', line)


def commands(page):
  """The commands of a page: of its shell blocks, and of its indented lines."""
  code = '\n'.join(blocks(page, 'sh')).replace('\\\n', ' ')
  indented = re.findall(r'^ {4}(\w.*)', page.read_text(), re.M)
  return re.split(r'\n| && ', '\n'.join([code, *indented]))


def commands_of_moon_jax():
  """A parser and its arguments; a program without a parser is a KeyError."""
  pattern = r'\b(python launch\.py|python -m moon_jax[\w.]*|moon-jax)(?: (.*)|$)'
  for page in PAGES:
    for line in commands(page):
      if match := re.search(pattern, line):
        program, arguments = match.groups(default='')
        name = f'{page.stem}: {match[0][:60]}'
        yield pytest.param(PARSERS[program], arguments, id=name)


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize(('parse', 'arguments'), [*commands_of_moon_jax()])
def test_a_command_of_a_page_is_valid(parse, arguments, folder):
  words = shlex.split(arguments, comments=True)
  for text in PAGES_WITH_FILES:
    for name, code in FILE.findall(text):
      (folder / name).write_text(code)
  if '--help' not in words and not any(word.endswith(':list') for word in words):
    parse(words)


@pytest.mark.parametrize('name', ['README.md', 'examples/README.md'])
def test_links_outside_the_site_lead_somewhere(name):
  """Links inside the site are checked where it is built."""
  page = ROOT / name
  links = re.findall(r'\]\(([^):#]+)#?([^):]*)\)', page.read_text())
  assert links
  for path, anchor in links:
    target = page.parent / path
    assert target.is_file(), path
    if anchor:
      assert anchor in anchors(target.read_text()), f'{path}#{anchor}'


def anchors(text):
  """The anchors of the headings of a page."""
  headings = re.findall(r'^#+ (.*)', text, re.M)
  return [re.sub(r'[^\w -]', '', h.lower()).replace(' ', '-') for h in headings]


def test_every_picture_is_on_a_page_and_has_its_command():
  names = {path.name for path in images.IMAGES.iterdir() if path.is_file()}
  drawn_by_hand = {name for name in names if name.endswith('.svg')}
  copied = {name for c in images.COPIED.values() for name in c.pictures.values()}
  assert names == {images.BROWSED} | copied | drawn_by_hand
  experiments = {
    f'experiments/{path.name}' for path in (images.IMAGES / 'experiments').iterdir()
  }
  text = '\n'.join(page.read_text() for page in PAGES)
  for name in names | experiments:
    assert f'images/{name})' in text
  for copied_pictures in images.COPIED.values():
    assert images.command(copied_pictures.page, copied_pictures.program)


def test_the_tests_that_prove_a_promise_exist():
  code_of_files = {}
  for path in (ROOT / 'tests').rglob('test_*.py'):
    code = code_of_files.get(path.name, '')
    code_of_files[path.name] = code + path.read_text()
  page = (ROOT / 'docs/reliability.md').read_text()
  names = re.findall(r'::(test_\w+)|(test_\w+\.py)', page)
  assert len(names) > 60
  last_file = ''  # the page names a file once, and then its tests
  for test, file in names:
    last_file = file or last_file
    code = code_of_files[last_file]
    assert re.search(rf'^def {test}\b', code, re.M), f'{last_file}::{test}'


def test_every_promise_names_a_test():
  page = (ROOT / 'docs/reliability.md').read_text()
  table = page.partition('| promise | test |\n|---|---|\n')[2].partition('\n\n')[0]
  rows = [re.split(r'(?<!\\) \| ', line) for line in table.splitlines()]
  assert len(rows) > 40
  for promise, tests in rows:
    names = re.findall(r'`((?:tests/)?[\w/]*test_\w+\.py)(?:::\w+)?`', tests)
    assert names, promise
    for name in names:
      folders = [ROOT] if name.startswith('tests/') else (ROOT / 'tests').rglob('.')
      assert any((folder / name).is_file() for folder in folders), name
  promises = [promise for promise, _ in rows]
  assert len(set(promises)) == len(promises)


def test_every_column_is_explained():
  schema = json.loads(files.SCHEMA.read_bytes())['definitions']['line']
  patterns = [*schema['patternProperties']]
  patterns += [f'^{name}$' for name in schema['properties']]
  columns = {
    column
    for name in catalog.names('algorithm')
    for column, metric in part('algorithm', name).metrics.items()
    if not metric.value
  }
  assert {'temperature_mean', 'p_t', 'consensus_distance'} <= columns
  for run in kept_runs.read_all(ROOT / 'papers/runs').values():
    columns |= {name for line in run.rounds for name in line}
  assert len(columns) > 80
  for column in columns:
    assert any(re.match(pattern, column) for pattern in patterns), column


def test_the_reference_has_every_knob_part_and_exit_code():
  text = reference.knobs() + reference.exit_codes()
  for name in catalog.every_knob():
    assert f'[`{name}`]' in text
  for code in ExitCode:
    assert f'| {int(code)} |' in text
