"""The files of a report: figures as PNG, tables as CSV, Markdown and LaTeX."""

import errno
import itertools
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
from typing import NamedTuple
from unittest import mock

import pytest
from PIL import Image

from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.report import report_files
from moon_jax.report.__main__ import main
from moon_jax.report.tables import Column, Table
from tests import processes
from tests.report.reports import Collected, write_runs, write_two_algorithms
from tests.run_directories import edit_json

ONE_RUN = {'a': ([0.5], '')}
EMPTY = mock.Mock(savefig=lambda file, **options: None)  # in place of a figure


class Written(NamedTuple):
  """A report that has been written, with all its figures."""

  runs: pathlib.Path
  out: pathlib.Path


@pytest.fixture(scope='module')
def written(tmp_path_factory):
  """The report of two algorithms' runs with three seeds."""
  folder = tmp_path_factory.mktemp('written')
  runs = write_two_algorithms(folder / 'runs')
  words = [str(runs), f'--out={folder / "out"}', '--features=none']
  assert main(words) == ExitCode.DONE
  return Written(runs=runs, out=folder / 'out')


def write(report, out):
  """The files of a collected report, with one figure of each section."""
  sections = [
    section._replace(charts=section.charts[:1]) for section in report.content.sections
  ]
  report_files.write(out, report.content._replace(sections=sections))


@pytest.mark.slow
def test_every_figure_is_a_png(written):
  figures = written.out / 'figures'
  names = set(Collected(written.runs).charts())
  assert {path.name for path in figures.iterdir()} == {f'{name}.png' for name in names}
  for name in names:
    with Image.open(figures / f'{name}.png') as image:
      assert image.width > 800


def test_formats_are_chosen(written, tmp_path):
  out = tmp_path / 'out'
  write(Collected(written.runs, ['--formats=pdf,svg']), out)
  paths = list((out / 'figures').iterdir())
  assert {path.suffix for path in paths} == {'.pdf', '.svg'}
  starts = {'.pdf': b'%PDF', '.svg': b'<?xml'}
  assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)
  # Those of the last report do not stay, and the page has links to what there is.
  write(Collected(written.runs), out)
  names = {f'figures/{path.name}' for path in (out / 'figures').iterdir()}
  links = re.findall(r'href="(figures/[^"]+)"', (out / 'index.html').read_text())
  assert set(links) == names


def test_tables_are_csv_markdown_and_latex(written):
  tables = written.out / 'tables'
  csv = (tables / 'accuracy.csv').read_bytes().decode()
  assert csv == Collected(written.runs).table('accuracy').csv()
  markdown = (tables / 'accuracy.md').read_text()
  assert '75.00 ± 3.61' in markdown
  assert markdown.count('\n|') >= 3
  latex = (tables / 'accuracy.tex').read_text()
  assert '& 75.00 & 3.61 &' in latex
  assert r'\multicolumn{2}{c}{final accuracy, \%}' in latex
  assert latex.startswith(r'\begin{tabular}')
  # No table is written without rows: these algorithms have no personal models.
  names = {path.stem for path in tables.iterdir()}
  assert names == {'accuracy', 'target', 'paper', 'runs'}


def test_no_cell_of_markdown_is_html_code_a_link_or_two_cells():
  word = '<img src=x onerror=alert(1)> [a](javascript:b) `c` d|e \\'
  table = Table(
    name='n',
    title='t',
    caption=word,
    columns=[Column('name', heading=word)],
    rows=[{'name': word}],
  )
  text = report_files.markdown(table)
  escaped = r'&lt;img src=x onerror=alert(1)&gt; \[a](javascript:b) \`c\` d\|e \\'
  assert text.count(escaped) == 3
  assert not set('<>') & set(text)


TEX = r"""\documentclass{article}
\usepackage[landscape,margin=1cm]{geometry}
\usepackage{booktabs}
\begin{document}\scriptsize
%s
\end{document}
"""


@pytest.mark.skipif(shutil.which('pdflatex') is None, reason='no pdflatex')
def test_latex_takes_every_table(written, tmp_path):
  report = Collected(written.runs, ['--rows=algorithm', '--columns=partition.beta'])
  write(report, tmp_path / 'out')
  paths = sorted((tmp_path / 'out/tables').glob('*.tex'))
  assert {path.stem for path in paths} == {'accuracy', 'pivot', 'runs', 'target'}
  body = '\n\n'.join(f'\\input{{{path}}}' for path in paths)
  (tmp_path / 'a.tex').write_text(TEX % body)
  process = subprocess.run(
    ['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'a.tex'],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert process.returncode == 0, process.stdout[-2000:]


def test_a_second_report_leaves_nothing_of_the_first(tmp_path, monkeypatch):
  def save(figure, folder, name, formats):
    (folder / f'{name}.png').write_bytes(b'')

  monkeypatch.setattr(report_files.figures, 'save', save)  # drawing takes the time
  runs_by_name = {
    f'{beta}': ([0.5, 0.6], f'partition.beta={beta}') for beta in (0.1, 0.5)
  }
  runs = write_runs(tmp_path / 'runs', runs_by_name)
  out = tmp_path / 'out'
  write(Collected(runs), out)
  (out / 'figures/mine.png').write_bytes(b'')
  assert (out / 'figures/test_accuracy-beta=0.1.png').exists()
  write(Collected(runs, ['--where=partition.beta=0.5']), out)
  names = {path.name for path in (out / 'figures').iterdir()}
  assert {'test_accuracy.png', 'mine.png'} <= names
  assert not [name for name in names if 'beta=0.1' in name]


@pytest.mark.parametrize('content', ['{}', '[]', 'a', '{"files": 3}'])
def test_a_folder_with_the_manifest_of_another_program_is_refused(content, tmp_path):
  (tmp_path / 'report.json').write_text(content)
  with pytest.raises(UsageError, match=r'its report\.json is of another program'):
    report_files.write(tmp_path, None)


# --- files of others ------------------------------------------------------------------


@pytest.fixture
def undrawn(monkeypatch):
  """The figures of reports are empty files."""
  monkeypatch.setattr(report_files.figures, 'draw', lambda chart, styles: EMPTY)


@pytest.fixture(scope='module')
def report(tmp_path_factory):
  return Collected(write_runs(tmp_path_factory.mktemp('one_run'), ONE_RUN))


@pytest.fixture(scope='module')
def out_of_report(report, tmp_path_factory):
  """The folder of a report."""
  out = tmp_path_factory.mktemp('earlier') / 'out'
  with mock.patch.object(report_files.figures, 'draw', return_value=EMPTY):
    write(report, out)
  return out


@pytest.fixture
def old_report(out_of_report, undrawn, tmp_path):
  """The folder of an earlier report, beside a folder that is none of its business."""
  shutil.copytree(out_of_report, tmp_path / 'out')
  (tmp_path / 'keep').mkdir()
  (tmp_path / 'keep/a').write_text('precious')
  return tmp_path / 'out'


def names_of(out):
  return [*json.loads((out / 'report.json').read_text())['files'], 'report.json']


PLACES = {
  'file link': lambda path, keep: path.symlink_to(keep / 'a'),
  'folder link': lambda path, keep: path.symlink_to(keep),
  'dangling link': lambda path, keep: path.symlink_to(keep / 'new'),
  'hard link': lambda path, keep: path.hardlink_to(keep / 'a'),
  'pipe': lambda path, keep: os.mkfifo(path),
  'folder': lambda path, keep: shutil.copytree(keep, path),
}


@pytest.mark.parametrize('kind', PLACES)
def test_a_report_replaces_what_is_in_the_place_of_its_files(kind, report, old_report):
  precious = old_report.parent / 'keep'
  names = names_of(old_report)
  for name in names[:-1]:
    (old_report / name).unlink()
    PLACES[kind](old_report / name, precious)
  if kind == 'folder':
    for name in names[:-1]:
      with pytest.raises(UsageError, match='cannot be written: Is a directory: '):
        write(report, old_report)
      shutil.rmtree(old_report / name)
  write(report, old_report)
  assert processes.contents(precious) == {'a': b'precious'}
  for name in names:
    status = (old_report / name).lstat()
    assert stat.S_ISREG(status.st_mode)
    assert status.st_nlink == 1


NO_FOLDER = ('file link', 'folder link', 'dangling link', 'hard link', 'pipe')


@pytest.mark.parametrize(
  ('kind', 'name'),
  [
    *itertools.product(NO_FOLDER, ('figures', 'tables')),
    *itertools.product(PLACES, ['report.json']),
  ],
)
def test_a_report_writes_in_no_folder_of_others(kind, name, report, old_report):
  precious = old_report.parent / 'keep'
  path = old_report / name
  shutil.rmtree(path) if path.is_dir() else path.unlink()
  PLACES[kind](path, precious)
  before = processes.contents(old_report.parent)
  with pytest.raises(UsageError, match=r'is a link|another program|File exists'):
    write(report, old_report)
  assert processes.contents(old_report.parent) == before


@pytest.mark.parametrize(
  'name',
  ['../keep/a', 'keep/metrics.jsonl', '{}/keep/a', 'figures/../a.png', 'mine'],
)
def test_only_names_of_a_report_are_removed(name, report, old_report):
  mine = [old_report / path for path in ('mine', 'a.png', 'keep/metrics.jsonl')]
  for path in mine:
    path.parent.mkdir(exist_ok=True)
    path.write_text('precious')
  name = name.format(old_report.parent)
  edit_json(old_report / 'report.json', lambda manifest: manifest['files'].append(name))
  write(report, old_report)
  assert all(path.exists() for path in (*mine, old_report.parent / 'keep/a'))


def test_a_folder_with_other_files_is_refused(tmp_path, monkeypatch, capsys):
  write_runs(tmp_path / 'runs', ONE_RUN)
  monkeypatch.chdir(tmp_path)
  before = processes.contents(tmp_path)
  assert main(['runs', '--out=.', '--features=none']) == ExitCode.USAGE
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("--out='.' has files that are not of a report")
  assert processes.contents(tmp_path) == before


@pytest.mark.usefixtures('undrawn')
def test_a_report_that_was_ended_can_be_made_again(report, tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(report_files, '_page', mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      write(report, tmp_path / 'out')
  write(report, tmp_path / 'out')
  assert (tmp_path / 'out/index.html').exists()


def test_a_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
  full = OSError(errno.ENOSPC, 'No space left on device')
  monkeypatch.setattr(report_files.figures, 'save', mock.Mock(side_effect=full))
  runs = write_runs(tmp_path / 'runs', ONE_RUN)
  out = tmp_path / 'out'
  assert main([str(runs), f'--out={out}', '--features=none']) == ExitCode.USAGE
  *_, line = capsys.readouterr().err.splitlines()
  assert line == f'--out={str(out)!r} cannot be written: No space left on device.'
