"""Callbacks act beside the rounds of a run: records, checkpoints, pictures, your own.

  class Slack(moon_jax.Callback):
    def after_round(self, round):
      post(f'round {round.number}: {round.metrics["train_loss"]:.3f}')

  moon_jax.run(config, workdir, callbacks=[Slack()])

After each round they are called in the order in which `loop` lists them: yours before
the state is saved. If a run has several processes, only the first has callbacks.
"""

import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.building.experiment import Experiment
from moon_jax.config import Config
from moon_jax.core.errors import DivergedError
from moon_jax.core.types import ClientMetrics
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.metrics import Record, terms
from moon_jax.runner.records import Records
from moon_jax.runner.rounds import Round, is_due

_NAMED = 10  # most clients that a message names; thousands may have diverged


class Run(NamedTuple):
  """A run that begins, or continues.

  Attributes:
    config: configuration of the experiment.
    workdir: the run directory.
    experiment: what the configuration builds.
    history: the lines of metrics.jsonl so far; it grows by one in each round.
    rounds: numbers of the rounds that are left, from 0.
  """

  config: Config
  workdir: pathlib.Path
  experiment: Experiment
  history: list[Record]
  rounds: range


class Callback:
  """Sees the rounds of a run. Each method does nothing unless it is overridden."""

  def begin(self, run: Run) -> None:
    """Called once, before the first round of this process."""

  def wants_state(self, number: int) -> bool:
    """Whether the round with this number, from 1, needs its `state`.

    The next round then waits for this callback.
    """
    return False

  def after_round(self, round: Round) -> None:
    """Called after each round; `round.stop(why)` ends the run.

    If this round lacks its state or a test, the run ends after a later, tested round.
    """

  def end(self) -> None:
    """Called when the run has all its rounds, or a callback has stopped it."""

  def close(self) -> None:
    """Called last, however the run ends."""


class _Function(Callback):
  """Calls a function with each round and its state; a true result ends the run."""

  def __init__(self, function: Callable[[Round], Any]):
    self._function = function

  def wants_state(self, number):
    return True

  def after_round(self, round):
    if why := self._function(round):
      name = getattr(self._function, '__name__', 'a callback')
      round.stop(why if isinstance(why, str) else f'{name} said so')


def callback_of(given: Any) -> Callback:
  """A callback as it is, an instance of its class, or a callback of a function."""
  made = given() if isinstance(given, type) else given
  return made if isinstance(made, Callback) else _Function(made)


class Writes(Callback):
  """Appends each round to metrics.jsonl; a round that is not finite ends the run."""

  def __init__(self, records: Records, on_nonfinite: str):
    self._records, self._on_nonfinite = records, on_nonfinite

  def after_round(self, round):
    self._records.add_metrics(round.metrics)
    stop_if_diverged(round.metrics, round.clients, self._on_nonfinite)


class Saves(Callback):
  """Saves the state when a save is due, and before the run ends or is stopped.

  A thread writes it while the next round trains. Once all states up to a round are on
  the disk, the round's line is added to timings.jsonl, with the time that the run
  waited.
  """

  def __init__(self, checkpoints: Checkpoints, records: Records, config: Config):
    self._checkpoints, self._records, self._config = checkpoints, records, config
    self._lines = []

  def wants_state(self, number):
    config = self._config
    return is_due(number, config.checkpoint_every_rounds, config.num_rounds)

  def after_round(self, round):
    asked, is_last = self._config.num_rounds, bool(round.stopped) or round.is_awaited
    if round.state and (self.wants_state(round.number) or is_last):
      with round.clock('save'):
        self.close()
        stopped = {'stopped': round.stopped, 'rounds_asked': asked}
        self._checkpoints.save(round.state, **(stopped if round.stopped else {}))
        if is_last or round.number == asked:
          self._checkpoints.wait()
    self._lines.append(round.timings)
    if not self._checkpoints.is_writing():
      self.close()

  def close(self):
    lines, self._lines = self._lines, []  # none of them if a state cannot be written
    self._checkpoints.wait()
    for line in lines:
      self._records.add_timings(line)


def stop_if_diverged(record: Record, clients: ClientMetrics, on_nonfinite: str) -> None:
  """Ends the run if a round has left something that is not finite.

  Args:
    record: the round's line of metrics.jsonl.
    clients: leaves [K], as NumPy.
    on_nonfinite: 'stop', or 'skip_client' if clients may be left out.

  Raises:
    DivergedError: its message names the round, what is not finite, and the clients.
  """
  bad = [str(client) for client in np.array(record['clients'])[~clients.finite]]
  if on_nonfinite == 'skip_client' and clients.finite.any():
    bad = []  # these clients have been left out
  numbers = [name for name, value in record.items() if isinstance(value, float)]
  names = [name for name in numbers if not math.isfinite(record[name])]
  if not bad and not names and clients.server_finite:
    return
  what = ', '.join(names) or ('updates' if bad else 'the new global model')
  if bad:
    what += f' (clients {", ".join(bad[:_NAMED] + ["..."] * (len(bad) > _NAMED))})'
  remedy = 'A smaller --config.optimizer.learning_rate may help, in a new directory'
  if on_nonfinite == 'stop':
    remedy += '; --config.on_nonfinite=skip_client continues here without such clients'
  raise DivergedError(
    f'Diverged in round {record["round"]}. Not finite: {what}. {remedy}.'
  )


class Logger(Callback):
  """Passes the finite numbers of each round, and pictures, to a logger.

  A subclass has `numbers(values, number)`, for a round's dict of names and numbers, and
  `picture(path)`.
  """

  def after_round(self, round):
    lines = {'metrics': round.metrics, 'timings': round.timings}
    found = {
      f'{group}/{name}': value
      for group, line in lines.items()
      for name, value in line.items()
      if isinstance(value, (int, float)) and name != 'round' and math.isfinite(value)
    }
    self.numbers(found, round.number)


class Draws(Callback):
  """Draws curves.png and partition.png at the end; loggers get partition.png."""

  def __init__(self, run: Run, loggers: Sequence[Logger]):
    self._run, self._loggers = run, loggers

  def end(self):
    # matplotlib is imported here, because the first round need not wait for it.
    from moon_jax.runner import plots

    run, picture = self._run, self._run.workdir / 'partition.png'
    shown = terms(run.history[-1], run.experiment.algorithm.measured)
    plots.curves(run.workdir / 'curves.png', run.history, run.workdir.name, shown)
    built = run.experiment
    plots.heat_map(
      picture, built.data.class_counts, run.workdir.name, built.data.class_names
    )
    for logger in self._loggers:
      logger.picture(picture)
