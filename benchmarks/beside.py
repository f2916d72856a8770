"""The engine beside sequential PyTorch: the cases, and how one is measured."""

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

# The larger networks take ten steps: one client trains on one batch in each of ten
# epochs.
_SMALL = '--config.num_clients=1 --config.partition.name=iid --config.batch_size='
SETTINGS = {
  'moon_cnn': '--config.data.limit=1600 --config.num_clients=4',
  'dco_cnn': f'{_SMALL}64 --config.data.limit=64',
  'cnn_transformer': f'{_SMALL}32 --config.data.limit=32',
  'resnet18': f'{_SMALL}32 --config.data.limit=32',
}
_MOST_TURNS = {'cnn_transformer': 3, 'resnet18': 3}  # turns of 20 s each
# The flags of pfl-research's benchmark: all of CIFAR-10, 50 of 1,000 users a round.
MANY_USERS = (
  '--config.num_clients=1000 --config.participation=0.05 --config.batch_size=10 '
  '--config.local_epochs=1 --config.partition.name=iid'
)
# (network, augmentation) -> our speed / PyTorch's, for FedAvg and for MOON.
_BARS = {
  ('moon_cnn', 'none'): (2.5, 3.0),
  ('moon_cnn', 'crop_flip'): (2.2, 2.5),
  ('dco_cnn', 'none'): (1.2, 1.8),
  ('cnn_transformer', 'none'): (1.1, 1.5),
  ('cnn_transformer', 'crop_flip'): (1.2, 1.2),
  ('resnet18', 'none'): (1.2, 1.5),
  ('resnet18', 'crop_flip'): (1.15, 1.15),
}
_SGEMM = """
import json, time, numpy as np
a, seconds = np.random.rand(1024, 1024).astype('float32'), []
while sum(seconds) < 1:
  begin = time.perf_counter()
  a @ a
  seconds.append(time.perf_counter() - begin)
print(json.dumps(2 * 1024**3 / np.median(seconds)))
"""


class Case(NamedTuple):
  """A row: its name, the flags of launch.py, the least ours / PyTorch, most turns.

  `algorithm` is PyTorch's: moon_once is MOON with frozen networks once a round.
  """

  name: str
  algorithm: str
  flags: list[str]
  cores: int = 1
  bar: float | None = None
  turns: int = sys.maxsize


def cases(data_dir: str, quick: bool) -> Iterable[Case]:
  algorithms, augmentations = ('fedavg', 'moon'), ('none', 'crop_flip')
  models = list(SETTINGS)[: 1 if quick else None]
  for model, augmentation, algorithm in itertools.product(
    models, augmentations, algorithms
  ):
    words = flags(data_dir, algorithm, augmentation, model, SETTINGS[model])
    bars = _BARS.get((model, augmentation), (None, None))
    name = f'{model}, {algorithm}, {augmentation}, 1 core'
    turns = _MOST_TURNS.get(model, sys.maxsize)
    yield Case(name, algorithm, words, 1, bars[algorithm == 'moon'], turns)
    if (algorithm, augmentation) == ('moon', 'none'):
      once = f'{name}, PyTorch with frozen networks once a round'
      yield Case(once, 'moon_once', words, turns=turns)
  if not quick:
    words = flags(data_dir, 'fedavg', 'none', 'moon_cnn', MANY_USERS)
    yield Case('moon_cnn, fedavg, 1,000 users, 1 core', 'fedavg', words)
    for algorithm in algorithms if 2 in cores() else ():
      given = algorithm, 'none', 'moon_cnn', SETTINGS['moon_cnn']
      name = f'moon_cnn, {algorithm}, none, 2 cores'
      yield Case(name, algorithm, flags(data_dir, *given), cores=2)


def measure(case: Case, repeats: int, details: dict, *, seconds: float) -> list[Row]:
  """Useful samples a second of both, and how much of the cores' sgemm ours reaches."""
  before = _sgemm()
  with (
    tempfile.TemporaryDirectory() as folder,
    processes.Turns(min(repeats, case.turns), seconds) as turns,
  ):
    file = pathlib.Path(folder, 'round.npz')
    words = ['-m', 'benchmarks.engine', f'--out={file}', *case.flags]
    turns.add('ours', words, writes=file, cores=case.cores)
    words = ['-m', 'benchmarks.pytorch_baseline', f'--workload={file}']
    words += [f'--algorithm={case.algorithm}', f'--threads={case.cores}']
    turns.add('pytorch', words, cores=case.cores)
    reports = turns.reports()
  reports['sgemm'] = sgemm = [before, _sgemm()]
  details[case.name] = reports
  ours, theirs = reports['ours'], reports['pytorch']
  ratios = np.divide(theirs['seconds'], ours['seconds'])
  speeds = [side['samples_per_second'] for side in (ours, theirs)]
  share = ours['flops_per_second'] / (case.cores * max(sgemm))
  text = (
    f'{speeds[0]:,.0f} / {speeds[1]:,.0f} = {speeds[0] / speeds[1]:.2f} '
    f'({ratios.min():.2f} to {ratios.max():.2f}); {share:.0%} of sgemm '
    f'({sgemm[0] / 1e9:.0f}, {sgemm[1] / 1e9:.0f} GFLOP/s); PyTorch {theirs["form"]}'
  )
  bar = f'>= {case.bar}' if case.bar else ''
  return [Row(f'{case.name}: samples/s, ours / PyTorch', text, bar)]


def _sgemm():
  """FLOP/s of the first core in single precision, by NumPy."""
  return processes.run(['-c', _SGEMM], cores=1, OPENBLAS_NUM_THREADS='1')


def flags(
  data_dir: str, algorithm: str, augmentation: str, model: str, setting: str
) -> list[str]:
  """The flags of launch.py for CIFAR-10."""
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
