"""The loop: read it top to bottom in a minute."""

import math
from typing import NamedTuple

import jax

from moon_jax import devices, measures, recording
from moon_jax.checkpoint import Checkpoints
from moon_jax.cohort import Plan
from moon_jax.command_line import Request
from moon_jax.console import Console
from moon_jax.data import partition
from moon_jax.errors import DivergedError, ExitCode, UsageError
from moon_jax.evaluation import Score
from moon_jax.experiment import (
  Experiment,
  build,
  compile_programs,
  initial_state,
  round_inputs,
)
from moon_jax.recording import Records
from moon_jax.report import figures
from moon_jax.types import ClientMetrics, State


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
    Checkpoints(workdir / 'checkpoints') as checkpoints,
  ):
    counts = experiment.class_counts
    partition.save(workdir / 'partition.npz', experiment.split, counts)
    figures.heat_map(workdir / 'partition.png', counts, workdir.name)
    state = checkpoints.newest_or(initial_state(experiment))
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


class Flight(NamedTuple):
  """A round that the device has been given.

  Attributes:
    index: rounds before it.
    plan: what it trains.
    metrics: leaves [K]; not there before the device is done.
    score: of the new state, likewise; None if it is not tested.
    clock: of this round.
  """

  index: int
  plan: Plan
  metrics: ClientMetrics
  score: Score | None
  clock: measures.Clock


def train(
  experiment: Experiment,
  state: State,
  checkpoints: Checkpoints,
  records: Records,
  console: Console,
) -> None:
  """Every round that is left: train, test, record, save.

  While the device works on a round, the host packs the next one and then reads the
  results of the one before.
  """
  config, first = experiment.config, int(state.round)
  with console.compiling('one round and one test'):
    programs = compile_programs(experiment, state)
  plan, flight, clock = experiment.planner.plan(first), None, None
  inputs = round_inputs(experiment, plan)
  for index in console.progress(range(first, config.num_rounds)):
    clock, landing = measures.Clock(clock), flight
    with jax.transfer_guard('disallow'):
      state, metrics = programs.run_round(state, *inputs, experiment.train)
      tested = due(index, config.eval_every_rounds, config.num_rounds)
      score = programs.evaluate(state, experiment.test) if tested else None
    flight = Flight(index, plan, metrics, score, clock)
    if index + 1 < config.num_rounds:
      with clock('pack'):
        plan = experiment.planner.plan(index + 1)
        inputs = round_inputs(experiment, plan)
    if landing:
      log(landing, land(landing, experiment, records), records, console)
    if due(index, config.checkpoint_every_rounds, config.num_rounds):
      record = land(flight, experiment, records)
      with clock('save'):
        checkpoints.save(state)
      log(flight, record, records, console)
      flight = None


def land(flight: Flight, experiment: Experiment, records: Records) -> measures.Record:
  """Waits for a round's results and records them.

  Raises:
    DivergedError: a loss is NaN or infinite.
  """
  metrics = jax.device_get(flight.metrics)
  flight.clock.arrived('train')
  record = measures.round_record(
    flight.index + 1, flight.plan, metrics, experiment.traffic
  )
  if flight.score is not None:
    score = jax.device_get(flight.score)
    flight.clock.arrived('evaluate')
    record |= measures.test_record(score, len(experiment.test.labels))
  records.add_metrics(record)
  stop_if_diverged(record)
  return record


def log(
  flight: Flight, record: measures.Record, records: Records, console: Console
) -> None:
  """Says how long a round took, and how it went."""
  records.add_timings(measures.timing_record(flight.clock, flight.plan, record))
  console.round_done(record, flight.clock)


def due(round_index: int, every: int, num_rounds: int) -> bool:
  """Whether something done every so many rounds, and after the last, is due."""
  return (round_index + 1) % every == 0 or round_index + 1 == num_rounds


def stop_if_diverged(record: measures.Record) -> None:
  """Raises DivergedError if a loss is NaN or infinite."""
  for name, value in record.items():
    if isinstance(value, float) and not math.isfinite(value):
      raise DivergedError(
        f'Diverged: {name} is {value} in round {record["round"]}, which is not saved. '
        'A smaller --config.optimizer.learning_rate may help, in a new --workdir.'
      )
