"""The rows of the GPU suite: whole experiments, and sweeps over forms and lanes.

The rows that matter come first; when the minutes are over, the others are left out. On
another kind of device `--anywhere` tries it: add `--rounds=2 --limit=640`.
"""

import functools
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks import processes
from benchmarks.rows import Row, until

# Datasheets of the SXM cards: the memory's bytes a second.
PEAK_BYTES = {'H100': 3.35e12, 'H200': 4.8e12}
MINUTES = {True: 8, False: 25}  # quick or not


class Workload(NamedTuple):
  """What is trained.

  Attributes:
    data_dir: TFDS folder with CIFAR-10.
    limit: training examples; 0 is all.
    num_rounds: number of rounds of an experiment; the bars are for 100.
    repeats: timed rounds of a sweep.
    quick: whether only the rows that matter are measured.
    device: the device, as PyTorch names its kind.
  """

  data_dir: str
  limit: int
  num_rounds: int
  repeats: int
  quick: bool
  device: str

  def flags(self) -> list[str]:
    """The flags of MOON on CIFAR-10, as in the paper."""
    return [
      '--config=configs/cifar10_moon.py',
      f'--config.data.dir={self.data_dir}',
      f'--config.data.limit={self.limit}',
    ]


def tasks(workload: Workload, details: dict) -> dict[str, Callable[[], list[Row]]]:
  """Name -> a function that measures and returns rows, the most important first.

  `details` receives what the processes reported.
  """
  end = time.monotonic() + 60 * MINUTES[workload.quick]
  measures = {}
  for augmentation, bar in (('crop_flip', 120), ('none', 60)):
    name = f'MOON, {workload.num_rounds} rounds, augmentation {augmentation}'
    measures[name] = functools.partial(_experiment, workload, augmentation, bar)
  name = 'samples/s, moon_cnn, MOON, crops, ours / PyTorch'
  measures[name] = functools.partial(_pytorch, workload)
  for model, algorithm, form, lanes in _sweeps(workload.quick):
    name = f'{model}, {algorithm}, {form}, {lanes} lanes'
    measures[name] = functools.partial(_sweep, workload, model, algorithm, form, lanes)
  return {
    name: functools.partial(_until, end, name, measure, details)
    for name, measure in measures.items()
  }


def _sweeps(quick):
  """(model, algorithm, form, lanes) of each, the most important first."""
  yield from (('moon_cnn', 'moon', 'auto', lanes) for lanes in ('auto', 1))
  yield 'moon_cnn', 'moon', 'library', 'auto'
  if not quick:
    yield 'moon_cnn', 'fedavg', 'auto', 'auto'
    yield from (('moon_cnn', 'moon', 'auto', lanes) for lanes in (2, 5, 10))
    yield from (('resnet18', 'moon', 'auto', lanes) for lanes in ('auto', 10))
    yield 'dco_cnn', 'moon', 'auto', 'auto'
    yield 'cnn_transformer', 'moon', 'auto', 'auto'


def _until(end, name, measure, details):
  """The rows of one process, or one that says why there are none."""

  def rows(seconds):
    report = measure(seconds=seconds)
    details[name] = report
    details.setdefault('device', report['device'])
    return [Row(name, report.pop('text'), report.pop('bar'))]

  return until(end, name, rows)


def _experiment(workload, augmentation, bar, *, seconds):
  """The whole experiment, as launch.py runs it."""
  words = [
    '-m',
    'benchmarks.run',
    *workload.flags(),
    f'--config.num_rounds={workload.num_rounds}',
    f'--config.augmentation.name={augmentation}',
  ]
  report = processes.run(words, seconds=seconds)
  text = (
    f'{report["end_to_end_seconds"]:.0f} s, {report["compile_seconds"]:.0f} of them '
    f'compiling; test accuracy {report["test_accuracy"]:.3f}; '
    f'{report["peak_memory_bytes"] / 2**20:,.0f} MiB at most'
  )
  return report | {'text': text, 'bar': f'<= {bar} s'}


def _pytorch(workload, *, seconds):
  """One round, and sequential PyTorch on the same device afterwards."""
  end = time.monotonic() + seconds
  repeats = f'--repeats={workload.repeats}'
  with tempfile.TemporaryDirectory() as folder:
    file = f'{folder}/round.npz'
    ours = processes.run(
      ['-m', 'benchmarks.engine', f'--out={file}', repeats, *workload.flags()],
      seconds=seconds,
    )
    theirs = processes.run(
      [
        '-m',
        'benchmarks.pytorch_baseline',
        f'--workload={file}',
        repeats,
        '--algorithm=moon',
        f'--device={workload.device}',
      ],
      seconds=max(1, end - time.monotonic()),
    )
  our_speed, their_speed = ours['samples_per_second'], theirs['samples_per_second']
  ratio = our_speed / their_speed
  text = f'{our_speed:,.0f} / {their_speed:,.0f} = {ratio:.1f} ({theirs["form"]})'
  reports = {'device': ours['device'], 'ours': ours, 'pytorch': theirs}
  return reports | {'text': text, 'bar': ''}


def _sweep(workload, model, algorithm, form, lanes, *, seconds):
  """One round, and how near it comes to the limit of the device's memory."""
  words = [
    '-m',
    'benchmarks.engine',
    f'--repeats={workload.repeats}',
    '--bytes',
    *workload.flags(),
    f'--config.algorithm={algorithm}',
    f'--config.model={model}',
    f'--config.execution.convolution={form}',
    f'--config.execution.lanes={lanes}',
  ]
  if model != 'moon_cnn':
    words.append('--config.local_epochs=1')
  report = processes.run(words, seconds=seconds)
  bytes_per_second = report['step_bytes'] * report['steps_per_second']
  shares = [
    bytes_per_second / peak
    for card, peak in PEAK_BYTES.items()
    if card in report['device']
  ]
  text = (
    f'{report["samples_per_second"]:,.0f} samples/s in {report["lanes"]} lanes, '
    f'{"".join(f"{share:.1%} of the bandwidth, " for share in shares)}'
    f'{report["peak_memory_bytes"] / 2**20:,.0f} MiB at most'
  )
  return report | {'text': text, 'bar': ''}
