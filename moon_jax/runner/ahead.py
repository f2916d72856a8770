"""Compiles the programs of a run while the main thread decodes its pictures.

Programs depend on the shapes of the images and on the labels, which decide who trains
how many steps, and on no pixel. So once a source knows them, a thread builds the
experiment with shapes in place of pixels, and compiles. The run builds its own
experiment from what was decoded, and takes the programs only if all shapes agree.
"""

import sys
import threading
import time
from typing import NamedTuple

import jax

from moon_jax.building import programs
from moon_jax.building.data import DataOptions, load_data
from moon_jax.building.experiment import Experiment, build, initial_state_shapes
from moon_jax.config import Config
from moon_jax.core import activity
from moon_jax.core.types import Dataset, PyTree
from moon_jax.platform import compile_cache, hosts

# Fewer pictures are decoded sooner than an experiment is built twice.
MIN_PICTURES = 10_000


class _CompiledAhead(NamedTuple):
  """An experiment without pixels, and its compiled programs.

  Attributes:
    experiment: it has shapes in place of arrays.
    state: shapes of the first state.
    inputs: inputs of round 0.
    compiled: the programs.
    seconds: seconds that building, tracing and compiling took.
  """

  experiment: Experiment
  state: PyTree
  inputs: programs.RoundInputs
  compiled: programs.Compiled
  seconds: float


class CompilerAhead:
  """Compiles the programs of one run while `load` decodes its pictures."""

  def __init__(self, config: Config, min_steps: int = 0):
    """Compiles nothing yet.

    Args:
      config: the configuration, whose devices are claimed.
      min_steps: see `experiment.build`.
    """
    self._config = config
    self._min_steps = min_steps
    self._thread: threading.Thread | None = None
    self._is_cancelled = threading.Event()
    self._compiled_ahead: _CompiledAhead | None = None
    self._failure: Exception | None = None

  def load(self, options: DataOptions) -> Dataset:
    """Loads as `load_data` does, and returns once the programs are compiled as well.

    The run waits, because the compiler changes JAX's settings while it uses the cache
    of programs. An error of the data is raised at once; the process then ends when what
    is being compiled is.
    """
    try:
      dataset = load_data(options, announce=self._start_compiling)
    except BaseException:
      self._is_cancelled.set()
      raise
    if self._thread and self._thread.is_alive():
      with activity.doing('compiling the round and the test'):
        self._thread.join()
    return dataset

  def programs_for(
    self, experiment: Experiment, state: PyTree, inputs: programs.RoundInputs
  ) -> tuple[programs.Compiled | None, float]:
    """The programs, and the seconds that they took; (None, 0.0) if none fit.

    They fit an experiment of the same configuration whose plans and arrays have the
    same shapes. If compiling failed, a line on standard error says why.

    Args:
      experiment: the run's experiment.
      state: the state from which the run continues.
      inputs: inputs of any round.
    """
    if self._failure:
      reason = str(self._failure).partition('\n')[0]
      print(
        'compiling beside the decoding failed, so it begins again: '
        f'{type(self._failure).__name__}: {reason}',
        file=sys.stderr,
      )
    ahead = self._compiled_ahead
    if ahead is None or ahead.experiment.config != experiment.config:
      return None, 0.0
    ahead_training = ahead.experiment.planner.training
    run_training = experiment.planner.training
    are_planned_alike = (
      ahead_training.layout == run_training.layout
      and ahead_training.work == run_training.work
    )
    ahead_arrays = _arrays(ahead.experiment, ahead.state, ahead.inputs)
    run_arrays = _arrays(experiment, state, inputs)
    if not are_planned_alike or _described(ahead_arrays) != _described(run_arrays):
      return None, 0.0
    return ahead.compiled, ahead.seconds

  def _start_compiling(self, dataset: Dataset) -> None:
    """Starts the thread, unless there are few pictures or several processes.

    Args:
      dataset: it has labels, and the shapes of its images.
    """
    num_pictures = len(dataset.train_labels) + len(dataset.test_labels)
    if num_pictures < MIN_PICTURES or hosts.count() > 1:
      return
    self._thread = threading.Thread(
      target=self._compile, args=[dataset], name='compiling ahead'
    )
    self._thread.start()

  def _compile(self, dataset: Dataset) -> None:
    begin = time.perf_counter()
    try:
      experiment = build(
        self._config, lambda options: dataset, self._min_steps, has_arrays=False
      )
      if self._is_cancelled.is_set():
        return
      if not experiment.placement.client_memory.on_device:
        return  # a store of memories decides shapes of its own
      plan = experiment.planner.plan(0).for_device()
      inputs = programs.round_inputs(experiment, 0, plan)
      state = initial_state_shapes(experiment)
      compiled = compile_cache.compiled(
        self._config.execution.compile_cache,
        lambda: programs.compile_programs(experiment, state, inputs),
      )
      self._compiled_ahead = _CompiledAhead(
        experiment=experiment,
        state=state,
        inputs=inputs,
        compiled=compiled,
        seconds=time.perf_counter() - begin,
      )
    except Exception as error:
      # The run builds the same, and raises the same error, after those of the pictures.
      # If it raises none, `programs_for` reports this one.
      self._failure = error


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
