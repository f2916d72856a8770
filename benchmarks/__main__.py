"""Measures the engine: against sequential PyTorch on a CPU, by itself on a GPU.

  pip install -r benchmarks/requirements.txt
  python -m benchmarks --data-dir=DIR [--quick]
  python -m benchmarks --data-dir=DIR --suite=gpu [--quick]
  python -m benchmarks --suite=scale [--quick]

Prints a table and writes benchmarks/results/<machine>.json, both after every row. With
--only=WORD it measures the parts with the word in their name; other rows stay in the
file. Both sides of a ratio run on the same cores in one go; every time is the median of
--repeats rounds.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable

from benchmarks import cpu, gpu, processes, scale
from benchmarks.processes import ROOT
from benchmarks.rows import Row
from moon_jax.core.errors import UsageError

# A process of its own, because JAX takes most of a GPU's memory until it ends.
_DEVICE = """
import jax, json
device = {'backend': jax.default_backend(), 'kind': jax.devices()[0].device_kind}
print(json.dumps(device))
"""
SUITES = ('cpu', 'gpu', 'scale')


def main() -> None:
  """Runs every row of a suite and reports."""
  options, details = _options(), {}
  try:
    name, tasks = _suite(options, details)
  except UsageError as error:
    print(error, file=sys.stderr)
    raise SystemExit(error.exit_code) from None
  path = ROOT / f'benchmarks/results/{name}.json'
  if options.only:
    tasks = {task: run for task, run in tasks.items() if options.only in task}
  measure(tasks, path, details, keep_rows=bool(options.only))
  print(f'written: {path.relative_to(ROOT)}')


def measure(
  tasks: dict[str, Callable],
  path: pathlib.Path,
  details: dict,
  *,
  keep_rows: bool = False,
) -> None:
  """Runs the tasks; prints each one's rows, and writes all so far, before the next.

  Args:
    tasks: name -> a function that returns rows.
    path: file of the results.
    details: what belongs to the rows, filled in by the tasks.
    keep_rows: whether rows of the file that are not measured stay in it.
  """
  earlier = json.loads(path.read_text()) if path.exists() else {}
  earlier_rows = [
    Row(row['measured'], row['value'], row['bar']) for row in earlier.get('rows', [])
  ]
  earlier_values = {row.measured: row.value for row in earlier_rows}
  if keep_rows:
    details |= earlier.get('details', {}) | details
  rows = []
  begin = time.monotonic()
  for number, (task, run) in enumerate(tasks.items(), 1):
    for row in run():
      rows.append(row)
      _print_row(row, earlier_values.get(row.measured))
    measured = {row.measured for row in rows}
    kept_rows = [
      row for row in earlier_rows if keep_rows and row.measured not in measured
    ]
    _write(path, kept_rows + rows, details)
    minutes = (time.monotonic() - begin) / 60
    tasks_left = ', '.join(list(tasks)[number:]) or 'nothing'
    print(f'  {task}: done after {minutes:.1f} minutes; left: {tasks_left}', flush=True)


def _options():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--suite', choices=SUITES, default='cpu')
  parser.add_argument('--data-dir', default=os.environ.get('TFDS_DATA_DIR', ''))
  parser.add_argument('--only', metavar='WORD', help='measures the parts so named')
  parser.add_argument('--limit', type=int, help='training examples of the gpu suite')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--rounds', type=int, default=100, help='of the gpu suite')
  parser.add_argument(
    '--quick', action='store_true', help='what matters: cpu 5 minutes, gpu 8'
  )
  parser.add_argument('--anywhere', action='store_true', help='gpu: on a CPU too')
  return parser.parse_args()


def _suite(options, details):
  """(name of the results, name of a task -> function that returns its rows)."""
  quick = '-quick' if options.quick else ''
  machine = f'{platform.machine()}-{len(os.sched_getaffinity(0))}-cores{quick}'
  if options.suite == 'cpu':
    repeats = min(options.repeats, 3) if options.quick else options.repeats
    return machine, cpu.tasks(options.data_dir, repeats, options.quick, details)
  if options.suite == 'scale':
    return f'scale-{machine}', scale.tasks(options.quick, details)
  device = processes.run(['-c', _DEVICE])
  if device['backend'] != 'gpu' and not options.anywhere:
    raise UsageError('--suite=gpu needs a GPU that JAX can use; see docs/gpu.md.')
  workload = gpu.Workload(
    data_dir=options.data_dir,
    limit=options.limit or 0,
    num_rounds=options.rounds,
    repeats=options.repeats,
    quick=options.quick,
    device='cuda' if device['backend'] == 'gpu' else 'cpu',
  )
  return device['kind'].replace(' ', '-') + quick, gpu.tasks(workload, details)


def _print_row(row, earlier_value):
  bar = f'  (bar {row.bar})' if row.bar else ''
  is_changed = earlier_value not in (None, row.value)
  earlier = f'  [before: {earlier_value}]' if is_changed else ''
  print(f'{row.measured}: {row.value}{bar}{earlier}', flush=True)


def _write(path: pathlib.Path, rows, details) -> None:
  content = {
    'cores': len(os.sched_getaffinity(0)),
    'versions': {name: _version(name) for name in ('jax', 'jaxlib', 'torch', 'numpy')},
    'rows': [row._asdict() for row in rows],
    'details': details,
  }
  path.parent.mkdir(exist_ok=True)
  path.write_text(json.dumps(content, indent=2) + '\n')


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None  # torch is needed for the cpu suite only


if __name__ == '__main__':
  main()
