"""Compiles the next run's programs, in a thread, while a run of the sweep trains."""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import Config
from moon_jax.engine import experiment, hosts, programs
from moon_jax.runner import pipeline
from moon_jax.sweeps.cells import Cell
from moon_jax.types import Dataset

_NAME = 'compiles ahead'


class Ahead:
  """What the runs of a sweep compile, each before it begins."""

  def __init__(self, load: Callable[[Config], Dataset], room: int):
    """load and room: as `experiment.build` is given them."""
    self._given = {'load': load, 'room': room}
    self._ready, self._thread = {}, None

  def compiling(self, cell: Cell, following: Cell | None = None) -> pipeline.Compiling:
    """What compiles the programs of a run, and then starts with those of the next.

    To be called before the run begins: it waits for the thread, which has JAX keep
    all that is compiled meanwhile.
    """
    begin = time.perf_counter()
    if self._thread:
      self._thread.join()
    waited = time.perf_counter() - begin

    def compile_programs(built, state, inputs, say):
      if compiled := self._ready.pop((cell.name, built.data_digest), None):
        say(f'compiled while the run before trained; waited {waited:.1f} s')
        compiled = compiled._replace(compile_seconds=waited)
      else:
        compiled = pipeline.compile_programs(built, state, inputs, say)
      # Two data sets may not fit. Several processes would have to agree.
      if following and hosts.count() == 1 and _same_data(cell, following):
        self._start(following)
      return compiled

    return compile_programs

  def _start(self, cell: Cell):
    # Not one that Python waits for before all else: see `leave_compiler`.
    self._thread = threading.Thread(
      target=self._prepare, args=(cell,), name=_NAME, daemon=True
    )
    self._thread.start()
    atexit.register(self._thread.join)

  def _prepare(self, cell: Cell):
    with contextlib.suppress(Exception):  # the run says it when it begins
      built = experiment.build(cell.request.config, **self._given)
      if built.memory.name == 'device':  # else inputs are with what is remembered
        inputs = programs.round_inputs(built, 0, built.planner.plan(0))
        state = experiment.state_shapes(built)
        compiled = pipeline.compile_programs(built, state, inputs, _quiet)
        self._ready = {(cell.name, built.data_digest): compiled}


def leave_compiler(code: int) -> None:
  """Ends the process if the thread compiles, for which Python would wait at its end."""
  if any(thread.name == _NAME for thread in threading.enumerate()):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _quiet(*said, **how):
  """Beside the progress of another run nothing is told."""


def data_of(config: Config) -> str:
  """What tells a configuration's data set from others."""
  options = catalog.options('data', config_lib.flatten(config))
  return repr((config.data.source, config.data.limit, options))


def _same_data(one: Cell, other: Cell) -> bool:
  return data_of(one.request.config) == data_of(other.request.config)
