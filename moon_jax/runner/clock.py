"""Measures how long the phases of a round take, and sums them up over a run."""

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import jax

from moon_jax.train.planning import Plan

PHASES = ('compile', 'pack', 'store', 'idle', 'train', 'evaluate', 'save')


class Clock:
  """Seconds of a round by phase, as the host sees them.

    compile    before the first round of a process
    pack       making the round's plan and batches, mostly while the one before trains
    store      the client store, mostly likewise: it keeps what clients remember of the
               round before the last, and looks up what those of this one do
    idle       the device had nothing to do before the round
    train      until the round's results are here
    evaluate   until those of its test are
    save       writing the checkpoint

  Rounds overlap (see `rounds`), so a phase of the device begins when the one before has
  ended. The device waits while the host saves; that is `save` of the round before and
  in `idle` of the next.
  """

  def __init__(self, previous: 'Clock | None' = None):
    """Starts when the device is given the round.

    Args:
      previous: of the round before, which has arrived before this one does.
    """
    self.seconds = dict.fromkeys(PHASES, 0.0)
    self._previous = previous
    self._given = time.perf_counter()
    self._free = None

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    """Measures what the host does inside."""
    begin = time.perf_counter()
    yield
    self.seconds[phase] += time.perf_counter() - begin

  def arrived(self, phase: str) -> None:
    """Ends a phase of the device: its results are here."""
    now = time.perf_counter()
    if self._free is None:
      free = self._previous._free if self._previous else self._given
      self.seconds['idle'] = max(0.0, self._given - free)
      self._free, self._previous = max(self._given, free), None
    self.seconds[phase] = now - self._free
    self._free = now


def timing_record(clock: Clock, plan: Plan, record: dict[str, Any]) -> dict[str, Any]:
  """The line of timings.jsonl.

  Args:
    clock: of this round.
    plan: of this round.
    record: the round's line of metrics.jsonl.
  """
  return {
    'round': record['round'],
    **{f'{phase}_seconds': clock.seconds[phase] for phase in PHASES},
    'samples_per_second': record['num_examples'] / clock.seconds['train'],
    'useful_steps_fraction': plan.utilisation(),
    'peak_memory_bytes': peak_memory_bytes(),
  }


def time_spent(timings: list[dict[str, Any]]) -> dict[str, float]:
  """Where the time of a run went, in seconds that do not overlap.

  Args:
    timings: the lines of timings.jsonl.

  Returns:
    Seconds of 'compiling', 'training', 'testing', 'saving' and 'idle', which is when
    the device waited for the host, here without the saving.
  """
  phases = ('compile', 'train', 'evaluate', 'save', 'idle')
  names = ('compiling', 'training', 'testing', 'saving', 'idle')
  spent, saving = dict.fromkeys(names, 0.0), 0.0
  for line in timings:
    seconds = [line.get(f'{phase}_seconds', 0.0) for phase in phases]
    # A round's line counts the saving of the round before as idle.
    seconds[-1] = max(0.0, seconds[-1] - saving)
    saving = line.get('save_seconds', 0.0)
    for name, value in zip(names, seconds, strict=True):
      spent[name] += value
  return spent


def peak_memory_bytes() -> int:
  """The most memory in use so far: of the device if it tells, else of the process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return stats.get('peak_bytes_in_use', host)
