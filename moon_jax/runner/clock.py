"""Measures how long the phases of a round take, and sums them up over a run."""

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import jax

from moon_jax.planning.plan import RoundPlan

PHASES = ('compile', 'pack', 'store', 'idle', 'train', 'evaluate', 'save')


class Clock:
  """Seconds of a round by phase, as the host sees them.

    compile    before the first round of a process
    pack       making the round's plan and batches, mostly while the round before trains
    store      the client store, mostly in that time too: it writes the memories of the
               round before the last, and reads those of this round
    idle       the device had nothing to do before the round
    train      until the round's results are here
    evaluate   until the results of its test are here
    save       writing the checkpoint

  Rounds overlap (see `rounds`), so a phase of the device begins when its last phase has
  ended. The device waits while the host saves; that time is in `save` of one round and
  in `idle` of the next.
  """

  def __init__(self, previous: 'Clock | None' = None):
    """Starts when the round is dispatched to the device.

    Args:
      previous: clock of the round before, whose results arrive first.
    """
    self.seconds = dict.fromkeys(PHASES, 0.0)
    self._previous = previous
    self._dispatched_at = time.perf_counter()
    self._phase_begins_at = None  # of the device; None before the first phase has ended
    self.peak_memory_bytes = 0

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    """Measures the time that the host spends inside."""
    begin = time.perf_counter()
    yield
    self.seconds[phase] += time.perf_counter() - begin

  def arrived(self, phase: str) -> None:
    """Ends a phase of the device, because its results are here."""
    now = time.perf_counter()
    if self._phase_begins_at is None:
      device_free_at = self._dispatched_at
      if self._previous:
        device_free_at = self._previous._phase_begins_at
      self.seconds['idle'] = max(0.0, self._dispatched_at - device_free_at)
      self._phase_begins_at = max(self._dispatched_at, device_free_at)
      self._previous = None
    self.seconds[phase] = now - self._phase_begins_at
    self._phase_begins_at = now
    # Measured once, because a logger's thread asks for it later than the run does.
    self.peak_memory_bytes = peak_memory_bytes()


def timing_record(
  clock: Clock, plan: RoundPlan, record: dict[str, Any]
) -> dict[str, Any]:
  """The line of timings.jsonl.

  Args:
    clock: clock of the round.
    plan: plan of the round.
    record: the round's line of metrics.jsonl.
  """
  return {
    'round': record['round'],
    **{f'{phase}_seconds': clock.seconds[phase] for phase in PHASES},
    'samples_per_second': record['num_examples'] / clock.seconds['train'],
    'useful_steps_fraction': plan.utilisation(),
    'peak_memory_bytes': clock.peak_memory_bytes,
  }


def time_spent(timings: list[dict[str, Any]]) -> dict[str, float]:
  """The time that a run spent in each phase, in seconds that do not overlap.

  Args:
    timings: the lines of timings.jsonl.

  Returns:
    Seconds of 'compiling', 'training', 'testing', 'saving' and 'idle': the device
    waited for the host, and the host was not saving.
  """
  spent = dict.fromkeys(('compiling', 'training', 'testing', 'saving', 'idle'), 0.0)
  previous_save_seconds = 0.0
  for line in timings:
    spent['compiling'] += line.get('compile_seconds', 0.0)
    spent['training'] += line.get('train_seconds', 0.0)
    spent['testing'] += line.get('evaluate_seconds', 0.0)
    spent['saving'] += line.get('save_seconds', 0.0)
    # The line of a round counts the saving of the round before as idle.
    idle_seconds = line.get('idle_seconds', 0.0) - previous_save_seconds
    spent['idle'] += max(0.0, idle_seconds)
    previous_save_seconds = line.get('save_seconds', 0.0)
  return spent


def peak_memory_bytes() -> int:
  """The largest memory use so far, of the device if it says so, else of the process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return stats.get('peak_bytes_in_use', host)
