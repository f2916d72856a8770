"""Traces two rounds by JAX's profiler, and sums up where their time went."""

import pathlib

import jax

from moon_jax.runner.clock import Clock


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

  def seconds(self) -> dict[str, float]:
    """Phase -> seconds of the traced rounds.

    What is inside a phase, such as the scope `frozen`, the trace itself shows.
    """
    phases = ('train', 'evaluate', 'save', 'idle')
    return {name: sum(clock.seconds[name] for clock in self._clocks) for name in phases}
