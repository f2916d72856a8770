"""The rows of the gpu-compile suite: programs for a card that is not there.

  python -m benchmarks.gpu_compile --target-config=FILE [launch.py's flags]

Compiles one round and one test of an experiment for the described card, without a
device, and prints one JSON line. Kernels, bytes, FLOPs, loops and memory are those of
the program that XLA:GPU would run; times are a model (benchmarks/hlo.py). Nothing is
autotuned without a device: matrix products are Triton's, with default tiles.
"""

import argparse
import collections
import functools
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks import hlo, processes
from benchmarks.rows import Row
from moon_jax.config import cli
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.engine import devices, experiment, programs

PAPER = '--config=configs/cifar10_moon.py'
RESNET = ('--config.model=resnet18', '--config.local_epochs=1')
# Name -> flags, added to those of the paper's experiment.
PROGRAMS = {
  'moon_cnn, float32': [],
  'moon_cnn, bfloat16': ['--config.execution.dtype=bfloat16'],
  'moon_cnn, deterministic': ['--config.execution.deterministic=true'],
  'moon_cnn, no augmentation': ['--config.augmentation.name=none'],
  'moon_cnn, fedavg': ['--config.algorithm=fedavg'],
  'moon_cnn, 1 lane': ['--config.execution.lanes=1'],
  'moon_cnn, library': ['--config.execution.convolution=library'],
  'dco_cnn': ['--config.model=dco_cnn'],
  'cnn_transformer': ['--config.model=cnn_transformer'],
  'resnet18': [*RESNET],
  'resnet18, 10 lanes': [*RESNET, '--config.execution.lanes=10'],
}
NUM_ROUNDS = 100
FLOAT32, BFLOAT16 = '<= 20 s', '<= 14 s'
BARS = {  # for the modelled time
  'moon_cnn, float32': FLOAT32,
  'moon_cnn, bfloat16': BFLOAT16,
}


def is_possible() -> bool:
  """Whether XLA's compiler for GPUs is installed."""
  plugins = ('xla_cuda12', 'xla_cuda13')
  return bool(
    importlib.util.find_spec('jax_plugins')
    and any(importlib.util.find_spec(f'jax_plugins.{name}') for name in plugins)
  )


def described_mesh(target_config: str) -> Mesh:
  """One device of the card that a file describes; programs for it only compile.

  Raises:
    UsageError: there is no such file, or this version of XLA cannot read it.
  """
  path = pathlib.Path(target_config)
  if not path.is_file():
    raise UsageError(f'--target-config={target_config!r} is not a file.')
  jax.devices()  # finds the compiler for GPUs among the plugins
  try:
    described = topologies.get_topology_desc(
      platform='cuda',
      topology_name='',
      target_config=path.read_text(errors='replace'),
      topology='1x1x1',
    )
  except Exception as error:  # the plugin has its own classes
    reason = str(error).splitlines()[0][:200]
    raise UsageError(
      f'--target-config={target_config!r} is no description of a card for '
      f'jaxlib {jax.lib.__version__}: {reason}'
    ) from None
  kinds = (AxisType.Auto,)
  return Mesh(np.array(described.devices[:1]), (devices.LANES,), axis_types=kinds)


def device_memory(target_config: str) -> int:
  """Bytes that the description gives the card; 0 if it does not say."""
  text = pathlib.Path(target_config).read_text()
  found = re.search(r'device_memory_size: (\d+)', text)
  return int(found[1]) if found else 0


def tasks(
  target_config: str, data_dir: str, chosen: list[str] | None, details: dict
) -> dict[str, Callable[[], list[Row]]]:
  """Name -> a function that compiles a program, in a process, and returns its rows."""

  def measure(name):
    words = ['-m', 'benchmarks.gpu_compile', f'--target-config={target_config}']
    words += [PAPER, f'--config.data.dir={data_dir}', *PROGRAMS[name]]
    try:
      details[name] = report = processes.run(words, JAX_PLATFORMS='cpu')
    except subprocess.CalledProcessError as error:
      if error.returncode == ExitCode.USAGE:  # the process has printed the reason
        raise SystemExit(ExitCode.USAGE) from None
      return [Row(name, f'failed with exit code {error.returncode}', '')]
    return list(_rows(name, report))

  return {name: functools.partial(measure, name) for name in chosen or PROGRAMS}


def _rows(name, report):
  yield Row(
    name,
    f'{report["kernels_per_step"]:.0f} kernels, {report["mb_per_step"]:,.0f} MB, '
    f'{report["gflop_per_step"]:.1f} GFLOP a step of {report["lanes"]} lanes '
    f'({report["utilisation"]:.0%} useful)',
    '<= 60 kernels, <= 400 MB' if BARS.get(name) == FLOAT32 else '',
  )
  yield Row(
    f'{name}: loops',
    f'{report["host_reads_per_round"]:.0f} reads of a condition, '
    f'{report["segments"]} segments and {report["steps"]} steps a round; '
    f'{report["boundary_kernels"]} kernels at a boundary',
    '<= 75 at a boundary' if 'deterministic' in name else '',
  )
  yield Row(
    f'{name}: memory and time',
    f'{report["temporary_mib"]:,.0f} MiB temporary; modelled '
    f'{report["experiment_seconds"]:.1f} s for {NUM_ROUNDS} rounds',
    BARS.get(name, ''),
  )


def main() -> None:
  """Compiles one experiment and prints what its programs are."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--target-config', required=True)
  parser.add_argument('--hlo', help='where to keep the text of the round')
  options, flags = parser.parse_known_args()
  config = cli.parse(flags).config
  devices.claim('1', deterministic=config.execution.deterministic)
  mesh = described_mesh(options.target_config)
  begin = time.perf_counter()
  built = experiment.build(config, backend='gpu')
  plan = built.planner.plan(0)
  inputs = programs.round_inputs(built, 0, plan)
  state = jax.eval_shape(lambda: experiment.initial_state(built))
  lowered = _lower(built, state, inputs, mesh)
  run_round, evaluate = (program.compile() for program in lowered)
  if options.hlo:
    pathlib.Path(options.hlo).write_text(run_round.as_text())
  report = _summary(built, plan, run_round, evaluate)
  memory = device_memory(options.target_config)
  needed = report['temporary_mib'] + report['argument_mib']
  if 0 < memory < needed * 2**20:
    raise UsageError(
      f'{needed:,.0f} MiB are needed, the card has {memory / 2**20:,.0f}: lower '
      '--config.execution.lanes or --config.execution.cache_mib.'
    )
  print(json.dumps(report | {'compile_seconds': time.perf_counter() - begin}))


def _lower(built, state, inputs, mesh):
  """The round and the test, traced for the described device."""

  def described(tree):
    there = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there), tree
    )

  train, test = described(built.train), described(built.test)
  built = built._replace(mesh=mesh, train=train, test=test)
  # From JAX 0.11 on, Pallas reads the kind of card from here.
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    return programs.lower_programs(built, described(state), described(inputs))


def _summary(built, plan, run_round, evaluate):
  segments = int(plan.num_segments[0])
  steps = int(plan.bounds[0, segments])
  # Numbers of iterations that the compiler does not know: the outermost loop is over
  # segments, the loop inside it over steps, and that of the frozen pass over a client's
  # batches.
  sizes = built.planner.sizes
  passes = np.ceil(sizes / plan.rows[0].size).sum() / plan.load.size
  unknown = (segments, steps / segments)

  def trips(where, depth):
    return passes if 'frozen' in where else unknown[min(depth, 1)]

  program = hlo.read(run_round.as_text(), trips)
  test = hlo.read(evaluate.as_text(), lambda where, depth: 1)
  memory = run_round.memory_analysis()
  per_round = {
    'kernels': program.total(lambda loop: len(loop.kernels)),
    'mb': program.total(lambda loop: sum(k.bytes for k in loop.kernels)) / 1e6,
    'gflop': program.total(lambda loop: sum(k.flops for k in loop.kernels)) / 1e9,
  }
  seconds = program.total(hlo.Loop.seconds) + test.total(hlo.Loop.seconds)
  outer = [loop for loop in program.inner if 'frozen' not in loop.name]
  return {
    **{f'{name}_per_step': value / steps for name, value in per_round.items()},
    'host_reads_per_round': program.total(lambda loop: not loop.known),
    'boundary_kernels': len(outer[-1].kernels),
    'steps': steps,
    'segments': segments,
    'lanes': plan.load.shape[1],
    'utilisation': plan.utilisation(),
    'temporary_mib': memory.temp_size_in_bytes / 2**20,
    'argument_mib': memory.argument_size_in_bytes / 2**20,
    'experiment_seconds': NUM_ROUNDS * seconds,
    'loops': [_described(loop) for loop in [*program.walk(), *test.walk()]],
  }


def _described(loop):
  kinds = collections.Counter(kernel.kind for kernel in loop.kernels)
  return {
    'name': loop.name,
    'trips': loop.trips,
    'known_trip_count': loop.known,
    'in_graph': loop.in_graph,
    'kernels': len(loop.kernels),
    'kinds': dict(kinds.most_common()),
    'mb': sum(kernel.bytes for kernel in loop.kernels) / 1e6,
    'gflop': sum(kernel.flops for kernel in loop.kernels) / 1e9,
    'microseconds': loop.seconds() * 1e6,
  }


if __name__ == '__main__':
  try:
    main()
  except UsageError as error:
    print(error, file=sys.stderr)
    raise SystemExit(error.exit_code) from None
