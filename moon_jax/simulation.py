"""The loop: read it top to bottom in a minute."""

import jax

from moon_jax import devices, recording, storage
from moon_jax.checkpoint import Checkpoints
from moon_jax.command_line import Request
from moon_jax.console import Console
from moon_jax.data import partition
from moon_jax.errors import ExitCode, UsageError
from moon_jax.experiment import (
  Experiment,
  build,
  compile_programs,
  initial_state,
  round_inputs,
)
from moon_jax.logbook import Logbook
from moon_jax.recording import Records
from moon_jax.report import figures
from moon_jax.types import State


def run(request: Request) -> ExitCode:
  """Runs an experiment to its end, from its newest checkpoint if it has one.

  Returns:
    ExitCode.DONE.

  Raises:
    RunError: with the message for the user and the exit code.
  """
  config, workdir = request.config, request.workdir
  console = Console()
  recording.check(workdir, config)
  if recording.finished(workdir, config.num_rounds):
    console.nothing_to_do(workdir, config.num_rounds)
    return ExitCode.DONE
  devices.claim(config.execution.devices)
  console.devices()
  experiment = build(config)
  with (
    recording.begin(request, experiment.data_digest),
    Checkpoints(workdir / 'checkpoints', console.say) as checkpoints,
  ):
    counts = experiment.class_counts
    partition.save(workdir / 'partition.npz', experiment.split, counts)
    with storage.writing(workdir / 'partition.png'):
      figures.heat_map(workdir / 'partition.png', counts, workdir.name)
    state = checkpoints.newest_or(
      initial_state(experiment), recording.rounds_saved(workdir)
    )
    console.introduce(request, experiment, state)
    with Records(workdir, int(state.round)) as records:
      if records.num_dropped:
        console.say(f'recorded but not saved, run again: {records.num_dropped} rounds')
      if rounds_left(config.num_rounds, records):
        train(experiment, state, checkpoints, records, console)
    recording.finish(workdir)
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
) -> None:
  """Every round that is left: train, test, record, save.

  While the device works on a round, the host packs the next one and then reads the
  results of the one before, if the device has been given that much work in advance.
  """
  config, first = experiment.config, int(state.round)
  with console.compiling('one round and one test'):
    programs = compile_programs(experiment, state)
  logbook = Logbook(experiment, programs, records, console, first)
  plan, flight = experiment.planner.plan(first), None
  inputs = round_inputs(experiment, first, plan)
  for index in console.progress(range(first, config.num_rounds)):
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
    save = due(index, config.checkpoint_every_rounds, config.num_rounds)
    if save or devices.one_at_a_time(experiment.mesh):
      logbook.land(flight)
      if save:
        with flight.clock('save'):
          checkpoints.save(state)
      logbook.close(flight)
      flight = None


def due(round_index: int, every: int, num_rounds: int) -> bool:
  """Whether something done every so many rounds, and after the last, is due."""
  return (round_index + 1) % every == 0 or round_index + 1 == num_rounds
