"""The engine against sequential PyTorch: the cases, and how one is measured."""

import itertools
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from benchmarks import processes
from benchmarks.rows import Row

# Network -> flags of its federation. The larger networks take ten steps: one client
# trains on one batch in each of ten epochs.
_ONE_CLIENT = '--config.num_clients=1 --config.partition.name=iid --config.batch_size='
SETTINGS = {
  'moon_cnn': '--config.data.limit=1600 --config.num_clients=4',
  'dco_cnn': f'{_ONE_CLIENT}64 --config.data.limit=64',
  'cnn_transformer': f'{_ONE_CLIENT}32 --config.data.limit=32',
  'resnet18': f'{_ONE_CLIENT}32 --config.data.limit=32',
  'mobilenet_v2': f'{_ONE_CLIENT}32 --config.data.limit=32',
  'mlp': f'{_ONE_CLIENT}64 --config.data.limit=640 --config.mlp.width=1024',
}
_ALGORITHMS = ('fedavg', 'moon')
# Turns of 20 s each.
_MAX_TURNS = {'cnn_transformer': 3, 'resnet18': 3, 'mobilenet_v2': 3}
# The flags of pfl-research's benchmark: all of CIFAR-10, 50 of 1,000 users a round.
MANY_USERS = (
  '--config.num_clients=1000 --config.participation=0.05 --config.batch_size=10 '
  '--config.local_epochs=1 --config.partition.name=iid'
)
# (network, augmentation) -> our speed / that of PyTorch's fastest form, for FedAvg and
# for MOON, whose fastest form has its frozen networks once a round if it can.
_BARS = {
  ('moon_cnn', 'none'): (3.3, 3.3),
  ('moon_cnn', 'crop_flip'): (3.3, 3.3),
  ('dco_cnn', 'none'): (1.4, 1.5),
  ('dco_cnn', 'crop_flip'): (1.3, 1.3),
  ('cnn_transformer', 'none'): (1.2, 1.2),
  ('cnn_transformer', 'crop_flip'): (1.2, 1.2),
  ('resnet18', 'none'): (1.15, 1.1),
  ('resnet18', 'crop_flip'): (1.15, 1.1),
  ('mobilenet_v2', 'none'): (1.0, 1.0),
  ('mlp', 'none'): (0.87, None),
}
_SGEMM = """
import json, time, numpy as np
a, seconds = np.random.rand(1024, 1024).astype('float32'), []
while sum(seconds) < 1:
  begin = time.process_time()
  a @ a
  seconds.append(time.process_time() - begin)
print(json.dumps(2 * 1024**3 / np.median(seconds)))
"""


class Case(NamedTuple):
  """A row of the table.

  Attributes:
    name: its name.
    algorithm: PyTorch's; moon_once is MOON with frozen networks once a round.
    flags: flags of launch.py.
    cores: number of cores of each side.
    bar: the least speed that was aimed at, ours / PyTorch's; None without an aim.
    max_turns: the most rounds that are timed.
  """

  name: str
  algorithm: str
  flags: list[str]
  cores: int = 1
  bar: float | None = None
  max_turns: int = sys.maxsize


def cases(data_dir: str, quick: bool) -> Iterable[Case]:
  """The cases, the most important first; quick: those of the MOON CNN on one core."""
  models = ['moon_cnn'] if quick else list(SETTINGS)
  for model, augmentation in itertools.product(models, ('none', 'crop_flip')):
    bars = _BARS.get((model, augmentation), (None, None))
    for algorithm, bar in zip(_ALGORITHMS, bars, strict=True):
      has_faster_form = algorithm == 'moon' and augmentation == 'none'
      case = Case(
        name=f'{model}, {algorithm}, {augmentation}, 1 core',
        algorithm=algorithm,
        flags=flags(data_dir, algorithm, model=model, augmentation=augmentation),
        bar=None if has_faster_form else bar,
        max_turns=_MAX_TURNS.get(model, sys.maxsize),
      )
      yield case
      if has_faster_form:
        name = f'{case.name}, PyTorch with frozen networks once a round'
        yield case._replace(name=name, algorithm='moon_once', bar=bar)
  if quick:
    return
  yield Case(
    name='moon_cnn, fedavg, 1,000 users, 1 core',
    algorithm='fedavg',
    flags=flags(data_dir, 'fedavg', setting=MANY_USERS),
  )
  if 2 in cores():
    for algorithm in _ALGORITHMS:
      yield Case(
        name=f'moon_cnn, {algorithm}, none, 2 cores',
        algorithm=algorithm,
        flags=flags(data_dir, algorithm),
        cores=2,
      )


def measure(case: Case, repeats: int, details: dict, *, seconds: float) -> list[Row]:
  """Useful samples a second of both, and how much of the cores' sgemm ours reaches.

  The seconds are those of the CPU if there is one core, else those of the clock.
  """
  sgemm_before = _sgemm()
  with (
    tempfile.TemporaryDirectory() as folder,
    processes.Turns(min(repeats, case.max_turns), seconds) as turns,
  ):
    file = pathlib.Path(folder, 'round.npz')
    turns.add(
      'ours',
      ['-m', 'benchmarks.engine', f'--out={file}', *case.flags],
      writes=file,
      cores=case.cores,
    )
    turns.add(
      'pytorch',
      [
        '-m',
        'benchmarks.pytorch_baseline',
        f'--workload={file}',
        f'--algorithm={case.algorithm}',
        f'--threads={case.cores}',
      ],
      cores=case.cores,
    )
    reports = turns.reports()
  sgemm = [sgemm_before, _sgemm()]
  reports['sgemm'] = sgemm
  details[case.name] = reports
  ours, theirs = reports['ours'], reports['pytorch']
  # On one core the time that other programs have taken counts for neither side.
  clock = 'cpu_seconds' if case.cores == 1 else 'seconds'
  our_speed, their_speed = (
    side['samples'] / float(np.median(side[clock])) for side in (ours, theirs)
  )
  ratios = np.divide(theirs[clock], ours[clock])
  flops_of_sample = ours['flops_per_second'] / ours['samples_per_second']
  share_of_sgemm = flops_of_sample * our_speed / (case.cores * max(sgemm))
  text = (
    f'{our_speed:,.0f} / {their_speed:,.0f} = {our_speed / their_speed:.2f} '
    f'({ratios.min():.2f} to {ratios.max():.2f}); {share_of_sgemm:.0%} of sgemm '
    f'({sgemm[0] / 1e9:.0f}, {sgemm[1] / 1e9:.0f} GFLOP/s); PyTorch {theirs["form"]}'
  )
  bar = f'>= {case.bar}' if case.bar else ''
  return [Row(f'{case.name}: samples/s, ours / PyTorch', text, bar)]


def _sgemm() -> float:
  """FLOP/s of the first core in single precision, by NumPy."""
  environment = {'OPENBLAS_NUM_THREADS': '1'}
  return processes.run(['-c', _SGEMM], cores=1, environment=environment)


def flags(
  data_dir: str,
  algorithm: str,
  *,
  model: str = 'moon_cnn',
  augmentation: str = 'none',
  setting: str | None = None,
) -> list[str]:
  """The flags of launch.py for CIFAR-10; setting: by default the network's."""
  if setting is None:
    setting = SETTINGS[model]
  return [
    '--config=configs/cifar10_moon.py',
    f'--config.data.dir={data_dir}',
    f'--config.algorithm={algorithm}',
    f'--config.augmentation.name={augmentation}',
    f'--config.model={model}',
    *setting.split(),
  ]


def cores() -> list[int]:
  """The numbers of cores that rows are for."""
  return [n for n in (1, 2) if n <= len(os.sched_getaffinity(0))]
