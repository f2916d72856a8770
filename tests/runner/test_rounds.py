"""The host's work for other rounds while the device works on one."""

import contextlib
import threading
import time

import jax
import pytest

import moon_jax
from moon_jax.building import experiment
from moon_jax.building import programs as programs_lib
from moon_jax.config import validate
from moon_jax.core.errors import RunError
from moon_jax.planning import planner as planning
from moon_jax.platform import devices
from moon_jax.runner import rounds as rounds_lib
from moon_jax.runner.record_files import Records
from moon_jax.runner.rounds import Rounds, is_due
from tests.refusals import refused
from tests.run_directories import TINY

SECONDS = 60
NUM_ROUNDS = 4


def config():
  changes = {'num_rounds': NUM_ROUNDS, 'checkpoint_every_rounds': 100}
  return moon_jax.load_config('configs/digits_moon.py', TINY | changes)


def test_packing_and_recording_go_on_where_giving_the_device_work_blocks(
  tmp_path, monkeypatch
):
  packed, recorded = ([threading.Event() for _ in range(NUM_ROUNDS)] for _ in range(2))
  plan, compiling, write = (
    planning.Planner.plan,
    programs_lib.compile_programs,
    Records.write_metrics,
  )

  def watched_plan(planner, index):
    planned = plan(planner, index)
    packed[index].set()
    return planned

  def watched_write(records):
    write(records)
    recorded[records.rounds[-1]['round'] - 1].set()

  def with_a_device_that_blocks(*arguments, **options):
    programs = compiling(*arguments, **options)

    def run_round(state, *inputs):
      index = int(state.round)
      # The call blocks until the next round is packed and the last one is recorded.
      if index + 1 < NUM_ROUNDS:
        assert packed[index + 1].wait(SECONDS)
      if index:
        assert recorded[index - 1].wait(SECONDS)
      return jax.block_until_ready(programs.run_round(state, *inputs))

    return programs._replace(run_round=run_round)

  # Its rounds would wait for the others.
  monkeypatch.setattr(Rounds, 'seconds_by_few_steps', lambda rounds: None)
  monkeypatch.setattr(planning.Planner, 'plan', watched_plan)
  monkeypatch.setattr(Records, 'write_metrics', watched_write)
  monkeypatch.setattr(programs_lib, 'compile_programs', with_a_device_that_blocks)
  blocked = moon_jax.run(config(), tmp_path / 'blocked')
  monkeypatch.undo()
  assert blocked.metrics == moon_jax.run(config(), tmp_path / 'free').metrics


def test_a_run_without_room_is_one_line_with_what_is_large(tmp_path, monkeypatch):
  compiling = programs_lib.compile_programs

  def with_a_full_device(*arguments, **options):
    programs = compiling(*arguments, **options)

    class Full:
      memory_analysis = programs.run_round.memory_analysis

      def __call__(self, *arguments):
        jax.jit(lambda: jax.numpy.zeros(2**45))()

    return programs._replace(run_round=Full())

  monkeypatch.setattr(programs_lib, 'compile_programs', with_a_full_device)
  large = r'\(training 1 lanes [\d,]+ MiB.*data 0 MiB\)'
  advice = '--config.execution.lanes or --config.execution.cache_mib'
  with refused(RunError, f'{large}.*{advice}') as caught:
    moon_jax.run(config(), tmp_path)
  assert caught.value.exit_code == 1


def test_what_is_due_is_due_after_the_last_round_too():
  is_due_after = [is_due(number, 2, 5) for number in range(1, 6)]
  assert is_due_after == [False, True, False, True, True]


def test_timing_the_first_steps_trains_nothing():
  devices.claim('auto', deterministic=False)
  built = experiment.build(validate(config()))
  losses = []
  for is_timed in (False, True):
    rounds = Rounds(built, experiment.initial_state(built))
    rounds.compile()
    if is_timed:
      assert 0 < rounds.seconds_by_few_steps() < 60
    with contextlib.closing(rounds.run(lambda number: False)) as finished_rounds:
      losses.append([round.metrics['train_loss'] for round in finished_rounds])
  assert losses[0] == losses[1]


def test_a_plan_of_few_steps_has_one_segment_of_them():
  plan = experiment.build(validate(config())).planner.plan(0)
  bounds, num_segments = plan.schedule.segment_bounds, plan.schedule.num_segments
  schedule = plan.with_few_steps(2).schedule
  assert set(schedule.num_segments) == {1}
  assert schedule.segment_bounds[:, :2].tolist() == [[0, 2]] * len(
    schedule.num_segments
  )
  # No device gets more steps than it has in the round, which has room for more.
  last_steps = [
    of_device[last] for of_device, last in zip(bounds, num_segments, strict=True)
  ]
  room = len(schedule.example_rows)
  assert max(last_steps) < room
  assert plan.with_few_steps(room).schedule.segment_bounds[:, 1].tolist() == last_steps


def test_a_round_with_a_second_training_is_timed_with_the_steps_of_both(monkeypatch):
  devices.claim('auto', deterministic=False)
  personal = {'algorithm': 'fedrep', 'local_epochs': 3, 'batch_size': 4}
  settings = moon_jax.load_config('configs/digits_moon.py', TINY | personal)
  built = experiment.build(validate(settings))
  seconds = 0.0

  def steps_of(schedule):
    bounds, num_segments = jax.device_get(
      (schedule.segment_bounds, schedule.num_segments)
    )
    return max(bounds[lane, num].item() for lane, num in enumerate(num_segments))

  def with_a_device_of_known_speed(*arguments, **options):
    def run_round(state, plan, *inputs):
      nonlocal seconds
      seconds += 5.0 + 2.0 * steps_of(plan.schedule)
      seconds += 3.0 * steps_of(plan.second_schedule)
      return state, ()

    return programs_lib.Compiled(run_round=run_round, evaluate=None, metrics=None)

  # These programs have no columns.
  monkeypatch.setattr(rounds_lib, 'require_columns', lambda *arguments: None)
  monkeypatch.setattr(programs_lib, 'compile_programs', with_a_device_of_known_speed)
  monkeypatch.setattr(time, 'perf_counter', lambda: seconds)
  rounds = Rounds(built, experiment.initial_state(built))
  rounds.compile()
  plan = built.planner.plan(0)
  num_steps, num_second_steps = map(steps_of, (plan.schedule, plan.second_schedule))
  assert 3 < num_second_steps != num_steps > 3
  expected = 5.0 + 2.0 * num_steps + 3.0 * num_second_steps
  assert rounds.seconds_by_few_steps() == pytest.approx(expected)
