"""Runs an experiment: checks its directory, loads its data, then loads JAX and trains.

A mistake in the directory or in the data is told without JAX, whose import alone takes
more than a second.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building.data import DataOptions, load_data, prepare
from moon_jax.config.cli import Request
from moon_jax.core.errors import ExitCode
from moon_jax.core.types import Dataset
from moon_jax.platform import hosts
from moon_jax.runner import loggers, run_directory
from moon_jax.runner.ahead import CompilerAhead
from moon_jax.runner.screen import Screen
from moon_jax.runner.stop_requests import Stop


def run(
  request: Request,
  signals: Stop | None = None,
  callbacks: Sequence[Any] = (),
  *,
  load: Callable[[DataOptions], Dataset] = load_data,
  min_steps: int = 0,
  may_compile_ahead: bool = False,
  describe_sweep: Callable[[float], str] | None = None,
  lines_of_sweep: dict[str, str] | None = None,
) -> ExitCode:
  """Runs an experiment to its end, from its newest checkpoint if it has one.

  Args:
    request: the experiment that is asked for, and its run directory.
    signals: they can end the run early; None: nothing can.
    callbacks: the user's, in addition to those that the config file registers.
    load: see `data.prepare`; with `may_compile_ahead` it is not used, and the data are
      loaded by `load_data`.
    min_steps: see `experiment.build_with`.
    may_compile_ahead: whether a thread may compile while pictures are decoded. It does
      not know settings of JAX that hold in the caller's thread only.
    describe_sweep: seconds of a round of this run -> a line about the sweep that begins
      with it, '' if it needs none; None without a sweep.
    lines_of_sweep: kind of line, such as 'model' -> the last line about devices, data
      or network that a run of the sweep has printed; it is printed again only if it
      changes. None without a sweep.

  Returns:
    ExitCode.DONE.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  config, workdir = request.config, request.workdir
  screen = Screen(lines_of_sweep=lines_of_sweep)

  hosts.decided_by_first(lambda: loggers.require(config.logger))
  notices = hosts.decided_by_first(lambda: run_directory.check(workdir, config))
  why_finished = hosts.decided_by_first(
    lambda: run_directory.why_finished(workdir, config)
  )
  if why_finished:
    unused = hosts.decided_by_first(
      lambda: run_directory.unused_changes(workdir, config)
    )
    lines = [*notices, f'nothing to do: the run {why_finished}', unused]
    for line in filter(None, lines):
      screen.say(line)
  else:

    @functools.cache  # only the first call has an effect
    def claim_devices():
      from moon_jax.runner import loop  # loads JAX

      loop.claim_devices(config, screen.say_once)

    with screen.watching():
      ahead = None
      if may_compile_ahead:
        ahead = CompilerAhead(config, claim_devices, min_steps)
        load = ahead.load
      if catalog.registered_parts(config_lib.flatten(config)):
        claim_devices()  # a user's data or partition may use JAX
      with hosts.failing_together():
        prepared = prepare(config, load)
      claim_devices()
      from moon_jax.runner import loop  # loads JAX

      experiment, first_state = loop.build(prepared, min_steps)
      del prepared  # its arrays have been copied to the devices
      loop.train(
        request,
        experiment,
        first_state,
        signals=signals or Stop(),
        callbacks=callbacks,
        screen=screen,
        notices=notices,
        ahead=ahead.compiled() if ahead else None,
        describe_sweep=describe_sweep,
      )
  hosts.decided_by_first(lambda: _say_results(workdir, screen))
  return ExitCode.DONE


def _say_results(workdir: pathlib.Path, screen: Screen) -> None:
  from moon_jax.runner import console  # loads JAX

  for line in console.describe_results(workdir):
    screen.say(line)
