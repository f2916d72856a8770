"""Builds an experiment, resumes it, trains it round by round, and ends it."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from moon_jax import catalog
from moon_jax.building.data import PreparedData
from moon_jax.building.experiment import Experiment, build_with, initial_state
from moon_jax.config import Config, used_value
from moon_jax.config.cli import Request
from moon_jax.core import files
from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import State
from moon_jax.models import cpu_kernels
from moon_jax.platform import compile_cache, compiler, devices, hosts
from moon_jax.runner import client_records, client_store, loggers, run_directory
from moon_jax.runner import console as console_lib
from moon_jax.runner.callbacks import (
  BestKeeper,
  Callback,
  CheckedCallback,
  CheckpointSaver,
  DirectoryHolder,
  InThread,
  PictureDrawer,
  RecordBeginner,
  RecordWriter,
  Run,
  callback_of,
  is_save_due,
)
from moon_jax.runner.checkpoint import Checkpoints
from moon_jax.runner.client_file import ClientFile
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.compiled_ahead import CompiledAhead
from moon_jax.runner.console import Console
from moon_jax.runner.metric_callbacks import with_metrics
from moon_jax.runner.profiling import Profiler
from moon_jax.runner.record_files import Records
from moon_jax.runner.round_records import Record, SummaryOptions
from moon_jax.runner.rounds import Round, Rounds
from moon_jax.runner.run_directory import InputDigests
from moon_jax.runner.run_files import CLIENTS
from moon_jax.runner.screen import Screen
from moon_jax.runner.stop_requests import Stop


def claim_devices(config: Config, print_line: Callable[[str], None]) -> None:
  """Makes JAX use the devices that the configuration asks for, and prints them.

  Args:
    config: the configuration.
    print_line: called with each line about them.

  Raises:
    UsageError: they are not there, or their compiler refuses an option.
  """
  cpu_kernels.begin_start()
  compile_cache.keep_kernels(config.execution.compile_cache)
  devices.claim(config.execution.devices, deterministic=config.execution.deterministic)
  compiler.check_options(config.execution.compiler_options)
  for line in console_lib.describe_devices():
    print_line(line)


def build(prepared: PreparedData, min_steps: int) -> tuple[Experiment, State]:
  """The experiment, and the state before its first round.

  Args:
    prepared: its data.
    min_steps: see `experiment.build_with`.

  Raises:
    UsageError: a part does not fit the data.
  """
  with hosts.failing_together(), devices.explaining_out_of_memory():
    experiment = build_with(prepared, min_steps)
    first_state = initial_state(experiment)
  if hosts.count() > 1:  # only process 0 reads and writes what is saved
    first_state = jax.device_get(first_state)
  return experiment, first_state


def train(
  request: Request,
  experiment: Experiment,
  first_state: State,
  *,
  signals: Stop,
  callbacks: Sequence[Any],
  screen: Screen,
  notices: Sequence[str],
  ahead: CompiledAhead | None,
  describe_sweep: Callable[[float], str] | None,
) -> None:
  """Trains from the newest checkpoint, if there is one, to the end.

  Args:
    request: the experiment that is asked for, and its run directory.
    experiment: the experiment.
    first_state: the state before its first round.
    signals: they can end the run early.
    callbacks: the user's, in addition to those that the config file registers.
    screen: where the run prints.
    notices: further lines to print.
    ahead: programs that were compiled before the data were loaded; None if none was.
    describe_sweep: see `start.run`.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  registered = [entry.callback for entry in catalog.registered_callbacks()]
  user_callbacks = [callback_of(entry) for entry in (*registered, *callbacks)]
  console = Console(screen, describe_sweep)
  digests = _input_digests(experiment, request.config)
  devices.connect(experiment.placement.mesh)
  opening = _open(
    request, experiment, digests, first_state, console, notices, user_callbacks
  )
  with hosts.by_first(opening) as opened:
    opened = opened or OpenRun(first_state)  # in all other processes
    _train_and_finish(experiment, opened, signals, console, ahead)


def _input_digests(experiment: Experiment, config: Config) -> InputDigests:
  """Digests of what the run reads.

  Raises:
    UsageError: they are not the same in all processes.
  """
  trace_path = used_value(config, 'availability.path')
  digests = InputDigests(
    data_digest=experiment.data.digest,
    words_digest=experiment.data.words_digest,
    weights_digest=experiment.network.weights_digest,
    trace_digest=files.sha256(expand(trace_path)) if trace_path else '',
  )
  hosts.require_same('data set', {'SHA-256': digests.data_digest})
  hosts.require_same('vocabulary of texts', {'SHA-256': digests.words_digest})
  hosts.require_same('initial_weights', {'SHA-256': digests.weights_digest})
  hosts.require_same('availability.path', {'SHA-256': digests.trace_digest})
  return digests


class OpenRun(NamedTuple):
  """A run whose directory process 0 has opened. Other processes have only the state.

  Attributes:
    state: the state from which the run continues.
    workdir: the run directory.
    store: store of the clients' memories; None if they are in the state.
    records: the growing files of the run.
    callbacks: all callbacks, in the order in which they are called.
    callback_reason: why a callback has ended the run before this start; '' if none has.
  """

  state: State
  workdir: pathlib.Path | None = None
  store: ClientStore | None = None
  records: Records | None = None
  callbacks: Sequence[Callback] = ()
  callback_reason: str = ''


@contextlib.contextmanager
def _open(
  request: Request,
  experiment: Experiment,
  digests: InputDigests,
  first_state: State,
  console: Console,
  notices: Sequence[str],
  user_callbacks: Sequence[Callback],
) -> Iterator[OpenRun]:
  """Opens the files of a run, and loads the state from which it continues.

  Args:
    request: the experiment that is asked for, and its run directory.
    experiment: the experiment.
    digests: of what the run reads.
    first_state: the state before the first round.
    console: prints about the run.
    notices: further lines to print.
    user_callbacks: the user's callbacks.
  """
  if catalog.part('algorithm', request.config.algorithm).has('several_clients'):
    # The number of natural clients is known only from the data.
    request = request._replace(config=experiment.config)
  config, workdir = request.config, request.workdir
  images = run_directory.describe_images(experiment)
  with contextlib.ExitStack() as stack:
    hold = stack.enter_context(
      run_directory.begin(request, digests, images, console.say)
    )
    folder = workdir / 'checkpoints'
    store = stack.enter_context(client_store.opened(experiment, folder))
    checkpoints = stack.enter_context(Checkpoints(folder, console.say, store))
    run_directory.save_partition(workdir, experiment)
    with devices.explaining_out_of_memory():
      rounds_saved = run_directory.rounds_saved(workdir)
      state = checkpoints.newest_or(first_state, rounds_saved)
    console.introduce(request, experiment, state)
    for notice in notices:
      console.say(notice)

    completed_rounds = int(state.round)
    records = stack.enter_context(
      Records(workdir, completed_rounds, SummaryOptions(config))
    )
    if records.num_dropped:
      console.say(
        f'rounds recorded but not saved, and run again: {records.num_dropped}'
      )
    client_file = stack.enter_context(
      _client_file(workdir, experiment, records.rounds, console)
    )
    run = Run(
      config=config,
      workdir=workdir,
      experiment=experiment,
      history=records.rounds,
      rounds=range(completed_rounds, config.num_rounds),
    )
    callbacks = _all_callbacks(
      run,
      user_callbacks,
      directory_holder=DirectoryHolder(hold),
      checkpoints=checkpoints,
      records=records,
      client_file=client_file,
      console=console,
    )
    for callback in callbacks:
      stack.callback(callback.close)
      callback.begin(run)
    callback_reason = run_directory.why_stopped(checkpoints.manifest, config)
    yield OpenRun(
      state=state,
      workdir=workdir,
      store=store,
      records=records,
      callbacks=callbacks,
      callback_reason=callback_reason,
    )


def _all_callbacks(
  run: Run,
  user_callbacks: Sequence[Callback],
  *,
  directory_holder: DirectoryHolder,
  checkpoints: Checkpoints,
  records: Records,
  client_file: ClientFile,
  console: Console,
) -> list[Callback]:
  """The user's callbacks and the run's own, in the order in which they are called.

  A round's record is on the disk before its state is saved; the time of the save is
  recorded after it.
  """
  active_loggers = [InThread(logger) for logger in loggers.create(run.config.logger)]
  best_keepers = []
  if run.config.keep_best != 'none':
    best_keepers.append(BestKeeper(checkpoints, run.config, console.say))
  elif checkpoints.best_manifest and run.rounds:
    console.say(
      'a best round is kept from an earlier start; with '
      f'{flag("keep_best", "none")} later rounds are not compared with it'
    )
  return [
    directory_holder,
    RecordBeginner(records, run.config.on_nonfinite),
    *map(CheckedCallback, user_callbacks),
    RecordWriter(records, client_file),
    *with_metrics(run, active_loggers, console.say),
    *best_keepers,
    CheckpointSaver(checkpoints, records, client_file, run.config),
    *active_loggers,
    console,
    Profiler(console.say),
    PictureDrawer(run, active_loggers, console.say),
  ]


def _client_file(
  workdir: pathlib.Path, experiment: Experiment, history: list[Record], console: Console
) -> ClientFile:
  """The file of the clients' numbers, up to the round of the history's last line."""
  clients = client_records.tested_clients(experiment)
  columns = clients.columns if clients else None
  tested_rounds = [line['round'] for line in history if 'test_accuracy' in line]
  client_file = ClientFile(workdir, columns, tested_rounds)
  if client_file.num_missing:
    console.say(
      f'{workdir / CLIENTS} begins with this start: it lacks '
      f'{client_file.num_missing} tested rounds of earlier ones'
    )
  return client_file


def _train_and_finish(
  experiment: Experiment,
  opened: OpenRun,
  signals: Stop,
  console: Console,
  ahead: CompiledAhead | None,
) -> None:
  """Runs the rounds that are left, and marks the run as finished."""
  num_rounds = experiment.config.num_rounds
  callback_reason = hosts.decided_by_first(lambda: opened.callback_reason)
  if hosts.decided_by_first(
    lambda: has_rounds_left(num_rounds, opened.records.rounds, callback_reason)
  ):
    callback_reason = _train(
      experiment, opened, signals, console, ahead, callback_reason
    )
  for callback in opened.callbacks:
    callback.end()
  hosts.decided_by_first(lambda: opened.records.finish(callback_reason, num_rounds))


def has_rounds_left(
  num_rounds: int, history: list[Record], callback_reason: str
) -> bool:
  """Whether there is a round to run.

  Args:
    num_rounds: number of rounds that are asked for.
    history: the lines of metrics.jsonl.
    callback_reason: why a callback has ended the run; '' if none has.

  Raises:
    KnobError: there is none, and the last saved round was not tested.
  """
  completed_rounds = len(history)
  is_tested = completed_rounds > 0 and 'test_accuracy' in history[-1]
  if completed_rounds < num_rounds:
    return not (callback_reason and is_tested)
  if not is_tested:
    problem = f'must be above the {completed_rounds} rounds saved here.'
    raise KnobError('num_rounds', num_rounds, problem)
  return False


def _train(
  experiment: Experiment,
  opened: OpenRun,
  signals: Stop,
  console: Console,
  ahead: CompiledAhead | None,
  callback_reason: str,
) -> str:
  """Runs the rounds that are left; with a `callback_reason`, up to the next tested one.

  Returns:
    Why a callback has ended the run; '' if all its rounds are done.

  Raises:
    StoppedError: a signal has stopped the run, and the finished rounds are saved.
  """
  callbacks, state = opened.callbacks, opened.state
  if hosts.count() > 1:
    state = devices.replicate(hosts.from_first(state), experiment.placement.mesh)
  rounds = Rounds(experiment, state, opened.store)
  with devices.explaining_out_of_memory():
    rounds.compile(console.say, ahead)
  hosts.decided_by_first(lambda: _record_kernels(opened.workdir, console))
  with devices.explaining_out_of_memory(rounds.buffers):
    console.expect(rounds.seconds_by_few_steps())
  signal_came = False
  reason_of_end = ''

  def wants_state(number: int) -> bool:
    nonlocal signal_came
    signal_came = signals.requested()
    if signal_came or callback_reason:
      return True
    # A list: each callback is asked, also after one that wants the state.
    return any([callback.wants_state(number) for callback in callbacks])

  with (
    devices.explaining_out_of_memory(rounds.buffers),
    signals.deferred(),
    contextlib.closing(rounds.run(wants_state)) as finished_rounds,
  ):
    for round in finished_rounds:
      is_last = round.number == experiment.config.num_rounds
      has_state = hosts.count() > 1 or round.state is not None
      checkpoint_due = (
        is_save_due(round.number, experiment.config) and has_state and not is_last
      )
      # Ask before the state is saved: after a signal the run waits for the end of the
      # save, so that no process ends in the middle of it.
      if checkpoint_due and not signal_came:
        signal_came = signals.requested()
      round.is_awaited = signal_came
      callback_reason, can_end, is_saved = hosts.decided_by_first(
        functools.partial(_call_callbacks, callbacks, round, callback_reason)
      )
      if callback_reason and can_end:
        reason_of_end = callback_reason
        break
      # The run stops only where its state is saved. A save that is due may be left out;
      # then the next round hears of a signal that has come in the meantime.
      if signal_came or (is_saved and not is_last):
        signals.check(round.number)
  # A signal may have come during the last round, which is saved: the run stops here,
  # and the same command later draws the pictures. From now on a signal ends the process
  # at once.
  signals.check(round.number)
  return reason_of_end


def _record_kernels(workdir: pathlib.Path, console: Console) -> None:
  """Records what computes the network, and says if it is slow or was something else."""
  if fault := cpu_kernels.known_fault():
    console.say(f'the network is computed in a slower form: {fault}')
  if line := run_directory.record_kernels(workdir):
    console.say(line)


def _call_callbacks(
  callbacks: Sequence[Callback], round: Round, callback_reason: str
) -> tuple[str, bool, bool]:
  """Shows a round to the callbacks.

  Args:
    callbacks: all of them, in their order.
    round: the round.
    callback_reason: why a callback has wanted the run to end after an earlier round
      that was not tested; '' if none has.

  Returns:
    Why the run ends, '' if it does not; whether it can end after this round; and
    whether the round is saved.
  """
  if callback_reason:
    round.stop(callback_reason)
  for callback in callbacks:
    callback.after_round(round)
  is_tested = 'test_accuracy' in round.metrics
  can_end = is_tested and round.state is not None
  return round.stopped, can_end, round.is_saved
