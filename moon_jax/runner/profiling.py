"""Traces two rounds by JAX's profiler, and sums up where their time went."""

from collections.abc import Callable

import jax

from moon_jax.runner.callbacks import Callback


class Profiler(Callback):
  """Traces the second and third round of a process, or its only one, if asked to."""

  def __init__(self, say: Callable[[str], None]):
    """say: is told where the trace is, and where the time went."""
    self._say = say
    self._clocks, self._is_tracing = [], False

  def begin(self, run):
    self._folder = run.workdir / 'profile'
    rounds = [index + 1 for index in run.rounds] if run.config.execution.profile else []
    self._traced = rounds[1:3] or rounds
    if self._traced == rounds[:1] != []:
      self._start()

  def wants_state(self, number):
    return number + 1 in self._traced[:1]  # the trace begins before that one does

  def after_round(self, round):
    if round.number in self._traced:
      self._clocks.append(round.clock)
    if round.number in self._traced[-1:]:
      self.close()
      phases = ('train', 'evaluate', 'save', 'idle')
      spent = {name: sum(one.seconds[name] for one in self._clocks) for name in phases}
      words = [f'{name} {seconds:.2f} s' for name, seconds in spent.items()]
      self._say(f'where the time of the traced rounds went: {", ".join(words)}')
    if self.wants_state(round.number):
      self._start()

  def close(self):
    if self._is_tracing:
      self._is_tracing = False
      jax.profiler.stop_trace()
      self._say(f'trace: {self._folder}')

  def _start(self):
    jax.profiler.start_trace(str(self._folder))
    self._is_tracing = True
