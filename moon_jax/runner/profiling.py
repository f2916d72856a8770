"""Traces two rounds by JAX's profiler, and sums up where their time went."""

import pathlib
import re
from collections.abc import Iterator

import jax

from moon_jax.runner.clock import Clock

# In a program's text a computation begins and ends in the first column.
_COMPUTATION = re.compile(r'^(?:ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}', re.M | re.S)
_INSTRUCTION = re.compile(r'^ +(?:ROOT )?%?([\w.-]+) = ', re.M)
_CALLED = re.compile(r'(?:body|condition|calls|to_apply)=%?([\w.-]+)')
_FROZEN_LOOP = re.compile(r' while\([^\n]*body=%?([\w.-]+)[^\n]*/frozen/while"')
_LOOP = re.compile(r'(while|call|conditional)\b')


class Profiler:
  """Traces two rounds: those after the first that a process runs.

  Attributes:
    began: whether there is a trace.
  """

  def __init__(self, folder: pathlib.Path, rounds: range):
    """Traces nothing yet.

    Args:
      folder: for the trace.
      rounds: those that the process runs. Of a single one that is traced, of none
        nothing.
    """
    self.began = False
    self._folder = folder
    self._traced = rounds[1:3] or rounds
    self._clocks = []
    self._tracing = False

  def given(self, index: int) -> None:
    """To be called before the device is given a round; may begin the trace."""
    if index in self._traced[:1]:
      jax.profiler.start_trace(str(self._folder))
      self._tracing = self.began = True

  def arrived(self, index: int, clock: Clock) -> None:
    """To be called when a round's results are here; ends the trace after the last."""
    if index in self._traced:
      self._clocks.append(clock)
    if index in self._traced[-1:]:
      self.stop()

  def stop(self) -> None:
    """Ends the trace, if it was begun and goes on: what was traced is kept."""
    if self._tracing:
      self._tracing = False
      jax.profiler.stop_trace()

  def seconds(self, program: str) -> dict[str, float]:
    """Phase -> seconds of the traced rounds; reads the trace, which takes a while.

    'frozen' is a part of 'train', and there only if the frozen networks run once a
    round: with every batch they are no phase of their own.

    Args:
      program: the text of the compiled round.
    """
    phases = ('train', 'evaluate', 'save', 'idle')
    sums = {name: sum(clock.seconds[name] for clock in self._clocks) for name in phases}
    if _FROZEN_LOOP.search(program):
      frozen = _frozen_instructions(program)
      events = list(_durations(self._folder, program))
      inside = sum(nanoseconds for name, nanoseconds in events if name in frozen)
      total = sum(nanoseconds for _, nanoseconds in events)
      sums['frozen'] = sums['train'] * inside / max(total, 1)
    return sums


def _frozen_instructions(program: str) -> set[str]:
  """Names of all instructions inside the loop of the scope 'frozen'."""
  computations = dict(_COMPUTATION.findall(program))
  found, todo = set(), _FROZEN_LOOP.findall(program)
  while todo:
    body = computations.pop(todo.pop(), '')
    found |= set(_INSTRUCTION.findall(body))
    todo += _CALLED.findall(body)
  return found


def _durations(folder: pathlib.Path, program: str) -> Iterator[tuple[str, float]]:
  """(instruction, nanoseconds) of every event of a program, loops left out."""
  module = re.match(r'HloModule ([\w.-]+)', program)[1]
  path = max(folder.rglob('*.xplane.pb'), key=lambda file: file.stat().st_mtime)
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    for line in plane.lines:
      for event in line.events:
        about = dict(event.stats)
        name = about.get('hlo_op', '')
        if about.get('hlo_module') == module and not _LOOP.match(name):
          yield name, event.duration_ns
