"""Keeps the device at work: the host packs the next round and records the last one.

  device   | train t-1 | test t-1   | train t   | test t     | train t+1 | test t+1
  host     | pack t    | record t-2 | pack t+1  | record t-1 | pack t+2  | record t

The host gives the device its work and goes on at once; only reading results waits. So
the training, packing and testing of round t come first, and then the results of round
t-1 are read, which are there by then. Before a save, and where a device may have no
work in advance, the host waits for round t itself.
"""

import dataclasses
import math

import jax
import numpy as np

from moon_jax.engine import devices
from moon_jax.engine.evaluation import Score
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.planning import Plan
from moon_jax.engine.programs import compile_programs, round_inputs
from moon_jax.errors import DivergedError
from moon_jax.runner import compile_cache
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.console import Console
from moon_jax.runner.metrics import Record, round_record, test_record
from moon_jax.runner.profiling import Profiler
from moon_jax.runner.records import Records
from moon_jax.runner.signals import Stop
from moon_jax.types import ClientMetrics, State

# Of the clients that diverged; there may be thousands.
_NAMED = 10


@dataclasses.dataclass
class PendingRound:
  """A round that the device works on, or has ended unread.

  Attributes:
    index: rounds before it.
    plan: what it trains.
    clock: started when the device was given the round.
    metrics: leaves [K], on the device.
    score: of the new state, on the device; None if it is not tested.
  """

  index: int
  plan: Plan
  clock: Clock
  metrics: ClientMetrics
  score: Score | None = None


class Pipeline:
  """The rounds of a run that are left: trains, tests, records and saves them."""

  def __init__(
    self,
    experiment: Experiment,
    state: State,
    checkpoints: Checkpoints,
    records: Records,
    console: Console,
  ):
    """Packs the first round, and compiles the round and the test.

    Args:
      experiment: what is run.
      state: from which the next round starts.
      checkpoints: where states are saved.
      records: where the rounds are written down.
      console: is told of them.
    """
    self._experiment, self._console = experiment, console
    self._checkpoints, self._records = checkpoints, records
    config, self._clock = experiment.config, None
    self._rounds = range(int(state.round), config.num_rounds)
    self._pack(self._rounds.start)
    with compile_cache.using(config.execution.compile_cache, console.say):
      console.say('compiling one round and one test ... ', end='')
      self._programs = compile_programs(experiment, state, self._inputs)
      console.say(f'{self._programs.compile_seconds:.1f} s')
    traced = self._rounds if config.execution.profile else range(0)
    self._profiler = Profiler(records.workdir / 'profile', traced)

  def run(self, state: State, stop: Stop) -> None:
    """Runs every round that is left, and tells of the trace, if there is one.

    Raises:
      StoppedError: it was asked to, and has saved what it did.
      DivergedError: the results of a round are not finite.
    """
    try:
      with stop.deferred():
        self._run(state, stop)
    finally:
      if self._profiler.began:
        self._profiler.stop()
        self._console.say(f'trace: {self._records.workdir / "profile"}')
    if self._profiler.began:
      compiling = {'compile': self._programs.compile_seconds}
      self._console.where_time_went(compiling | self._profiler.seconds())

  def _run(self, state, stop):
    config, previous, saved = self._experiment.config, None, False
    for index in self._console.progress(self._rounds):
      if saved:
        stop.check(index)
      state, current = self._train(state)
      if index + 1 in self._rounds:
        with current.clock('pack'):
          self._pack(index + 1)
      if due(index, config.eval_every_rounds, config.num_rounds):
        with jax.transfer_guard('disallow'):
          current.score = self._programs.evaluate(state, self._experiment.test)
      if previous:
        self._record(previous)
      saved = stop.requested
      saved |= due(index, config.checkpoint_every_rounds, config.num_rounds)
      previous = current
      if saved or devices.one_at_a_time(self._experiment.mesh):
        self._record(current, state if saved else None)
        previous = None

  def _pack(self, index):
    self._index, self._plan = index, self._experiment.planner.plan(index)
    self._inputs = round_inputs(self._experiment, index, self._plan)

  def _train(self, state):
    """Gives the device the packed round; the state before it is used up."""
    self._profiler.given(self._index)
    clock = Clock(self._clock)
    if self._clock is None:
      clock.seconds['compile'] = self._programs.compile_seconds
    self._clock = clock
    with jax.transfer_guard('disallow'):
      given = (*self._inputs, self._experiment.train)
      state, metrics = self._programs.run_round(state, *given)
    return state, PendingRound(self._index, self._plan, clock, metrics)

  def _record(self, pending, to_save=None):
    """Waits for the results of a round, records them and saves the state after it."""
    metrics, clock = jax.device_get(pending.metrics), pending.clock
    clock.arrived('train')
    score = jax.device_get(pending.score)
    if score is not None:
      clock.arrived('evaluate')
    record = line_of(self._experiment, pending.index, pending.plan, metrics, score)
    self._records.add_metrics(record)
    self._records.board.add_histogram('clients/drift', metrics.drift, record['round'])
    stop_if_diverged(record, metrics, self._experiment.config.on_nonfinite)
    if to_save is not None:
      with clock('save'):
        self._checkpoints.save(to_save)
    self._records.add_timings(timing_record(clock, pending.plan, record))
    self._console.round_done(record, clock)
    self._profiler.arrived(pending.index, clock)


def due(round_index: int, every: int, num_rounds: int) -> bool:
  """Whether something done every so many rounds, and after the last, is due."""
  return (round_index + 1) % every == 0 or round_index + 1 == num_rounds


def line_of(
  built: Experiment, index: int, plan: Plan, metrics: ClientMetrics, score: Score | None
) -> Record:
  """The line of metrics.jsonl of a round; what it takes is on the host.

  Args:
    built: what is run.
    index: rounds before it.
    plan: of the round.
    metrics: leaves [K].
    score: leaves [M]; None if the round is not tested.
  """
  skip = built.config.on_nonfinite == 'skip_client'
  record = round_record(index + 1, plan, metrics, built.traffic, skip_nonfinite=skip)
  tested = {} if score is None else test_record(score, len(built.test.labels))
  return record | tested


def stop_if_diverged(record: Record, metrics: ClientMetrics, on_nonfinite: str) -> None:
  """Ends the run if a round has left something that is not finite.

  Args:
    record: the round's line of metrics.jsonl.
    metrics: leaves [K], as numpy.
    on_nonfinite: 'stop', or 'skip_client' if clients may be left out.

  Raises:
    DivergedError: it names the round, what is not finite and of which clients.
  """
  bad = [str(client) for client in np.array(record['clients'])[~metrics.finite]]
  if on_nonfinite == 'skip_client' and metrics.finite.any():
    bad = []  # they have been left out
  numbers = [name for name, value in record.items() if isinstance(value, float)]
  names = [name for name in numbers if not math.isfinite(record[name])]
  if not bad and not names and metrics.server_finite:
    return
  what = ', '.join(names) or ('updates' if bad else 'the new global model')
  if bad:
    what += f' (clients {", ".join(bad[:_NAMED] + ["..."] * (len(bad) > _NAMED))})'
  remedy = 'A smaller --config.optimizer.learning_rate may help, in a new --workdir'
  if on_nonfinite == 'stop':
    remedy += '; --config.on_nonfinite=skip_client goes on here without such clients'
  raise DivergedError(
    f'Diverged in round {record["round"]}. Not finite: {what}. {remedy}.'
  )
