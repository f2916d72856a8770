"""Experiments from Python, as from the shell: load_config, run, rounds, sweep.

Errors are exceptions, subclasses of moon_jax.errors.RunError, with the one-line
messages of the shell.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building import experiment
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.core.paths import expand
from moon_jax.platform import compile_cache, compiler, devices
from moon_jax.predict import inference
from moon_jax.runner import (
  client_file,
  client_store,
  run_directory,
  start,
  stop_requests,
)
from moon_jax.runner.callbacks import stop_if_diverged
from moon_jax.runner.rounds import Round, Rounds
from moon_jax.sweeps import running
from moon_jax.sweeps.planned_runs import SweepRun, combinations, in_one_folder, unused

Record = dict[str, Any]


def load_config(
  path: str | os.PathLike, changes: Mapping[str, Any] | None = None
) -> ml_collections.ConfigDict:
  """The configuration of a config file, with some knobs changed.

  A UserWarning names callbacks that were registered before, and not by this file: runs
  no longer call them.

  Args:
    path: FILE or FILE:VARIANT, as for `--config`. The config file is run: it is code.
    changes: name of a knob -> value, e.g. {'moon.mu': 1, 'num_rounds': 5}, or nested.

  Returns:
    The configuration, with every knob. You may change it: `run` and `rounds` check it
    again.

  Raises:
    ConfigError: it has all mistakes, one line each.
  """
  changes = config_lib.flatten(changes or {})
  earlier_callbacks = catalog.registered_callbacks()
  flat = config_lib.load(os.fspath(path)) | changes
  _warn_if_forgotten(earlier_callbacks, path)
  config_lib.validate(flat, set_by_user=changes)
  config = config_lib.defaults()
  # 'auto' stays 'auto', because the value that it stands for may depend on other knobs.
  converted = {
    name: config_lib.convert(name, setting) for name, setting in flat.items()
  }
  config.update_from_flattened_dict(converted)
  return config


def _warn_if_forgotten(
  earlier_callbacks: Iterable[catalog.RegisteredCallback], path: str | os.PathLike
) -> None:
  """Warns the caller of `load_config` of callbacks that its file does not register."""
  callbacks = catalog.registered_callbacks()
  forgotten = {
    earlier.name
    for earlier in earlier_callbacks
    if not any(map(earlier.is_same, callbacks))
  }
  if forgotten:
    names = ', '.join(sorted(forgotten))
    warnings.warn(
      f'{os.fspath(path)} is loaded, so runs no longer call callbacks that were '
      f'registered before: {names}.',
      stacklevel=3,
    )


@dataclasses.dataclass(frozen=True)
class Result:
  """A finished run.

  Attributes:
    workdir: the run directory.
    metrics: the lines of metrics.jsonl, one for each round.
    summary: the content of summary.json: final and best accuracy, ...
  """

  workdir: pathlib.Path
  metrics: list[Record]
  summary: Record

  @functools.cached_property
  def model(self) -> inference.Trained:
    """The global model; if clients have their own, see moon_jax.load(workdir, client).

    Raises:
      UsageError: there is no global model.
    """
    return inference.load(self.workdir)

  @functools.cached_property
  def clients(self) -> client_file.Clients:
    """The accuracy of each client in each tested round, from clients.csv.gz.

    Raises:
      UsageError: the run tests no client alone.
    """
    return client_file.of_run(self.workdir)

  def to_pandas(self) -> Any:
    """The metrics as a pandas.DataFrame with a row for each round; needs pandas."""
    import pandas

    return pandas.DataFrame(self.metrics)


def run(
  config: Mapping[str, Any],
  workdir: str | os.PathLike,
  *,
  callbacks: Sequence[Any] = (),
) -> Result:
  """Runs an experiment as `python launch.py` does: records, checkpoints, resumption.

  Args:
    config: the result of `load_config`, or any nested mapping of knobs.
    workdir: the run directory; the same call again resumes the run that is there.
    callbacks: objects of `moon_jax.Callback`, or functions that get a `Round`, which
      holds the state. Each is called after every round; a function that returns
      something true, such as a reason, ends the run, as `Round.stop` does. Callbacks
      that the config file registers are called too: those of the file that was loaded
      last.

  Raises:
    RunError: its message is for the user; a ConfigError names every mistake.
  """
  callbacks = _listed(callbacks)
  config = config_lib.validate(config)
  workdir = expand(workdir)
  files.require_writable(workdir)
  command = f'moon_jax.run(config, {str(workdir)!r})'
  start.run(cli.request(config, workdir, command), callbacks=callbacks)
  return Result(
    workdir=workdir,
    metrics=files.read_lines(workdir / run_directory.METRICS),
    summary=files.read_json(workdir / run_directory.SUMMARY),
  )


def _listed(callbacks: Any) -> list[Any]:
  """The callbacks as a list.

  Raises:
    UsageError: one of them is no callback, or they are no list.
  """
  if not isinstance(callbacks, Iterable):
    raise UsageError(f'callbacks={callbacks!r} must be a list.')
  callbacks = list(callbacks)
  for callback in callbacks:
    catalog.require_callback(callback)
  return callbacks


def sweep(
  config: Mapping[str, Any], over: Mapping[str, Sequence[Any]], out: str | os.PathLike
) -> list[Record]:
  """Runs every combination of some knobs' values, as `python -m moon_jax.sweep` does.

  Args:
    config: the knobs that all runs have in common, from `load_config`.
    over: name of a knob -> its values, e.g. {'algorithm': ['fedavg', 'moon'],
      'seed': [0, 1]}; a knob is varied only in the runs that use it.
    out: the folder of the run directories; the same call again continues the sweep.

  Returns:
    A row for each run: its knobs of `over`, its `workdir`, and the fields of its
    summary.json. Give the rows to pandas.DataFrame for a table.

  Raises:
    RunError: a run failed; the others have ended, and the message is that of the first
      failure. If none failed, but another process is running one, the message says so.
      Or, before anything starts: a directory holds another experiment, or would hold
      two, or a run cannot begin.
  """
  config_lib.validate(config)
  common = config_lib.with_defaults(config_lib.flatten(config))  # 'auto' stays 'auto'
  folder = expand(out)
  all_changes = combinations(common, over)
  runs = []
  for changes in all_changes:
    run_config = config_lib.validate(common | changes)
    name = cli.name_of(None, changes)
    command = f'moon_jax.run(config, {str(folder / name)!r})'
    request = cli.request(run_config, folder / name, command)
    runs.append(SweepRun(name=name, argv=[], request=request))
  used_knobs = {knob for changes in all_changes for knob in changes}
  problems = unused(over, used_knobs)
  problems += in_one_folder([run.name for run in runs])
  if problems:
    raise config_lib.ConfigError(problems)
  running.check(runs)
  files.require_writable(folder, 'out')
  load = running.caching_loader()
  running.claim_devices(runs, trains_here=True)
  running.check_parts(runs, load)
  if errors := running.run_here(runs, stop_requests.Stop(), load):
    failures = [
      error for error in errors if not isinstance(error, run_directory.BusyError)
    ]
    raise (failures or errors)[0]
  rows = []
  for changes, run in zip(all_changes, runs, strict=True):
    workdir = run.request.workdir
    summary = files.read_json(workdir / run_directory.SUMMARY)
    rows.append(changes | {'workdir': str(workdir)} | summary)
  return rows


def rounds(config: Mapping[str, Any]) -> Iterator[Round]:
  """Runs an experiment in memory, round by round. Stop when you like.

  The metrics are those of `run`, to the last bit on one machine. Each round has its
  state and the global model, and later rounds do not change them. A round begins when
  you ask for it. If clients' memories are on disk, they are in a temporary file;
  nothing else is written.

  Args:
    config: see `run`.

  Raises:
    RunError: its message is for the user; it is a DivergedError after a round whose
      results are not finite.
  """
  return _rounds(config_lib.validate(config))


def _rounds(config: config_lib.Config) -> Iterator[Round]:
  execution = config.execution
  compile_cache.keep_kernels(execution.compile_cache)
  devices.claim(execution.devices, deterministic=execution.deterministic)
  compiler.check_options(execution.compiler_options)
  built = experiment.build(config)
  with client_store.opened(built) as store:
    state = experiment.initial_state(built)
    rounds_left = Rounds(built, state, store, keep_states=True)
    rounds_left.compile()
    results = rounds_left.run(lambda number: True)
    with contextlib.closing(results):  # before the store
      for round in results:
        stop_if_diverged(
          round.metrics, round.clients, config.on_nonfinite, built.data.client_name
        )
        yield round
