"""Keeps the device at work: the host packs the next round and records the last one.

  device   | train t-1 | test t-1   | train t   | test t     | train t+1 | test t+1
  beside   | pack t    | record t-2 | pack t+1  | record t-1 | pack t+2  | record t

The host gives the device its work, and a thread beside packs round t+1 and then reads
the results of round t-1: so both go on where giving waits until the work is done, as
some of JAX's clients for GPUs do. Before a save, and where a device may have no work in
advance, the host waits for round t itself.

With a client store the thread first keeps what the clients of round t-1 remember, and
packs those of round t+1 with their memories; who is in round t too has them there.
"""

import dataclasses
import time
from collections.abc import Callable
from concurrent import futures

import jax
import numpy as np

from moon_jax import tree
from moon_jax.data.device import TrainSplit
from moon_jax.engine import devices, hosts, programs
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.planning import Plan
from moon_jax.runner import compile_cache, testing
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.console import Console
from moon_jax.runner.divergence import stop_if_diverged
from moon_jax.runner.metrics import line_of
from moon_jax.runner.profiling import Profiler
from moon_jax.runner.records import Records
from moon_jax.runner.signals import Stop
from moon_jax.runner.testing import Tested
from moon_jax.types import ClientMetrics, PyTree, State


@dataclasses.dataclass
class PackedRound:
  """A round that the device can be given.

  Attributes:
    index: rounds before it.
    plan: what it trains.
    inputs: the same, on the device.
    train: the training split there, or what of it the cohort owns.
    seconds: of packing, and of looking memories up in the client store.
  """

  index: int
  plan: Plan
  inputs: programs.RoundInputs
  train: TrainSplit
  seconds: dict[str, float]


@dataclasses.dataclass
class PendingRound:
  """A round that the device works on, or has ended unread.

  Attributes:
    index: rounds before it.
    plan: what it trains.
    clock: started when the device was given the round.
    metrics: leaves [K], on the device.
    memories: leaves [K, ...], on the device, for the client store; None without one, or
      once it has them.
    tested: of the new state; None if it is not tested.
  """

  index: int
  plan: Plan
  clock: Clock
  metrics: ClientMetrics
  memories: PyTree | None
  tested: Tested | None = None


class Pipeline:
  """The rounds of a run that are left: trains, tests, records and saves them."""

  def __init__(
    self,
    experiment: Experiment,
    checkpoints: Checkpoints | None,
    records: Records | None,
    console: Console,
    store: ClientStore | None = None,
  ):
    """Does nothing yet.

    Args:
      experiment: what is run.
      checkpoints: where states are saved; None in another process than the first.
      records: where the rounds are written down; None like them.
      console: is told of them.
      store: of the clients' memories, if they are not in the state.
    """
    self._experiment, self._console = experiment, console
    self._checkpoints, self._records, self._store = checkpoints, records, store
    self._clock = self._programs = None

  def compile(self, state: State) -> None:
    """Packs the first round, and compiles the round and the test.

    Args:
      state: from which the next round starts.
    """
    experiment, console, records = self._experiment, self._console, self._records
    config = experiment.config
    self._rounds = range(int(state.round), config.num_rounds)
    self._packed = self._pack(self._rounds.start)
    self._taken_part = np.zeros(config.num_clients, bool)
    for index in range(self._rounds.start):
      self._taken_part[experiment.planner.cohort(index)] = True
    self._programs = compile_programs(
      experiment, state, self._packed.inputs, console.say
    )
    if hosts.count() > 1:
      summed = programs.exchanged_bytes(self._programs.run_round)
      console.exchanged(summed, tree.num_bytes(state.server.variables))
    traced = self._rounds if config.execution.profile and records else range(0)
    self._profiler = Profiler(records and records.workdir / 'profile', traced)

  def buffers(self) -> dict[str, int]:
    """What is large in the device's memory, as far as it is known -> bytes."""
    experiment, planner = self._experiment, self._experiment.planner
    found = {'data': tree.num_bytes((experiment.train, experiment.test))}
    if self._programs:
      memory = self._programs.run_round.memory_analysis()
      name = f'training {planner.num_lanes} lanes'
      found[name] = memory.temp_size_in_bytes
      found['models'] = memory.output_size_in_bytes
    return found

  def run(self, state: State, stop: Stop) -> None:
    """Runs every round that is left, and tells of the trace, if there is one.

    Raises:
      StoppedError: it was asked to, and has saved what it did.
      DivergedError: the results of a round are not finite.
    """
    try:
      with stop.deferred(), futures.ThreadPoolExecutor(1) as beside:
        self._run(state, stop, beside)
    finally:
      if self._profiler.began:
        self._profiler.stop()
        self._console.say(f'trace: {self._records.workdir / "profile"}')
    if self._profiler.began:
      compiling = {'compile': self._programs.compile_seconds}
      self._console.where_time_went(compiling | self._profiler.seconds())

  def _run(self, state, stop, beside):
    config, previous, unkept, saved = self._experiment.config, None, None, False
    for index in self._console.progress(self._rounds):
      if saved:
        stop.check(index)
      packed, last = self._packed, index + 1 not in self._rounds
      keeping = unkept and beside.submit(self._keep, unkept)
      here = packed.plan.clients
      packing = None if last else beside.submit(self._pack, index + 1, here)
      recording = previous and beside.submit(self._record, previous)
      state, current = self._train(state, packed)
      if due(index, config.eval_every_rounds, config.num_rounds):
        current.tested = self._test(state, current, keeping)
      if keeping:  # a write that failed ends the run here
        current.clock.seconds['store'] += keeping.result()
      if packing:
        self._packed = packing.result()
        for phase, seconds in self._packed.seconds.items():
          current.clock.seconds[phase] += seconds
      if recording:
        recording.result()
      saved = stop.requested()
      saved |= due(index, config.checkpoint_every_rounds, config.num_rounds)
      previous = unkept = current
      if saved or devices.one_at_a_time(self._experiment.mesh):
        if saved:
          current.clock.seconds['store'] += self._keep(current)
        self._record(current, state if saved else None)
        previous = None

  def _pack(self, index, here=()):
    """The round `index`; the clients `here` have their memories on the device."""
    begin, found = time.perf_counter(), 0.0
    plan = self._experiment.planner.plan(index)
    if self._store:
      looking = time.perf_counter()
      plan = plan._replace(arrivals=self._store.arrivals(plan.clients, here))
      found = time.perf_counter() - looking
    inputs = programs.round_inputs(self._experiment, index, plan)
    train = programs.train_split(self._experiment, plan)
    packing = time.perf_counter() - begin - found
    return PackedRound(index, plan, inputs, train, {'pack': packing, 'store': found})

  def _train(self, state, packed):
    """Gives the device the packed round; the state before it is used up."""
    self._profiler.given(packed.index)
    clock = Clock(self._clock)
    if self._clock is None:
      clock.seconds['compile'] = self._programs.compile_seconds
    self._clock = clock
    self._taken_part[packed.plan.clients] = True
    with jax.transfer_guard('disallow'):
      given = (*packed.inputs, packed.train)
      state, metrics = self._programs.run_round(state, *given)
    memories = state.clients if self._store else None
    return state, PendingRound(packed.index, packed.plan, clock, metrics, memories)

  def _keep(self, pending):
    """Waits for a round, and gives the client store what its clients remember.

    Returns:
      Seconds that the store took.
    """
    if pending.memories is None:
      return 0.0
    memories, pending.memories = jax.device_get(pending.memories), None
    begin = time.perf_counter()
    self._store.write(pending.plan.clients, memories)
    return time.perf_counter() - begin

  def _test(self, state, current, keeping):
    """Tests the state after the current round; `keeping` waits for the one before."""
    experiment = self._experiment
    if self._store and experiment.own_models:
      if keeping:
        keeping.result()
      current.clock.seconds['store'] += self._keep(current)
    with jax.transfer_guard('disallow'):
      return testing.test(
        experiment, self._programs.evaluate, state, self._store, self._taken_part
      )

  def _record(self, pending, to_save=None):
    """Waits for the results of a round, records them and saves the state after it."""
    metrics, clock = jax.device_get(pending.metrics), pending.clock
    clock.arrived('train')
    tested = jax.device_get(pending.tested)
    if tested is not None:
      clock.arrived('evaluate')
    record = line_of(self._experiment, pending.index, pending.plan, metrics, tested)
    if self._records:
      self._records.add_metrics(record)
      self._records.board.add_histogram('clients/drift', metrics.drift, record['round'])
    stop_if_diverged(record, metrics, self._experiment.config.on_nonfinite)
    if self._records:
      if to_save is not None:
        with clock('save'):
          self._checkpoints.save(to_save)
      self._records.add_timings(timing_record(clock, pending.plan, record))
    self._console.round_done(record, clock)
    self._profiler.arrived(pending.index, clock)


def compile_programs(
  experiment: Experiment,
  state: State,
  inputs: programs.RoundInputs,
  say: Callable,
) -> programs.Compiled:
  """Compiles the programs of a run, or finds them in the compile cache, and says so.

  Args:
    experiment: what is run.
    state: a state of it, or its shapes.
    inputs: of any round.
    say: is told.
  """
  with compile_cache.using(experiment.config.execution.compile_cache):
    say('compiling one round and one test ... ', end='')
    compiled = programs.compile_programs(experiment, state, inputs)
    say(f'{compiled.compile_seconds:.1f} s')
  return compiled


def due(round_index: int, every: int, num_rounds: int) -> bool:
  """Whether something done every so many rounds, and after the last, is due."""
  return (round_index + 1) % every == 0 or round_index + 1 == num_rounds
