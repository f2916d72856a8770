"""Writes TensorBoard's event file: the numbers of the records, histograms, pictures."""

import contextlib
import math
import os
import pathlib
import platform
import threading
import time

import numpy as np
from PIL import Image
from tensorboardX import summary
from tensorboardX.proto import event_pb2, summary_pb2
from tensorboardX.record_writer import RecordWriter

from moon_jax import files
from moon_jax.runner.metrics import Record


class Board:
  """One event file of a start of a run.

  tensorboardX's SummaryWriter writes in a thread of its own. If that cannot write, it
  dies unheard, and the run waits for it for ever; so this class writes at once. What
  cannot be written is a RunError. Threads may share it.
  """

  def __init__(self, folder: pathlib.Path, first_round: int):
    """Makes the file; events of this round and later ones in older files are void."""
    self._folder, self._writing = folder, threading.Lock()
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    with files.writing(folder):
      folder.mkdir(exist_ok=True)
      # TensorBoard reads the files of a folder in the order of their names.
      name = f'events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}'
      self._writer = RecordWriter(str(folder / name))
    self._add(0, file_version='brain.Event:2')
    self._add(first_round, session_log=start)

  def add(self, group: str, record: Record) -> None:
    """Writes the finite numbers of a line of the records as `group/name`."""
    numbers = {
      name: value
      for name, value in record.items()
      if isinstance(value, (int, float)) and math.isfinite(value) and name != 'round'
    }
    values = [summary.scalar(f'{group}/{n}', v).value[0] for n, v in numbers.items()]
    self._add(record['round'], summary=summary_pb2.Summary(value=values))

  def add_histogram(self, name: str, values: np.ndarray, round_number: int) -> None:
    """Writes the distribution of the finite ones of the values, [K], if it has bins."""
    finite = values[np.isfinite(values)]
    if len(finite):
      # Of huge values that hardly differ numpy can make no bins.
      with contextlib.suppress(ValueError):
        self._add(round_number, summary=summary.histogram(name, finite, bins='auto'))

  def add_picture(self, name: str, path: pathlib.Path) -> None:
    """Writes a PNG, as of before the first round."""
    with Image.open(path) as opened:
      width, height = opened.size
    picture = summary_pb2.Summary.Image(
      width=width, height=height, encoded_image_string=path.read_bytes()
    )
    value = summary_pb2.Summary.Value(tag=name, image=picture)
    self._add(0, summary=summary_pb2.Summary(value=[value]))

  def close(self) -> None:
    """Closes the file; what it could not write has been told."""
    with contextlib.suppress(OSError):
      self._writer.close()

  def _add(self, step, **content):
    event = event_pb2.Event(wall_time=time.time(), step=step, **content)
    with self._writing, files.writing(self._folder):
      self._writer.write(event.SerializeToString())
      self._writer.flush()
