"""Runs several experiments as one program, each in its directory as if it ran alone.

They are in the lanes side by side (`engine.replicas`). One that has all its rounds, or
fails, leaves the lanes to the others.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from moon_jax import tree
from moon_jax.cli import Request
from moon_jax.engine import devices, experiment, programs, replicas
from moon_jax.engine.planning import Plan
from moon_jax.errors import RunError
from moon_jax.runner import compile_cache, loop, pipeline, surroundings
from moon_jax.runner.clock import Clock
from moon_jax.runner.console import Console
from moon_jax.runner.member import Member, ending_alone, of_one
from moon_jax.runner.metrics import Record
from moon_jax.runner.signals import Stop
from moon_jax.runner.testing import Tested
from moon_jax.types import ClientMetrics


def run(
  requests: Sequence[Request],
  stop: Stop,
  console_of: Callable[[Sequence[Request]], Console],
  **given: Any,
) -> list[RunError]:
  """Runs experiments to their ends, from the newest checkpoint of each.

  Those that `engine.replicas.alike` finds alike are in the lanes together.

  Args:
    requests: [R], of each run.
    stop: what ends them early.
    console_of: makes what tells of those that run together.
    **given: to `experiment.build`.

  Returns:
    What ended some of them before their last round; it is told when it happens.

  Raises:
    StoppedError: they were asked to stop, and have saved what they did.
  """
  execution, errors, built = requests[0].config.execution, [], []
  if len(requests) == 1:
    with ending_alone(requests[0].workdir.name, errors):
      loop.run(requests[0], stop, console_of(requests), **given)
    return errors
  compile_cache.check(execution.compile_cache)
  devices.claim(execution.devices, deterministic=execution.deterministic)
  surroundings.require_jax()
  console_of(requests).devices()
  for request in requests:
    name = request.workdir.name
    with ending_alone(name, errors), devices.out_of_memory_is_told():
      # Another process of the sweep may have ended it.
      if not loop.is_finished(request):
        built.append((request, experiment.build(request.config, **given)))
  for group in replicas.alike([one for _, one in built]):
    here = [built[index] for index in group]
    console = console_of([request for request, _ in here])
    if len(here) > 1:
      _run_together(here, stop, console, errors)
    else:
      with ending_alone(here[0][0].workdir.name, errors):
        loop.run(here[0][0], stop, console, **given)
  return errors


def _run_together(built, stop, console, errors):
  names = ', '.join(request.workdir.name for request, _ in built)
  with ending_alone(names, errors), contextlib.ExitStack() as stack:
    members = [
      stack.enter_context(Member(request, one, console, errors))
      for request, one in built
    ]
    if ready := [member for member in members if member.round is not None]:
      size = sum(tree.num_bytes(member.state) for member in ready)
      buffers = {f'models of {len(ready)} runs, see --replicas,': size}
      with devices.out_of_memory_is_told(lambda: buffers):
        _SideBySide(ready, console).run(stop)


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
    rounds = [one.round for one in self._members]
    states = [jax.device_get(one.state) for one in self._members]
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    for member in self._members:
      for leaf in jax.tree.leaves(member.state):  # its directory refers to it, too
        leaf.delete()
      member.state = None
    states = devices.replicate(states, self._joined.mesh)
    packed = self._pack(rounds)
    self._programs = pipeline.compile_programs(
      self._joined, states, packed.inputs, self._console.say
    )
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
      state = None if states is None else of_one(states, r)
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
