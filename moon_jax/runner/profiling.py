"""Traces the start of the second round by JAX's profiler, and prints its times."""

import threading
from collections.abc import Callable

import jax

from moon_jax.runner.callbacks import Callback

SECONDS = 2.0  # longest trace, which grows by some 35 MB a second on a CPU


class Profiler(Callback):
  """Traces the second round of a process, if asked to.

  The next round begins when the trace is written; this time is in its `idle`.
  """

  def __init__(self, print_line: Callable[[str], None]):
    """print_line: called with the path of the trace, and the times of the round."""
    self._print_line = print_line
    self._timer, self._is_written = None, False

  def begin(self, run):
    self._folder = run.workdir / 'profile'
    self._traced_round = None
    second_round = run.rounds.start + 2
    if run.config.execution.profile and second_round <= run.rounds.stop:
      self._traced_round = second_round

  def wants_state(self, number):
    # The trace begins before the round does, and is written before the next one.
    return self._traced_round in (number, number + 1)

  def after_round(self, round):
    if round.number == self._traced_round:
      self.close()
      phases = ('train', 'evaluate', 'save', 'idle')
      words = [f'{name} {round.clock.seconds[name]:.2f} s' for name in phases]
      self._print_line(f'where the time of the traced round went: {", ".join(words)}')
    elif self.wants_state(round.number):
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0
      jax.profiler.start_trace(str(self._folder), profiler_options=options)
      self._timer = threading.Timer(SECONDS, self._stop)
      self._timer.start()

  def close(self):
    if self._timer:
      self._timer.cancel()
      self._timer.join()
      if not self._is_written:
        self._stop()
      self._timer = None
      self._print_line(f'trace: {self._folder}')

  def _stop(self):
    jax.profiler.stop_trace()
    self._is_written = True
