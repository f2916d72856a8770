"""Publishes the evidence: all records as one Parquet file, and the answer as a PDF.

`python -m papers.build publish DIR` writes

  experiments.parquet   a row for each round of each kept run
  README.md             the data card
  answer.pdf            the first part of docs/experiments.md, on two pages
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping

import numpy as np
import pandas as pd
from docutils.core import publish_string
from myst_parser.parsers.docutils_ import Parser

from moon_jax.core import files
from moon_jax.core.errors import UsageError
from papers import kept_runs, partitions
from papers.kept_runs import KeptRun
from papers.page import Paths

_END_OF_ANSWER = '\n## MOON: CIFAR-10 at full length'
_BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
_PRINT_STYLE = """
@page { size: A4; margin: 14mm; }
body { font: 9pt/1.3 sans-serif; }
h1 { font-size: 16pt; margin: 0; }
h2 { font-size: 11pt; margin: 8pt 0 2pt; }
img { width: 100%; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 0.5pt solid #999; padding: 1pt 4pt; text-align: left; }
td p, th p, li p { margin: 0; }
.system-messages, .docinfo { display: none; }
"""
_CARD = pathlib.Path(__file__).parent / 'data_card.md'


def publish(paths: Paths, folder: pathlib.Path) -> None:
  """Writes the three files into a folder.

  Raises:
    UsageError: there is no Chromium, or a run is damaged.
  """
  files.make_folder(folder)
  finished = kept_runs.read_all(paths.runs) | kept_runs.read_all(paths.frozen)
  diverged = kept_runs.read_all(paths.diverged, finished=False)
  diverged |= kept_runs.read_all(paths.frozen_diverged, finished=False)
  counts = partitions.read(paths.partitions)
  records = pd.concat(
    [
      *(_records(run, 'finished', counts) for run in finished.values()),
      *(_records(run, 'diverged', counts) for run in diverged.values()),
    ],
    ignore_index=True,
  )
  with files.replacing(folder / 'experiments.parquet') as file:
    records.to_parquet(file, compression='zstd')
  card = _CARD.read_text().format(
    num_rows=len(records),
    num_runs=len(finished) + len(diverged),
    num_diverged=len(diverged),
  )
  files.replace(folder / 'README.md', card)
  write_pdf(paths.page, folder / 'answer.pdf')


def _records(
  run: KeptRun, status: str, counts: Mapping[str, np.ndarray]
) -> pd.DataFrame:
  """The rounds of a run, with what is known of the run in each row."""
  class_counts = counts.get(run.name)
  of_run = {
    'run': run.name,
    'status': status,
    'config_choice': run.config_choice,
    'seed': run.seed,
    'algorithm': run.knobs['algorithm'],
    'data': run.knobs['data.name'],
    'command': run.command,
    'git_commit': run.provenance.get('git_commit', ''),
    'config': json.dumps(dict(run.knobs)),
    'effective_classes': None,
  }
  if class_counts is not None:
    of_run['effective_classes'] = partitions.effective_classes(class_counts)
  table = pd.DataFrame(run.rounds).drop(columns='clients', errors='ignore')
  lists = None if class_counts is None else class_counts.tolist()
  table.insert(0, 'class_counts', [lists] * len(table))
  return table.assign(**of_run)


def write_pdf(page: pathlib.Path, path: pathlib.Path) -> None:
  """Prints the first part of the page, up to the sections of the papers.

  Raises:
    UsageError: there is no Chromium, or it fails.
  """
  browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
  if browser is None:
    raise UsageError(f'{path} needs Chromium: install it, and run the command again.')
  answer = page.read_text().partition(_END_OF_ANSWER)[0]
  answer = re.sub(r'(?<!!)\[([^]]*)\]\([^)]*\)', r'\1', answer)  # no links on paper
  html = publish_string(
    answer,
    parser=Parser(),
    writer='html5',
    settings_overrides={
      'embed_stylesheet': False,
      'stylesheet_path': '',
      'report_level': 5,
      'output_encoding': 'unicode',
    },
  )
  html = html.replace('</head>', f'<style>{_PRINT_STYLE}</style></head>')
  html = html.replace('src="images/', f'src="{page.parent.as_uri()}/images/')
  with tempfile.TemporaryDirectory() as name:
    source = pathlib.Path(name, 'answer.html')
    source.write_text(html)
    flags = [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--no-pdf-header-footer',
      f'--user-data-dir={name}/profile',
      f'--print-to-pdf={path.resolve()}',
    ]
    command = [browser, *flags, source.as_uri()]
    completed = subprocess.run(command, capture_output=True, text=True)
  if completed.returncode:
    raise UsageError(f'{browser} failed: {completed.stderr.splitlines()[-1:]}')
