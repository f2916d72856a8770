"""The suite of a CPU: against PyTorch, from a cold start, and what the design promises.

The rows that matter come first; when the minutes are over, the others are left out.
"""

import functools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks import against_pytorch, processes
from benchmarks.rows import Row, until
from moon_jax.building import scheduling
from moon_jax.data import partition
from moon_jax.planning.batches import LocalWork
from moon_jax.planning.participation import Participation
from moon_jax.planning.planner import ClientData, make_planner

MINUTES = {True: 5, False: 25}  # quick -> minutes


def tasks(
  data_dir: str, repeats: int, quick: bool, details: dict
) -> dict[str, Callable[[], list[Row]]]:
  """Name -> a function that measures and returns rows, the most important first.

  Args:
    data_dir: TFDS folder with CIFAR-10.
    repeats: timed rounds on each side.
    quick: whether only the MOON CNN against PyTorch is measured.
    details: name -> what the processes reported, filled in.
  """
  end = time.monotonic() + 60 * MINUTES[quick]
  measures = {}
  if not quick:
    measures['first round'] = functools.partial(_first_rounds, data_dir)
  measures_of_crops = {}  # of the larger networks: they come last
  for case in against_pytorch.cases(data_dir, quick):
    measure = functools.partial(against_pytorch.measure, case, repeats, details)
    if _may_be_left_out(case):
      measures_of_crops[case.name] = measure
    else:
      measures[case.name] = measure
  if not quick:
    if 2 in against_pytorch.cores():
      for algorithm in ('fedavg', 'moon'):
        name = f'{algorithm}, 2 cores / 1 core'
        measures[name] = functools.partial(
          _two_cores, name, algorithm, data_dir, repeats, details
        )
    for cores in against_pytorch.cores():
      name = f'MOON / FedAvg, {cores} core{"s" if cores > 1 else ""}'
      measures[name] = functools.partial(
        _cost_of_moon, name, data_dir, repeats, cores, details
      )
    measures['useful steps'] = lambda seconds: [_utilisation()]
    measures['a run'] = functools.partial(_running, data_dir, details)
    measures['memory'] = functools.partial(_memory, details)
  return {
    name: functools.partial(until, end, name, measure)
    for name, measure in (measures | measures_of_crops).items()
  }


def _may_be_left_out(case):
  """Crops of the larger networks, which take most of the time."""
  return 'crop_flip' in case.name and not case.name.startswith('moon_cnn')


def _first_rounds(data_dir, *, seconds):
  """Seconds from a process's start to its first round's record, cold and warm."""
  flags = against_pytorch.flags(data_dir, 'fedavg', setting=against_pytorch.MANY_USERS)
  end = time.monotonic() + seconds
  bars = {'empty': 10, 'filled': 5}  # state of the caches -> seconds aimed at
  seconds_of_starts = {caches: [] for caches in bars}
  for _ in range(3):
    with tempfile.TemporaryDirectory() as folder:
      for caches, starts in seconds_of_starts.items():
        workdir = pathlib.Path(folder, caches)
        seconds_of_start = processes.seconds_until(
          workdir / 'metrics.jsonl',
          ['launch.py', *flags, '--config.num_rounds=1', f'--workdir={workdir}'],
          seconds=end - time.monotonic(),
          environment={
            'XDG_CACHE_HOME': f'{folder}/cache',
            'JAX_COMPILATION_CACHE_DIR': '',
          },
        )
        starts.append(seconds_of_start)
  for caches, starts in seconds_of_starts.items():
    yield Row(
      measured='process start to the end of the first round, 1,000 users, '
      f'caches {caches}, 1 core',
      value=f'{np.median(starts):.1f} s ({min(starts):.1f} to {max(starts):.1f})',
      bar=f'<= {bars[caches]} s',
    )


def _two_cores(name, algorithm, data_dir, repeats, details, *, seconds):
  """Samples a second on two cores in those on one, in rounds of some seconds."""
  setting = '--config.data.limit=16000 --config.num_clients=10'
  flags = against_pytorch.flags(data_dir, algorithm, setting=setting)
  with processes.Turns(repeats, seconds) as turns:
    for cores in (2, 1):
      turns.add(cores, ['-m', 'benchmarks.engine', *flags], cores=cores)
    reports = turns.reports()
  details[name] = reports
  ratios = np.divide(reports[1]['seconds'], reports[2]['seconds'])
  speed_of_two = reports[2]['samples_per_second']
  speed_of_one = reports[1]['samples_per_second']
  text = (
    f'{speed_of_two:,.0f} / {speed_of_one:,.0f} = {speed_of_two / speed_of_one:.2f} '
    f'({ratios.min():.2f} to {ratios.max():.2f})'
  )
  return [Row(f'samples/s, moon_cnn, {name}', text, '>= 1.9')]


def _cost_of_moon(name, data_dir, repeats, cores, details, *, seconds):
  """The time of a round of MOON in that of FedAvg, both ours."""
  with processes.Turns(repeats, seconds) as turns:
    for algorithm in ('fedavg', 'moon'):
      flags = against_pytorch.flags(data_dir, algorithm)
      turns.add(algorithm, ['-m', 'benchmarks.engine', *flags], cores=cores)
    reports = turns.reports()
  details[name] = reports
  fedavg, moon = reports['fedavg'], reports['moon']
  ratio = fedavg['samples_per_second'] / moon['samples_per_second']
  return [Row(f'time of a round, {name}', f'{ratio:.2f}', '<= 1.15')]


def _utilisation():
  """Useful / executed steps of 100 clients, 10 a round, beta 0.1, default lanes."""
  labels = np.repeat(np.arange(10), 5000)
  split = partition.deal(
    'dirichlet', labels, seed=0, num_clients=100, beta=0.1, min_size=10, balance=True
  ).partition
  cores = len(os.sched_getaffinity(0))
  layout = scheduling.lane_layout(
    'auto', cohort_size=10, backend='cpu', num_devices=cores
  )
  planner = make_planner(
    seed=0,
    participation=Participation(num_clients=100, cohort_size=10),
    data=ClientData(sizes=split.sizes, rows_of=split.rows),
    work=LocalWork(local_epochs=10, batch_size=64),
    layout=layout,
  )
  shares = [planner.plan(index).utilisation() for index in range(10)]
  name = (
    f'useful / executed steps, {layout.num_lanes} lanes on {layout.num_devices} devices'
  )
  return Row(name, f'{np.mean(shares):.2f}', '>= 0.95')


def _running(data_dir, details, *, seconds):
  """Compilations of a run with changing cohorts, and its time that is not arithmetic.

  All of CIFAR-10: the host's share is that of real rounds.
  """
  setting = (
    '--config.num_clients=20 --config.participation=0.5 --config.num_rounds=6 '
    '--config.checkpoint_every_rounds=3'
  )
  flags = against_pytorch.flags(data_dir, 'moon', setting=setting)
  report = processes.run(['-m', 'benchmarks.run', *flags], seconds=seconds)
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


def _memory(details, *, seconds):
  """Temporary memory of a MOON round of 1,000 and of 100 clients, 8 lanes, digits."""
  mebibytes = {}  # number of clients -> memory
  for clients in (100, 1000):
    words = [
      '-m',
      'benchmarks.engine',
      '--repeats=1',
      '--config.execution.lanes=8',
      f'--config.num_clients={clients}',
      '--config.partition.name=iid',
      '--config.partition.min_size=1',
      '--config.local_epochs=1',
    ]
    report = processes.run(words, cores=1, seconds=seconds)
    details[f'memory, {clients} clients'] = report
    # The cohort's models are stored beside the state until the round ends.
    stored_bytes = clients * report['model_bytes']
    mebibytes[clients] = (report['temporary_bytes'] - stored_bytes) / 2**20
  ratio = mebibytes[1000] / mebibytes[100]
  return [
    Row(
      measured='memory beyond the cohort and the state, 1,000 / 100 clients, 8 lanes, '
      '1 device',
      value=f'{mebibytes[1000]:.1f} / {mebibytes[100]:.1f} MiB = {ratio:.2f}',
      bar='<= 1.10',
    )
  ]
