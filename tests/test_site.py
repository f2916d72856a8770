"""The pages' examples run, their commands are valid, and the reference is complete."""

import doctest
import importlib
import json
import pathlib
import re
import shlex

import pytest

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
SHOWING = [p for p in (ROOT / 'moon_jax').rglob('*.py') if '>>>' in p.read_text()]
# A code block that is a file: its name and its code.
FILE = re.compile(r'^```python\n# (\w+\.py)\n(.*?)^```$', re.M | re.S)
OWN = (ROOT / 'docs/own_algorithm.md').read_text()
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


def with_any(language):
  return [pytest.param(page, id=page.stem) for page in PAGES if blocks(page, language)]


@pytest.fixture
def place(tmp_path, monkeypatch):
  """An empty folder with the config files of the repository."""
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  (tmp_path / 'examples').symlink_to(ROOT / 'examples')
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize('page', with_any('python'))
def test_the_python_of_a_page_runs(page, place):
  """One block after the other; a block that begins with a file's name is that file."""
  names = {}
  for code in blocks(page, 'python'):
    if file := re.match(r'# (\w+\.py)\n', code):
      (place / file[1]).write_text(code)
    else:
      exec(compile(code, page.name, 'exec'), names)


@pytest.mark.parametrize('page', with_any('pycon'))
def test_what_a_page_shows_of_python_is_so(page):
  tests = doctest.DocTestParser().get_doctest(
    '\n'.join(blocks(page, 'pycon')), {}, page.name, str(page), 0
  )
  assert doctest.DocTestRunner().run(tests).failed == 0


@pytest.mark.parametrize('path', SHOWING, ids=lambda path: path.stem)
def test_what_a_docstring_shows_is_so(path):
  name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
  done = doctest.testmod(importlib.import_module(name))
  assert done.attempted
  assert not done.failed


def test_the_first_run_looks_as_the_start_shows_it(place):
  """All is equal but the numbers of this machine and the lines that `...` replaces."""
  (shown,) = blocks(ROOT / 'docs/start.md', 'console')
  command, *lines = shown.splitlines()
  assert command == '$ python launch.py'
  done = launched(place)
  assert done.returncode == ExitCode.DONE, done.stderr
  printed = done.stdout.splitlines()
  assert lines[1:4] == printed[1:4]
  for line in lines:
    if line != '...':
      assert shape(line) in map(shape, printed), line


def shape(line):
  """A line without what depends on the machine."""
  line = re.sub(r'devices: .*|lanes: \d+ on \d+ devices?', '', line)
  return re.sub(r'\d+\.\d+ s\b', 's', line)


def commands(page):
  """The commands of a page: of its shell blocks, and of its indented lines."""
  code = '\n'.join(blocks(page, 'sh')).replace('\\\n', ' ')
  indented = re.findall(r'^ {4}(\w.*)', page.read_text(), re.M)
  return re.split(r'\n| && ', '\n'.join([code, *indented]))


def checkable():
  """A parser and its words; a program of moon_jax without a parser is a KeyError."""
  ours = r'\b(python launch\.py|python -m moon_jax[\w.]*|moon-jax)(?: (.*)|$)'
  for page in PAGES:
    for found in filter(None, (re.search(ours, line) for line in commands(page))):
      name = f'{page.stem}: {found[0][:60]}'
      yield pytest.param(PARSERS[found[1]], found[2] or '', id=name)


@pytest.mark.usefixtures('own_parts')
@pytest.mark.parametrize(('parse', 'line'), [*checkable()])
def test_a_command_of_a_page_is_valid(parse, line, place):
  words = shlex.split(line, comments=True)
  for name, code in FILE.findall(OWN):
    (place / name).write_text(code)
  if '--help' not in words and not any(word.endswith(':list') for word in words):
    parse(words)


@pytest.mark.parametrize('name', ['README.md', 'examples/README.md'])
def test_links_outside_the_site_lead_somewhere(name):
  """Links inside the site are checked where it is built."""
  place = ROOT / name
  links = re.findall(r'\]\(([^):#]+)#?([^):]*)\)', place.read_text())
  assert links
  for path, anchor in links:
    assert (place.parent / path).is_file(), path
    headings = (
      re.findall(r'^#+ (.*)', (place.parent / path).read_text(), re.M) if anchor else ()
    )
    slugs = [re.sub(r'[^\w -]', '', one.lower()).replace(' ', '-') for one in headings]
    assert not anchor or anchor in slugs, f'{path}#{anchor}'


def test_every_picture_is_on_a_page_and_has_its_command():
  made = {name for *_, copied in images.COPIED.values() for name in copied.values()}
  found = {path.name for path in images.IMAGES.iterdir() if path.is_file()}
  drawn = {name for name in found if name.endswith('.svg')}
  assert found == {images.BROWSED, *made, *drawn}
  text = '\n'.join(page.read_text() for page in PAGES)
  assert all(f'images/{name})' in text for name in found)
  for page, program, _ in images.COPIED.values():
    assert images.command(page, program)


def test_the_tests_that_prove_a_promise_exist():
  texts, file = {}, ''
  for path in (ROOT / 'tests').rglob('test_*.py'):
    texts[path.name] = texts.get(path.name, '') + path.read_text()
  page = (ROOT / 'docs/reliability.md').read_text()
  named = re.findall(r'::(test_\w+)|(test_\w+\.py)', page)
  assert len(named) > 60
  for test, own_file in named:
    file = own_file or file
    assert re.search(rf'^def {test}\b', texts[file], re.M), f'{file}::{test}'


def test_every_column_is_explained():
  schema = json.loads(files.SCHEMA.read_bytes())['definitions']['line']
  told = [*schema['patternProperties'], *(f'^{name}$' for name in schema['properties'])]
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
  unknown = {name for name in columns if not any(re.match(one, name) for one in told)}
  assert not unknown


def test_the_reference_has_every_knob_part_and_exit_code():
  text = reference.knobs() + reference.exit_codes()
  for name in catalog.every_knob():
    assert f'[`{name}`]' in text
  for code in ExitCode:
    assert f'| {int(code)} |' in text
