"""The rows of the CPU suite: against PyTorch, and what the design promises."""

import os
import tempfile
from typing import NamedTuple

import numpy as np

from benchmarks import processes
from moon_jax.data import partition
from moon_jax.engine import planning

_ALGORITHMS = ('fedavg', 'moon')


class Row(NamedTuple):
  """A line of the table."""

  measured: str
  value: str
  bar: str


def rows(data_dir: str, limit: int, repeats: int, details: dict) -> list[Row]:
  """Measures everything; `details` receives what the processes reported.

  Args:
    data_dir: TFDS folder with CIFAR-10.
    limit: training examples.
    repeats: timed rounds on each side.
    details: name -> report, filled in.
  """
  workload = [
    f'--config.data.dir={data_dir}',
    f'--config.data.limit={limit}',
    '--config.augmentation.name=none',
  ]
  found = []
  for cores in (1, 2):
    if cores <= len(os.sched_getaffinity(0)):
      found += _speed(workload, repeats, cores, details)
  return [*found, _utilisation(), *_running(data_dir, details), _memory(details)]


def _speed(workload, repeats, cores, details):
  """Useful samples a second of both, and the cost of MOON over FedAvg."""
  with (
    tempfile.TemporaryDirectory() as folder,
    processes.Turns(cores, repeats) as turns,
  ):
    files = {name: f'{folder}/{name}.npz' for name in _ALGORITHMS}
    for name, file in files.items():
      turns.add((name, 'ours'), _engine_words(workload, name, file))
      turns.add((name, 'pytorch'), _baseline_words(file, name, cores))
    reports = turns.reports()
    for name, file in files.items():
      reports[name, 'pytorch']['difference'] = _difference(file)
  for name in _ALGORITHMS:
    sides = {side: reports[name, side] for side in ('ours', 'pytorch')}
    details[f'{name}, {cores} cores'] = sides
  speed = {key: report['samples_per_second'] for key, report in reports.items()}
  on = f'{cores} core{"s" if cores > 1 else ""}'
  for name, bar in (('moon', 2.0), ('fedavg', 1.2)):
    ours, theirs = speed[name, 'ours'], speed[name, 'pytorch']
    text = f'{ours:,.0f} / {theirs:,.0f} = {ours / theirs:.2f}'
    yield Row(f'{name}, samples/s, ours / PyTorch, {on}', text, f'>= {bar}')
  ours, theirs = (
    speed['fedavg', side] / speed['moon', side] for side in ('ours', 'pytorch')
  )
  text = f'{ours:.2f} (PyTorch {theirs:.2f})'
  yield Row(f'time of a MOON round / a FedAvg round, {on}', text, '<= 1.15')


def _engine_words(workload, algorithm, file):
  return [
    '-m',
    'benchmarks.engine',
    f'--out={file}',
    '--config=configs/cifar10_moon.py',
    f'--config.algorithm={algorithm}',
    *workload,
  ]


def _baseline_words(file, algorithm, cores):
  return [
    'benchmarks/pytorch_baseline.py',
    f'--workload={file}',
    f'--algorithm={algorithm}',
    f'--threads={cores}',
    f'--out={file}.result.npz',
  ]


def _difference(file):
  """The largest difference between the averaged models of both sides."""
  with np.load(file) as mine, np.load(f'{file}.result.npz') as other:
    names = [name for name in other.files if name.startswith('params/')]
    return max(
      float(np.abs(other[name] - mine[name.replace('params', 'result', 1)]).max())
      for name in names
    )


def _utilisation():
  """Useful / executed steps of 100 clients, 10 a round, beta 0.1, default lanes."""
  labels = np.repeat(np.arange(10), 5000)
  options = {'num_clients': 100, 'beta': 0.1, 'min_size': 10, 'seed': 0}
  split = partition.make('dirichlet', labels, **options).split
  cores = len(os.sched_getaffinity(0))
  lanes, devices = planning.num_lanes('auto', 10, 'cpu', cores)
  planner = planning.Planner(
    owned=[split.client(client) for client in range(100)],
    seed=0,
    cohort_size=10,
    local_epochs=10,
    batch_size=64,
    num_lanes=lanes,
    num_devices=devices,
  )
  shares = [planner.plan(index).utilisation() for index in range(10)]
  name = f'useful / executed steps, {lanes} lanes on {devices} devices'
  return Row(name, f'{np.mean(shares):.2f}', '>= 0.95')


def _running(data_dir, details):
  """Compilations of a run with changing cohorts, and its time beside the arithmetic.

  All of CIFAR-10: the host's share is that of real rounds.
  """
  report = processes.run(
    [
      '-m',
      'benchmarks.run',
      '--config=configs/cifar10_moon.py',
      f'--config.data.dir={data_dir}',
      '--config.augmentation.name=none',
      '--config.num_clients=20',
      '--config.participation=0.5',
      '--config.num_rounds=6',
      '--config.checkpoint_every_rounds=3',
    ]
  )
  details['run'] = report
  yield Row(
    'compilations of a round and of a test, 6 rounds of cohorts of '
    f'{report["smallest_cohort"]:,} to {report["largest_cohort"]:,} examples',
    f'{report["round_compilations"]} and {report["test_compilations"]}',
    '1 and 1',
  )
  share = report['other_seconds'] / report['seconds']
  yield Row(
    'share of wall time outside training and testing, after compiling',
    f'{share:.1%}',
    '<= 5 %',
  )


def _memory(details):
  """Temporary memory of a MOON round of 1,000 and of 100 clients, 8 lanes, digits."""
  found = {}
  for clients in (100, 1000):
    report = processes.run(
      [
        '-m',
        'benchmarks.engine',
        '--repeats=1',
        '--config.execution.lanes=8',
        f'--config.num_clients={clients}',
        '--config.partition.name=iid',
        '--config.partition.min_size=1',
        '--config.local_epochs=1',
      ],
      cores=1,
    )
    details[f'memory, {clients} clients'] = report
    # The cohort's memories are gathered from the state: one copy while the round runs.
    stored = clients * report['model_bytes']
    found[clients] = (report['temporary_bytes'] - stored) / 2**20
  return Row(
    'memory beyond the gathered client models, 1,000 / 100 clients, 8 lanes, 1 device',
    f'{found[1000]:.1f} / {found[100]:.1f} MiB = {found[1000] / found[100]:.2f}',
    '<= 1.10',
  )
