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

  def __init__(self, folder: pathlib.Path, first_round: int, num_rounds: int):
    """Traces nothing yet.

    Args:
      folder: for the trace.
      first_round: the first round that the process runs, from 0.
      num_rounds: rounds of the run; if fewer than two are left, what is left is traced.
    """
    self.began = False
    self._folder = folder
    self._first = min(first_round + 1, num_rounds - 1)
    self._last = min(first_round + 2, num_rounds - 1)
    self._clocks = []
    self._tracing = False

  def given(self, index: int) -> None:
    """To be called before the device is given a round; may begin the trace."""
    if index == self._first:
      jax.profiler.start_trace(str(self._folder))
      self._tracing = self.began = True

  def arrived(self, index: int, clock: Clock) -> None:
    """To be called when a round's results are here; ends the trace after the last."""
    if self._first <= index <= self._last:
      self._clocks.append(clock)
    if index == self._last:
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
      sums['frozen'] = sums['train'] * self._frozen_share(program)
    return sums

  def _frozen_share(self, program):
    """The part of the device's time that the frozen networks' loop takes."""
    module = re.match(r'HloModule ([\w.-]+)', program)[1]
    frozen, inside, total = _frozen_instructions(program), 0, 0
    for name, nanoseconds in _durations(self._folder, module):
      total += nanoseconds
      inside += nanoseconds if name in frozen else 0
    return inside / total if total else 0.0


def _frozen_instructions(program: str) -> set[str]:
  """Names of all instructions inside the loop of the scope 'frozen'."""
  computations = dict(_COMPUTATION.findall(program))
  found, todo = set(), _FROZEN_LOOP.findall(program)
  while todo:
    body = computations.pop(todo.pop(), '')
    found |= set(_INSTRUCTION.findall(body))
    todo += _CALLED.findall(body)
  return found


def _durations(folder: pathlib.Path, module: str) -> Iterator[tuple[str, float]]:
  """(instruction, nanoseconds) of every event of a program, loops left out."""
  path = max(folder.rglob('*.xplane.pb'), key=lambda file: file.stat().st_mtime)
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    for line in plane.lines:
      for event in line.events:
        about = dict(event.stats)
        name = about.get('hlo_op', '')
        if about.get('hlo_module') == module and not _LOOP.match(name):
          yield name, event.duration_ns
