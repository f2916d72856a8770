"""Keeps the device at work: the host packs the next round and records the last one.

  device   | train t-1 | test t-1   | train t   | test t     | train t+1 | test t+1
  host     | pack t    | record t-2 | pack t+1  | record t-1 | pack t+2  | record t

The host gives the device its work and goes on at once; only reading results waits. So
`train`, `pack_next` and `test` of round t come first, and then `record_previous` reads
round t-1, which is ready by then. Before a save, and where a device may have no work in
advance, `record_results` waits for round t itself, and `record_timing` ends it.
"""

import dataclasses
import math

import jax

from moon_jax.engine.evaluation import Score
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.programs import compile_programs, round_inputs
from moon_jax.engine.schedule import Plan
from moon_jax.errors import DivergedError
from moon_jax.runner import compile_cache
from moon_jax.runner import metrics as metrics_lib
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.console import Console
from moon_jax.runner.profiling import Profiler
from moon_jax.runner.run_directory import Records
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
    record: its line of metrics.jsonl, once its results are here.
  """

  index: int
  plan: Plan
  clock: Clock
  metrics: ClientMetrics | None = None
  score: Score | None = None
  record: metrics_lib.Record | None = None


class Pipeline:
  """The rounds under way. A context manager: ends by telling of the trace.

  Attributes:
    current: the newest round; None once it is recorded.
  """

  def __init__(
    self, experiment: Experiment, state: State, records: Records, console: Console
  ):
    """Packs the first round, and compiles the round and the test.

    Args:
      experiment: what is run.
      state: from which the next round starts.
      records: where the rounds are written down.
      console: is told of them.
    """
    self.current = self._previous = self._clock = self._profiler = None
    self._experiment, self._records, self._console = experiment, records, console
    config, first = experiment.config, int(state.round)
    self._pack(first)
    cache = compile_cache.using(config.execution.compile_cache, console.say)
    with cache, console.compiling('one round and one test'):
      self._programs = compile_programs(experiment, state, self._inputs)
    if config.execution.profile:
      folder = records.workdir / 'profile'
      self._profiler = Profiler(folder, first, config.num_rounds)

  def __enter__(self):
    return self

  def __exit__(self, kind, *exception):
    if self._profiler and self._profiler.began:
      self._profiler.stop()
      self._console.where_time_went(
        {} if kind else self._phases(), self._records.workdir / 'profile'
      )

  def _phases(self) -> dict[str, float]:
    """Phase -> seconds of the traced rounds, and of compiling."""
    traced = self._profiler.seconds(self._programs.run_round.as_text())
    return {'compile': self._programs.compile_seconds} | traced

  def _pack(self, index: int) -> None:
    self._index, self._plan = index, self._experiment.planner.plan(index)
    self._inputs = round_inputs(self._experiment, index, self._plan)

  def train(self, state: State) -> State:
    """Gives the device the packed round; the state before it is used up."""
    if self._profiler:
      self._profiler.given(self._index)
    clock = Clock(self._clock)
    if self._clock is None:
      clock.seconds['compile'] = self._programs.compile_seconds
    self._clock, self._previous = clock, self.current
    self.current = PendingRound(self._index, self._plan, clock)
    with jax.transfer_guard('disallow'):
      state, self.current.metrics = self._programs.run_round(
        state, *self._inputs, self._experiment.train
      )
    return state

  def pack_next(self) -> None:
    """Packs the round after the current one, if there is one."""
    if self._index + 1 < self._experiment.config.num_rounds:
      with self.current.clock('pack'):
        self._pack(self._index + 1)

  def test(self, state: State) -> None:
    """Gives the device the test of the current round's state."""
    with jax.transfer_guard('disallow'):
      self.current.score = self._programs.evaluate(state, self._experiment.test)

  def record_previous(self) -> None:
    """Records the round before the current one, unless that is done.

    Raises:
      DivergedError: its results are NaN or infinite.
    """
    if self._previous:
      self._record_results(self._previous)
      self._record_timing(self._previous)
      self._previous = None

  def record_results(self) -> None:
    """Waits for the results of the current round and records them.

    Raises:
      DivergedError: they are NaN or infinite.
    """
    self._record_results(self.current)

  def record_timing(self) -> None:
    """Tells how long the current round took, and how it went: it is done."""
    self._record_timing(self.current)
    self.current = None

  def _record_results(self, pending):
    metrics = jax.device_get(pending.metrics)
    pending.clock.arrived('train')
    score = jax.device_get(pending.score)
    if score is not None:
      pending.clock.arrived('evaluate')
    record = line_of(self._experiment, pending.index, pending.plan, metrics, score)
    pending.record = record
    self._records.add_metrics(record)
    self._records.add_histogram('clients/drift', metrics.drift, record['round'])
    stop_if_diverged(record, metrics, self._experiment.config.on_nonfinite)

  def _record_timing(self, pending):
    line = timing_record(pending.clock, pending.plan, pending.record)
    self._records.add_timings(line)
    self._console.round_done(pending.record, pending.clock)
    if self._profiler:
      self._profiler.arrived(pending.index, pending.clock)


def line_of(
  experiment: Experiment,
  index: int,
  plan: Plan,
  metrics: ClientMetrics,
  score: Score | None,
) -> metrics_lib.Record:
  """The line of metrics.jsonl of a round; what it takes is on the host.

  Args:
    experiment: what is run.
    index: rounds before it.
    plan: of the round.
    metrics: leaves [K].
    score: leaves [M]; None if the round is not tested.
  """
  skip = experiment.config.on_nonfinite == 'skip_client'
  record = metrics_lib.round_record(
    index + 1, plan, metrics, experiment.traffic, skip_nonfinite=skip
  )
  if score is not None:
    record |= metrics_lib.test_record(score, len(experiment.test.labels))
  return record


def stop_if_diverged(
  record: metrics_lib.Record, metrics: ClientMetrics, on_nonfinite: str
) -> None:
  """Ends the run if a round has left something that is not finite.

  Args:
    record: the round's line of metrics.jsonl.
    metrics: leaves [K], as numpy.
    on_nonfinite: 'stop', or 'skip_client' if clients may be left out.

  Raises:
    DivergedError: it names the round, what is not finite and of which clients.
  """
  finite = zip(record['clients'], metrics.finite, strict=True)
  bad = [str(client) for client, is_finite in finite if not is_finite]
  if on_nonfinite == 'skip_client' and len(bad) < len(metrics.finite):
    bad = []  # they have been left out
  numbers = {name: value for name, value in record.items() if isinstance(value, float)}
  names = [name for name, value in numbers.items() if not math.isfinite(value)]
  if not bad and not names and metrics.server_finite:
    return
  what = ', '.join(names) or ('updates' if bad else 'the new global model')
  if bad:
    more = f', ... {len(bad)} in all' if len(bad) > _NAMED else ''
    what += f' (clients {", ".join(bad[:_NAMED])}{more})'
  remedy = 'A smaller --config.optimizer.learning_rate may help, in a new --workdir'
  if on_nonfinite == 'stop':
    remedy += '; --config.on_nonfinite=skip_client goes on here without such clients'
  raise DivergedError(
    f'Diverged in round {record["round"]}, which is recorded but not saved. '
    f'Not finite: {what}. {remedy}.'
  )
