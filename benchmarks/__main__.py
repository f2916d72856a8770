"""Measures the engine: against sequential PyTorch on a CPU, by itself on a GPU.

  pip install -r benchmarks/requirements.txt
  python -m benchmarks --data-dir=DIR
  python -m benchmarks --data-dir=DIR --suite=gpu

Prints one table and writes benchmarks/results/<machine>.json. Both sides of a ratio run
on the same cores in one go; every time is the median of --repeats rounds.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform

from rich.console import Console
from rich.table import Table

from benchmarks import cpu, gpu
from benchmarks.processes import ROOT


def main() -> None:
  """Runs every row of a suite and reports."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--suite', choices=('cpu', 'gpu'), default='cpu')
  parser.add_argument('--data-dir', default=os.environ.get('TFDS_DATA_DIR', ''))
  parser.add_argument('--limit', type=int, help='training examples; cpu 6400, gpu all')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--rounds', type=int, default=100, help='of the gpu suite')
  options = parser.parse_args()
  details = {}
  if options.suite == 'cpu':
    rows = cpu.rows(options.data_dir, options.limit or 6400, options.repeats, details)
    machine = f'{platform.machine()}-{len(os.sched_getaffinity(0))}-cores'
  else:
    workload = gpu.Workload(options.data_dir, options.limit or 0, options.rounds)
    rows = gpu.rows(workload, options.repeats, details)
    machine = details['device'].replace(' ', '-')
  _report(rows, details, ROOT / f'benchmarks/results/{machine}.json')


def _report(rows, details, path: pathlib.Path) -> None:
  table = Table('measured', 'value', 'bar')
  for row in rows:
    table.add_row(*row)
  Console().print(table)
  content = {
    'cores': len(os.sched_getaffinity(0)),
    'versions': {name: _version(name) for name in ('jax', 'jaxlib', 'torch', 'numpy')},
    'rows': [row._asdict() for row in rows],
    'details': details,
  }
  path.parent.mkdir(exist_ok=True)
  path.write_text(json.dumps(content, indent=2) + '\n')
  Console().print(f'written: {path.relative_to(ROOT)}')


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None  # the gpu suite does not need torch


if __name__ == '__main__':
  main()
