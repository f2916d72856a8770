"""Times rounds, each with other compiler options, for benchmarks/gpu_plan.py.

  python -m benchmarks.gpu_rounds

Each line of standard input is a JSON object; each answer is one on standard output:

  flags    launch.py's flags
  options  XLA's compiler options, name -> value
  repeats  rounds that are timed, after one that is not
  arrays   a file that gets the round for benchmarks/pytorch_baseline.py; null: none

What fails is answered with {"error": reason}.
The process lives on, so that what XLA tried out for a product is tried out once, and
rounds that differ only in compiler options are built and traced once.
"""

import json
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
from jax.stages import Lowered

from benchmarks import engine
from moon_jax.building import experiment, programs
from moon_jax.config import cli
from moon_jax.core.types import State
from moon_jax.planning.plan import RoundPlan
from moon_jax.platform import devices
from moon_jax.runner import clock

MOST_CHARACTERS = 600  # of a reason; XLA's can be pages


class Traced(NamedTuple):
  """A round, traced but not compiled.

  Attributes:
    built: the experiment.
    state: the state before the round, with previous models.
    plan: what the clients train.
    inputs: the same, on the device.
    lowered: the traced program.
    seconds: seconds that building and tracing took.
  """

  built: experiment.Experiment
  state: State
  plan: RoundPlan
  inputs: programs.RoundInputs
  lowered: Lowered
  seconds: float


def main() -> None:
  """Answers until standard input ends."""
  flags_before, traced = None, None
  for line in sys.stdin:
    request = json.loads(line)
    try:
      if request['flags'] != flags_before:
        traced = flags_before = None  # frees its memory before the next one is built
        traced = trace(request['flags'])
        flags_before = request['flags']
      if request['arrays']:
        arrays = engine.workload_arrays(traced.built, traced.state, traced.plan)
        np.savez(request['arrays'], **arrays)
      answer = measure(traced, request)
    except Exception as error:  # the next round may do
      answer = {'error': f'{type(error).__name__}: {error}'[:MOST_CHARACTERS]}
    print(json.dumps(answer), flush=True)


def trace(flags: list[str]) -> Traced:
  """Builds the experiment of these flags, and traces round 0."""
  begin = time.perf_counter()
  config = cli.parse(flags).config
  devices.claim(config.execution.devices)
  built = experiment.build(config)
  state = engine.state_with_previous_models(built)
  plan = built.planner.plan(0)
  inputs = programs.round_inputs(built, 0, plan.for_device())
  return Traced(
    built=built,
    state=state,
    plan=plan,
    inputs=inputs,
    lowered=programs.lower_programs(built, state, inputs).run_round,
    seconds=time.perf_counter() - begin,
  )


def measure(traced: Traced, request: dict) -> dict:
  """Compiles and runs the round; what is measured, by name."""
  begin = time.perf_counter()
  compiled = traced.lowered.compile(compiler_options=request['options'] or None)
  compile_seconds = time.perf_counter() - begin
  seconds = []
  for _ in range(1 + request['repeats']):
    # A round writes over its state.
    copy = jax.tree.map(lambda leaf: leaf.copy(), traced.state)
    jax.block_until_ready(copy)
    begin = time.perf_counter()
    _, metrics = jax.block_until_ready(
      compiled(copy, traced.inputs.plan, traced.inputs.scalars, traced.built.data.train)
    )
    seconds.append(time.perf_counter() - begin)
  num_samples = int(metrics.num_seen.sum())
  round_seconds = float(np.median(seconds[1:]))
  schedule = traced.plan.schedule
  last_segments = schedule.num_segments
  steps = schedule.segment_bounds[np.arange(len(last_segments)), last_segments]
  return {
    'seconds a round': round_seconds,
    'samples a second': num_samples / round_seconds,
    'seconds of the first': seconds[0],
    'seconds of all': seconds[1:],
    'seconds of building and tracing': traced.seconds,
    'seconds of compiling': compile_seconds,
    'lanes': traced.built.planner.training.layout.num_lanes,
    'steps in a row': int(steps.max()),
    # The forms agree up to rounding: another loss is a fault.
    'train loss': float(np.sum(metrics.sums['train_loss']) / num_samples),
    'peak memory bytes': clock.peak_memory_bytes(),
    'device': jax.devices()[0].device_kind,
    'jax': jax.__version__,
  }


if __name__ == '__main__':
  main()
