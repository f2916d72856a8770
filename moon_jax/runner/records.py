"""Appends a line for each round to the growing files of a run, and to TensorBoard.

metrics.jsonl   results only, no clock, so that a resumed run ends with the same bytes
                as an uninterrupted one
timings.jsonl   seconds, samples/s, memory
tensorboard/    the same scalars, the partition, histograms of the clients' drift
partition.png   how many examples of each class a client owns
"""

import functools
import json
import math
import os
import pathlib
from concurrent import futures

import numpy as np

from moon_jax.errors import NoCheckpointError
from moon_jax.runner import files
from moon_jax.runner.metrics import Record
from moon_jax.runner.run_directory import METRICS, SUMMARY, TIMINGS

# Of all runs of the process.
_BESIDE = futures.ThreadPoolExecutor(1)


class Records:
  """The growing files of a run. A context manager.

  Lines after the restored round are of rounds that will be run again: they go, and so
  does summary.json, for the directory does not hold a finished run from here on.

  Attributes:
    workdir: the run directory.
    rounds: the lines of metrics.jsonl so far.
    num_dropped: how many lines went.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    completed_rounds: int,
    counts: np.ndarray | None = None,
  ):
    """Opens the files.

    Args:
      workdir: the run directory.
      completed_rounds: in the state that the run goes on from.
      counts: [N, Y], training examples of each client and class, which partition.png
        shows; it is drawn beside the second round, for which the first need not wait.

    Raises:
      NoCheckpointError: rounds that are in the state are not in the files.
      RunError: the files cannot be written.
    """
    self.workdir, self._counts, self._drawing = workdir, counts, None
    self.rounds, self.num_dropped = _keep(workdir / METRICS, completed_rounds)
    if len(self.rounds) != completed_rounds:
      raise NoCheckpointError(
        f'{workdir / METRICS} has {len(self.rounds)} of the {completed_rounds} '
        'rounds in the checkpoint.'
      )
    with files.writing(workdir):
      (workdir / SUMMARY).unlink(missing_ok=True)
      _keep(workdir / TIMINGS, completed_rounds)
      # Unbuffered: what cannot be written is not tried again when the file is closed.
      self._metrics = (workdir / METRICS).open('ab', buffering=0)
      self._timings = (workdir / TIMINGS).open('ab', buffering=0)
    self._first_round = completed_rounds + 1

  def __enter__(self):
    return self

  def __exit__(self, kind, *exception):
    if self._drawing is None and kind is None:  # the process before was killed early
      self._drawing = _BESIDE.submit(self._draw_partition)
    fault = self._drawing and self._drawing.exception()  # waits for it
    self._metrics.close()
    self._timings.close()
    if 'board' in vars(self):
      self.board.close()
    if fault and kind is None:
      raise fault

  @functools.cached_property
  def board(self):
    """TensorBoard's file. Made when first asked for: loading its library may load
    PyTorch, which the first line of metrics.jsonl need not wait for."""
    from moon_jax.runner.tensorboard import Board

    return Board(self.workdir / 'tensorboard', self._first_round)

  def add_metrics(self, record: Record) -> None:
    """Appends a line to metrics.jsonl, and its numbers to TensorBoard.

    Raises:
      RunError: the disk is full.
    """
    self.rounds.append(record)
    _append(self._metrics, record)
    self.board.add('metrics', record)

  def add_timings(self, record: Record) -> None:
    """Appends a line to timings.jsonl, and its numbers to TensorBoard.

    Raises:
      RunError: the disk is full.
    """
    _append(self._timings, record)
    self.board.add('timings', record)
    if self._drawing is None:
      self._drawing = _BESIDE.submit(self._draw_partition)
    elif self._drawing.done():
      self._drawing.result()  # what went wrong ends the run here

  def _draw_partition(self):
    path = self.workdir / 'partition.png'
    if self._counts is not None and not path.exists():
      from moon_jax.runner import plots  # matplotlib takes as long to load as to draw

      plots.heat_map(path, self._counts, self.workdir.name)
      with files.writing(path):  # it may be moved before it is read
        self.board.add_picture('partition', path)


def _append(file, record):
  # JSON has no NaN: a diverged loss is written as null.
  clean = {
    name: None if isinstance(value, float) and not math.isfinite(value) else value
    for name, value in record.items()
  }
  line = (json.dumps(clean, allow_nan=False) + '\n').encode()
  with files.writing(pathlib.Path(file.name)):
    while line:
      line = line[file.write(line) :]
    # On the disk before the checkpoint that counts on it.
    os.fsync(file.fileno())


def _keep(path, completed_rounds):
  """Drops the lines of later rounds; the lines that stay, and how many went."""
  lines = files.read_lines(path)
  kept = [line for line in lines if line['round'] <= completed_rounds]
  files.replace(path, ''.join(json.dumps(line) + '\n' for line in kept))
  return kept, len(lines) - len(kept)
