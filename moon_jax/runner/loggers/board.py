"""TensorBoard: event files in the run directory."""

from moon_jax.core import files
from moon_jax.runner.callbacks import Logger


class TensorBoard(Logger):
  """Writes event files, one for each start, to `tensorboard/` of the run directory."""

  def __init__(self):
    self._file = None

  def begin(self, run):
    self._folder = run.workdir / 'tensorboard'
    self._first_round = run.rounds.start + 1

  def _open(self):
    # Imported here: the first line of metrics.jsonl need not wait.
    from moon_jax.runner.loggers import events

    if self._file is None:
      self._file = events.EventFile(self._folder, self._first_round)

  def after_round(self, round):
    self._open()
    super().after_round(round)
    self._file.add_histogram('clients/drift', round.clients.drift, round.number)

  def log_numbers(self, numbers, round_number):
    self._file.add_numbers(numbers, round_number)

  def log_picture(self, path):
    self._open()  # a start without rounds has a picture too
    with files.opened(path) as file:
      self._file.add_picture(path.stem, file.read())

  def close(self):
    if self._file:
      self._file.close()
