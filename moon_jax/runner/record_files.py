"""Appends a line for each round to the growing files of a run, and sums them up.

metrics.jsonl   results only, no clock, so that a resumed run ends with the same bytes
                as an uninterrupted one
timings.jsonl   seconds, samples/s, memory
summary.json    written when the last round is done, or a callback has ended the run
"""

import json
import math
import pathlib

from moon_jax.core import files
from moon_jax.core.errors import NoCheckpointError
from moon_jax.runner.round_records import Record, SummaryOptions, summarise
from moon_jax.runner.run_directory import METRICS, SUMMARY, TIMINGS, stop_entries


class Records:
  """The growing files of a run. It is a context manager.

  Lines after the restored round are of rounds that will be run again: they are removed.
  So is summary.json, as soon as the directory holds no finished run: with these lines,
  or before the first new one. A start that fails earlier leaves it.

  Attributes:
    rounds: the lines of metrics.jsonl so far, and the one that `begin_metrics` began.
    num_dropped: number of lines that were removed.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    completed_rounds: int,
    summary_options: SummaryOptions | None = None,
  ):
    """Opens the files.

    Args:
      workdir: the run directory.
      completed_rounds: number of rounds in the state from which the run continues.
      summary_options: see `summarise`.

    Raises:
      NoCheckpointError: the files lack rounds that are in the state.
      RunError: the files cannot be written.
    """
    self._workdir = workdir
    self._summary_options = summary_options
    self._has_new_rounds = False
    self.rounds, self.num_dropped = _drop_later_rounds(
      workdir / METRICS, completed_rounds
    )
    if len(self.rounds) != completed_rounds:
      raise NoCheckpointError(
        f'{workdir / METRICS} has {len(self.rounds)} of the {completed_rounds} '
        'rounds in the checkpoint.'
      )
    with files.writing(workdir):
      if self.num_dropped:
        self._remove_summary()
      _drop_later_rounds(workdir / TIMINGS, completed_rounds)
      # Unbuffered, so that closing the file does not try again what a full disk
      # refused.
      self._metrics = (workdir / METRICS).open('ab', buffering=0)
      self._timings = (workdir / TIMINGS).open('ab', buffering=0)

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    files.close(self._metrics)
    files.close(self._timings)

  def _remove_summary(self):
    (self._workdir / SUMMARY).unlink(missing_ok=True)

  def begin_metrics(self, record: Record) -> None:
    """Begins a line of metrics.jsonl, to which others may add until it is written."""
    self.rounds.append(record)

  def write_metrics(self) -> None:
    """Appends the line that was begun to metrics.jsonl.

    Raises:
      RunError: the disk is full.
    """
    if not self._has_new_rounds:
      with files.writing(self._workdir):
        self._remove_summary()
      self._has_new_rounds = True
    _append(self._metrics, self.rounds[-1])

  def add_timings(self, record: Record) -> None:
    """Appends a line to timings.jsonl.

    Raises:
      RunError: the disk is full.
    """
    _append(self._timings, record)

  def finish(self, stop_reason: str, rounds_asked: int) -> None:
    """Writes summary.json, which marks the run as finished.

    Args:
      stop_reason: why a callback has ended the run before its last round, or ''.
      rounds_asked: number of rounds that were asked for.
    """
    timings = files.read_lines(self._workdir / TIMINGS)
    summary = summarise(self.rounds, timings, self._summary_options)
    summary |= stop_entries(stop_reason, rounds_asked)
    files.write_json(self._workdir / SUMMARY, summary)


def _append(file, record):
  # JSON has no NaN, so a diverged loss is written as null.
  finite = {
    name: None if isinstance(entry, float) and not math.isfinite(entry) else entry
    for name, entry in record.items()
  }
  line = (json.dumps(finite, allow_nan=False) + '\n').encode()
  with files.writing(pathlib.Path(file.name)):
    while line:
      num_written = file.write(line)
      line = line[num_written:]
    # On the disk before the checkpoint, which relies on it.
    files.flush_descriptor(file.fileno())


def _drop_later_rounds(path, completed_rounds):
  """Removes the lines of later rounds; the lines that stay, and the number removed."""
  lines = files.read_lines(path)
  earlier = [line for line in lines if line['round'] <= completed_rounds]
  files.replace(path, ''.join(json.dumps(line) + '\n' for line in earlier))
  return earlier, len(lines) - len(earlier)
