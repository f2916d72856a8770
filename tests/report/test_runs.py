"""What is left out of a report, and the lines that say so."""

import json
import pathlib

import pytest

from moon_jax.report import report_files, runs
from tests.report.reports import Collected, write_runs
from tests.run_directories import edit_json, edit_lines, write_run


def test_only_finished_runs_are_averaged(tmp_path, capsys):
  folder = tmp_path / 'runs'
  write_run(folder / 'good', [0.5, 0.75], seed=0)
  write_run(folder / 'diverged', [0.1, 0.2], seed=1, finished=False)
  edit_lines(
    folder / 'diverged/metrics.jsonl',
    lambda line: line.update(train_loss=None) if line['round'] == 2 else None,
  )
  write_run(folder / 'killed', [0.1], seed=2, finished=False)
  write_run(folder / 'failed', [], seed=3, finished=False)
  report = Collected(folder)
  content = report.content._replace(
    sections=[section._replace(charts=()) for section in report.content.sections]
  )
  report_files.write(tmp_path / 'report', content)
  page = (tmp_path / 'report/index.html').read_text()
  stderr = capsys.readouterr().err
  notes = {
    'diverged': 'diverged after round 2',
    'killed': 'unfinished after round 1',
    'failed': 'without a round',
  }
  for name, note in notes.items():
    assert f'{folder}/{name} is {note}: in no average' in stderr
    assert f'{folder}/{name} is {note}: in no average' in page
  (row,) = report.rows('accuracy')
  assert (row['n'], row['final_accuracy_mean']) == ('1', '0.75')
  states = {pathlib.Path(row['run']).name: row['state'] for row in report.rows('runs')}
  assert states == {
    'good': 'finished',
    'diverged': 'diverged',
    'killed': 'unfinished',
    'failed': 'without a round',
  }


LONG_NAME = json.dumps({'config': {'moon': {'x' * 3000: 1.0}}})


@pytest.mark.parametrize(
  ('file', 'text', 'complaint'),
  [
    ('metrics.jsonl', '{"round": 1}\nx\n{"round": 3}\n', '{} is damaged: '),
    ('config.json', '{"a', '{} is damaged: '),
    ('config.json', '{}', 'config.json is not what a run writes'),
    ('config.json', '{"config": {"seed": 1}}', 'config.json is not what a run writes'),
    ('config.json', LONG_NAME, '{} is damaged: '),
    ('summary.json', '[', '{} is damaged: '),
  ],
)
def test_a_damaged_run_is_skipped_with_a_line(tmp_path, file, text, complaint):
  write_runs(tmp_path, {'good': ([0.5], ''), 'damaged': ([0.5, 0.6], '')})
  damaged = tmp_path / 'damaged'
  (damaged / file).write_text(text)
  notes = []
  (run,) = runs.find([tmp_path], notes.append)
  assert run.path.name == 'good'
  (line,) = notes
  assert line.startswith(f'skipped {damaged}: {complaint.format(damaged / file)}')


def test_what_an_older_version_did_not_have_is_as_in_base(tmp_path):
  path = write_run(tmp_path / 'a', [0.5]) / 'config.json'
  edit_json(path, lambda document: document['config'].pop('drop_last'))
  (run,) = runs.find([tmp_path], print)
  assert run.knobs['drop_last'] is run.identity['drop_last'] is False
