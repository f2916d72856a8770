"""Writes TensorBoard's event file: the numbers of the records, histograms, pictures."""

import math
import os
import pathlib
import platform
import time
from typing import Any

import numpy as np
from tensorboardX import summary
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import RecordWriter


class Board:
  """One event file of a start of a run.

  tensorboardX's SummaryWriter writes in a thread of its own. If that cannot write, it
  dies unheard, and the run waits for it for ever; so this class writes at once.
  """

  def __init__(self, folder: pathlib.Path, first_round: int):
    """Makes the file; events of this round and later ones in older files are void."""
    folder.mkdir(exist_ok=True)
    # TensorBoard reads the files of a folder in the order of their names.
    name = f'events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}'
    self._writer = RecordWriter(str(folder / name))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._add(0, file_version='brain.Event:2')
    self._add(first_round, session_log=start)
    self._writer.flush()

  def add(self, group: str, record: dict[str, Any]) -> None:
    """Writes the finite numbers of a line of the records as `group/name`.

    Raises:
      OSError: it cannot be written.
    """
    for name, value in record.items():
      is_number = isinstance(value, (int, float)) and math.isfinite(value)
      if is_number and name != 'round':
        scalar = summary.scalar(f'{group}/{name}', value)
        self._add(record['round'], summary=scalar)
    self._writer.flush()

  def add_histogram(self, name: str, values: np.ndarray, round_number: int) -> None:
    """Writes the distribution of finite values, [K].

    Raises:
      OSError: it cannot be written.
    """
    self._add(round_number, summary=summary.histogram(name, values, bins='auto'))
    self._writer.flush()

  def add_picture(self, name: str, pixels: np.ndarray) -> None:
    """Writes a picture, [H, W, C] in [0, 1], as of before the first round.

    Raises:
      OSError: it cannot be written.
    """
    self._add(0, summary=summary.image(name, pixels, dataformats='HWC'))
    self._writer.flush()

  def close(self) -> None:
    """Closes the file.

    Raises:
      OSError: what could not be written before cannot be written now.
    """
    self._writer.close()

  def _add(self, step, **content):
    event = event_pb2.Event(wall_time=time.time(), step=step, **content)
    self._writer.write(event.SerializeToString())
