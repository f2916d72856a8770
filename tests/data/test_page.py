"""The examples of docs/data.md, each as it stands there."""

import re

import pytest

from tests.processes import ROOT

PAGE = ROOT / 'docs/data.md'
PROGRAMS = re.findall('```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
# What the programs print last, or in this pattern: what they learned.
PRINTED = {
  'my.npz': r'1\.0|0\.[5-9]\d*',
  'cnn_3d': r'cnn_3d (1\.0|0\.[5-9])',
  'table.npz': r'\[[012 \n]+\]',
  'reviews.csv': r'\[1 0\]',
  'scans': r'1\.0|0\.[7-9]\d*',
  'speech': r'1\.0|0\.[7-9]\d*',
  'walks': r'1\.0|0\.[7-9]\d*',
}


@pytest.mark.slow
@pytest.mark.usefixtures('quick_runs')
@pytest.mark.parametrize(('name', 'printed'), PRINTED.items())
def test_an_example_of_the_page_runs_and_learns(
  name, printed, tmp_path, monkeypatch, capsys
):
  if name == 'reviews.csv':
    pytest.importorskip('tokenizers', reason='tokenizers is missing')
    pytest.importorskip('pandas', reason='pandas is missing')
  (program,) = (text for text in PROGRAMS if f"'{name}'" in text)
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  monkeypatch.chdir(tmp_path)
  exec(compile(program, PAGE.name, 'exec'), {'__name__': '__main__'})
  assert re.search(printed, capsys.readouterr().out)


def test_every_example_of_the_page_is_run():
  assert len(PROGRAMS) == len(PRINTED)
