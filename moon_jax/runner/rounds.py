"""Runs the rounds of an experiment, and yields the results of each.

The device is kept busy. While it trains round t, one thread packs round t + 1 and
another gives it to the device, which begins it when round t is done. Meanwhile the
caller reads round t.

  device    | train t, test t | train t + 1, test t + 1 | train t + 2, test t + 2
  packing   |   pack t + 1    |   pack t + 2            |   pack t + 3
  giving    |      give t + 1 |      give t + 2         |      give t + 3
  caller    |   sees t - 1    |   sees t                |   sees t + 1

If a callback wants the state of a round, the caller sees the round before the next one
is given, because the next round is trained in the memory of that state. The same holds
for every round of several processes, which must ask the devices for the same things in
the same order.

With a client store, the thread that packs first writes the memories of the last round's
clients, then reads the memories of the next round's. A client of both rounds has its
memory on the device.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import jax
import numpy as np

from moon_jax.building import fine_tuning, own_tests, programs
from moon_jax.building.experiment import Experiment
from moon_jax.config import used_value
from moon_jax.core import tree
from moon_jax.core.types import ClientMetrics, PyTree, State
from moon_jax.data.device import TrainSplit
from moon_jax.planning.planner import Plan
from moon_jax.platform import compile_cache, hosts
from moon_jax.runner import evaluation
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.metrics import Record, line_of


@dataclasses.dataclass
class Round:
  """The results of a round.

  Attributes:
    number: completed rounds, 1 after the first.
    metrics: the line of metrics.jsonl: losses, accuracies, clients, ...
    clients: metrics of each client of the cohort, leaves [K] of numpy.
    plan: cohort, lanes and batches of the round.
    clock: seconds by phase.
    experiment: what the configuration builds.
    state: the server and every client after the round, on the devices; with memories on
      the disk, only the clients of the round's cohort. None unless a callback wants it.
      In a run the next round overwrites it; in `moon_jax.rounds` it stays.
    stopped: reason for which the run ends after this round; '' if it does not.
    is_awaited: whether a signal has asked the run to save this round and stop.
  """

  number: int
  metrics: Record
  clients: ClientMetrics
  plan: Plan
  clock: Clock
  experiment: Experiment
  state: State | None
  stopped: str = ''
  is_awaited: bool = False

  def stop(self, why: str) -> None:
    """Ends the run after this round or the next tested one; `why` is recorded."""
    self.stopped = self.stopped or str(why)[:1000] or 'a callback said so'

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
class _Packed:
  """A round that is ready for the device, and the seconds that packing took."""

  index: int
  plan: Plan
  inputs: programs.RoundInputs
  train: TrainSplit
  seconds: dict[str, float]


@dataclasses.dataclass
class _Given:
  """A round that the device trains or has trained, and its results on the device."""

  index: int
  plan: Plan
  clock: Clock
  state: State
  metrics: ClientMetrics
  tested: evaluation.Tested | None


class Rounds:
  """The rounds of a run that are left."""

  def __init__(
    self,
    experiment: Experiment,
    state: State,
    store: ClientStore | None = None,
    *,
    say: Callable[..., None] = lambda *text, **how: None,
    keep_states: bool = False,
  ):
    """Packs the first round, and compiles the programs of a round and of a test.

    Args:
      experiment: the experiment.
      state: state from which the next round starts; it is used up.
      store: store of the clients' memories, if they are not in the state.
      say: called with what is compiled.
      keep_states: whether the states of earlier rounds stay, at the price of memory.
    """
    self._experiment, self._state, self._store = experiment, state, store
    config = experiment.config
    self.left = range(int(state.round), config.num_rounds)
    of_each = experiment.algorithm.share or (store and experiment.has_client_models)
    self._on_host = bool(of_each or experiment.tests.of_clients)
    self._has_trained = np.zeros(config.num_clients, bool)
    for index in range(self.left.start if self._on_host else 0):
      self._has_trained[experiment.planner.cohort(index)] = True
    self._programs, self._own, self._clock, self._unkept = None, None, None, None
    self._tune = None
    self._packed = futures.Future()
    self._packed.set_result(self._pack(self.left.start))
    with compile_cache.using(config.execution.compile_cache):
      say('compiling one round and one test ... ', end='')
      begin = time.perf_counter()
      inputs, donate = self._packed.result().inputs, not keep_states
      self._programs = programs.compile_programs(
        experiment, state, inputs, donate=donate
      )
      if experiment.tests.of_clients:
        self._own = own_tests.compiled(experiment, state)
      if used_value(config, 'fine_tune_epochs'):
        self._tune = fine_tuning.compiled(experiment, state)
      self._compile_seconds = time.perf_counter() - begin
      say(f'{self._compile_seconds:.1f} s')

  def buffers(self) -> dict[str, int]:
    """Name -> bytes of what is large in the device's memory."""
    built, memory = self._experiment, self._programs.run_round.memory_analysis()
    return {
      'data': tree.num_bytes(
        (built.data.train, built.tests.examples, built.tests.validation)
      ),
      f'training {built.planner.num_lanes} lanes': memory.temp_size_in_bytes,
      'models': memory.output_size_in_bytes,
    }

  def run(self, wants_state: Callable[[int], bool]) -> Iterator[Round]:
    """Runs the rounds that are left, once.

    Args:
      wants_state: number of a round -> whether the round has its state when it is
        yielded; called before the next round begins.
    """
    executor = futures.ThreadPoolExecutor
    with executor(1, 'packing') as packing, executor(1, 'giving') as giving:
      given = giving.submit(self._give, self._state, self._packed)
      self._packed = self._state = None
      for index in self.left:
        is_last = index + 1 not in self.left
        packed = None if is_last else packing.submit(self._pack, index + 1)
        this, wanted = given.result(), wants_state(index + 1)
        waits = is_last or wanted or hosts.count() > 1 or self._tests_on_host(index)
        if not waits:
          given = giving.submit(self._give, this.state, packed)
        yield self._read(this, wanted, packed)
        if waits and packed:
          given = giving.submit(self._give, this.state, packed)

  def _pack(self, index):
    """The round `index`, after the store has the memories of the last clients."""
    kept, begin = self._keep(), time.perf_counter()
    plan = self._experiment.planner.plan(index)
    looked_up = 0.0
    if self._store:
      looking, first = time.perf_counter(), index == self.left.start
      here = () if first else self._experiment.planner.cohort(index - 1)
      plan = plan._replace(arrivals=self._store.arrivals(plan.clients, here))
      looked_up = time.perf_counter() - looking
    inputs = programs.round_inputs(self._experiment, index, plan)
    train = programs.train_split(self._experiment, plan)
    seconds = {'pack': time.perf_counter() - begin - looked_up}
    return _Packed(index, plan, inputs, train, seconds | {'store': kept + looked_up})

  def _keep(self):
    """Gives the store the memories of a round's clients; returns the seconds taken."""
    if not self._unkept:
      return 0.0
    (clients, memories), self._unkept = self._unkept, None
    memories, begin = jax.device_get(memories), time.perf_counter()
    self._store.write(clients, memories)
    return time.perf_counter() - begin

  def _give(self, state, packed):
    """Gives the device a round and its test; uses up the state before it."""
    packed = packed.result()
    self._has_trained[packed.plan.clients] = True
    clock = Clock(self._clock)
    clock.seconds |= packed.seconds
    if self._clock is None:
      clock.seconds['compile'] = self._compile_seconds
    self._clock, tested = clock, None
    with jax.transfer_guard('disallow'):
      given = (*packed.inputs, packed.train)
      state, metrics = self._programs.run_round(state, *given)
      if self._is_tested(packed.index) and not self._on_host:
        splits = self._experiment.tests.examples, self._experiment.tests.validation
        score = self._programs.evaluate(state, *splits)
        tested = evaluation.Tested(score)
    return _Given(packed.index, packed.plan, clock, state, metrics, tested)

  def _read(self, given, wanted, packed):
    """Waits for the results of a round."""
    built, clock = self._experiment, given.clock
    metrics = jax.device_get(given.metrics)
    clock.arrived('train')
    if self._store:
      if packed:  # it reads the store as it was before this round
        packed.result()  # if a write failed, the run ends here
      else:
        clock.seconds['store'] += self._keep()
      self._unkept = given.plan.clients, given.state.clients
      if wanted or self._tests_on_host(given.index):
        clock.seconds['store'] += self._keep()
    if self._tests_on_host(given.index):
      if packed and self._tune:  # fine-tuning reads the data on disk too
        packed.result()
      how = self._programs.evaluate, self._own, self._tune, given.state
      how += self._store, self._has_trained
      given.tested = evaluation.evaluate(built, *how)
    tested = jax.device_get(given.tested)
    if tested:
      clock.arrived('evaluate')
    line = line_of(built, given.index, given.plan, metrics, tested)
    about = given.plan, clock, built, given.state if wanted else None
    return Round(given.index + 1, line, metrics, *about)

  def _is_tested(self, index):
    config = self._experiment.config
    return is_due(index + 1, config.eval_every_rounds, config.num_rounds)

  def _tests_on_host(self, index):
    """Whether the round's test needs more than the device has, and so waits for it."""
    return self._on_host and self._is_tested(index)


def is_due(number: int, every: int, num_rounds: int) -> bool:
  """Whether something that is done every few rounds, and after the last, is due."""
  return number % every == 0 or number == num_rounds
