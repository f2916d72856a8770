"""The files of a run directory: makes, checks, continues and ends them.

config.json     the resolved configuration, versions, devices, git commit
metrics.jsonl   one object a round: results only, no clock, so that a resumed run
                ends with the same bytes as an uninterrupted one
timings.jsonl   one object a round: seconds, samples/s, memory
summary.json    written when the last round is done
tensorboard/    the same scalars, the partition, histograms of the clients' drift
"""

import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import subprocess
from collections.abc import Iterator

import jax
import numpy as np
from matplotlib import image

from moon_jax import __version__, catalog
from moon_jax import config as config_lib
from moon_jax.cli import Request
from moon_jax.data import partition
from moon_jax.data.device import DeviceSplit
from moon_jax.errors import NoCheckpointError, UsageError
from moon_jax.runner import files, lock, plots
from moon_jax.runner.metrics import Record, summarise
from moon_jax.runner.tensorboard import Board

CONFIG, SUMMARY, PARTITION = 'config.json', 'summary.json', 'partition.npz'
METRICS, TIMINGS = 'metrics.jsonl', 'timings.jsonl'
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def check(workdir: pathlib.Path, config: config_lib.Config) -> list[str]:
  """Looks whether the directory can hold this experiment; writes nothing.

  Returns:
    What to tell the user, such as that a registered part's source has changed.

  Raises:
    UsageError: it holds another experiment.
    NoCheckpointError: what a run wrote there is damaged, or has lost its config.json.
  """
  saved = files.read_json(workdir / CONFIG)
  if saved is None:
    if (workdir / METRICS).exists() or list(workdir.glob('checkpoints/*')):
      raise NoCheckpointError(
        f'{workdir} holds a run without its {CONFIG}, which says of what; put it back, '
        'or give another --workdir.'
      )
    return []
  if not isinstance(saved.get('config'), dict):
    raise NoCheckpointError(f'{workdir / CONFIG} is not what a run writes.')
  told = require_registered(workdir, saved)
  if changes := config_lib.changes(saved['config'], config):
    raise UsageError(
      f'The run directory {workdir} holds another experiment: {"; ".join(changes)} '
      '(saved -> given). Add --workdir=DIR with a new directory for this one.'
    )
  saved_rounds = rounds_saved(workdir)
  if saved_rounds > config.num_rounds and not finished(workdir, config.num_rounds):
    raise UsageError(
      f'--config.num_rounds={config.num_rounds} must be at least the {saved_rounds} '
      f'rounds saved in {workdir}.'
    )
  return told


def require_registered(workdir: pathlib.Path, saved: Record) -> list[str]:
  """What to tell of the run's registered parts: whose source has changed since.

  Raises:
    UsageError: one of them is not registered now.
  """
  told = []
  for description in saved.get('registered', []):
    part = catalog.remember(description)
    what = f'{part.kind} {part.name!r}'
    if part.make is None:
      raise UsageError(
        f'{workdir} holds a run with the {what} of {description["file"]}, which is not '
        'registered now: load the config file that registers it.'
      )
    if part.registered['sha256'] != description['sha256']:
      told.append(f'{description["file"]}, the {what}, has changed since the run began')
  return told


def finished(workdir: pathlib.Path, num_rounds: int) -> bool:
  """Whether the directory holds a run of at least so many rounds, to its end."""
  summary = files.read_json(workdir / SUMMARY)
  return summary is not None and summary['rounds'] >= num_rounds


def rounds_saved(workdir: pathlib.Path) -> int:
  """The last round of which the records say that its state was saved; 0 if none."""
  summary = files.read_json(workdir / SUMMARY) or {'rounds': 0}
  timings = files.read_lines(workdir / TIMINGS)
  saved = [line['round'] for line in timings if line.get('save_seconds', 0) > 0]
  return max([summary['rounds'], *saved])


@contextlib.contextmanager
def begin(request: Request, data_digest: str, images: Record) -> Iterator[None]:
  """Makes the run directory, locks it for this process and writes config.json.

  Args:
    request: the command line.
    data_digest: of the data set; a resumed run must find the same data.
    images: see `describe_images`.

  Raises:
    UsageError: the directory cannot be made or written to, another process is running
      in it, or it holds another experiment, or one with other data.
  """
  workdir = request.workdir
  with lock.held(workdir):
    # Once more: another process may have run here while this one loaded its data.
    check(workdir, request.config)
    saved = files.read_json(workdir / CONFIG) or {}
    if saved.get('data_digest', data_digest) != data_digest:
      raise UsageError(
        f'The run in {workdir} was trained on other data than this; '
        'give this one a --workdir.'
      )
    about = describe(request, data_digest, images, saved)
    files.write_json(workdir / CONFIG, about)
    yield


def finish(workdir: pathlib.Path) -> None:
  """Draws curves.png and writes summary.json, which marks the run as finished."""
  rounds = files.read_lines(workdir / METRICS)
  timings = files.read_lines(workdir / TIMINGS)
  with files.writing(workdir / 'curves.png'):
    plots.curves(workdir / 'curves.png', rounds, title=workdir.name)
  files.write_json(workdir / SUMMARY, summarise(rounds, timings))


def save_partition(
  workdir: pathlib.Path, split: partition.Partition, counts: np.ndarray
) -> None:
  """Writes partition.npz: indices, offsets, class_counts [N, Y]."""
  path = workdir / PARTITION
  with files.replacing(path) as partial, partial.open('wb') as file:
    np.savez(file, **split._asdict(), class_counts=counts)


def describe_images(split: DeviceSplit) -> Record:
  """What a network needs to be given other images: their shape, mean and deviation."""
  return {
    'shape': list(split.images.shape[1:]),
    'mean': np.asarray(split.mean).tolist(),
    'std': np.asarray(split.std).tolist(),
  }


def describe(
  request: Request, data_digest: str, images: Record, saved: Record
) -> Record:
  """The content of config.json: the experiment, its data and what it runs on.

  Args:
    request: the command line.
    data_digest: of the data set.
    images: see `describe_images`.
    saved: config.json of the run that is resumed; what it ran on is kept under
      'earlier', one object for each start.
  """
  parts = catalog.registered(config_lib.flatten(request.config))
  earlier = saved.get('earlier', [])
  if saved:
    names = ('command', 'versions', 'devices', 'git_commit')
    earlier = [*earlier, {name: saved.get(name) for name in names}]
  return {
    'command': request.command,
    'config': config_lib.ordered(request.config),
    **({'registered': [catalog.describe(one) for one in parts]} if parts else {}),
    'data_digest': data_digest,
    'images': images,
    'earlier': earlier,
    'versions': {'python': platform.python_version(), 'moon_jax': __version__}
    | {name: importlib.metadata.version(name) for name in _PACKAGES},
    'devices': [f'{d.platform}: {d.device_kind}' for d in jax.devices()],
    'git_commit': _git_commit(),
  }


class Records:
  """The growing files of a run. A context manager.

  Lines after the restored round are of rounds that will be run again: they go, and so
  does summary.json, for the directory does not hold a finished run from here on.

  Attributes:
    rounds: the lines of metrics.jsonl so far.
    num_dropped: how many lines went.
  """

  def __init__(self, workdir: pathlib.Path, completed_rounds: int):
    self.workdir = workdir
    self.rounds, self.num_dropped = self._keep(workdir / METRICS, completed_rounds)
    if len(self.rounds) != completed_rounds:
      raise NoCheckpointError(
        f'{workdir / METRICS} has {len(self.rounds)} of the {completed_rounds} '
        'rounds in the checkpoint.'
      )
    with files.writing(workdir):
      (workdir / SUMMARY).unlink(missing_ok=True)
      self._keep(workdir / TIMINGS, completed_rounds)
      # Unbuffered: what cannot be written is not tried again when the file is closed.
      self._metrics = (workdir / METRICS).open('ab', buffering=0)
      self._timings = (workdir / TIMINGS).open('ab', buffering=0)
      self._board = Board(workdir / 'tensorboard', completed_rounds + 1)

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    self._metrics.close()
    self._timings.close()
    # What it could not write has been told.
    with contextlib.suppress(OSError):
      self._board.close()

  def add_metrics(self, record: Record) -> None:
    """Appends a line to metrics.jsonl, and its numbers to TensorBoard.

    Raises:
      RunError: the disk is full.
    """
    self.rounds.append(record)
    self._append(self._metrics, record)
    self._show('metrics', record)

  def add_timings(self, record: Record) -> None:
    """Appends a line to timings.jsonl, and its numbers to TensorBoard.

    Raises:
      RunError: the disk is full.
    """
    self._append(self._timings, record)
    self._show('timings', record)

  def add_histogram(self, name: str, values: np.ndarray, round_number: int) -> None:
    """Adds the distribution of the finite values, [K], of a round to TensorBoard.

    Raises:
      RunError: the disk is full.
    """
    finite = values[np.isfinite(values)]
    if len(finite):
      with files.writing(self.workdir / 'tensorboard'):
        self._board.add_histogram(name, finite, round_number)

  def add_picture(self, name: str, path: pathlib.Path) -> None:
    """Adds a PNG to TensorBoard, as of before the first round.

    Raises:
      RunError: the disk is full.
    """
    with files.writing(self.workdir / 'tensorboard'):
      self._board.add_picture(name, image.imread(path))

  def _show(self, group, record):
    with files.writing(self.workdir / 'tensorboard'):
      self._board.add(group, record)

  @staticmethod
  def _append(file, record):
    # JSON has no NaN: a diverged loss is written as null.
    clean = {
      k: None if isinstance(v, float) and not math.isfinite(v) else v
      for k, v in record.items()
    }
    line = (json.dumps(clean, allow_nan=False) + '\n').encode()
    with files.writing(pathlib.Path(file.name), len(line)):
      while line:
        line = line[file.write(line) :]
      # On the disk before the checkpoint that counts on it.
      os.fsync(file.fileno())

  @staticmethod
  def _keep(path, completed_rounds):
    """Drops the lines of later rounds; the lines that stay, and how many went."""
    lines = files.read_lines(path)
    kept = [line for line in lines if line['round'] <= completed_rounds]
    files.replace(path, ''.join(json.dumps(line) + '\n' for line in kept))
    return kept, len(lines) - len(kept)


def _git_commit() -> str | None:
  """The commit of the code, with '+changes' if it was edited; None outside git."""
  root = pathlib.Path(__file__).parent
  words = ['git', '-C', str(root), 'describe', '--always', '--abbrev=40']
  try:
    done = subprocess.run(
      [*words, '--dirty=+changes', '--exclude=*'], capture_output=True, text=True
    )
  except FileNotFoundError:
    return None
  return done.stdout.strip() or None
