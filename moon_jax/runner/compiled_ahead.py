"""The programs of a run, compiled before its pixels are known; see `ahead`."""

import threading
import time
from typing import NamedTuple

import jax

from moon_jax.building import programs
from moon_jax.building.experiment import Experiment, build, initial_state_shapes
from moon_jax.config import Config
from moon_jax.core.types import Dataset, PyTree
from moon_jax.platform import compile_cache


class CompiledAhead(NamedTuple):
  """An experiment without pixels, and its compiled programs.

  Attributes:
    experiment: it has shapes in place of arrays.
    state: shapes of the first state.
    inputs: inputs of round 0.
    programs: the programs.
    seconds: seconds that building, tracing and compiling took.
  """

  experiment: Experiment
  state: PyTree
  inputs: programs.RoundInputs
  programs: programs.Compiled
  seconds: float

  def fits(
    self, experiment: Experiment, state: PyTree, inputs: programs.RoundInputs
  ) -> bool:
    """Whether the programs are those of an experiment with pixels.

    They are if it has the same configuration, and plans and arrays of the same shapes.

    Args:
      experiment: the run's experiment.
      state: the state from which the run continues.
      inputs: inputs of any round.
    """
    if self.experiment.config != experiment.config:
      return False
    ahead_training = self.experiment.planner.training
    run_training = experiment.planner.training
    are_planned_alike = (
      ahead_training.layout == run_training.layout
      and ahead_training.work == run_training.work
    )
    ahead_arrays = _arrays(self.experiment, self.state, self.inputs)
    run_arrays = _arrays(experiment, state, inputs)
    return are_planned_alike and _described(ahead_arrays) == _described(run_arrays)


def compile_ahead(
  config: Config, dataset: Dataset, min_steps: int, is_cancelled: threading.Event
) -> CompiledAhead | None:
  """Compiles the programs of a run; None if it is cancelled, or has a client store.

  Args:
    config: the configuration, whose devices are claimed.
    dataset: it has labels, and the shapes of its images.
    min_steps: see `experiment.build_with`.
    is_cancelled: set by another thread if the programs are not needed.
  """
  begin = time.perf_counter()
  experiment = build(config, lambda options: dataset, min_steps, has_arrays=False)
  if is_cancelled.is_set():
    return None
  if not experiment.placement.client_memory.on_device:
    return None  # a store of memories decides shapes of its own
  plan = experiment.planner.plan(0).for_device()
  inputs = programs.round_inputs(experiment, 0, plan)
  state = initial_state_shapes(experiment)
  compiled = compile_cache.compiled(
    config.execution.compile_cache,
    lambda: programs.compile_programs(experiment, state, inputs),
  )
  return CompiledAhead(
    experiment=experiment,
    state=state,
    inputs=inputs,
    programs=compiled,
    seconds=time.perf_counter() - begin,
  )


def _arrays(experiment, state, inputs):
  tests = experiment.tests
  return state, inputs, experiment.data.train, tests.examples, tests.validation


def _described(arrays):
  """What a program knows of its arguments: their structure, shapes, types, devices."""
  leaves, structure = jax.tree.flatten(arrays)
  described = [
    (leaf.shape, leaf.dtype, getattr(leaf, 'weak_type', False), leaf.sharding)
    for leaf in leaves
  ]
  return structure, described
