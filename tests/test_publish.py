"""What `python -m papers.build publish DIR` writes says what the records say."""

import gzip
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from moon_jax.core.errors import ExitCode
from papers import build
from tests.processes import ROOT

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')


@pytest.mark.slow
def test_the_published_files_have_every_record_and_the_answer_on_two_pages(
  tmp_path, capsys
):
  has_browser = any(map(shutil.which, BROWSERS))
  code = build.main(['publish', str(tmp_path)])
  assert code == (ExitCode.DONE if has_browser else ExitCode.USAGE)
  table = pd.read_parquet(tmp_path / 'experiments.parquet')
  folders = ('runs', 'runs/diverged', 'frozen', 'frozen/diverged')
  paths = [
    path for folder in folders for path in (ROOT / 'papers' / folder).glob('*.gz')
  ]
  lines_of_runs = {
    path.name.removesuffix('.jsonl.gz'): gzip.decompress(path.read_bytes()).splitlines()
    for path in paths
  }
  assert len(lines_of_runs) == len(paths)
  assert len(table) == sum(len(lines) - 1 for lines in lines_of_runs.values())
  assert set(table['run']) == set(lines_of_runs)
  of_run = table[table['run'] == 'moon_cvpr21_moon_seed1']
  records = [json.loads(line) for line in lines_of_runs['moon_cvpr21_moon_seed1'][1:]]
  for column in ('round', 'test_accuracy', 'train_loss', 'negative_cosine'):
    expected = [record.get(column, np.nan) for record in records]
    np.testing.assert_array_equal(of_run[column], expected)
  assert of_run['effective_classes'].unique().round(2).tolist() == [4.13]
  counts = np.stack(of_run['class_counts'].iloc[0])
  np.testing.assert_array_equal(counts.sum(axis=0), 5_000)
  card = (tmp_path / 'README.md').read_text()
  assert f'has {len(table):,} rows' in card
  # As the card says, no class counts are missing but those of runs that diverged.
  without_counts = table[table['class_counts'].isna()]
  assert set(without_counts['status']) == {'diverged'}
  columns = {name for name in re.findall(r'`(\w+)`', card) if name in table.columns}
  assert {'run', 'status', 'config', 'class_counts', 'round'} <= columns
  if has_browser:
    pdf = (tmp_path / 'answer.pdf').read_bytes()
    assert len(re.findall(rb'/Type\s*/Page\b', pdf)) == 2
  else:
    assert 'needs Chromium' in capsys.readouterr().err
