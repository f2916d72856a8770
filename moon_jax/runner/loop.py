"""Runs an experiment: checks, builds, resumes, trains round by round, and ends it."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax

from moon_jax import catalog
from moon_jax.building.experiment import build, initial_state
from moon_jax.config import used_value
from moon_jax.config.cli import Request
from moon_jax.core import files
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.core.paths import expand
from moon_jax.platform import compile_cache, devices, hosts
from moon_jax.runner import callbacks, client_store, loggers, run_directory
from moon_jax.runner.callbacks import Run
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.console import Console
from moon_jax.runner.profiling import Profiler
from moon_jax.runner.records import Records
from moon_jax.runner.rounds import Rounds
from moon_jax.runner.signals import Stop


def run(
  request: Request,
  stop: Stop | None = None,
  own: Sequence[Any] = (),
  **given: Any,
) -> ExitCode:
  """Runs an experiment to its end, from its newest checkpoint if it has one.

  Args:
    request: the command line.
    stop: what can end the run early; None: nothing can.
    own: the user's callbacks, beside those that the config file registers.
    **given: arguments of `experiment.build`, such as data that are loaded already.

  Returns:
    ExitCode.DONE.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  config, workdir = request.config, request.workdir
  console = Console()
  hosts.decided(lambda: loggers.require(config.logger))
  told = hosts.decided(lambda: run_directory.check(workdir, config))
  if why := hosts.decided(lambda: run_directory.why_finished(workdir, config)):
    for line in (*told, f'nothing to do: the run {why}'):
      console.say(line)
  else:
    own = [callbacks.callback_of(one) for one in (*catalog.callbacks(), *own)]
    _run(request, stop or Stop(), console, told, own, given)
  hosts.decided(lambda: console.finished(workdir))
  return ExitCode.DONE


def _run(request, stop, console, told, own, given):
  config = request.config
  compile_cache.keep_kernels(config.execution.compile_cache)
  devices.claim(config.execution.devices, deterministic=config.execution.deterministic)
  console.devices()
  with hosts.alike(), devices.out_of_memory_is_told():
    built = build(config, **given)
    state = initial_state(built)
  digests = {
    'data_digest': built.data.digest,
    'weights_digest': built.network.weights_digest,
    'trace_digest': _digest(used_value(config, 'availability.path')),
  }
  names = 'data set', 'initial_weights', 'availability.path'
  for name, digest in zip(names, digests.values(), strict=True):
    hosts.require_same(name, {'SHA-256': digest})
  devices.meet(built.placement.mesh)
  several = hosts.count() > 1
  if several:  # only process 0 reads and writes what is saved
    state = jax.device_get(state)
  opening = _opened(request, built, digests, state, console, told, own)
  with hosts.by_first(opening) as opened:
    store, state, history, beside, why = opened or (None, state, None, [], '')
    why = hosts.decided(lambda: why)
    if hosts.decided(lambda: rounds_left(config.num_rounds, history, why)):
      if several:
        state = devices.replicate(hosts.from_first(state), built.placement.mesh)
      why = _train(built, state, store, beside, stop, console, why)
    for one in beside:
      one.end()
    ended = request.workdir, history, why, config.num_rounds
    hosts.decided(lambda: run_directory.finish(*ended))


def _train(built, state, store, beside, stop, console, why) -> str:
  """Runs the rounds that are left; if `why` is not empty, up to a tested one.

  Returns:
    Why a callback has stopped the run; '' if no round is left.

  Raises:
    StoppedError: a signal has stopped the run, and the finished rounds are saved.
  """
  with devices.out_of_memory_is_told():
    rounds = Rounds(built, state, store, say=console.say)
  asked, every = False, built.config.checkpoint_every_rounds

  def wants_state(number):
    nonlocal asked
    asked = stop.requested()
    return asked or bool(why) or any([one.wants_state(number) for one in beside])

  def seen(round):
    round.is_awaited = asked
    if why:
      round.stop(why)
    for one in beside:
      one.after_round(round)
    return round.stopped, bool(round.state) and 'test_accuracy' in round.metrics

  with (
    devices.out_of_memory_is_told(rounds.buffers),
    stop.deferred(),
    contextlib.closing(rounds.run(wants_state)) as done,
  ):
    for round in done:
      is_due = round.number % every == 0 and round.number in rounds.left
      # Before it is saved: the save is then waited for, and no process ends in it.
      asked = asked or (is_due and stop.requested())
      why, can_end = hosts.decided(lambda round=round: seen(round))
      if why and can_end:
        return why
      if asked or is_due:
        stop.check(round.number)
  return ''


@contextlib.contextmanager
def _opened(request, built, digests, first, console, told, own):
  """Opens the files of a run, and loads the state from which it continues.

  Args:
    request: the command line.
    built: the experiment.
    digests: those of its data and files.
    first: the state before the first round.
    console: prints about the run.
    told: further lines to print.
    own: the user's callbacks.

  Yields:
    The client store, the state, the lines of metrics.jsonl, all callbacks, and why a
    callback has ended the run before this start, or ''.
  """
  if catalog.part('algorithm', request.config.algorithm).has('several_clients'):
    # The number of natural clients is known only from the data.
    request = request._replace(config=built.config)
  workdir = request.workdir
  images = run_directory.describe_images(built)
  with (
    run_directory.begin(request, digests, images),
    client_store.opened(built, workdir / 'checkpoints') as store,
    Checkpoints(workdir / 'checkpoints', console.say, store) as checkpoints,
  ):
    run_directory.save_partition(workdir, built)
    saved = run_directory.rounds_saved(workdir)
    with devices.out_of_memory_is_told():
      state = checkpoints.newest_or(first, saved)
    console.introduce(request, built, state)
    for line in told:
      console.say(line)
    with (
      Records(workdir, int(state.round)) as records,
      contextlib.ExitStack() as closing,
    ):
      if records.num_dropped:
        console.say(
          f'rounds recorded but not saved, and run again: {records.num_dropped}'
        )
      left = range(int(state.round), request.config.num_rounds)
      of_run = Run(request.config, workdir, built, records.rounds, left)
      logged = loggers.made(request.config.logger)
      # A round's record is on the disk before its state is saved; the time of the save
      # is recorded after it.
      beside = [
        callbacks.Writes(records, request.config.on_nonfinite),
        *own,
        callbacks.Saves(checkpoints, records, request.config),
        *logged,
        console,
        Profiler(console.say),
        callbacks.Draws(of_run, logged),
      ]
      for one in beside:
        closing.callback(one.close)
        one.begin(of_run)
      why = run_directory.why_stopped(checkpoints.manifest, request.config)
      yield store, state, records.rounds, beside, why


def _digest(path: str) -> str:
  """The digest of a file; '' without one."""
  return path and files.sha256(expand(path))


def rounds_left(num_rounds: int, history: list, why: str) -> bool:
  """Whether there is a round to run.

  Args:
    num_rounds: number of rounds that are asked for.
    history: the lines of metrics.jsonl.
    why: why a callback has ended the run; '' if none has.

  Raises:
    UsageError: there is none, and the last saved round was not tested.
  """
  done = len(history)
  if done >= num_rounds and 'test_accuracy' not in history[-1]:
    raise UsageError(
      f'--config.num_rounds={num_rounds} must be above the {done} rounds saved here.'
    )
  return done < num_rounds and not (why and 'test_accuracy' in history[-1])
