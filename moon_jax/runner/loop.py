"""Runs an experiment: checks, builds, resumes, trains round by round, and ends it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from moon_jax import catalog
from moon_jax.cli import Request
from moon_jax.engine import devices, hosts
from moon_jax.engine.experiment import Experiment, build, initial_state
from moon_jax.errors import ExitCode, UsageError
from moon_jax.runner import client_store, compile_cache, run_directory, surroundings
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.console import Console
from moon_jax.runner.pipeline import Pipeline
from moon_jax.runner.records import Records
from moon_jax.runner.signals import Stop
from moon_jax.types import State


def run(
  request: Request,
  stop: Stop | None = None,
  console: Console | None = None,
  **given: Any,
) -> ExitCode:
  """Runs an experiment to its end, from its newest checkpoint if it has one.

  Args:
    request: the command line.
    stop: what ends the run early; None is nothing.
    console: what tells of it; None is a new one.
    **given: to `experiment.build`, such as data that is loaded already.

  Returns:
    ExitCode.DONE.

  Raises:
    RunError: with the message for the user and the exit code.
  """
  config, workdir = request.config, request.workdir
  console = console or Console()
  told = hosts.decided(lambda: run_directory.check(workdir, config))
  if hosts.decided(lambda: is_finished(request)):
    console.say(f'nothing to do: the run has the {config.num_rounds} rounds asked for')
  else:
    _run(request, stop or Stop(), console, told, given)
  hosts.decided(lambda: console.finished(workdir))
  return ExitCode.DONE


def is_finished(request: Request) -> bool:
  """Whether a run that ended in the directory has all rounds that are asked for."""
  return run_directory.rounds_finished(request.workdir) >= request.config.num_rounds


def _run(request, stop, console, told, given):
  config = request.config
  compile_cache.keep_kernels(config.execution.compile_cache)
  devices.claim(config.execution.devices, deterministic=config.execution.deterministic)
  surroundings.require_jax()
  console.devices()
  with hosts.alike(), devices.out_of_memory_is_told():
    built = build(config, **given)
    state = initial_state(built)
  hosts.require_same('data set', {'SHA-256': built.data_digest})
  hosts.meet(built.mesh)
  several = hosts.count() > 1
  if several:  # process 0 alone reads and writes what is saved
    state = jax.device_get(state)
  with hosts.by_first(open_directory(request, built, state, console, told)) as opened:
    checkpoints, records, store, state = opened or (None, None, None, state)
    left = hosts.decided(lambda: rounds_left(config.num_rounds, records))
    if several:
      state = devices.replicate(hosts.from_first(state), built.mesh)
    if left:
      pipeline = Pipeline(built, checkpoints, records, console, store)
      with devices.out_of_memory_is_told(pipeline.buffers):
        pipeline.compile(state)
        pipeline.run(state, stop)


@contextlib.contextmanager
def open_directory(
  request: Request, built: Experiment, first: State, console: Console, told: list[str]
) -> Iterator[tuple[Checkpoints, Records, ClientStore | None, State]]:
  """The files of a run, and the state that it goes on from.

  Args:
    request: the command line.
    built: the experiment.
    first: the state before the first round.
    console: is told of the run.
    told: what else to tell.
  """
  if catalog.part('algorithm', request.config.algorithm).has('several_clients'):
    # The data tell how many natural clients there are.
    request = request._replace(config=built.config)
  workdir, images = request.workdir, run_directory.describe_images(built.test)
  with (
    run_directory.begin(request, built.data_digest, images),
    client_store.opened(built, workdir / 'checkpoints') as store,
    Checkpoints(workdir / 'checkpoints', console.say, store) as checkpoints,
  ):
    owners = built.split, built.class_counts, built.names
    run_directory.save_partition(workdir, *owners)
    saved = run_directory.rounds_saved(workdir)
    with devices.out_of_memory_is_told():
      state = checkpoints.newest_or(first, saved)
    del first  # it may be as large
    console.introduce(request, built, state)
    for line in told:
      console.say(line)
    with Records(workdir, int(state.round), built.class_counts) as records:
      if records.num_dropped:
        console.say(f'recorded but not saved, run again: {records.num_dropped} rounds')
      yield checkpoints, records, store, state
    run_directory.finish(workdir, records.rounds, built.algorithm.measured)


def rounds_left(num_rounds: int, records: Records) -> bool:
  """Whether there is a round to run.

  Raises:
    UsageError: there is none, and the last that is saved was not tested.
  """
  done = len(records.rounds)
  if done >= num_rounds and 'test_accuracy' not in records.rounds[-1]:
    raise UsageError(
      f'--config.num_rounds={num_rounds} must be above the {done} rounds saved here.'
    )
  return done < num_rounds
