"""Checks, makes and locks a run directory; writes its first files.

.lock           names the process that has it
.lease-...      of the process that has it, where the file system has no locks
config.json     the resolved configuration, versions, devices, git commit
partition.npz   the owner of each training example

It does not load JAX: a directory is checked before the data are read.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config.cli import Request
from moon_jax.core import files, paths
from moon_jax.core.errors import KnobError, NoCheckpointError, UsageError
from moon_jax.core.flags import option
from moon_jax.core.types import Form
from moon_jax.runner import lease as lease_lib
from moon_jax.runner import provenance, run_files
from moon_jax.runner.run_files import (
  CONFIG,
  METRICS,
  PARTITION,
  SUMMARY,
  TIMINGS,
  Record,
)

if TYPE_CHECKING:
  from moon_jax.building.experiment import Experiment

LOCK = '.lock'
# A run writes these in place; it replaces all its other files.
_WRITTEN_IN_PLACE = (LOCK, 'checkpoints', 'tensorboard', 'profile')

# Packages whose versions decide the bits of a round.
_COMPUTING = ('moon_jax', 'jax', 'jaxlib', 'numpy')


class InputDigests(NamedTuple):
  """SHA-256, in hexadecimal, of what a run reads; '' if it does not read it.

  Attributes:
    data_digest: of the data set.
    words_digest: of the vocabulary, and of the words that its texts became.
    weights_digest: of the file of `initial_weights`.
    trace_digest: of the file of `availability.path`.
  """

  data_digest: str
  words_digest: str = ''
  weights_digest: str = ''
  trace_digest: str = ''


# How the run in a directory differs if a digest does.
_DIFFERENCES = {
  'data_digest': 'was trained on other data',
  'words_digest': 'reads its texts by another vocabulary',
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
  run_files.require_plain_path(workdir)
  _require_no_link(workdir)
  saved = files.read_json(workdir / CONFIG)
  has_begun = (workdir / METRICS).exists() or list(workdir.glob('checkpoints/*'))
  if saved is None and not has_begun:
    return []
  if not (saved or {}).get('config'):
    raise NoCheckpointError(
      f'{workdir / CONFIG} is lost or damaged; it says what the run is. Put it back, '
      f'or give another {option("workdir")}.'
    )
  advice = f'so it has rounds of another version; a new {option("workdir")} begins anew'
  notices = [f'{line}, {advice}' for line in require_registered(workdir, saved)]
  if line := _other_versions(workdir, saved):
    notices.append(f'{line}, {advice}')
  if changes := config_lib.changes(saved['config'], config):
    raise UsageError(
      f'The run directory {workdir} holds another experiment: {"; ".join(changes)} '
      f'(saved -> given). Give this one a new directory by {option("workdir")} '
      f'({option("out")} of a sweep).'
    )
  if rounds_finished(workdir) < config.num_rounds < rounds_saved(workdir):
    problem = f'must be at least the {rounds_saved(workdir)} rounds saved in {workdir}.'
    raise KnobError('num_rounds', config.num_rounds, problem)
  return notices


def _other_versions(workdir: pathlib.Path, saved: Record) -> str:
  """A line if other versions computed the rounds of the last start; '' if not."""
  now = provenance.versions()
  saved_versions = saved.get('versions', {})
  changes = [
    f'{name} {saved_versions[name]} -> {now[name]}'
    for name in _COMPUTING
    if saved_versions.get(name, now[name]) != now[name]
  ]
  if not changes:
    return ''
  return f'{workdir} was trained by other versions: {", ".join(changes)}'


def _require_no_link(workdir: pathlib.Path) -> None:
  """Raises UsageError if a run would write through a link."""
  for name in _WRITTEN_IN_PLACE:
    folder = workdir / name
    for path in itertools.chain([folder], paths.below(folder)):
      if path.is_symlink():
        raise UsageError(f'{path} is a link; a run writes in its own directory only.')


def require_registered(workdir: pathlib.Path, saved: Record) -> list[str]:
  """Lines about the run's registered parts whose source has changed since.

  Raises:
    UsageError: one of the parts is not registered now.
  """
  notices = {}  # a line of several starts is told once
  for start in (saved, *saved.get('earlier', [])):
    for description in start.get('registered', []):
      kind, name = description['kind'], description['name']
      title = f'{kind} {name!r}'
      if name not in catalog.names(kind):
        raise UsageError(
          f'{workdir} holds a run with the {title} of {description["file"]}, which is '
          f'not registered now: give the file that registers it by {option("config")}.'
        )
      registered = catalog.part(kind, name).registered or {}
      if registered.get('sha256') != description['sha256']:
        line = f'{description["file"]}, the {title}, has changed since the run began'
        notices[line] = None
  return list(notices)


def why_finished(workdir: pathlib.Path, config: config_lib.Config) -> str:
  """Why no work is left in the directory; '' if there is some."""
  summary = files.read_json(workdir / SUMMARY) or {'rounds': 0}
  if summary['rounds'] >= config.num_rounds:
    return f'has {summary["rounds"]} rounds; {config.num_rounds} were asked for'
  if stop_reason := why_stopped(summary, config):
    return f'was ended after round {summary["rounds"]}: {stop_reason}'
  return ''


def unused_changes(workdir: pathlib.Path, config: config_lib.Config) -> str:
  """A line about knobs that differ and that a finished run does not use; '' if none.

  Nobody expects another number of devices, or fewer rounds, to change a finished run.
  """
  saved = files.read_json(workdir / CONFIG) or {}
  if not saved.get('config'):
    return ''
  changes = [
    change
    for change in config_lib.permitted_changes(saved['config'], config)
    if not change.startswith(('execution.', 'num_rounds:'))
  ]
  if not changes:
    return ''
  listed = '; '.join(changes)
  return f'not used, because the run is finished: {listed} (saved -> given)'


def stop_entries(stop_reason: str, rounds_asked: int) -> Record:
  """What summary.json and a manifest say of a run that a callback has ended.

  Args:
    stop_reason: why it has ended the run; '' if none has, then there are no entries.
    rounds_asked: number of rounds that were asked for; a start that asks for more
      continues the run.
  """
  if not stop_reason:
    return {}
  return {'stopped': stop_reason, 'rounds_asked': rounds_asked}


def why_stopped(saved: Record, config: config_lib.Config) -> str:
  """Why a callback ended the run; '' if none did, or if more rounds are asked for.

  Args:
    saved: summary.json or a manifest, with `stop_entries`.
    config: the configuration of this start.
  """
  is_enough = config.num_rounds <= saved.get('rounds_asked', 0)
  return saved.get('stopped', '') if is_enough else ''


def rounds_finished(workdir: pathlib.Path) -> int:
  """Number of rounds of the run that ended in the directory; 0 if none ended."""
  return (files.read_json(workdir / SUMMARY) or {'rounds': 0})['rounds']


def rounds_saved(workdir: pathlib.Path) -> int:
  """The last round whose state was saved, by the records; 0 if there is none."""
  timings = files.read_lines(workdir / TIMINGS)
  saved_rounds = [line['round'] for line in timings if line.get('save_seconds', 0) > 0]
  return max([rounds_finished(workdir), *saved_rounds])


class BusyError(UsageError):
  """Another process is running in the directory."""


class Hold:
  """What keeps other processes out of a run directory."""

  def __init__(self, workdir: pathlib.Path, lease: lease_lib.Lease | None):
    """lease: the lease, if the file system has no locks."""
    self._workdir, self._lease = workdir, lease

  def require(self) -> None:
    """Raises BusyError if another process may have taken the directory over.

    Only a lease can be taken over: after a standstill of this process.
    """
    if self._lease:
      try:
        self._lease.require()
      except lease_lib.LostError:
        raise BusyError(
          f'The lease of this process on {self._workdir} is gone: another process has '
          'taken over, or the folder was removed. What was saved before is kept.'
        ) from None


@contextlib.contextmanager
def locked(
  workdir: pathlib.Path, print_line: Callable[[str], None] = print
) -> Iterator[Hold]:
  """Makes the run directory and holds its lock, or a lease if the disk has no locks.

  The kernel releases the lock when the process ends, however it ends; the file stays,
  but no longer means anything.

  Args:
    workdir: the run directory.
    print_line: called with a line if the disk has no locks, or a lease is taken over.

  Raises:
    BusyError: another process is running in the directory.
    RunError: it cannot be made or written to.
  """
  path = workdir / LOCK
  with contextlib.ExitStack() as stack:
    with files.writing(path), _busy_if_held(workdir):
      files.make_folder(workdir)
      # Not emptied, because it names the process that holds it. Unbuffered, so that
      # closing the file does not try again what a full disk refused.
      file = path.open('ab+', buffering=0)
      stack.callback(files.close, file)
      lease = None
      if _lock(file, path):
        lease_lib.require_none(workdir, print_line)
      else:
        lease = stack.enter_context(lease_lib.held(workdir, print_line))
        print_line(
          f'{workdir}: the file system has no locks, so only the lease {lease.name} '
          'keeps other starts out'
        )
      file.truncate(0)
      file.write(f'{lease_lib.this_process()}\n'.encode())
    yield Hold(workdir, lease)


@contextlib.contextmanager
def _busy_if_held(workdir):
  try:
    yield
  except lease_lib.HeldError as error:
    raise BusyError(
      f'Another process is running in {workdir}: {error}. Give this one a '
      f'{option("workdir")}.'
    ) from None


def _lock(file, path) -> bool:
  """Locks the file; False if the file system has no locks."""
  try:
    return files.lock(file)
  except BlockingIOError:
    holder = files.text(path).strip() or 'it has just started'
    raise lease_lib.HeldError(holder) from None


@contextlib.contextmanager
def begin(
  request: Request,
  digests: InputDigests,
  images: Record,
  print_line: Callable[[str], None] = print,
) -> Iterator[Hold]:
  """Makes the run directory, locks it for this process and writes config.json.

  Args:
    request: the experiment that is asked for, and its run directory.
    digests: of what the run reads. A resumed run must find the same.
    images: see `describe_images`.
    print_line: see `locked`.

  Raises:
    UsageError: another process is running in the directory, or it holds another
      experiment, or a run on other data.
    RunError: it cannot be made or written to.
  """
  workdir = request.workdir
  with locked(workdir, print_line) as hold:
    # Checked again: another process may have run here while this one loaded its data.
    check(workdir, request.config)
    saved = files.read_json(workdir / CONFIG) or {}
    for name, digest in digests._asdict().items():
      if saved and saved.get(name, '') != digest:
        raise UsageError(
          f'The run in {workdir} {_DIFFERENCES[name]} than this; give this one a '
          f'{option("workdir")}.'
        )
    files.write_json(workdir / CONFIG, describe(request, digests, images, saved))
    yield hold


def record_kernels(workdir: pathlib.Path) -> str:
  """Adds to config.json what computes the network; see `provenance.kernels`.

  Only when the programs have been traced it is known which kernels they need.

  Returns:
    A line for the user if it was computed otherwise at an earlier start, or ''.
  """
  kernels = provenance.kernels()
  saved = files.read_json(workdir / CONFIG)
  if not kernels or not saved:
    return ''
  files.write_json(workdir / CONFIG, saved | {'kernels': kernels})
  known = {start['kernels'] for start in saved['earlier'] if 'kernels' in start}
  others = ' and '.join(known - {kernels})
  if not others:
    return ''
  return (
    f'{workdir}: {others} computed earlier rounds of the network, and {kernels} '
    'computes these: the run equals an uninterrupted one up to rounding only'
  )


def save_partition(workdir: pathlib.Path, experiment: Experiment) -> None:
  """Writes partition.npz.

  It holds the partition's `indices` and `offsets`, and `class_counts` [N, Y]; `clients`
  [N] if clients have names; and `local_test_clients`, ... if there are tests of single
  clients that are part of the training split.
  """
  tests = experiment.tests.of_clients
  arrays = experiment.data.partition._asdict()
  if experiment.data.user_ids is not None:
    arrays['clients'] = experiment.data.user_ids
  if tests and tests.of_training:
    arrays['local_test_clients'] = tests.clients
    arrays['local_test_indices'] = tests.rows
    arrays['local_test_offsets'] = tests.offsets
  arrays['class_counts'] = experiment.data.class_counts
  files.write_arrays(workdir / PARTITION, arrays)


def describe_images(experiment: Experiment) -> Record:
  """What a network needs in order to classify other images.

  It is their shape, mean and deviation, the scale that they are taken on (or the form
  of other data), and the names of the classes and of a table's columns, if they have
  names, and the vocabulary of texts.
  """
  test = experiment.tests.examples
  description = {
    'shape': list(test.images.shape[1:]),
    'mean': np.asarray(test.mean).tolist(),
    'std': np.asarray(test.std).tolist(),
    'scale': experiment.data.scale._asdict(),
  }
  if experiment.data.form != Form():
    description['form'] = experiment.data.form._asdict()
  if experiment.data.form.content != 'levels':
    description['scale'] = None
  if experiment.data.class_names:
    description['class_names'] = list(experiment.data.class_names)
  if experiment.data.feature_names:
    description['feature_names'] = list(experiment.data.feature_names)
  if experiment.data.words:
    description['words'] = list(experiment.data.words)
  if experiment.data.sample_rate:
    description['sample_rate'] = experiment.data.sample_rate
  return description


def describe(
  request: Request, digests: InputDigests, images: Record, saved: Record
) -> Record:
  """The content of config.json: the experiment, its data, its devices and versions.

  Args:
    request: the experiment that is asked for, and its run directory.
    digests: of what the run reads; an empty one is left out.
    images: see `describe_images`.
    saved: config.json of the run that is resumed, or {}. What it says of its last start
      goes to the end of 'earlier'.
  """
  parts = catalog.registered_parts(config_lib.flatten(request.config))
  description = {
    'command': request.command,
    'config': config_lib.ordered(request.config),
  }
  if parts:
    description['registered'] = [catalog.describe(part) for part in parts]
  for name, digest in digests._asdict().items():
    if digest:
      description[name] = digest
  return description | {
    'images': images,
    'earlier': _earlier_starts(saved),
    'versions': provenance.versions(),
    'devices': provenance.devices(),
    'machine': provenance.machine(),
    'git_commit': provenance.git_commit(),
  }


def _earlier_starts(saved: Record) -> list[Record]:
  """What config.json keeps of each start before this one."""
  if not saved:
    return []
  names = ('command', 'versions', 'devices', 'machine', 'git_commit', 'registered')
  names += ('kernels',)
  last_start = {name: saved[name] for name in names if name in saved}
  return [*saved.get('earlier', []), last_start]
