"""TensorBoard: event files in the run directory."""

import numpy as np
from PIL import Image

from moon_jax.core import files
from moon_jax.runner.callbacks import Logger


class TensorBoard(Logger):
  """Writes event files, one for each start, to `tensorboard/` of the run directory."""

  def __init__(self):
    self._writer = None

  def begin(self, run):
    self._folder = run.workdir / 'tensorboard'
    self._first_round = run.rounds.start + 1

  def after_round(self, round):
    # Imported here: it may load PyTorch, and the first line of metrics.jsonl need not
    # wait.
    from moon_jax.runner.loggers import events

    if self._writer is None:
      self._writer = events.writer(self._folder, self._first_round)
    super().after_round(round)
    events.add_histogram(
      self._writer, 'clients/drift', round.clients.drift, round.number
    )

  def log_numbers(self, numbers, round_number):
    for name, number in numbers.items():
      self._writer.add_scalar(name, number, round_number)

  def log_picture(self, path):
    if self._writer:
      with files.opened(path) as file, Image.open(file) as picture:
        pixels = np.asarray(picture)
      self._writer.add_image(path.stem, pixels, 0, dataformats='HWC')

  def close(self):
    if self._writer:
      self._writer.close()
