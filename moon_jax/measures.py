"""What do the numbers of a round and of a run mean? From arrays to records."""

import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from moon_jax.cohort import Plan
from moon_jax.evaluation import Score
from moon_jax.types import ClientMetrics

Record = dict[str, Any]


# What diverged is told by its record, not by a warning.
@np.errstate(invalid='ignore')
def round_record(
  round_number: int,
  plan: Plan,
  metrics: ClientMetrics,
  traffic: tuple[int, int],
  *,
  skip_nonfinite: bool = False,
) -> Record:
  """What training says in the line of metrics.jsonl.

  Args:
    round_number: completed rounds, 1 after the first.
    plan: the round's cohort and batches.
    metrics: leaves [K], as numpy.
    traffic: bytes that one client receives, and sends, in a round; without a server
      from, and to, each of its neighbours.
    skip_nonfinite: whether clients whose results are not finite are left out of the
      means, and named; if all are, the means are over all.

  Returns:
    Losses in nats, means over the examples of the round, each counted once an epoch;
    drift, the mean over the cohort; mean and quartiles over the cohort of what else the
    algorithm reports, and the numbers it computed; bytes of the whole cohort.
  """
  skipped = ~metrics.finite & skip_nonfinite
  kept = ~skipped | skipped.all()
  sums, num_seen, drift, reports = jax.tree.map(
    lambda values: values[kept],
    (metrics.sums, metrics.num_seen, metrics.drift, metrics.reports),
  )
  count = num_seen.sum(dtype=np.float64)
  bytes_down, bytes_up = (num_bytes * plan.num_transfers() for num_bytes in traffic)
  return {
    'round': round_number,
    **{
      name: float(values.sum(dtype=np.float64) / count)
      for name, values in sorted(sums.items())
    },
    'drift': float(drift.mean(dtype=np.float64)),
    **_spreads(reports),
    **{name: float(value) for name, value in sorted(metrics.numbers.items())},
    'clients': plan.clients.tolist(),
    **({'skipped_clients': plan.clients[skipped].tolist()} if skip_nonfinite else {}),
    'num_examples': int(metrics.num_seen.sum(dtype=np.float64)),
    'num_steps': int(plan.step_real.sum()),
    'bytes_down': bytes_down,
    'bytes_up': bytes_up,
  }


_QUARTILES = ('min', 'q1', 'median', 'q3', 'max')


def _spreads(reports: dict[str, np.ndarray]) -> Record:
  """name -> [K], to name_mean, name_min, ..., each quartile between its neighbours."""
  record = {}
  for name, values in sorted(reports.items()):
    values = np.asarray(values, np.float64)
    quartiles = np.quantile(values, np.linspace(0.0, 1.0, len(_QUARTILES)))
    record[f'{name}_mean'] = float(values.mean())
    for which, value in zip(_QUARTILES, quartiles, strict=True):
      record[f'{name}_{which}'] = float(value)
  return record


def test_record(score: Score, num_examples: int) -> Record:
  """What a test adds to the line of metrics.jsonl.

  Args:
    score: leaves [M], as numpy.
    num_examples: of the test split.

  Returns:
    Accuracy in [0, 1] and cross entropy in nats; with several models their means, and
    the accuracy's standard deviation over the models and its lowest value.
  """
  accuracy = score.num_correct / num_examples
  record = {
    'test_accuracy': float(accuracy.mean()),
    'test_loss': float(score.loss_sum.mean(dtype=np.float64) / num_examples),
  }
  if len(accuracy) > 1:
    record['test_accuracy_std'] = float(accuracy.std())
    record['test_accuracy_worst'] = float(accuracy.min())
  return record


PHASES = ('pack', 'idle', 'train', 'evaluate', 'save')


class Clock:
  """Seconds of a round by phase, as the host sees them.

  The device works on a round while the host packs the next one and records the one
  before. `idle` is when the device had nothing to do, saving included.
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

  def elapsed(self) -> float:
    """Seconds of training, testing and saving."""
    return sum(self.seconds[phase] for phase in ('train', 'evaluate', 'save'))

  def arrived(self, phase: str) -> None:
    """Ends a phase of the device: its results are here."""
    now = time.perf_counter()
    if self._free is None:
      free = self._previous._free if self._previous else self._given
      self.seconds['idle'] = max(0.0, self._given - free)
      self._free, self._previous = max(self._given, free), None
    self.seconds[phase] = now - self._free
    self._free = now


def timing_record(clock: Clock, plan: Plan, record: Record) -> Record:
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


_OF_SEVERAL = ('test_accuracy_std', 'test_accuracy_worst')


def summarise(rounds: list[Record], timings: list[Record]) -> Record:
  """The content of summary.json: what a table of runs needs.

  Args:
    rounds: the lines of metrics.jsonl, at least one with a test.
    timings: the lines of timings.jsonl.
  """
  tested = [record for record in rounds if 'test_accuracy' in record]
  best = max(tested, key=lambda record: record['test_accuracy'])
  names = [f'{phase}_seconds' for phase in PHASES]
  return {
    'rounds': rounds[-1]['round'],
    'test_accuracy': tested[-1]['test_accuracy'],
    'test_loss': tested[-1]['test_loss'],
    **{name: tested[-1][name] for name in _OF_SEVERAL if name in tested[-1]},
    'best_test_accuracy': best['test_accuracy'],
    'best_round': best['round'],
    'bytes_down': sum(record['bytes_down'] for record in rounds),
    'bytes_up': sum(record['bytes_up'] for record in rounds),
  } | {name: round(sum(line[name] for line in timings), 3) for name in names}


def peak_memory_bytes() -> int:
  """The most memory in use so far: of the device if it tells, else of the process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
  return stats.get('peak_bytes_in_use', host)
