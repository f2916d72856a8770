"""TensorBoard's event file. On a full disk the file ends, and the run continues."""

import contextlib
import io
import pathlib
import types

import numpy as np
from tensorboardX import SummaryWriter, record_writer

from moon_jax.core import files


class _File:
  """An event file that ends where it cannot be written, as on a full disk.

  An exception would end tensorboardX's thread, and the run would wait for it forever.
  """

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


_file_system = types.SimpleNamespace(open=_File, directory_check=lambda path: None)
record_writer.register_writer_factory('moon_jax', _file_system)


def writer(folder: pathlib.Path, first_round: int) -> SummaryWriter:
  """The event file of one start of a run. Events that cannot be written are lost.

  Events of `first_round` and later in older files become void.

  Raises:
    RunError: the file cannot be made.
  """
  with files.writing(folder):
    folder.mkdir(exist_ok=True)
    return SummaryWriter(
      logdir=f'moon_jax:{folder}',
      # The name of a file has its second, in which the next start may also come.
      filename_suffix=f'.{first_round}',
      purge_step=first_round,
    )


def add_histogram(
  writer: SummaryWriter, name: str, values: np.ndarray, round_number: int
) -> None:
  """Writes the distribution of the finite values among [K], if it has bins."""
  finite = values[np.isfinite(values)]
  if len(finite):
    # NumPy can make no bins of huge values that hardly differ.
    with contextlib.suppress(ValueError):
      writer.add_histogram(name, finite, round_number, bins='auto')
