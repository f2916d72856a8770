"""The suite of a CPU: beside PyTorch, from a cold start, and what the design promises.

The rows that matter come first; when the minutes are over, the others are left out.
"""

import functools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks import beside, processes
from benchmarks.rows import Row, until
from moon_jax.building import scheduling
from moon_jax.data import partition
from moon_jax.planning import planner as planning

MINUTES = {True: 5, False: 25}  # quick -> minutes


def tasks(
  data_dir: str, repeats: int, quick: bool, details: dict
) -> dict[str, Callable[[], list[Row]]]:
  """Name -> a function that measures and returns rows, the most important first.

  Args:
    data_dir: TFDS folder with CIFAR-10.
    repeats: timed rounds on each side.
    quick: whether only the MOON CNN beside PyTorch is measured.
    details: name -> what the processes reported, filled in.
  """
  end = time.monotonic() + 60 * MINUTES[quick]
  start = functools.partial(_first_rounds, data_dir)
  found = {} if quick else {'first round': start}
  last = {}
  for case in beside.cases(data_dir, quick):
    cases = last if _may_be_left_out(case) else found
    cases[case.name] = functools.partial(beside.measure, case, repeats, details)
  if not quick:
    for algorithm in ('fedavg', 'moon') if 2 in beside.cores() else ():
      name = f'{algorithm}, 2 cores / 1 core'
      given = name, algorithm, data_dir, repeats, details
      found[name] = functools.partial(_two_cores, *given)
    for cores in beside.cores():
      name = f'MOON / FedAvg, {cores} core{"s" if cores > 1 else ""}'
      given = name, data_dir, repeats, cores, details
      found[name] = functools.partial(_cost_of_moon, *given)
    found['useful steps'] = lambda seconds: [_utilisation()]
    found['a run'] = functools.partial(_running, data_dir, details)
    found['memory'] = functools.partial(_memory, details)
  return {
    name: functools.partial(until, end, name, measure)
    for name, measure in (found | last).items()
  }


def _may_be_left_out(case):
  """Crops of the larger networks, which take most of the time."""
  return 'crop_flip' in case.name and not case.name.startswith('moon_cnn')


def _first_rounds(data_dir, *, seconds):
  """Seconds from a process's start to its first round's record, cold and warm."""
  flags = beside.flags(data_dir, 'fedavg', 'none', 'moon_cnn', beside.MANY_USERS)
  end = time.monotonic() + seconds
  bars = {'empty': 10, 'filled': 5}
  took = {name: [] for name in bars}
  for _ in range(3):
    with tempfile.TemporaryDirectory() as folder:
      caches = {'XDG_CACHE_HOME': f'{folder}/cache', 'JAX_COMPILATION_CACHE_DIR': ''}
      for name, of_all in took.items():
        workdir = pathlib.Path(folder, name)
        words = ['launch.py', *flags, '--config.num_rounds=1', f'--workdir={workdir}']
        file, left = workdir / 'metrics.jsonl', end - time.monotonic()
        of_all.append(processes.seconds_until(file, words, left, **caches))
  for name, bar in bars.items():
    yield Row(
      f'process start to the end of the first round, 1,000 users, caches {name}, '
      '1 core',
      f'{np.median(took[name]):.1f} s ({min(took[name]):.1f} to {max(took[name]):.1f})',
      f'<= {bar} s',
    )


def _two_cores(name, algorithm, data_dir, repeats, details, *, seconds):
  """Samples a second on two cores in those on one, in rounds of some seconds."""
  setting = '--config.data.limit=16000 --config.num_clients=10'
  given = algorithm, 'none', 'moon_cnn', setting
  words = ['-m', 'benchmarks.engine', *beside.flags(data_dir, *given)]
  with processes.Turns(repeats, seconds) as turns:
    for cores in (2, 1):
      turns.add(cores, words, cores=cores)
    details[name] = reports = turns.reports()
  ratios = np.divide(reports[1]['seconds'], reports[2]['seconds'])
  two, one = (reports[cores]['samples_per_second'] for cores in (2, 1))
  text = f'{two:,.0f} / {one:,.0f} = {two / one:.2f} '
  text += f'({ratios.min():.2f} to {ratios.max():.2f})'
  return [Row(f'samples/s, moon_cnn, {name}', text, '>= 1.9')]


def _cost_of_moon(name, data_dir, repeats, cores, details, *, seconds):
  """The time of a round of MOON in that of FedAvg, both ours."""
  with processes.Turns(repeats, seconds) as turns:
    for algorithm in ('fedavg', 'moon'):
      given = algorithm, 'none', 'moon_cnn', beside.SETTINGS['moon_cnn']
      words = ['-m', 'benchmarks.engine', *beside.flags(data_dir, *given)]
      turns.add(algorithm, words, cores=cores)
    details[name] = reports = turns.reports()
  rates = [reports[key]['samples_per_second'] for key in ('fedavg', 'moon')]
  text = f'{rates[0] / rates[1]:.2f}'
  return [Row(f'time of a round, {name}', text, '<= 1.15')]


def _utilisation():
  """Useful / executed steps of 100 clients, 10 a round, beta 0.1, default lanes."""
  labels = np.repeat(np.arange(10), 5000)
  options = {'num_clients': 100, 'beta': 0.1, 'min_size': 10, 'balance': True}
  split = partition.make('dirichlet', labels, seed=0, **options).split
  cores = len(os.sched_getaffinity(0))
  lanes, devices = scheduling.num_lanes('auto', 10, 'cpu', cores)
  planner = planning.Planner(
    sizes=split.sizes,
    rows=split.rows,
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


def _running(data_dir, details, *, seconds):
  """Compilations of a run with changing cohorts, and its time beside the arithmetic.

  All of CIFAR-10: the host's share is that of real rounds.
  """
  setting = '--config.num_clients=20 --config.participation=0.5 --config.num_rounds=6'
  setting += ' --config.checkpoint_every_rounds=3'
  given = 'moon', 'none', 'moon_cnn', setting
  words = ['-m', 'benchmarks.run', *beside.flags(data_dir, *given)]
  details['run'] = report = processes.run(words, seconds=seconds)
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


def _memory(details, *, seconds):
  """Temporary memory of a MOON round of 1,000 and of 100 clients, 8 lanes, digits."""
  found = {}
  for clients in (100, 1000):
    setting = f'execution.lanes=8 num_clients={clients} partition.name=iid'
    changes = f'{setting} partition.min_size=1 local_epochs=1'.split()
    words = ['-m', 'benchmarks.engine', '--repeats=1']
    words += [f'--config.{change}' for change in changes]
    report = processes.run(words, cores=1, seconds=seconds)
    details[f'memory, {clients} clients'] = report
    # The cohort's models are stored beside the state until the round ends.
    stored = clients * report['model_bytes']
    found[clients] = (report['temporary_bytes'] - stored) / 2**20
  name = 'memory beyond the cohort and the state, 1,000 / 100 clients, 8 lanes'
  text = f'{found[1000]:.1f} / {found[100]:.1f} MiB = {found[1000] / found[100]:.2f}'
  return [Row(f'{name}, 1 device', text, '<= 1.10')]
