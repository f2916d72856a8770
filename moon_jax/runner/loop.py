"""The loop: read it top to bottom in a minute."""

import jax

from moon_jax.cli import Request
from moon_jax.engine import devices
from moon_jax.engine.experiment import Experiment, build, initial_state
from moon_jax.engine.programs import compile_programs, round_inputs
from moon_jax.errors import ExitCode, UsageError
from moon_jax.runner import compile_cache, plots, run_directory, storage
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.console import Console
from moon_jax.runner.pipeline import Logbook
from moon_jax.runner.run_directory import Records
from moon_jax.runner.signals import Stop
from moon_jax.types import State


def run(request: Request, stop: Stop | None = None) -> ExitCode:
  """Runs an experiment to its end, from its newest checkpoint if it has one.

  Args:
    request: the command line.
    stop: what ends the run early; None is nothing.

  Returns:
    ExitCode.DONE.

  Raises:
    RunError: with the message for the user and the exit code.
  """
  config, workdir = request.config, request.workdir
  console = Console()
  changed = run_directory.check(workdir, config)
  if run_directory.finished(workdir, config.num_rounds):
    console.nothing_to_do(workdir, config.num_rounds)
    return ExitCode.DONE
  compile_cache.check(config.execution.compile_cache)
  devices.claim(config.execution.devices, deterministic=config.execution.deterministic)
  console.devices()
  experiment = build(config)
  with (
    run_directory.begin(
      request, experiment.data_digest, run_directory.describe_images(experiment.test)
    ),
    Checkpoints(workdir / 'checkpoints', console.say) as checkpoints,
  ):
    counts = experiment.class_counts
    run_directory.save_partition(workdir, experiment.split, counts)
    with storage.writing(workdir / 'partition.png'):
      plots.heat_map(workdir / 'partition.png', counts, workdir.name)
    state = checkpoints.newest_or(
      initial_state(experiment), run_directory.rounds_saved(workdir)
    )
    console.introduce(request, experiment, state)
    for line in changed:
      console.say(line)
    with Records(workdir, int(state.round)) as records:
      if not records.rounds:
        records.add_picture('partition', workdir / 'partition.png')
      if records.num_dropped:
        console.say(f'recorded but not saved, run again: {records.num_dropped} rounds')
      if rounds_left(config.num_rounds, records):
        train(experiment, state, checkpoints, records, console, stop or Stop())
    checkpoints.require_in_place()
    run_directory.finish(workdir)
  console.finished(workdir)
  return ExitCode.DONE


def rounds_left(num_rounds: int, records: Records) -> bool:
  """Whether there is a round to run.

  Raises:
    UsageError: the last saved round is beyond those asked for, or was not tested.
  """
  done = len(records.rounds)
  if done < num_rounds:
    return True
  if done > num_rounds or 'test_accuracy' not in records.rounds[-1]:
    raise UsageError(
      f'--config.num_rounds={num_rounds} must be above the {done} rounds saved here.'
    )
  return False


def train(
  experiment: Experiment,
  state: State,
  checkpoints: Checkpoints,
  records: Records,
  console: Console,
  stop: Stop,
) -> None:
  """Every round that is left: train, test, record, save.

  While the device works on a round, the host packs the next one and then reads the
  results of the one before, if the device has been given that much work in advance.

  Raises:
    StoppedError: it was asked to, and has saved what it did.
    DivergedError: the results of a round are not finite.
  """
  config, first = experiment.config, int(state.round)
  plan, flight, saved = experiment.planner.plan(first), None, False
  inputs = round_inputs(experiment, first, plan)
  cache = compile_cache.using(config.execution.compile_cache, console.say)
  with cache, console.compiling('one round and one test'):
    programs = compile_programs(experiment, state, inputs)
  logbook = Logbook(experiment, programs, records, console, first)
  with logbook, stop.deferred():
    for index in console.progress(range(first, config.num_rounds)):
      if saved:
        stop.check(index)
      landing, flight = flight, logbook.new_flight(index, plan)
      with jax.transfer_guard('disallow'):
        state, flight.metrics = programs.run_round(state, *inputs, experiment.train)
      if index + 1 < config.num_rounds:
        with flight.clock('pack'):
          plan = experiment.planner.plan(index + 1)
          inputs = round_inputs(experiment, index + 1, plan)
      if due(index, config.eval_every_rounds, config.num_rounds):
        with jax.transfer_guard('disallow'):
          flight.score = programs.evaluate(state, experiment.test)
      if landing:
        logbook.land(landing)
        logbook.close(landing)
      saved = stop.requested
      saved |= due(index, config.checkpoint_every_rounds, config.num_rounds)
      if saved or devices.one_at_a_time(experiment.mesh):
        logbook.land(flight)
        if saved:
          with flight.clock('save'):
            checkpoints.save(state)
        logbook.close(flight)
        flight = None


def due(round_index: int, every: int, num_rounds: int) -> bool:
  """Whether something done every so many rounds, and after the last, is due."""
  return (round_index + 1) % every == 0 or round_index + 1 == num_rounds
