"""The first eight minutes on a GPU: what decides what is done next.

  python -m benchmarks.gpu_plan [--out=FILE.jsonl] [--minutes=8] [--only=WORD]
    --config.data.dir=DIR [more of launch.py's flags]
  python -m benchmarks.gpu_plan --cards

Each row is one line of FILE: its command or flags, what was predicted, where the
prediction is from, and what was measured or why it was not. It is written before the
next row begins. The most important rows come first; when the minutes are over, the
others say so, and `--only` measures them another time. docs/gpu.md describes the rows.
On a CPU it runs with a small network and few images. `--cards` prints what two models
say of other cards.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks import processes

# --- predictions ------------------------------------------------------------------


class Card(NamedTuple):
  """Datasheet of a card.

  Attributes:
    bandwidth: bytes a second of its memory.
    tf32: operations a second of its tensor cores in TF32, without sparsity.
  """

  bandwidth: float
  tf32: float


CARDS = {
  'H200 SXM': Card(bandwidth=4.80e12, tf32=494e12),
  'H100 SXM': Card(bandwidth=3.35e12, tf32=494e12),
  'A100 80 GB SXM': Card(bandwidth=2.04e12, tf32=156e12),
  'RTX 4090': Card(bandwidth=1.01e12, tf32=82.6e12),
}


class Model(NamedTuple):
  """How long kernels take on an H200; both models agree with the measured 367 us.

  Attributes:
    launch: seconds of the smallest kernel.
    bandwidth: bytes a second that kernels reach.
  """

  launch: float
  bandwidth: float


MODELS = {
  'A': Model(launch=2.5e-6, bandwidth=2.5e12),
  'B': Model(launch=3.5e-6, bandwidth=3.6e12),
}
OPERATIONS = 60e12  # a second that kernels of an H200 reach
LATENCY = 1e-6  # seconds of a large kernel besides its bytes or its arithmetic

# Counted by compiling the MOON paper's round, with crops, for an H200. A training step
# of nine lanes, and what its share of look-up, crops and frozen networks is.
SMALL_KERNELS = 49  # of less than 4 MB
LARGE_KERNELS, LARGE_BYTES, LARGE_OPERATIONS = 21, 298e6, 3.1e9
GROUP_STEPS, GROUP_KERNELS, GROUP_BYTES = 12, 32, 2.9e9
STEPS = 1140  # one after another in a round, those of the largest client


def step_seconds(card: Card, model: Model) -> float:
  """Seconds of a step of the MOON paper's round in nine lanes, with crops.

  The card reaches the same share of its datasheet as an H200, and launches as fast.
  """
  h200 = CARDS['H200 SXM']
  bandwidth = model.bandwidth * card.bandwidth / h200.bandwidth
  operations = OPERATIONS * card.tf32 / h200.tf32
  small = SMALL_KERNELS * model.launch
  large = max(LARGE_BYTES / bandwidth, LARGE_OPERATIONS / operations)
  group = (GROUP_BYTES / bandwidth + GROUP_KERNELS * model.launch) / GROUP_STEPS
  return small + large + LARGE_KERNELS * LATENCY + group


def modelled_cards() -> str:
  """The table of docs/gpu.md: a step and the paper's 100 rounds, by both models."""
  lines = ['| card | a step, us | 100 rounds, s |', '|---|---|---|']
  for name, card in CARDS.items():
    steps = sorted(step_seconds(card, model) for model in MODELS.values())
    step = ' to '.join(f'{1e6 * seconds:.0f}' for seconds in steps)
    rounds = ' to '.join(f'{100 * STEPS * seconds:.0f}' for seconds in steps)
    lines.append(f'| {name} | {step} | {rounds} |')
  return '\n'.join(lines)


# --- the rows ---------------------------------------------------------------------


class Row(NamedTuple):
  """What is measured, and what is expected.

  Attributes:
    name: its name.
    predicted: name of a number -> its prediction for an H200.
    source: where the prediction is from.
    measure: (row, plan, seconds) -> what is measured; it ends after so many seconds.
    seconds: the most that it may take.
    flags: launch.py's flags, besides those of the whole plan.
    options: XLA's compiler options, name -> value.
  """

  name: str
  predicted: Mapping[str, float]
  source: str
  measure: Callable
  seconds: float
  flags: tuple[str, ...] = ()
  options: Mapping[str, object] = {}


class Failed(Exception):
  """A round that cannot be built, compiled or run; its text says why."""


class Plan(NamedTuple):
  """What the rows share.

  Attributes:
    rounds: the program that times rounds.
    flags: launch.py's flags of all rows.
    folder: a temporary folder.
  """

  rounds: processes.Requests
  flags: list[str]
  folder: pathlib.Path

  def all_flags(self, row: Row) -> list[str]:
    """launch.py's flags of a row."""
    return ['--config=configs/cifar10_moon.py', *row.flags, *self.flags]


def measure_round(row: Row, plan: Plan, seconds: float, arrays: str = '') -> dict:
  """A round of the engine."""
  request = {
    'flags': plan.all_flags(row),
    'options': dict(row.options),
    'repeats': 3,
    'arrays': arrays or None,
  }
  answer = plan.rounds.ask(request, seconds)
  if 'error' in answer:
    raise Failed(answer['error'])
  return answer


def measure_pytorch(row: Row, plan: Plan, seconds: float) -> dict:
  """A round of the engine, and sequential PyTorch on the same device afterwards."""
  end = time.monotonic() + seconds
  file = plan.folder / 'round.npz'
  ours = measure_round(row, plan, seconds, arrays=str(file))
  plan.rounds.end()
  words = ['-m', 'benchmarks.pytorch_baseline', f'--workload={file}', '--repeats=2']
  device = 'cpu' if 'cpu' in ours['device'] else 'cuda'
  words += ['--algorithm=moon', f'--device={device}']
  theirs = processes.run(words, seconds=max(1, end - time.monotonic()))
  ratio = ours['samples a second'] / theirs['samples_per_second']
  return {RATIO: ratio, 'ours': ours, 'PyTorch': theirs}


def measure_starts(row: Row, plan: Plan, seconds: float) -> dict:
  """The whole experiment twice: nothing is kept before the first start."""
  plan.rounds.end()
  end = time.monotonic() + seconds
  environment = {'XDG_CACHE_HOME': str(plan.folder / 'cache')}
  report = {}
  for name in row.predicted:
    report[f'report of {name}'] = processes.run(
      ['-m', 'benchmarks.run', *plan.all_flags(row)],
      seconds=max(1, end - time.monotonic()),
      environment=environment,
    )
    report[name] = report[f'report of {name}']['end_to_end_seconds']
  return report


def measure_shared(row: Row, plan: Plan, seconds: float) -> dict:
  """Three processes on one card, against one."""
  plan.rounds.end()
  end = time.monotonic() + seconds
  words = ['-m', 'benchmarks.engine', *plan.all_flags(row)]
  environment = {'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
  speeds = {}
  for count in (1, 3):
    reports = processes.run_together(
      words,
      count=count,
      repeats=10,
      seconds=max(1, end - time.monotonic()),
      environment=environment,
    )
    speeds[count] = [report['samples_per_second'] for report in reports]
  together = sum(speeds[3]) / speeds[1][0]
  return {TOGETHER: together, 'samples a second, alone and together': speeds}


def measure_mps(row: Row, plan: Plan, seconds: float) -> dict:
  """The same under NVIDIA's MPS, which is started and ended."""
  folder = plan.folder / 'mps'
  folder.mkdir(exist_ok=True)
  names = ('CUDA_MPS_PIPE_DIRECTORY', 'CUDA_MPS_LOG_DIRECTORY')
  for name in names:
    os.environ[name] = str(folder)
  try:
    subprocess.run(['nvidia-cuda-mps-control', '-d'], check=True, timeout=seconds)
    try:
      return measure_shared(row, plan, seconds)
    finally:
      with contextlib.suppress(subprocess.TimeoutExpired):
        words = ['nvidia-cuda-mps-control']
        subprocess.run(words, input='quit\n', text=True, timeout=20, check=False)
  finally:
    for name in names:
      del os.environ[name]


SECONDS, RATIO, TOGETHER = (
  'seconds a round',
  'samples a second, ours / PyTorch',
  'samples a second, three processes / one',
)
COMMAND_BUFFERS = 'FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION'
WITH_LOOPS = {'xla_gpu_enable_command_buffer': f'{COMMAND_BUFFERS},WHILE'}
UNROLLED = {'xla_gpu_command_buffer_unroll_loops': True}
CONCURRENT = {'xla_gpu_command_buffer_scheduling_mode': 'CONCURRENT'}
DEEP = ('--config.model=resnet18', '--config.local_epochs=1')
MODELLED = 'modelled from counted kernels and bytes'
GUESS = 'a guess'


def _round(name, seconds_a_round, source, flags=(), options=None):
  return Row(
    name, {SECONDS: seconds_a_round}, source, measure_round, 60, flags, options or {}
  )


ROWS = (
  _round('default', 0.42, 'measured on an H200 with JAX 0.11.2'),
  # As fast as the default: graphs are not used, and launching is what takes long.
  _round(
    'without CUDA graphs',
    0.50,
    GUESS,
    options={'xla_gpu_graph_min_graph_size': 1_000_000},
  ),
  _round('concurrent graphs', 0.365, f'{MODELLED}: 320 us a step', options=CONCURRENT),
  Row(
    'MOON on CIFAR-10, 100 rounds, started twice',
    {'seconds of the first start': 60, 'seconds of the second start': 47},
    'measured 76, less decoding beside compiling and 0.42 s a round; aims: 50 and 42',
    measure_starts,
    150,
  ),
  Row('PyTorch', {RATIO: 5.0}, GUESS, measure_pytorch, 110),
  _round('bfloat16', 0.35, MODELLED, ('--config.execution.dtype=bfloat16',)),
  _round('one lane', 1.75, MODELLED, ('--config.execution.lanes=1',)),
  _round('cuDNN', 1.2, GUESS, ('--config.execution.convolution=library',)),
  _round('FedAvg', 0.31, MODELLED, ('--config.algorithm=fedavg',)),
  Row('three processes with MPS', {TOGETHER: 1.8}, GUESS, measure_mps, 100),
  Row('three processes without MPS', {TOGETHER: 1.05}, GUESS, measure_shared, 90),
  Row('resnet18, one epoch, PyTorch', {RATIO: 0.8}, GUESS, measure_pytorch, 110, DEEP),
  _round(
    'resnet18, one epoch, one lane',
    4.0,
    f'{MODELLED}: 786 steps of 4.3 ms, and the frozen networks',
    DEEP,
  ),
  _round(
    'loops in concurrent graphs, unrolled',
    0.34,
    GUESS,
    options=WITH_LOOPS | UNROLLED | CONCURRENT,
  ),
  _round('highest', 0.60, GUESS, ('--config.execution.matmul_precision=highest',)),
  _round('deterministic', 0.45, GUESS, options={'xla_gpu_deterministic_ops': True}),
  _round('ten lanes', 0.44, MODELLED, ('--config.execution.lanes=10',)),
  _round('five lanes', 0.46, MODELLED, ('--config.execution.lanes=5',)),
  _round('loops in graphs', 0.42, GUESS, options=WITH_LOOPS),
  _round('loops in graphs, unrolled', 0.41, GUESS, options=WITH_LOOPS | UNROLLED),
  _round('no autotuning', 0.48, GUESS, options={'xla_gpu_autotune_level': 0}),
  _round('no Triton', 0.50, GUESS, options={'xla_gpu_enable_triton_gemm': False}),
  _round(
    'resnet18, one epoch, bfloat16',
    2.8,
    GUESS,
    (*DEEP, '--config.execution.dtype=bfloat16'),
  ),
  _round(
    'resnet18, one epoch, ten lanes',
    3.8,
    f'{MODELLED}: 114 steps of 33 ms',
    (*DEEP, '--config.execution.lanes=10'),
  ),
)


# --- measuring --------------------------------------------------------------------


def main() -> None:
  """Measures the rows."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--out', type=pathlib.Path, default='gpu_plan.jsonl')
  parser.add_argument('--cards', action='store_true', help='prints a table, no more')
  parser.add_argument('--minutes', type=float, default=8)
  parser.add_argument('--only', metavar='WORD', default='', help='in the name of a row')
  options, flags = parser.parse_known_args()
  if options.cards:
    print(modelled_cards())
    return
  rows = [row for row in ROWS if options.only in row.name]
  measure(rows, options.out, 60 * options.minutes, flags)


def measure(
  rows: list[Row], path: pathlib.Path, seconds: float, flags: list[str]
) -> None:
  """Appends one line to a file for each row, before the next begins.

  Args:
    rows: the rows, the most important first.
    path: file of the lines.
    seconds: the most that all take.
    flags: launch.py's flags of all rows.
  """
  end = time.monotonic() + seconds
  folder = pathlib.Path(tempfile.mkdtemp())
  try:
    with processes.Requests(['-m', 'benchmarks.gpu_rounds']) as rounds:
      plan = Plan(rounds=rounds, flags=flags, folder=folder)
      for row in rows:
        begin = time.monotonic()
        report = _report(row, plan, end)
        line = {
          'name': row.name,
          'flags': plan.all_flags(row),
          'options': dict(row.options),
          'predicted for an H200': dict(row.predicted),
          'source': row.source,
          **report,
          'seconds of the row': time.monotonic() - begin,
        }
        with path.open('a') as file:
          file.write(json.dumps(line) + '\n')
        print(_text(row, report), flush=True)
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def _report(row, plan, end):
  """{'measured': ...}, or {'error': why it was not}."""
  seconds = min(row.seconds, end - time.monotonic())
  if seconds <= 0:
    return {'error': 'not run: the minutes were over'}
  try:
    return {'measured': row.measure(row, plan, seconds)}
  except subprocess.TimeoutExpired:
    return {'error': f'not done after {seconds:.0f} s'}
  except subprocess.CalledProcessError as error:
    # What went wrong stands above on standard error.
    return {'error': f'exit code {error.returncode}'}
  except (Failed, OSError) as error:  # OSError: there is no such program
    return {'error': str(error)}
  except Exception as error:  # whatever it is, the next row may do
    return {'error': f'{type(error).__name__}: {error}'}


def _text(row, report):
  if 'error' in report:
    return f'{row.name}: {report["error"]}'
  numbers = [
    f'{report["measured"][name]:.3g} {name} (predicted {number:.3g})'
    for name, number in row.predicted.items()
  ]
  return f'{row.name}: {", ".join(numbers)}'


if __name__ == '__main__':
  main()
