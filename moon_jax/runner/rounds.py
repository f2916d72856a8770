"""Runs the rounds of an experiment, and yields the results of each.

The device is kept busy. While it trains round t, one thread packs round t + 1: it makes
the plan and the batches. Another thread dispatches round t + 1 to the device, which
begins it when round t is done. Meanwhile the caller reads the results of round t - 1.

  device       | train t, test t     | train t + 1, test t + 1 | train t + 2, test t + 2
  packing      |   pack t + 1        |   pack t + 2            |   pack t + 3
  dispatching  |      dispatch t + 1 |      dispatch t + 2     |      dispatch t + 3
  caller       |   reads t - 1       |   reads t               |   reads t + 1

If the host takes part in the test of a round, the next round is dispatched after this
test; metrics and records are made while the device trains again.

If a callback wants the state of a round, the caller reads the round before the next one
is dispatched, because the next round is trained in the memory of that state. The same
holds for every round of several processes, which must ask the devices for the same
programs in the same order.

With a client store, the packing thread first writes the memories of the last round's
clients, then reads the memories of the next round's clients. The memory of a client
that is in both rounds stays on the device.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import jax
import numpy as np

from moon_jax.building import client_test_programs, fine_tuning, programs
from moon_jax.building.experiment import Experiment
from moon_jax.core import activity, tree
from moon_jax.core.types import ClientMetrics, PyTree, State
from moon_jax.data.device_split import TrainSplit
from moon_jax.planning.plan import LaneSchedule, RoundPlan
from moon_jax.platform import compile_cache, hosts
from moon_jax.runner import client_records, model_tests
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.compiled_ahead import CompiledAhead
from moon_jax.runner.measures import Measures, RoundMeasures
from moon_jax.runner.round_records import Record, metrics_record, require_columns

_MAX_REASON_LETTERS = 1000


@dataclasses.dataclass
class Round:
  """The results of a round.

  Attributes:
    number: completed rounds, 1 after the first.
    metrics: the line of metrics.jsonl: losses, accuracies, clients, ...
    clients: metrics of each client of the cohort, leaves [K] of numpy.
    client_numbers: what clients.csv.gz has of a tested round: column -> [V] numbers of
      the clients that are tested one by one; {} if the round is not tested.
    plan: cohort, lanes and batches of the round.
    clock: seconds by phase.
    experiment: what the configuration builds.
    state: the server and every client after the round, on the devices; if the clients'
      memories are on the disk, only the clients of the round's cohort. None unless a
      callback wants it. In a run the next round overwrites it; in `moon_jax.rounds` it
      stays.
    stopped: reason for which the run ends after this round; '' if it does not.
    is_awaited: whether a signal has asked the run to save this round and stop.
    is_saved: whether the state was saved, or is being written.
    confusions: with `metrics`, in a tested round, kind of models -> [Y, Y] examples by
      class and predicted class: 'global', of the global model on the test split;
      'personal' and 'tuned', of each client's own or fine-tuned model on its own tests,
      summed over the clients. Otherwise {}.
  """

  number: int
  metrics: Record
  clients: ClientMetrics
  client_numbers: dict[str, np.ndarray]
  plan: RoundPlan
  clock: Clock
  experiment: Experiment
  state: State | None
  stopped: str = ''
  is_awaited: bool = False
  is_saved: bool = False
  confusions: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def stop(self, reason: str) -> None:
    """Ends the run after this round or the next tested one; the reason is recorded."""
    if not self.stopped:
      self.stopped = str(reason)[:_MAX_REASON_LETTERS] or 'a callback said so'

  @property
  def run_may_end_early(self) -> bool:
    """Whether a callback or a signal wants the run to end before its last round."""
    return bool(self.stopped) or self.is_awaited

  @property
  def timings(self) -> Record:
    """The line of timings.jsonl, as far as the round has come."""
    return timing_record(self.clock, self.plan, self.metrics)

  @property
  def global_model(self) -> PyTree | None:
    """Variables of the global model; None without the state, or if there is none."""
    if self.state is None or self.experiment.has_client_models:
      return None
    models = self.experiment.algorithm.evaluated(self.state.server, self.state.clients)
    return jax.tree.map(lambda leaf: leaf[0], models)


@dataclasses.dataclass
class _PackedRound:
  """A round that is ready for the device.

  Attributes:
    index: number of completed rounds before it.
    plan: cohort, lanes and batches.
    inputs: the plan and the scalars on the device.
    train: the training split on the device, or the cohort's part of it.
    seconds: phase -> seconds that packing took.
  """

  index: int
  plan: RoundPlan
  inputs: programs.RoundInputs
  train: TrainSplit
  seconds: dict[str, float]


@dataclasses.dataclass
class _DispatchedRound:
  """A round that the device trains or has trained, and its results on the device.

  Attributes:
    index: number of completed rounds before it.
    plan: cohort, lanes and batches.
    clock: seconds by phase.
    state: the state after the round.
    metrics: leaves [K].
    tested: the results of the test; None if there is none, or the host will test.
  """

  index: int
  plan: RoundPlan
  clock: Clock
  state: State
  metrics: ClientMetrics
  tested: model_tests.Tested | None


@dataclasses.dataclass
class _Results:
  """The results of a round on the host, from which its records are made.

  Attributes:
    metrics: leaves [K].
    tested: the results of the test, without metrics; None if there is none.
    measures: has the tests whose metrics are to be computed; None if there are none.
  """

  metrics: ClientMetrics
  tested: model_tests.Tested | None
  measures: RoundMeasures | None


def _print_nothing(text: str, end: str = '\n') -> None:
  """Prints nothing."""


class Rounds:
  """The rounds of a run that are left: `compile` once, then `run` once.

  Attributes:
    left: indices of these rounds, from 0.
  """

  def __init__(
    self,
    experiment: Experiment,
    state: State,
    store: ClientStore | None = None,
    *,
    keep_states: bool = False,
  ):
    """Computes nothing yet.

    Args:
      experiment: the experiment.
      state: state from which the next round starts; it is used up.
      store: store of the clients' memories, if they are not in the state.
      keep_states: whether the states of earlier rounds stay, at the price of memory.
    """
    config = experiment.config
    self.left = range(int(state.round), config.num_rounds)
    self._experiment = experiment
    self._state = state
    self._store = store
    self._keep_states = keep_states
    # These tests need models that are not on the device, or programs of their own.
    tests_stored_models = store is not None and experiment.has_client_models
    self._host_tests = bool(
      experiment.algorithm.share
      or tests_stored_models
      or experiment.tests.of_clients
      or programs.models_at_a_time(experiment)
    )
    self._measures = Measures(experiment) if config.metrics else None
    self._tested_clients = client_records.tested_clients(experiment)
    self._has_trained = np.zeros(config.num_clients, bool)
    if self._host_tests:
      for index in range(self.left.start):
        self._has_trained[experiment.planner.cohort(index)] = True
    self._last_clock: Clock | None = None
    self._unstored: tuple[np.ndarray, PyTree] | None = None  # clients, their memories

  def compile(
    self,
    print_text: Callable[..., None] = _print_nothing,
    ahead: CompiledAhead | None = None,
  ) -> None:
    """Packs the first round, and compiles the programs of a round and of its tests.

    Args:
      print_text: called with what is compiled; see `Screen.say`.
      ahead: programs that were compiled before the data were loaded; None if none was.
    """
    first_packed = self._pack(self.left.start)
    self._first_packed = futures.Future()
    self._first_packed.set_result(first_packed)
    if ahead and (
      self._keep_states
      or not ahead.fits(self._experiment, self._state, first_packed.inputs)
    ):
      ahead = None
    print_text('compiling one round and one test ... ', end='')
    begin = time.perf_counter()
    with activity.doing('tracing the programs'):
      self._programs, self._host_test_programs = compile_cache.compiled(
        self._experiment.config.execution.compile_cache,
        lambda: self._compiled_programs(first_packed.inputs, ahead),
      )
    self._compile_seconds = time.perf_counter() - begin
    require_columns(self._experiment, first_packed.plan, self._programs.metrics)
    ahead_note = f', and {ahead.seconds:.1f} s beside decoding' if ahead else ''
    print_text(f'{self._compile_seconds:.1f} s{ahead_note}')

  def _compiled_programs(self, inputs, ahead):
    """The programs of a round and of its tests on the device, and of the host's."""
    experiment, state = self._experiment, self._state
    if ahead:
      compiled = ahead.programs
    else:
      compiled = programs.compile_programs(
        experiment, state, inputs, donate=not self._keep_states
      )
    test_clients = None
    if experiment.tests.of_clients:
      test_clients = client_test_programs.compile_client_tests(experiment, state)
    test_fine_tuned = {
      column: fine_tuning.compile_tuned_tests(experiment, state, tuning)
      for column, tuning in fine_tuning.tunings(experiment).items()
    }
    host_tests = model_tests.HostTestPrograms(
      evaluate=compiled.evaluate, of_clients=test_clients, fine_tuned=test_fine_tuned
    )
    return compiled, host_tests

  def seconds_by_few_steps(self) -> float | None:
    """The seconds that the first round takes, by those of its first steps.

    A round of one step in each lane has the fixed part of a round; a round of a tenth
    of the steps shows what the others take. So does another one for the steps of a
    second training. The states that they make are not kept.

    Returns:
      None if it cannot be known in advance: on accelerators, where a second state may
      not fit, with clients' memories on disk, and with several processes.
    """
    if jax.default_backend() != 'cpu' or self._store or hosts.count() > 1:
      return None
    packed = self._first_packed.result()
    state = jax.tree.map(
      # A copy, because a round writes over its state.
      lambda leaf: jax.device_put(np.array(leaf), leaf.sharding),
      self._state,
    )

    def seconds_of(num_steps, num_second_steps):
      nonlocal state
      plan = packed.plan.with_few_steps(num_steps, num_second_steps).for_device()
      inputs = programs.round_inputs(self._experiment, packed.index, plan)
      begin = time.perf_counter()
      state, _ = self._programs.run_round(
        state, inputs.plan, inputs.scalars, packed.train
      )
      jax.block_until_ready(state)
      return time.perf_counter() - begin

    with activity.doing('timing the first steps'):
      seconds_of(1, 1)  # warms up
      seconds_of_one = seconds_of(1, 1)
      most_steps = _most_steps(packed.plan.schedule)
      few_steps = min(most_steps, max(3, most_steps // 10))
      seconds = seconds_of_one + _seconds_of_more(
        most_steps - 1, few_steps - 1, seconds_of(few_steps, 1) - seconds_of_one
      )
      if packed.plan.second_schedule is not None:
        most_steps = _most_steps(packed.plan.second_schedule)
        few_steps = min(most_steps, max(3, most_steps // 10))
        seconds += _seconds_of_more(
          most_steps - 1, few_steps - 1, seconds_of(1, few_steps) - seconds_of_one
        )
    return seconds

  def buffers(self) -> dict[str, int]:
    """Name -> bytes of what is large in the device's memory."""
    experiment = self._experiment
    tests = experiment.tests
    splits = (experiment.data.train, tests.examples, tests.validation)
    memory = self._programs.run_round.memory_analysis()
    num_lanes = experiment.planner.training.layout.num_lanes
    return {
      'data': tree.num_bytes(splits),
      f'training {num_lanes} lanes': memory.temp_size_in_bytes,
      'models': memory.output_size_in_bytes,
    }

  def run(self, wants_state: Callable[[int], bool]) -> Iterator[Round]:
    """Runs the rounds that are left, once.

    Args:
      wants_state: number of a round -> whether the round has its state when it is
        yielded; called before the next round begins.
    """
    executor = futures.ThreadPoolExecutor
    with executor(1, 'packing') as packing, executor(1, 'dispatching') as dispatching:
      dispatched = dispatching.submit(self._dispatch, self._state, self._first_packed)
      self._first_packed = self._state = None
      for index in self.left:
        is_last = index + 1 not in self.left
        next_packed = None if is_last else packing.submit(self._pack, index + 1)
        current = dispatched.result()
        is_state_wanted = wants_state(index + 1)
        # Whether the caller reads the round before the next one is dispatched.
        is_read_first = is_last or is_state_wanted or hosts.count() > 1
        is_tested_first = self._is_tested_by_host(index)
        if not is_read_first and not is_tested_first:
          dispatched = dispatching.submit(self._dispatch, current.state, next_packed)
        results = self._results(current, is_state_wanted, next_packed)
        if not is_read_first and is_tested_first:
          dispatched = dispatching.submit(self._dispatch, current.state, next_packed)
        yield self._round(current, results, is_state_wanted)
        if is_read_first and not is_last:
          dispatched = dispatching.submit(self._dispatch, current.state, next_packed)

  def _pack(self, index):
    """The round `index`, after the store has the memories of the last clients."""
    store_seconds = self._store_memories()
    begin = time.perf_counter()
    plan = self._experiment.planner.plan(index)
    arrivals = None
    lookup_seconds = 0.0
    if self._store:
      lookup_begin = time.perf_counter()
      previous_cohort = ()
      if index > self.left.start:
        previous_cohort = self._experiment.planner.cohort(index - 1)
      arrivals = self._store.arrivals(plan.clients, previous_cohort)
      lookup_seconds = time.perf_counter() - lookup_begin
    device_plan = plan.for_device(arrivals)
    inputs = programs.round_inputs(self._experiment, index, device_plan)
    train = programs.train_split(self._experiment, device_plan)
    seconds = {
      'pack': time.perf_counter() - begin - lookup_seconds,
      'store': store_seconds + lookup_seconds,
    }
    return _PackedRound(
      index=index, plan=plan, inputs=inputs, train=train, seconds=seconds
    )

  def _store_memories(self):
    """Gives the store the memories of a round's clients; returns the seconds taken."""
    if not self._unstored:
      return 0.0
    clients, memories = self._unstored
    self._unstored = None
    memories = jax.device_get(memories)
    begin = time.perf_counter()
    self._store.write(clients, memories)
    return time.perf_counter() - begin

  def _dispatch(self, state, packing):
    """Gives the device a round and its test; uses up the state before it."""
    packed = packing.result()
    self._has_trained[packed.plan.clients] = True
    clock = Clock(self._last_clock)
    clock.seconds |= packed.seconds
    if self._last_clock is None:
      clock.seconds['compile'] = self._compile_seconds
    self._last_clock = clock
    tested = None
    with jax.transfer_guard('disallow'):
      state, metrics = self._programs.run_round(state, *packed.inputs, packed.train)
      if self._is_tested(packed.index) and not self._host_tests:
        tests = self._experiment.tests
        score = self._programs.evaluate(state, tests.examples, tests.validation, None)
        tested = model_tests.Tested(score)
    return _DispatchedRound(
      index=packed.index,
      plan=packed.plan,
      clock=clock,
      state=state,
      metrics=metrics,
      tested=tested,
    )

  def _results(self, dispatched, is_state_wanted, next_packed):
    """Waits for the results of a round, and tests it where the host takes part."""
    clock, state = dispatched.clock, dispatched.state
    is_tested_by_host = self._is_tested_by_host(dispatched.index)
    position = f'round {dispatched.index + 1}/{self._experiment.config.num_rounds}'
    with activity.doing(f'training {position}'):
      metrics = jax.device_get(dispatched.metrics)
    clock.arrived('train')
    if self._store:
      if next_packed:  # it reads the store as it was before this round
        next_packed.result()  # if a write failed, the run ends here
      else:
        clock.seconds['store'] += self._store_memories()
      self._unstored = dispatched.plan.clients, state.clients
      if is_state_wanted or is_tested_by_host:
        clock.seconds['store'] += self._store_memories()
    tested, measures = dispatched.tested, None
    if self._measures and self._is_tested(dispatched.index):
      measures = self._measures.of_round()
    if is_tested_by_host and next_packed and self._host_test_programs.fine_tuned:
      next_packed.result()  # fine-tuning reads the data on the disk too
    with activity.doing(f'testing {position}'):
      if is_tested_by_host:
        tested = model_tests.evaluate(
          self._experiment,
          self._host_test_programs,
          state,
          self._store,
          self._has_trained,
          measures,
        )
      elif tested:
        tested = model_tests.tested_models(tested.score, measures, models=None)
      tested = jax.device_get(tested)
    if tested:
      clock.arrived('evaluate')
    return _Results(metrics=metrics, tested=tested, measures=measures)

  def _round(self, dispatched, results, is_state_wanted):
    """The round with its records and metrics, which the host computes."""
    tested = results.tested
    if results.measures:
      with activity.doing(f'computing metrics of round {dispatched.index + 1}'):
        tested = tested._replace(measured=results.measures.finished())
    client_numbers = {}
    if tested and self._tested_clients:
      client_numbers = client_records.accuracies(
        self._experiment, self._tested_clients, tested
      )
    return Round(
      number=dispatched.index + 1,
      metrics=metrics_record(
        self._experiment,
        dispatched.index + 1,
        dispatched.plan,
        results.metrics,
        tested,
      ),
      clients=results.metrics,
      client_numbers=client_numbers,
      plan=dispatched.plan,
      clock=dispatched.clock,
      confusions=tested.measured.confusions if tested and tested.measured else {},
      experiment=self._experiment,
      state=dispatched.state if is_state_wanted else None,
    )

  def _is_tested(self, index):
    config = self._experiment.config
    return is_due(index + 1, config.eval_every_rounds, config.num_rounds)

  def _is_tested_by_host(self, index):
    """Whether the round's test needs more than the device has, and so waits for it."""
    return self._host_tests and self._is_tested(index)


def _most_steps(schedule: LaneSchedule) -> int:
  """The steps of the lane that has most of them."""
  last_segments = schedule.num_segments
  lanes = np.arange(len(last_segments))
  return int(schedule.segment_bounds[lanes, last_segments].max())


def _seconds_of_more(
  num_steps: int, num_timed_steps: int, seconds_of_timed: float
) -> float:
  """The seconds of steps, by those of a few; 0 if the clock cannot tell them."""
  return num_steps * max(0.0, seconds_of_timed) / max(1, num_timed_steps)


def is_due(number: int, every_rounds: int, num_rounds: int) -> bool:
  """Whether something is due that is done every few rounds, and after the last one."""
  return number % every_rounds == 0 or number == num_rounds
