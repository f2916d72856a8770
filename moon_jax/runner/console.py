"""Prints what a run does: a few lines at the start, then a line or a bar for rounds."""

import collections
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.building.experiment import Experiment
from moon_jax.config.cli import Request
from moon_jax.core import files, tree
from moon_jax.core.errors import NoCheckpointError, printable
from moon_jax.core.types import State
from moon_jax.data import example_forms
from moon_jax.platform import hosts
from moon_jax.runner import client_file, run_directory
from moon_jax.runner.callbacks import Callback, Run
from moon_jax.runner.client_file import Clients
from moon_jax.runner.clock import time_spent
from moon_jax.runner.round_records import TARGET, Record, terms
from moon_jax.runner.rounds import Round, is_due
from moon_jax.runner.screen import Screen

MIN_ESTIMATE_SECONDS = 10.0  # what takes less needs no estimate


class Console(Callback):
  """Prints a run on a screen: a bar on a terminal and in a notebook, otherwise lines.

  Attributes:
    measured: parts that are recorded and no terms of the loss; see `Algorithm`.
  """

  def __init__(
    self, screen: Screen, describe_sweep: Callable[[float], str] | None = None
  ):
    """Prints nothing yet.

    Args:
      screen: where it prints.
      describe_sweep: see `start.run`.
    """
    self._screen = screen
    self._describe_sweep = describe_sweep
    self._notebook_bar = None
    self._rounds = range(0)
    self._eval_every_rounds = 1
    self.measured = ()

  def say(self, text: str, end: str = '\n') -> None:
    """Prints one line, or the beginning of one."""
    self._screen.say(text, end)

  def expect(self, seconds_of_round: float | None) -> None:
    """Prints how long the run, and the sweep that begins with it, will take.

    Args:
      seconds_of_round: of the next round without its test; None: not known.
    """
    if seconds_of_round is None:
      return
    seconds = seconds_of_round * len(self._rounds)
    if seconds >= MIN_ESTIMATE_SECONDS:
      self.say(
        f'about {duration(seconds)} for {len(self._rounds)} rounds, by the first '
        'steps; tests are not counted'
      )
    if self._describe_sweep and (line := self._describe_sweep(seconds_of_round)):
      self.say(line)

  def _expect_rest(self, round):
    """Prints how long the rest of the run will take, by its first round."""
    rounds_left = range(round.number + 1, self._rounds.stop + 1)
    num_tests = sum(
      is_due(number, self._eval_every_rounds, self._rounds.stop)
      for number in rounds_left
    )
    seconds = round.clock.seconds
    seconds_left = len(rounds_left) * (seconds['train'] + seconds['save'])
    seconds_left += num_tests * seconds['evaluate']
    without_tests = ''
    if num_tests and not describe_test(round.metrics):
      without_tests = ' without their tests'
    if seconds_left >= MIN_ESTIMATE_SECONDS:
      self.say(
        f'about {duration(seconds_left)} left for {len(rounds_left)} rounds'
        f'{without_tests}, by the first one'
      )

  def introduce(self, request: Request, experiment: Experiment, state: State) -> None:
    """Prints what is run, from which round, and on which data.

    Args:
      request: the experiment that is asked for, and its run directory.
      experiment: the experiment.
      state: the state from which the run starts.
    """
    config, planner = experiment.config, experiment.planner
    layout = planner.training.layout
    self.measured = tuple(experiment.algorithm.measured)
    start = 'a fresh run'
    if completed_rounds := int(state.round):
      start = f'resumed after round {completed_rounds} of {config.num_rounds}'
    self.say(f'{request.workdir}: {start}')
    changed = [f'{name}={setting}' for name, setting in request.changed.items()]
    self.say(f'differs from configs/base.py: {", ".join(changed) or "nothing"}')
    self._introduce_data(experiment)
    self._introduce_tests(experiment)
    client_memory = experiment.placement.client_memory
    if not client_memory.on_device:
      megabytes = client_memory.bytes_per_client / 1e6
      self.say(f'memories of clients: on disk, {megabytes:,.2f} MB each')
    num_parameters = tree.num_parameters(state.server.variables['params'])
    images = experiment.tests.examples.images
    shape = 'x'.join(map(str, images.shape[1:]))
    form = experiment.data.form
    noun = 'images' if form.kind == 'picture' else example_forms.plural(form)
    if form.content != 'levels':
      num_bytes = experiment.data.train.examples.images.nbytes + images.nbytes
      self._screen.say_once(
        f'data: {noun} of {shape}, {images.dtype}, {num_bytes / 1e6:,.1f} MB on each '
        f'device; normalize={form.normalize}'
      )
    self._screen.say_once(
      f'model: {config.model} on {noun} of {shape}, {num_parameters:,} parameters; '
      f'clients in a round: {planner.participation.cohort_size}, '
      f'lanes: {layout.num_lanes} on {layout.num_devices} '
      f'device{"s" if layout.num_devices > 1 else ""}'
    )

  def _introduce_data(self, experiment):
    config, data = experiment.config, experiment.data
    sizes = data.partition.sizes
    owners = f'{len(sizes):,} clients own' if len(sizes) > 1 else '1 client owns'
    self._screen.say_once(
      f'partition: {config.partition.name}, {owners} {sizes.sum():,} '
      f'training examples of {data.class_counts.shape[1]} classes; smallest '
      f'{sizes.min():,}, median {int(np.median(sizes)):,}, largest {sizes.max():,}'
    )
    if data.num_users_left_out:
      self._screen.say_once(
        f'users left out: {data.num_users_left_out:,}, with fewer than '
        f'{config.partition.min_size} training examples each'
      )

  def _introduce_tests(self, experiment):
    tests = experiment.tests
    if len(tests.users.sizes) and not experiment.has_client_models:
      line = f'tested: each of {len(tests.users.sizes):,} users on examples of its own'
      if tests.num_users_without_training_data:
        line += f', {tests.num_users_without_training_data:,} of whom do not train'
      self._screen.say_once(line)
    if client_tests := tests.of_clients:
      self._screen.say_once(
        f'tested alone: {len(client_tests.clients):,} clients, on '
        f'{len(client_tests.rows):,} examples of their own; smallest test '
        f'{client_tests.sizes.min():,}, largest {client_tests.sizes.max():,}'
      )

  def begin(self, run: Run) -> None:
    """Starts a bar that shows the rounds that are left, and the time that they need."""
    if not run.rounds:
      return
    self._rounds = run.rounds
    if run.config:
      self._eval_every_rounds = run.config.eval_every_rounds
    if self._screen.is_notebook:
      from IPython.display import HTML, display  # every notebook has IPython

      self._notebook_bar = display(HTML(), display_id=True)
    self._screen.bar.add_task(
      'round', total=run.rounds.stop, completed=run.rounds.start, news=''
    )

  def close(self) -> None:
    """Ends the bar."""
    self._screen.close()

  def after_round(self, round: Round) -> None:
    """Moves the bar, or prints the line of the round."""
    self._show_round(round)
    if round.number == self._rounds.start + 1:
      self._expect_rest(round)

  def _show_round(self, round):
    record, clock = round.metrics, round.clock
    # The parts of the loss would push the bar off a line of 80 columns.
    news = describe_test(record) or f'train loss {record["train_loss"]:.3f}'
    position = f'round {round.number}/{self._rounds.stop}'
    if self._notebook_bar:
      bar = f'<progress value={round.number} max={self._rounds.stop}></progress>'
      html = f'{bar} {position} {news}'
      self._notebook_bar.update({'text/html': html}, raw=True)
      return
    if self._screen.is_terminal:
      bar = self._screen.bar
      bar.update(bar.task_ids[0], completed=round.number, news=news)
      return
    seconds = sum(clock.seconds[phase] for phase in ('train', 'evaluate', 'save'))
    words = [
      position,
      describe_test(record),
      describe_training(record, self.measured),
      f'{seconds:.2f} s',
    ]
    self.say('  '.join(filter(None, words)))


def describe_devices() -> list[str]:
  """Lines about the devices, and the processes if there are several."""
  kinds = [f'{device.platform} ({device.device_kind})' for device in jax.devices()]
  words = [f'{count} x {kind}' for kind, count in collections.Counter(kinds).items()]
  lines = [f'devices: {", ".join(words)}; JAX {jax.__version__}']
  if names := collections.Counter(hosts.names()):
    words = [f'{count} on {name}' for name, count in names.items()]
    lines.append(f'processes: {hosts.count()}; {", ".join(words)}')
  return lines


def describe_results(workdir: pathlib.Path) -> list[str]:
  """Lines about how a run ended and where its results are."""
  summary = files.read_json(workdir / run_directory.SUMMARY)
  lines = [describe_summary(summary, _clients_with_worst(workdir, summary))]
  if 'stopped' in summary:
    lines.append(f'a callback ended the run: {summary["stopped"]}')
  timings = files.read_lines(workdir / run_directory.TIMINGS)
  # The first round of each start waits for compiling.
  num_starts = sum(line.get('compile_seconds', 0) > 0 for line in timings)
  period = f' in all {num_starts} starts' if num_starts > 1 else ''
  words = [f'{phase} {seconds:.2f} s' for phase, seconds in time_spent(timings).items()]
  lines.append(f'where the time went{period}: {", ".join(words)}')
  lines.append(f'results: {workdir}')
  return lines


def duration(seconds: float) -> str:
  """Seconds in words.

  >>> duration(44.9), duration(750.0), duration(9000.0)
  ('45 s', '12 min', '2.5 h')
  """
  if seconds < 100:
    return f'{seconds:.0f} s'
  if seconds < 100 * 60:
    return f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'


# What a client, or user, is tested by -> what the worst one is called.
_WORST = {'user_accuracy': 'worst user', 'personal_accuracy': 'worst client'}


class _Worst(NamedTuple):
  """The worst client in a test.

  Attributes:
    name: its name.
    accuracy: on its own test examples, in [0, 1].
  """

  name: str
  accuracy: float


def _clients_with_worst(workdir: pathlib.Path, summary: Record) -> Clients | None:
  """The numbers of the clients if one of them may be named as the worst."""
  if not _columns_with_worst(summary):
    return None
  try:
    return client_file.read(workdir)
  except NoCheckpointError:  # the results are there without it
    return None


def _columns_with_worst(summary: Record) -> list[str]:
  """The accuracies of which the worst is told: of many users a tenth is told."""
  return [
    column
    for column in _WORST
    if f'{column}_min' in summary and f'{column}_worst_tenth' not in summary
  ]


def _worst(clients: Clients, column: str, row: int) -> _Worst | None:
  """The one worst client in a row of the file; None if several are, or no names."""
  if column not in clients.numbers:
    return None
  accuracy = clients.numbers[column][row]
  if np.isnan(accuracy).all():
    return None
  (worst,) = np.nonzero(accuracy == np.nanmin(accuracy))
  name = clients.names[worst[0]]
  if len(worst) > 1 or name.isdecimal():
    return None
  return _Worst(name=name, accuracy=float(accuracy[worst[0]]))


def _describe_worst_in_best_round(
  summary: Record, clients: Clients, column: str
) -> str:
  """Words about the worst client in the best round, if that is not the last test."""
  best_round = summary['best_round']
  (rows,) = np.nonzero(clients.rounds[:-1] == best_round)
  worst = _worst(clients, column, row=rows[0]) if len(rows) else None
  if worst is None:
    return ''
  return (
    f'; {_WORST[column]} in round {best_round} {printable(worst.name)!r} '
    f'{worst.accuracy:.4f}'
  )


def describe_summary(summary: Record, clients: Clients | None = None) -> str:
  """'finished after round 30: test accuracy 0.9000 (best 0.9500 in round 28, ...)'.

  Args:
    summary: content of summary.json.
    clients: the numbers of the clients, of which the worst is named; None: none is.
  """
  best = f'{summary["best_test_accuracy"]:.4f} in round {summary["best_round"]}'
  if chosen_by := summary.get('best_by'):
    number = f'{chosen_by.replace("_", " ")} {summary[f"best_{chosen_by}"]:.4f}'
    best = f'test accuracy {best}, which {number} chose'
  elif 'best_validation_accuracy' in summary:
    best = f'test accuracy {best}, which validation chose'
  else:
    best = f'best {best}'
  columns = _columns_with_worst(summary) if clients else []
  names_of_worst = {}
  for column in columns:
    if worst := _worst(clients, column, row=-1):
      names_of_worst[column] = worst.name
  worst_in_best_round = ''
  if columns:  # the first is that of the global model, if its users are tested
    worst_in_best_round = _describe_worst_in_best_round(summary, clients, columns[0])
  return (
    f'finished after round {summary["rounds"]}: '
    f'{describe_test(summary, names_of_worst)} '
    f'({best}, {TARGET:.0%} of it reached in round {summary["target_round"]}'
    f'{worst_in_best_round})'
  )


# Column -> how it is introduced in a line; commas separate it from the column before.
_TEST_WORDS = {
  'test_accuracy': 'test accuracy',
  'test_accuracy_std': ' +-',
  'validation_accuracy': ', validation accuracy',
  'user_accuracy_worst_tenth': ', worst tenth of users',
  'user_accuracy_min': ', worst user',
  'local_accuracy_weighted_mean': ', on all own tests',
  'tuned_accuracy_weighted_mean': ', fine-tuned',
  'personal_accuracy_weighted_mean': ', own models on all own tests',
}
_NO_NAMES: Mapping[str, str] = {}


def describe_test(record: Record, names_of_worst: Mapping[str, str] = _NO_NAMES) -> str:
  """'test accuracy 0.9120', with the spread over clients; '' if untested.

  Args:
    record: the columns of a round or a summary.
    names_of_worst: 'user_accuracy', 'personal_accuracy' -> name of the worst user or
      client by it. The worst of the clients' own models is told only with its name.
  """
  has_tenth = 'user_accuracy_worst_tenth' in record
  has_models = 'test_accuracy_std' in record  # of the clients
  words = dict(_TEST_WORDS)
  if has_models:
    words['test_accuracy'] = "test accuracy of clients' own models, mean"
  if has_tenth:
    del words['user_accuracy_min']
  for column, name in names_of_worst.items():
    words[f'{column}_min'] = f', {_WORST[column]} {printable(name)!r}'
  return ''.join(
    f'{introduction} {record[column]:.4f}'
    for column, introduction in words.items()
    if column in record
  )


def describe_training(record: Record, measured: Collection[str]) -> str:
  """'train loss 0.310 (contrastive 0.040, supervised 0.270)', terms unweighted."""
  words = [
    f'{name.removesuffix("_loss")} {record[name]:.3f}'
    for name in terms(record, measured)
  ]
  return f'train loss {record["train_loss"]:.3f} ({", ".join(words)})'
