"""TensorBoard's event file. On a full disk the file ends, and the run continues."""

import contextlib
import functools
import io
import pathlib
import re
import time
import types
from collections.abc import Mapping

import numpy as np
from PIL import Image

from moon_jax.core import files, imports

# tensorboardX loads them wherever they are installed: PyTorch, which takes 2 s and
# 180 MB, for its tensors, the others to write to their servers.
with imports.without('torch', 'boto3', 'google.cloud', 'comet_ml'):
  from tensorboardX import record_writer, summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary


class _File:
  """An event file that ends where it cannot be written, as on a full disk."""

  def __init__(self, path: str):
    self._file = io.FileIO(path.partition(':')[2], 'w')
    self.close = self._file.close

  def write(self, data: bytes) -> None:
    try:
      self._file.write(data)
    except (OSError, ValueError):  # ValueError: the file is closed
      self.close()

  def flush(self) -> None:
    """Does nothing: there is no buffer."""


_file_system = types.SimpleNamespace(open=_File)
record_writer.register_writer_factory('moon_jax', _file_system)


class EventFile:
  """The event file of one start of a run. Events that cannot be written are lost.

  Each method writes one event. tensorboardX's own SummaryWriter makes one of every
  number, and pickles it for a thread: 5 ms in a round of 45 ms.
  """

  def __init__(self, folder: pathlib.Path, first_round: int):
    """Makes the file. Events of `first_round` and later in older files become void.

    Raises:
      RunError: the file cannot be made.
    """
    with files.writing(folder):
      folder.mkdir(exist_ok=True)
      self._writer = EventsWriter(f'moon_jax:{folder}/{_next_prefix(folder)}')
    self._add(Event(session_log=SessionLog(status=SessionLog.START)), first_round)

  def add_numbers(self, numbers: Mapping[str, float], round_number: int) -> None:
    """Writes the numbers of a round."""
    values = [
      Summary.Value(tag=_tag(name), simple_value=number)
      for name, number in numbers.items()
    ]
    self._add(Event(summary=Summary(value=values)), round_number)

  def add_histogram(self, name: str, values: np.ndarray, round_number: int) -> None:
    """Writes the distribution of the finite values among [K], if it has bins."""
    finite = values[np.isfinite(values)]
    if len(finite):
      # NumPy can make no bins of huge values that hardly differ.
      with contextlib.suppress(ValueError):
        histogram = summary.histogram(name, finite, bins='auto')
        self._add(Event(summary=histogram), round_number)

  def add_picture(self, name: str, png: bytes) -> None:
    """Writes a picture of the whole run."""
    with Image.open(io.BytesIO(png)) as picture:
      width, height = picture.size
      num_channels = len(picture.getbands())
    image = Summary.Image(
      height=height,
      width=width,
      colorspace=num_channels,
      encoded_image_string=png,
    )
    value = Summary.Value(tag=_tag(name), image=image)
    self._add(Event(summary=Summary(value=[value])), 0)

  def _add(self, event, round_number):
    event.step = round_number
    event.wall_time = time.time()
    self._writer.write_event(event)

  def close(self) -> None:
    self._writer.close()


def _next_prefix(folder: pathlib.Path) -> str:
  """The beginning of the next file's name: 'events000002' after 'events000001'.

  TensorBoard reads the files in the order of their names. The time, with which
  tensorboardX's names begin, does not order them: the next start may come in the same
  second, or its clock may be earlier. Files of older versions have no number, and are
  read first: '.' comes before '0'.
  """
  matches = [re.match(r'events(\d+)\.', path.name) for path in folder.iterdir()]
  numbers = [int(match[1]) for match in matches if match]
  return f'events{max(numbers, default=0) + 1:06}'


@functools.cache
def _tag(name: str) -> str:
  """The name with the letters that TensorBoard allows, as tensorboardX writes it."""
  return summary.scalar(name, 0.0).value[0].tag
