"""TensorBoard: event files in the run directory."""

from moon_jax.runner.callbacks import Logger


class TensorBoard(Logger):
  """Writes event files, one for each start, to `tensorboard/` of the run directory."""

  def __init__(self):
    self._board = None

  def begin(self, run):
    self._folder, self._first = run.workdir / 'tensorboard', run.rounds.start + 1

  def after_round(self, round):
    if not self._board:
      # Its library may load PyTorch; the first line of metrics.jsonl need not wait.
      from moon_jax.runner.loggers.events import Board

      self._board = Board(self._folder, self._first)
    super().after_round(round)
    self._board.add_histogram('clients/drift', round.clients.drift, round.number)

  def numbers(self, values, number):
    self._board.add(values, number)

  def picture(self, path):
    if self._board:
      self._board.add_picture(path.stem, path)

  def close(self):
    if self._board:
      self._board.close()
