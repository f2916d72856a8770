"""Callbacks see each round of a run: for records, checkpoints, pictures, your own.

  class Slack(moon_jax.Callback):
    def after_round(self, round):
      post(f'round {round.number}: {round.metrics["train_loss"]:.3f}')

  moon_jax.run(config, workdir, callbacks=[Slack()])

After each round they are called in the order in which `loop` lists them: yours before
the round's line is written and the state is saved. A number that they put into
`round.metrics` is a column of that line. If a run has several processes, only the first
has callbacks.
"""

import collections
import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax.building.experiment import Experiment
from moon_jax.config import Config
from moon_jax.core import activity
from moon_jax.core.errors import DivergedError, RunError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import ClientMetrics
from moon_jax.platform import hosts
from moon_jax.runner import client_file
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.client_file import ClientFile
from moon_jax.runner.record_files import Records
from moon_jax.runner.round_records import Record, is_column_name, terms
from moon_jax.runner.rounds import Round, is_due
from moon_jax.runner.run_directory import Hold, stop_entries

_MAX_ROUNDS_BEHIND = 100  # of a logger
# By default a save is due every so many rounds, unless the last one is less than so
# many seconds ago.
_AUTO_ROUNDS = 10
_AUTO_SECONDS = 5.0
_MAX_NAMED_CLIENTS = 10  # in a message; thousands may have diverged
_LARGEST_NUMBER = 1e300  # of metrics.jsonl; see core/run_directory.json
_MOST_LETTERS = 50  # of a wrong entry, in a message


class Run(NamedTuple):
  """A run that begins, or continues.

  Attributes:
    config: configuration of the experiment.
    workdir: the run directory.
    experiment: what the configuration builds.
    history: the lines of metrics.jsonl so far, to be read only; the run adds a line
      after each round, before it calls `after_round`.
    rounds: numbers of the rounds that are left, from 0.
  """

  config: Config
  workdir: pathlib.Path
  experiment: Experiment
  history: list[Record]
  rounds: range


class Callback:
  """Sees the rounds of a run. Each method does nothing unless it is overridden."""

  _is_callback = True  # for `catalog.require_callback`

  def begin(self, run: Run) -> None:
    """Called once, before the first round of this process."""

  def wants_state(self, number: int) -> bool:
    """Whether the round with this number, from 1, needs its `state`.

    The next round then waits for this callback.
    """
    return False

  def after_round(self, round: Round) -> None:
    """Called after each round; `round.stop(reason)` ends the run.

    If this round lacks its state or a test, the run ends after a later, tested round.
    A finite number that is put into `round.metrics` under a new name is a column of
    metrics.jsonl, and loggers get it too.
    """

  def end(self) -> None:
    """Called when the run has all its rounds, or a callback has stopped it.

    The pictures and summary.json are written after it; `close` finds them.
    """

  def close(self) -> None:
    """Called last, however the run ends; summary.json is there if it has finished."""


class _Function(Callback):
  """Calls a function with each round and its state; a true result ends the run."""

  def __init__(self, function: Callable[[Round], Any]):
    self._function = function

  def wants_state(self, number):
    return True

  def after_round(self, round):
    reason = self._function(round)
    if reason:
      name = getattr(self._function, '__name__', 'a callback')
      round.stop(reason if isinstance(reason, str) else f'{name} said so')


def callback_of(entry: Any) -> Callback:
  """The callback that a user means: a callback, a class of one, or a function."""
  if isinstance(entry, type):
    entry = entry()
  return entry if isinstance(entry, Callback) else _Function(entry)


class CheckedCallback(Callback):
  """A user's callback; what it changes in the round's line is checked.

  If it calls `sys.exit`, the run has failed: as an exit, it would count as done.
  """

  def __init__(self, callback: Callback):
    self._callback = callback

  def begin(self, run):
    with _no_exit():
      self._callback.begin(run)

  def wants_state(self, number):
    with _no_exit():
      return self._callback.wants_state(number)

  def after_round(self, round):
    record = round.metrics
    record_before = {
      name: list(value) if isinstance(value, list) else value
      for name, value in record.items()
    }
    with _no_exit():
      self._callback.after_round(round)
    if round.metrics is not record:
      raise UsageError(
        'A callback has replaced round.metrics: put the number into it, '
        'round.metrics["NAME"] = number.'
      )
    _check_additions(record, record_before)

  def end(self):
    with _no_exit():
      self._callback.end()

  def close(self):
    with _no_exit():
      self._callback.close()


@contextlib.contextmanager
def _no_exit() -> Iterator[None]:
  """Makes an error of a callback's `sys.exit`."""
  try:
    yield
  except SystemExit as error:
    raise RunError(
      f'A callback has called sys.exit({error.code!r}): round.stop(REASON) ends a run.'
    ) from error


def _check_additions(record: Record, record_before: Record) -> None:
  """Checks what a callback has put into a round's line; makes Python's numbers of it.

  Raises:
    UsageError: it is no finite number, has the name of another column, or another
      column has changed.
  """
  for name, value in record_before.items():
    is_same = name in record and record[name] is value
    if type(value) is list:  # a copy: the list itself may have been changed
      is_same = type(record.get(name)) is list and record[name] == value
    if not is_same:
      raise UsageError(
        f'A callback has changed {name!r} in round.metrics: give its own number '
        'another name.'
      )
  for name in record.keys() - record_before.keys():
    if not isinstance(name, str) or is_column_name(name):
      raise UsageError(
        f'A callback has put {name!r} into round.metrics, which is the name of another '
        'column, or no text: give the number another name.'
      )
    number = record[name]
    if hasattr(number, 'item') and not getattr(number, 'shape', ()):
      number = number.item()  # of NumPy or JAX
    is_number = type(number) in (int, float) and abs(number) <= _LARGEST_NUMBER
    if not is_number:
      raise UsageError(
        f'A callback has put {name!r} into round.metrics, which must be a finite '
        f'number, not {str(number)[:_MOST_LETTERS]!r}: leave it out where there is '
        'none.'
      )
    record[name] = number


class DirectoryHolder(Callback):
  """Ends the run, before anything is written, if another has taken its directory."""

  def __init__(self, hold: Hold):
    self._hold = hold

  def after_round(self, round):
    self._hold.require()


class RecordBeginner(Callback):
  """Adds each round to the history; writes one that is not finite, and ends the run.

  It comes before the user's callbacks, which may add numbers, and `RecordWriter` after
  them.
  """

  def __init__(self, records: Records, on_nonfinite: str):
    self._records, self._on_nonfinite = records, on_nonfinite

  def after_round(self, round):
    self._records.begin_metrics(round.metrics)
    try:
      stop_if_diverged(
        round.metrics,
        round.clients,
        self._on_nonfinite,
        round.experiment.data.client_name,
      )
    except DivergedError:
      self._records.write_metrics()
      raise


class RecordWriter(Callback):
  """Writes each round's line of metrics.jsonl, with what callbacks have added.

  A tested round is appended to clients.csv.gz too.
  """

  def __init__(self, records: Records, client_file: ClientFile):
    self._records, self._client_file = records, client_file

  def after_round(self, round):
    self._records.write_metrics()
    self._client_file.add(round.number, round.client_numbers)


def is_save_due(number: int, config: Config) -> bool:
  """Whether the state is saved after this round; with 'auto', if it is not too soon."""
  every_rounds = config.checkpoint_every_rounds
  if every_rounds == 'auto':
    every_rounds = _AUTO_ROUNDS
  return is_due(number, every_rounds, config.num_rounds)


class CheckpointSaver(Callback):
  """Saves the state when a save is due, and before the run ends or is stopped.

  By default rounds that are due less than five seconds after the last save are not
  saved: a save of a small state takes longer than a round.

  A thread writes it while the next round trains. Once all states up to a round are on
  the disk, the round's line is added to timings.jsonl, with the time that the run
  waited.
  """

  def __init__(
    self,
    checkpoints: Checkpoints,
    records: Records,
    client_file: ClientFile,
    config: Config,
  ):
    self._checkpoints, self._records, self._config = checkpoints, records, config
    self._client_file = client_file
    self._unwritten_timings = []
    self._saved_at = -math.inf
    # All processes of a run must agree on the rounds that are saved.
    self._has_least_seconds = (
      config.checkpoint_every_rounds == 'auto' and hosts.count() == 1
    )

  def wants_state(self, number):
    num_rounds = self._config.num_rounds
    seconds_since_save = time.monotonic() - self._saved_at
    if (
      self._has_least_seconds
      and seconds_since_save < _AUTO_SECONDS
      and number != num_rounds
    ):
      return False
    return is_save_due(number, self._config)

  def after_round(self, round):
    num_rounds = self._config.num_rounds
    is_save_wanted = self.wants_state(round.number) or round.run_may_end_early
    if round.state and is_save_wanted:
      saving = activity.doing(f'saving round {round.number}/{num_rounds}')
      with round.clock('save'), saving:
        self.close()
        self._client_file.flush()  # the state relies on it
        self._checkpoints.save(round.state, stop_entries(round.stopped, num_rounds))
        if round.run_may_end_early or round.number == num_rounds:
          self._checkpoints.wait()
      self._saved_at = time.monotonic()
      round.is_saved = True
    self._unwritten_timings.append(round.timings)
    if not self._checkpoints.is_writing():
      self.close()

  def close(self):
    timings = self._unwritten_timings
    # No line is written if a state cannot be.
    self._unwritten_timings = []
    self._checkpoints.wait()
    for record in timings:
      self._records.add_timings(record)


class BestKeeper(Callback):
  """Keeps the state of the best round so far; the next checkpoint writes it.

  It comes before `CheckpointSaver`. Of equal rounds the first is the best.
  """

  def __init__(
    self,
    checkpoints: Checkpoints,
    config: Config,
    print_line: Callable[[str], None],
  ):
    """print_line: called with a line if an earlier round may have been better."""
    self._checkpoints, self._config = checkpoints, config
    self._print_line = print_line
    self._column = f'{config.keep_best}_{config.best_by}'
    self._sign = -1 if catalog.is_lower_better(config.best_by) else 1
    self._best = -math.inf

  def begin(self, run):
    kept = self._checkpoints.best_manifest
    is_kept = kept.get('best_by') == self._column
    if is_kept:
      self._best = self._sign * kept['best_number']
      # Starts in between may have kept none.
      numbers = [line.get(self._column) for line in run.history]
      is_kept = all(
        self._sign * number <= self._best for number in numbers if number is not None
      )
    if run.history and run.rounds and not is_kept:
      self._print_line(
        f'the best round by {self._column} among the {len(run.history)} so far was not '
        'kept: later rounds are compared with each other'
      )

  def wants_state(self, number):
    config = self._config
    return is_due(number, config.eval_every_rounds, config.num_rounds)

  def after_round(self, round):
    number = round.metrics.get(self._column)
    if number is None or round.state is None:
      return
    is_better = self._sign * number > self._best  # NaN never is
    if not is_better:
      return
    self._best = self._sign * number
    entries = {'best_by': self._column, 'best_number': number}
    # Not in `save_seconds`, by which a later start knows that a round was saved.
    self._checkpoints.keep_best(round.state, entries)


def stop_if_diverged(
  record: Record,
  clients: ClientMetrics,
  on_nonfinite: str,
  client_name: Callable[[int], str] = str,
) -> None:
  """Ends the run if a round has left something that is not finite.

  Args:
    record: the round's line of metrics.jsonl.
    clients: leaves [K], as NumPy.
    on_nonfinite: 'stop', or 'skip_client' if clients may be left out.
    client_name: number of a client -> its name.

  Raises:
    DivergedError: its message names the round, what is not finite, and the clients.
  """
  diverged_clients = np.array(record['clients'])[~clients.finite].tolist()
  if on_nonfinite == 'skip_client' and clients.finite.any():
    diverged_clients = []  # these clients have been left out
  columns = [
    name
    for name, number in record.items()
    if isinstance(number, float) and not math.isfinite(number)
  ]
  if not diverged_clients and not columns and clients.server_finite:
    return
  if columns:
    problem = ', '.join(columns)
  else:
    problem = 'updates' if diverged_clients else 'the new global model'
  if diverged_clients:
    clients_named = list(map(client_name, diverged_clients[:_MAX_NAMED_CLIENTS]))
    if len(diverged_clients) > _MAX_NAMED_CLIENTS:
      clients_named.append('...')
    word = 'client' if len(diverged_clients) == 1 else 'clients'
    problem += f' ({word} {", ".join(clients_named)})'
  remedy = f'A smaller {flag("optimizer.learning_rate")} may help, in a new directory'
  if on_nonfinite == 'stop':
    skipping = flag('on_nonfinite', 'skip_client')
    remedy += f'; {skipping} continues here without such clients'
  raise DivergedError(
    f'Diverged in round {record["round"]}. Not finite: {problem}. {remedy}.'
  )


class Logger(Callback):
  """Passes the finite numbers of each round, and pictures, to a logger.

  A subclass has `log_numbers(numbers, round_number)`, for a round's dict of names and
  numbers, and `log_picture(path)`.
  """

  def after_round(self, round):
    numbers = {}
    for group, record in (('metrics', round.metrics), ('timings', round.timings)):
      for name, number in record.items():
        is_number = isinstance(number, (int, float)) and math.isfinite(number)
        if is_number and name != 'round':
          numbers[f'{group}/{name}'] = number
    self.log_numbers(numbers, round.number)


class InThread(Logger):
  """A logger whose rounds are logged by a thread, in their order.

  The run does not wait for a slow server. It waits at its end, and where the logger is
  many rounds behind. What the logger raises ends the run after the next round.
  """

  def __init__(self, logger: Logger):
    self._logger = logger
    self._thread = futures.ThreadPoolExecutor(1, 'logging')
    self._unlogged: collections.deque[futures.Future] = collections.deque()

  def begin(self, run):
    self._logger.begin(run)

  def wants_state(self, number):
    return self._logger.wants_state(number)

  def after_round(self, round):
    is_behind = len(self._unlogged) >= _MAX_ROUNDS_BEHIND
    while self._unlogged and (is_behind or self._unlogged[0].done()):
      is_behind = False
      self._unlogged.popleft().result()
    # Later callbacks may write into the round.
    logged = dataclasses.replace(round, metrics=dict(round.metrics), state=None)
    self._unlogged.append(self._thread.submit(self._logger.after_round, logged))

  def log_picture(self, path):
    self._wait()
    self._logger.log_picture(path)

  def end(self):
    self._wait()
    self._logger.end()

  def close(self):
    try:
      self._wait()
    finally:
      self._thread.shutdown()
      self._logger.close()

  def _wait(self):
    while self._unlogged:
      self._unlogged.popleft().result()


class PictureDrawer(Callback):
  """Draws the pictures of a run at its end; loggers get partition.png.

  These are curves.png, partition.png and, if clients are tested alone, clients.png.
  """

  def __init__(
    self, run: Run, loggers: Sequence[Logger], print_line: Callable[[str], None]
  ):
    """print_line: called with a line if there are too many numbers for a picture."""
    self._run, self._loggers = run, loggers
    self._print_line = print_line

  def end(self):
    # matplotlib is imported here, because the first round need not wait for it.
    from moon_jax.runner import plots

    workdir, history = self._run.workdir, self._run.history
    experiment = self._run.experiment
    loss_terms = terms(history[-1], experiment.algorithm.measured)
    plots.curves(workdir / 'curves.png', history, workdir.name, loss_terms)
    picture = workdir / 'partition.png'
    has_names = experiment.data.user_ids is not None
    plots.heat_map(
      picture,
      experiment.data.class_counts,
      workdir.name,
      experiment.data.class_names,
      client_names=experiment.data.client_names() if has_names else (),
    )
    try:
      clients = client_file.read(workdir)
    except client_file.TooLargeError as error:
      self._print_line(f'clients.png is left out: {error}')
      clients = None
    if clients is not None:
      plots.clients(workdir / 'clients.png', clients, workdir.name)
    for logger in self._loggers:
      logger.log_picture(picture)
