"""Compares the engine with sequential PyTorch and checks what the design promises.

  pip install -r benchmarks/requirements.txt
  python -m benchmarks --data-dir=DIR

Prints one table and writes benchmarks/results/<machine>.json. Both sides of a ratio run
on the same cores in one go; every time is the median of --repeats rounds.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
from rich.console import Console
from rich.table import Table

from moon_jax import cohort
from moon_jax.data import partition

ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
  """Runs every row and reports."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--data-dir', default=os.environ.get('TFDS_DATA_DIR', ''))
  parser.add_argument('--limit', type=int, default=6400, help='training examples')
  parser.add_argument('--repeats', type=int, default=5)
  options = parser.parse_args()
  rows, details = [], {}
  for cores in (1, 2):
    if cores <= len(os.sched_getaffinity(0)):
      rows += _speed(options, cores, details)
  rows += [_utilisation(), *_memory()]
  _report(rows, details)


def _speed(options, cores, details):
  """Useful samples a second of both, and the cost of MOON over FedAvg."""
  found = {}
  for algorithm in ('fedavg', 'moon'):
    with tempfile.TemporaryDirectory() as folder:
      workload = f'{folder}/workload.npz'
      ours = _run(
        cores,
        *('-m', 'benchmarks.engine', f'--repeats={options.repeats}'),
        *(f'--out={workload}', '--config=configs/cifar10_moon.py'),
        *(f'--config.data.dir={options.data_dir}', f'--config.algorithm={algorithm}'),
        f'--config.data.limit={options.limit}',
      )
      theirs = _run(
        cores,
        *('benchmarks/pytorch_baseline.py', f'--workload={workload}'),
        *(f'--algorithm={algorithm}', f'--threads={cores}'),
        *(f'--repeats={options.repeats}', f'--out={folder}/result.npz'),
      )
      theirs['difference'] = _difference(workload, f'{folder}/result.npz')
    found[algorithm] = ours, theirs
    details[f'{algorithm}, {cores} cores'] = {'ours': ours, 'pytorch': theirs}
  on = f'{cores} core{"s" if cores > 1 else ""}'
  rows = []
  for algorithm, bar in (('moon', 2.0), ('fedavg', 1.2)):
    ours, theirs = (side['samples_per_second'] for side in found[algorithm])
    text = f'{ours:,.0f} / {theirs:,.0f} = {ours / theirs:.2f}'
    rows.append((f'{algorithm}, samples/s, ours / PyTorch, {on}', text, f'>= {bar}'))
  rates = [
    found['fedavg'][side]['samples_per_second']
    / found['moon'][side]['samples_per_second']
    for side in (0, 1)
  ]
  text = f'{rates[0]:.2f} (PyTorch {rates[1]:.2f})'
  return [*rows, (f'time of a MOON round / a FedAvg round, {on}', text, '<= 1.15')]


def _run(cores, *words):
  """The JSON line that a Python program prints, run on the first cores only."""
  allowed = sorted(os.sched_getaffinity(0))[:cores]
  done = subprocess.run(
    [sys.executable, *words],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    preexec_fn=lambda: os.sched_setaffinity(0, allowed),
  )
  return json.loads(done.stdout.splitlines()[-1])


def _difference(ours, theirs):
  """The largest difference between the averaged models of both sides."""
  with np.load(ours) as mine, np.load(theirs) as other:
    names = [name for name in other.files if name.startswith('params/')]
    return max(
      float(np.abs(other[name] - mine[name.replace('params', 'result', 1)]).max())
      for name in names
    )


def _utilisation():
  """Useful / executed steps of 100 clients, 10 a round, beta 0.1, default lanes."""
  labels = np.repeat(np.arange(10), 5000)
  split = partition.dirichlet(labels, num_clients=100, beta=0.1, min_size=10, seed=0)
  lanes = cohort.num_lanes('auto', 10, 'cpu')
  planner = cohort.Planner(
    owned=[split.client(client) for client in range(100)],
    seed=0,
    cohort_size=10,
    local_epochs=10,
    batch_size=64,
    num_lanes=lanes,
  )
  shares = [planner.plan(index).utilisation() for index in range(10)]
  return f'useful / executed steps, {lanes} lane', f'{np.mean(shares):.2f}', '>= 0.95'


def _memory():
  """Temporary memory of a round of 1,000 and of 100 clients, eight lanes, digits."""
  found = {}
  for clients in (100, 1000):
    report = _run(
      1,
      *('-m', 'benchmarks.engine', '--repeats=1', '--config.execution.lanes=8'),
      *(f'--config.num_clients={clients}', '--config.partition.name=iid'),
      *('--config.partition.min_size=1', '--config.local_epochs=1'),
      '--config.algorithm=fedavg',
    )
    # One trained model of each client is stored until the round is aggregated.
    stored = clients * report['model_bytes']
    found[clients] = (report['temporary_bytes'] - stored) / 2**20
  text = f'{found[1000]:.1f} / {found[100]:.1f} MiB = {found[1000] / found[100]:.2f}'
  yield 'memory beyond the models, 1,000 / 100 clients, 8 lanes', text, '<= 1.10'


def _report(rows, details):
  table = Table('measured', 'value', 'bar')
  for row in rows:
    table.add_row(*row)
  Console().print(table)
  packages = ('jax', 'jaxlib', 'torch', 'numpy')
  content = {
    'machine': platform.processor() or platform.machine(),
    'cores': len(os.sched_getaffinity(0)),
    'versions': {name: importlib.metadata.version(name) for name in packages},
    'rows': [dict(zip(('measured', 'value', 'bar'), row, strict=True)) for row in rows],
    'details': details,
  }
  path = ROOT / f'benchmarks/results/{platform.machine()}-{content["cores"]}-cores.json'
  path.parent.mkdir(exist_ok=True)
  path.write_text(json.dumps(content, indent=2) + '\n')
  Console().print(f'written: {path.relative_to(ROOT)}')


if __name__ == '__main__':
  main()
