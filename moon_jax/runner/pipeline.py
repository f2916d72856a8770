"""What is told about a round once its results are here, while the next one runs?"""

import dataclasses
import math

import jax

from moon_jax.engine.evaluation import Score
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.programs import Compiled
from moon_jax.engine.schedule import Plan
from moon_jax.errors import DivergedError
from moon_jax.runner import metrics as metrics_lib
from moon_jax.runner.console import Console
from moon_jax.runner.profiling import Profiler
from moon_jax.runner.run_directory import Records
from moon_jax.types import ClientMetrics

# Of the clients that diverged; there may be thousands.
_NAMED = 10


@dataclasses.dataclass
class Flight:
  """A round that the device works on.

  Attributes:
    index: rounds before it.
    plan: what it trains.
    clock: started when the device was given the round.
    metrics: leaves [K], on the device.
    score: of the new state, on the device; None if it is not tested.
    record: its line of metrics.jsonl, once it has landed.
  """

  index: int
  plan: Plan
  clock: metrics_lib.Clock
  metrics: ClientMetrics | None = None
  score: Score | None = None
  record: metrics_lib.Record | None = None


class Logbook:
  """Follows the rounds of a run. A context manager: ends by telling of the trace."""

  def __init__(
    self,
    experiment: Experiment,
    programs: Compiled,
    records: Records,
    console: Console,
    first_round: int,
  ):
    self._experiment = experiment
    self._programs = programs
    self._records = records
    self._console = console
    self._clock = None
    self._profiler = None
    config = experiment.config
    if config.execution.profile:
      folder = records.workdir / 'profile'
      self._profiler = Profiler(folder, first_round, config.num_rounds)

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

  def new_flight(self, index: int, plan: Plan) -> Flight:
    """To be called when the device is about to be given a round."""
    if self._profiler:
      self._profiler.given(index)
    first = self._clock is None
    self._clock = metrics_lib.Clock(self._clock)
    if first:
      self._clock.seconds['compile'] = self._programs.compile_seconds
    return Flight(index, plan, self._clock)

  def land(self, flight: Flight) -> None:
    """Waits for a round's results and records them.

    Raises:
      DivergedError: they are NaN or infinite.
    """
    metrics = jax.device_get(flight.metrics)
    flight.clock.arrived('train')
    traffic = self._experiment.traffic
    on_nonfinite = self._experiment.config.on_nonfinite
    record = metrics_lib.round_record(
      flight.index + 1,
      flight.plan,
      metrics,
      traffic,
      skip_nonfinite=on_nonfinite == 'skip_client',
    )
    if flight.score is not None:
      score = jax.device_get(flight.score)
      flight.clock.arrived('evaluate')
      record |= metrics_lib.test_record(score, len(self._experiment.test.labels))
    flight.record = record
    self._records.add_metrics(record)
    self._records.add_histogram('clients/drift', metrics.drift, record['round'])
    stop_if_diverged(record, metrics, on_nonfinite)

  def close(self, flight: Flight) -> None:
    """Tells how long a landed round took, and how it went."""
    line = metrics_lib.timing_record(flight.clock, flight.plan, flight.record)
    self._records.add_timings(line)
    self._console.round_done(flight.record, flight.clock)
    if self._profiler:
      self._profiler.arrived(flight.index, flight.clock)


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
