"""Checks, makes and locks a run directory; writes its first and last files.

.lock           names the process that has it
config.json     the resolved configuration, versions, devices, git commit
partition.npz   the owner of each training example
summary.json    written when the last round is done, or a callback has ended the run
"""

import contextlib
import datetime
import fcntl
import itertools
import os
import pathlib
import platform
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building.experiment import Experiment
from moon_jax.config.cli import Request
from moon_jax.core import files, paths
from moon_jax.core.errors import NoCheckpointError, UsageError
from moon_jax.runner import provenance
from moon_jax.runner.metrics import Record, summarise

CONFIG, SUMMARY = 'config.json', 'summary.json'
METRICS, TIMINGS = 'metrics.jsonl', 'timings.jsonl'
LOCK = '.lock'
# A run writes these in place; it replaces all its other files.
_FOLDERS = (LOCK, 'checkpoints', 'tensorboard', 'profile')
_DIGESTS = {
  'data_digest': 'was trained on other data',
  'weights_digest': 'began with other weights',
  'trace_digest': 'had clients available at other times',
}


def check(workdir: pathlib.Path, config: config_lib.Config) -> list[str]:
  """Checks whether the directory can hold this experiment; writes nothing.

  Returns:
    Lines for the user, such as that a registered part's source has changed.

  Raises:
    UsageError: it holds another experiment, or a link through which a run would write.
    NoCheckpointError: a file of the run there is damaged, or config.json is lost.
  """
  folders = [workdir / name for name in _FOLDERS]
  places = itertools.chain(folders, *map(paths.below, folders))
  if link := next(filter(pathlib.Path.is_symlink, places), None):
    raise UsageError(f'{link} is a link; a run writes in its own directory only.')
  saved = files.read_json(workdir / CONFIG)
  began = (workdir / METRICS).exists() or list(workdir.glob('checkpoints/*'))
  if saved is None and not began:
    return []
  if not (saved or {}).get('config'):
    raise NoCheckpointError(
      f'{workdir / CONFIG} is lost or damaged; it says what the run is. Put it back, '
      'or give another --workdir.'
    )
  advice = 'so it has rounds of another version; a new --workdir begins anew'
  told = [f'{line}, {advice}' for line in require_registered(workdir, saved)]
  if changes := config_lib.changes(saved['config'], config):
    raise UsageError(
      f'The run directory {workdir} holds another experiment: {"; ".join(changes)} '
      '(saved -> given). Give this one a new directory by --workdir (--out of a sweep).'
    )
  if rounds_finished(workdir) < config.num_rounds < rounds_saved(workdir):
    raise UsageError(
      f'--config.num_rounds={config.num_rounds} must be at least the '
      f'{rounds_saved(workdir)} rounds saved in {workdir}.'
    )
  return told


def require_registered(workdir: pathlib.Path, saved: Record) -> list[str]:
  """Lines about the run's registered parts whose source has changed since.

  Raises:
    UsageError: one of the parts is not registered now.
  """
  told, starts = {}, (saved, *saved.get('earlier', []))
  for description in itertools.chain(*(one.get('registered', []) for one in starts)):
    kind, name = description['kind'], description['name']
    what = f'{kind} {name!r}'
    if name not in catalog.names(kind):
      raise UsageError(
        f'{workdir} holds a run with the {what} of {description["file"]}, which is not '
        'registered now: give the file that registers it by --config.'
      )
    now = catalog.part(kind, name).registered or {}
    if now.get('sha256') != description['sha256']:
      told[f'{description["file"]}, the {what}, has changed since the run began'] = None
  return [*told]


def why_finished(workdir: pathlib.Path, config: config_lib.Config) -> str:
  """Why no work is left in the directory; '' if there is some."""
  summary = files.read_json(workdir / SUMMARY) or {'rounds': 0}
  if summary['rounds'] >= config.num_rounds:
    return f'has {summary["rounds"]} rounds; {config.num_rounds} were asked for'
  if why := why_stopped(summary, config):
    return f'was ended after round {summary["rounds"]}: {why}'
  return ''


def why_stopped(saved: Record, config: config_lib.Config) -> str:
  """Why a callback ended the run, by what is saved; '' if more rounds are asked for."""
  is_enough = config.num_rounds <= saved.get('rounds_asked', 0)
  return saved['stopped'] if is_enough else ''


def rounds_finished(workdir: pathlib.Path) -> int:
  """Number of rounds of the run that ended in the directory; 0 if none ended."""
  return (files.read_json(workdir / SUMMARY) or {'rounds': 0})['rounds']


def rounds_saved(workdir: pathlib.Path) -> int:
  """The last round whose state was saved, by the records; 0 if there is none."""
  timings = files.read_lines(workdir / TIMINGS)
  saved = [line['round'] for line in timings if line.get('save_seconds', 0) > 0]
  return max([rounds_finished(workdir), *saved])


class BusyError(UsageError):
  """Another process is running in the directory."""


@contextlib.contextmanager
def held(workdir: pathlib.Path) -> Iterator[None]:
  """Makes the run directory and holds its lock.

  The kernel releases the lock when the process ends, however it ends; the file stays,
  but no longer means anything.

  Raises:
    BusyError: another process is running in the directory.
    RunError: it cannot be made, written to or locked.
  """
  path = workdir / LOCK
  with contextlib.ExitStack() as stack:
    with files.writing(path):
      files.make_folder(workdir)
      # Not emptied, because it names the process that holds it. Unbuffered, so that
      # closing the file does not try again what a full disk refused.
      file = stack.enter_context(path.open('ab+', buffering=0))
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        who = path.read_text().strip() or 'it has just started'
        raise BusyError(
          f'Another process is running in {workdir}: {who}. Give this one a --workdir.'
        ) from None
      now = datetime.datetime.now().astimezone().isoformat(' ', 'seconds')
      who = f'process {os.getpid()} on {platform.node()}, started {now}\n'
      file.truncate(0)
      file.write(who.encode())
    yield


@contextlib.contextmanager
def begin(
  request: Request, digests: Mapping[str, str], images: Record
) -> Iterator[None]:
  """Makes the run directory, locks it for this process and writes config.json.

  Args:
    request: the command line.
    digests: a value for each name in _DIGESTS: of the data set, and of the files of the
      first weights and of the available clients, '' if there is none. A resumed run
      must find the same.
    images: see `describe_images`.

  Raises:
    UsageError: another process is running in the directory, or it holds another
      experiment, or a run on other data.
    RunError: it cannot be made or written to.
  """
  workdir = request.workdir
  with held(workdir):
    # Checked again: another process may have run here while this one loaded its data.
    check(workdir, request.config)
    saved = files.read_json(workdir / CONFIG) or {}
    for name, what in _DIGESTS.items() if saved else ():
      if saved.get(name, '') != digests[name]:
        raise UsageError(
          f'The run in {workdir} {what} than this; give this one a --workdir.'
        )
    files.write_json(workdir / CONFIG, describe(request, digests, images, saved))
    yield


def finish(
  workdir: pathlib.Path, rounds: list[Record], why: str = '', rounds_asked: int = 0
) -> None:
  """Writes summary.json, which marks the run as finished.

  Args:
    workdir: the run directory.
    rounds: the lines of metrics.jsonl.
    why: why a callback has ended the run before its last round.
    rounds_asked: number of rounds that were asked for.
  """
  summary = summarise(rounds, files.read_lines(workdir / TIMINGS))
  stopped = {'stopped': why, 'rounds_asked': rounds_asked} if why else {}
  files.write_json(workdir / SUMMARY, summary | stopped)


def save_partition(workdir: pathlib.Path, built: Experiment) -> None:
  """Writes partition.npz.

  It holds the partition's `indices` and `offsets`, and `class_counts` [N, Y]; `clients`
  [N] if clients have names; and `local_test_clients`, ... if there are tests of single
  clients that are part of the training split.
  """
  names, tests = built.data.user_ids, built.tests.of_clients
  arrays = built.data.partition._asdict()
  if names is not None:
    arrays['clients'] = names
  if tests and tests.of_training:
    arrays['local_test_clients'] = tests.clients
    arrays['local_test_indices'] = tests.rows
    arrays['local_test_offsets'] = tests.offsets
  arrays['class_counts'] = built.data.class_counts
  files.write_arrays(workdir / 'partition.npz', arrays)


def describe_images(built: Experiment) -> Record:
  """What a network needs in order to classify other images.

  It is their shape, mean and deviation, and the names of the classes if there are some.
  """
  test, names = built.tests.examples, list(built.data.class_names)
  mean, std = (np.asarray(values).tolist() for values in (test.mean, test.std))
  described = {'shape': list(test.images.shape[1:]), 'mean': mean, 'std': std}
  return described | ({'class_names': names} if names else {})


def describe(
  request: Request, digests: Mapping[str, str], images: Record, saved: Record
) -> Record:
  """The content of config.json: the experiment, its data, its devices and versions.

  Args:
    request: the command line.
    digests: see `begin`; an empty one is left out.
    images: see `describe_images`.
    saved: config.json of the run that is resumed; where it ran before is kept under
      'earlier', one object for each start.
  """
  parts = catalog.registered(config_lib.flatten(request.config))
  names = ('command', 'versions', 'devices', 'machine', 'git_commit', 'registered')
  start = {name: saved.get(name) for name in names if name in saved}
  return {
    'command': request.command,
    'config': config_lib.ordered(request.config),
    **({'registered': [catalog.describe(one) for one in parts]} if parts else {}),
    **{name: digest for name, digest in digests.items() if digest},
    'images': images,
    'earlier': [*saved.get('earlier', []), start] if saved else [],
    'versions': provenance.versions(),
    'devices': [f'{d.platform}: {d.device_kind}' for d in jax.devices()],
    'machine': provenance.machine(),
    'git_commit': provenance.git_commit(),
  }
