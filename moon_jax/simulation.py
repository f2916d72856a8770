"""The loop: read it top to bottom in a minute."""

import math

import jax

from moon_jax import measures, recording
from moon_jax.checkpoint import Checkpoints
from moon_jax.command_line import Request
from moon_jax.console import Console
from moon_jax.data import partition
from moon_jax.errors import DivergedError, ExitCode, UsageError
from moon_jax.experiment import (
  Experiment,
  build,
  compile_programs,
  initial_state,
  scalars,
)
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


def train(
  experiment: Experiment,
  state: State,
  checkpoints: Checkpoints,
  records: Records,
  console: Console,
) -> None:
  """Every round that is left: plan, train, test, record, save."""
  config = experiment.config
  with console.compiling('one round and one test'):
    programs = compile_programs(experiment, state)
  for round_index in console.progress(range(int(state.round), config.num_rounds)):
    clock = measures.Clock()
    with clock('pack'):
      plan = experiment.planner.plan(round_index)
    with clock('train'):
      numbers = scalars(experiment, state)
      state, metrics = programs.run_round(state, plan, numbers, experiment.train)
      metrics = jax.device_get(metrics)
    record = measures.round_record(round_index + 1, plan, metrics, experiment.traffic)
    if due(round_index, config.eval_every_rounds, config.num_rounds):
      with clock('evaluate'):
        score = jax.device_get(programs.evaluate(state, experiment.test))
      record |= measures.test_record(score, len(experiment.test.labels))
    records.add_metrics(record)
    stop_if_diverged(record)
    if due(round_index, config.checkpoint_every_rounds, config.num_rounds):
      with clock('save'):
        checkpoints.save(state)
    records.add_timings(measures.timing_record(clock, plan, record))
    console.round_done(record, clock)


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
