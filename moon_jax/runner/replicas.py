"""Runs several experiments as one program, each in its directory as if it ran alone.

They are in the lanes side by side (`engine.replicas`). One that has all its rounds, or
fails, leaves the lanes to the others.
"""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from moon_jax import tree
from moon_jax.cli import Request
from moon_jax.engine import devices, experiment, programs, replicas
from moon_jax.engine.evaluation import Score
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.planning import Plan
from moon_jax.errors import RunError
from moon_jax.runner import (
  compile_cache,
  lock,
  loop,
  run_directory,
  surroundings,
  testing,
)
from moon_jax.runner.clock import Clock, timing_record
from moon_jax.runner.console import Console
from moon_jax.runner.divergence import stop_if_diverged
from moon_jax.runner.metrics import Record, line_of
from moon_jax.runner.pipeline import due
from moon_jax.runner.signals import Stop, StoppedError
from moon_jax.runner.testing import Tested
from moon_jax.types import ClientMetrics, State


def run(
  requests: Sequence[Request], stop: Stop, console: Console, **given: Any
) -> list[RunError]:
  """Runs experiments to their ends, from the newest checkpoint of each.

  Those that `engine.replicas.alike` finds alike are in the lanes together.

  Args:
    requests: [R], of each run.
    stop: what ends them early.
    console: what tells of them.
    **given: to `experiment.build`.

  Returns:
    What ended some of them before their last round; it is told when it happens.

  Raises:
    StoppedError: they were asked to stop, and have saved what they did.
  """
  execution, errors, built = requests[0].config.execution, [], []
  if len(requests) == 1:
    with _ending_alone(requests[0], errors):
      loop.run(requests[0], stop, console, **given)
    return errors
  compile_cache.check(execution.compile_cache)
  devices.claim(execution.devices, deterministic=execution.deterministic)
  surroundings.require_jax()
  console.devices()
  for request in requests:
    with _ending_alone(request, errors), devices.out_of_memory_is_told():
      built.append((request, experiment.build(request.config, **given)))
  for group in replicas.alike([one for _, one in built]):
    here = [built[index] for index in group]
    if len(here) > 1:
      _run_together(here, stop, console, errors)
    else:
      with _ending_alone(here[0][0], errors):
        loop.run(here[0][0], stop, console, **given)
  return errors


def _run_together(built, stop, console, errors):
  with contextlib.ExitStack() as stack:
    members = [
      stack.enter_context(Member(request, one, console, errors))
      for request, one in built
    ]
    if ready := [member for member in members if member.round is not None]:
      with devices.out_of_memory_is_told():
        _SideBySide(ready, console).run(stop)


@contextlib.contextmanager
def _ending_alone(request: Request, errors: list[RunError]) -> Iterator[None]:
  """An error inside ends one run and no other: it is told, and added to the others."""
  try:
    yield
  except StoppedError:
    raise
  except lock.BusyError as error:
    print(f'{request.workdir.name}: another process is running it', flush=True)
    errors.append(error)
  except RunError as error:
    print(f'{request.workdir.name}: {error}', file=sys.stderr)
    errors.append(error)


_of_one = jax.jit(tree.gather)  # compiled once, whichever it is


class Member:
  """One of the runs. Its directory is open while it has a part.

  Attributes:
    built: its experiment.
    state: from which it goes on; None once it is among those of all.
    round: the next that is to be recorded, from 0; None if it has no part any more.
    workdir: its directory.
  """

  def __init__(
    self,
    request: Request,
    built: Experiment,
    console: Console,
    errors: list[RunError],
  ):
    """Opens the directory; what cannot be run there has no part."""
    self.built, self.state, self.round = built, None, None
    self.workdir, self._request, self._errors = request.workdir, request, errors
    self._taken_part = np.zeros(built.config.num_clients, bool)
    self._files = contextlib.ExitStack()
    with self._failing():
      told = run_directory.check(request.workdir, request.config)
      first = experiment.initial_state(built)
      opening = loop.open_directory(request, built, first, console, told)
      opened = self._files.enter_context(opening)
      self._checkpoints, self._records, _, self.state = opened
      if not loop.rounds_left(built.config.num_rounds, self._records):
        self._files.close()
        return
      self.round = int(self.state.round)
      for index in range(self.round):
        self.takes_part(built.planner.cohort(index))

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    return self._files.__exit__(*exception)

  @contextlib.contextmanager
  def _failing(self) -> Iterator[None]:
    """An error inside ends this run, which has no part any more."""
    with _ending_alone(self._request, self._errors):
      try:
        yield
      except RunError as error:
        self.round = None
        self._files.__exit__(type(error), error, error.__traceback__)
        raise

  def takes_part(self, clients: np.ndarray) -> None:
    """The clients [K] train in the next round."""
    self._taken_part[clients] = True

  def is_tested(self, index: int) -> bool:
    """Whether it is tested after round `index`, from 0."""
    config = self.built.config
    return due(index, config.eval_every_rounds, config.num_rounds)

  def is_saved(self, index: int) -> bool:
    """Whether it is saved after round `index`, from 0."""
    config = self.built.config
    return due(index, config.checkpoint_every_rounds, config.num_rounds)

  def tested(self, states: State, scores: Score, replica: int) -> Tested:
    """What is recorded of a test; leaves [R, ...], of which it is the replica's."""
    score = _of_one(scores, replica)
    # Without a server the distance of the clients' models is told too.
    state = _of_one(states, replica) if self.built.algorithm.share else states
    given = (lambda state, test: score), state, None, self._taken_part
    return testing.test(self.built, *given)

  def record(
    self,
    plans: tuple[Plan, Plan],
    metrics: ClientMetrics,
    tested: Tested | None,
    clock: Clock,
    state: State | None,
  ) -> Record | None:
    """Records a round, saves the state after it if given, and ends after the last one.

    Args:
      plans: of all runs, and of this one.
      metrics: leaves [K], on the host.
      tested: on the host; None if it is not tested.
      clock: this run's share of the round's time.
      state: after the round, or None.

    Returns:
      The line of metrics.jsonl, or None if it could not be recorded.
    """
    config, index = self.built.config, self.round
    joined, alone = plans
    with self._failing():
      record = line_of(self.built, index, alone, metrics, tested)
      self._records.add_metrics(record)
      self._records.board.add_histogram('clients/drift', metrics.drift, index + 1)
      stop_if_diverged(record, metrics, config.on_nonfinite)
      if state is not None:
        with clock('save'):
          self._checkpoints.save(state)
      self._records.add_timings(timing_record(clock, joined, record))
      self.round += 1
      if self.round == config.num_rounds:
        self.round = None
        self._files.close()
      return record
    return None


@dataclasses.dataclass
class _Round:
  """A round of each run, which the device can be given, works on, or has ended.

  Attributes:
    rounds: [R] which, from 0; None of a run without a part.
    plan: of all.
    alone: [R], of each.
    inputs: on the device.
    seconds: of packing.
    clock: started when the device was given the round.
    metrics: leaves [R, K], on the device.
    tested: [R] of the new states; None of a run that is not tested.
  """

  rounds: list[int | None]
  plan: Plan
  alone: list[Plan]
  inputs: programs.RoundInputs
  seconds: float
  clock: Clock | None = None
  metrics: ClientMetrics | None = None
  tested: Sequence[Tested | None] = ()


class _SideBySide:
  """The rounds that are left of several runs, in the order of `runner.pipeline`."""

  def __init__(self, members: Sequence[Member], console: Console):
    self._members, self._console, self._clock = members, console, None
    self._built = [member.built for member in members]
    self._joined = replicas.join(self._built)

  def run(self, stop: Stop) -> None:
    """Runs them; see the function `run`."""
    rounds, config = [one.round for one in self._members], self._joined.config
    states = [jax.device_get(one.state) for one in self._members]
    for member in self._members:
      member.state = None
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    states = devices.replicate(states, self._joined.mesh)
    packed, say = self._pack(rounds), self._console.say
    with compile_cache.using(config.execution.compile_cache, say):
      say(f'compiling one round and one test of {len(rounds)} runs ... ', end='')
      self._programs = programs.compile_programs(self._joined, states, packed.inputs)
      say(f'{self._programs.compile_seconds:.1f} s')
    with stop.deferred(), futures.ThreadPoolExecutor(1) as beside:
      self._run(states, packed, stop, beside)

  def _run(self, states, packed, stop, beside):
    previous, saved = None, False
    for index in self._console.progress(self._numbers(packed.rounds)):
      if saved:
        stop.check(index)
      if not packed:
        break
      current, packing = packed, beside.submit(self._pack, self._next(packed.rounds))
      recording = previous and beside.submit(self._record, previous, index)
      states = self._train(states, current)
      packed = packing.result()
      if recording:
        recording.result()
      saved = stop.requested() or any(
        member.is_saved(number)
        for member, number in zip(self._members, current.rounds, strict=True)
        if number is not None
      )
      previous = current
      if saved or devices.one_at_a_time(self._joined.mesh):
        self._record(current, index + 1, states if saved else None)
        previous = None

  def _numbers(self, rounds):
    """How many rounds the bar shows: those of the run that has most left, and its."""
    left = [
      (one.built.config.num_rounds - number, one.built.config.num_rounds)
      for one, number in zip(self._members, rounds, strict=True)
    ]
    most, last = max(left)
    return range(last - most, last)

  def _next(self, rounds):
    """Of each run the round after this one; None of one that has no part in it."""
    config = [member.built.config for member in self._members]
    return [
      None
      if number is None or member.round is None or number + 1 == one.num_rounds
      else number + 1
      for member, number, one in zip(self._members, rounds, config, strict=True)
    ]

  def _pack(self, rounds):
    """The next round of each run; None if there is none."""
    if not any(number is not None for number in rounds):
      return None
    begin = time.perf_counter()
    plan, alone = self._joined.planner.side_by_side(rounds)
    inputs = replicas.round_inputs(self._joined, self._built, rounds, plan)
    return _Round(rounds, plan, alone, inputs, time.perf_counter() - begin)

  def _train(self, states, current):
    """Gives the device a round and its tests; the states before it are used up."""
    current.clock = Clock(self._clock)
    if self._clock is None:
      current.clock.seconds['compile'] = self._programs.compile_seconds
    self._clock, current.clock.seconds['pack'] = current.clock, current.seconds
    with jax.transfer_guard('disallow'):
      given = (*current.inputs, self._joined.train)
      states, current.metrics = self._programs.run_round(states, *given)
    present = list(zip(self._members, current.rounds, current.alone, strict=True))
    for member, number, alone in present:
      if number is not None:
        member.takes_part(alone.clients)
    tested = [n is not None and member.is_tested(n) for member, n, _ in present]
    if any(tested):
      score = self._programs.evaluate(states, self._joined.test)
      current.tested = [
        member.tested(states, score, r) if tested[r] else None
        for r, member in enumerate(self._members)
      ]
    return states

  def _record(self, ended, number, states=None):
    """Waits for the results of a round, and records them; `number` is what is told."""
    metrics, clock = jax.device_get(ended.metrics), ended.clock
    clock.arrived('train')
    tested = jax.device_get(ended.tested) or [None] * len(ended.rounds)
    if ended.tested:
      clock.arrived('evaluate')
    present = [
      r
      for r, (member, index) in enumerate(zip(self._members, ended.rounds, strict=True))
      if index is not None and member.round == index
    ]
    found = {}
    for r in present:
      given = (ended.plan, ended.alone[r]), tree.gather(metrics, r), tested[r]
      state = None if states is None else _of_one(states, r)
      share, member = clock.share(len(present)), self._members[r]
      if record := member.record(*given, share, state):
        found[member] = record
    if found:
      self._console.round_done(_mean([*found.values()]) | {'round': number}, clock)
    for member in found:
      if member.round is None:
        self._console.finished(member.workdir)


def _mean(records: Sequence[Record]) -> Record:
  """Of numbers that all have, the mean; and the deviation of the accuracies."""
  names = set.intersection(*map(set, records))
  mean = {
    name: statistics.fmean(record[name] for record in records)
    for name in records[0]
    if name in names and isinstance(records[0][name], float)
  }
  if 'test_accuracy' in mean:
    accuracies = [record['test_accuracy'] for record in records]
    mean['test_accuracy_std'] = statistics.pstdev(accuracies)
  return mean
