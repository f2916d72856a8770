"""Keeps finished runs in papers/runs/, and reads them.

A kept run is one file, NAME.jsonl.gz: JSON Lines, packed by gzip.

  line 1            the command, the configuration, the machine and the cost
  all other lines   metrics.jsonl, as the run wrote it

`zcat papers/runs/NAME.jsonl.gz` shows it. Runs that ended with a number that is not
finite are in the folder diverged/ of the others. papers/repeated/ (runs that were
repeated on another machine) and papers/frozen/ (runs of the next plan of
docs/experiments.md, all of one commit) have the same form.
"""

import gzip
import json
import pathlib
import shlex
import statistics
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.runner import clock, run_directory, run_files

SUFFIX = '.jsonl.gz'
DIVERGED = 'diverged'  # folder of the runs that diverged, in that of the finished ones
Record = dict[str, Any]
_SECONDS_OF_A_ROUND = ('train_seconds', 'evaluate_seconds')
_KEPT_FIELDS = ('data_digest', 'versions', 'devices', 'machine', 'git_commit')
_KEPT_FIELDS_OF_A_START = ('git_commit', 'devices')
# These flags belong to the machine that ran the experiment, not to the experiment.
_FLAGS_OF_THE_MACHINE = (
  '--workdir',
  '--config.data.dir',
  '--config.execution.compile_cache',
  '--config.checkpoint_every_rounds',
)


class KeptRun(NamedTuple):
  """A finished run.

  Attributes:
    name: name of its file, without the suffix.
    config_choice: the config file and its variant, 'configs/FILE.py:VARIANT'.
    command: the command that repeats the run.
    knobs: dotted name -> value; a knob that is newer than the run has its default.
    provenance: machine, devices, versions, commit, cost, digest of the data.
    rounds: the lines of metrics.jsonl.
  """

  name: str
  config_choice: str
  command: str
  knobs: Mapping[str, Any]
  provenance: Mapping[str, Any]
  rounds: list[Record]

  @property
  def seed(self) -> int:
    """The seed of the run's random draws."""
    return self.knobs['seed']

  @property
  def has_diverged(self) -> bool:
    """Whether it ended with a number that is not finite."""
    return run_files.has_diverged(self.rounds)

  @property
  def data_digest(self) -> str:
    """SHA-256 of the data; '' if an old run did not record it."""
    return self.provenance.get('data_digest', '')

  def starts(self) -> list[Mapping[str, Any]]:
    """The provenance of all starts of the run, the first one first."""
    return _starts(self.provenance)

  def column(self, name: str) -> pd.Series:
    """Round -> number, where a column of metrics.jsonl has one."""
    numbers = {line['round']: line[name] for line in self.rounds if name in line}
    return pd.Series(numbers, dtype=float)

  def accuracy(self, name: str = 'test_accuracy') -> pd.Series:
    """Round -> an accuracy in per cent, where the column `name` was recorded."""
    return 100 * self.column(name)


# --- reading --------------------------------------------------------------------------


def path_of(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The file of a kept run; it is written in one step, so it is whole if it exists."""
  return folder / f'{name}{SUFFIX}'


def read_all(folder: pathlib.Path, *, finished: bool = True) -> dict[str, KeptRun]:
  """Name -> run, for all runs in a folder.

  Raises:
    UsageError: a file is damaged, or holds another run than `finished` says.
  """
  paths = sorted(folder.glob(f'*{SUFFIX}'))
  return {
    path.name.removesuffix(SUFFIX): read(path, finished=finished) for path in paths
  }


def read(path: pathlib.Path, *, finished: bool = True) -> KeptRun:
  """The run in a file.

  Args:
    path: the file.
    finished: whether the run must have all its rounds; a diverged run need not.

  Raises:
    UsageError: the file is damaged, or holds no finished run though it must.
  """
  description, *rounds = _read_lines(path)
  try:
    knobs = config_lib.with_defaults(config_lib.flatten(description['config']))
    words = _words(description['command'])
    flags = dict(word.split('=', 1) for word in words if '=' in word)
    run = KeptRun(
      name=path.name.removesuffix(SUFFIX),
      config_choice=flags.get('--config', cli.DEFAULT_CONFIG),
      command=description['command'],
      knobs=knobs,
      provenance={name: description[name] for name in description if name != 'config'},
      rounds=rounds,
    )
    round_numbers = [line['round'] for line in rounds]
  except KeyError as error:
    raise UsageError(f'{path} lacks {error}.') from None
  except ValueError as error:
    raise UsageError(f'{path} is damaged: {error}.') from None
  if finished and round_numbers != [*range(1, knobs['num_rounds'] + 1)]:
    raise UsageError(f'{path} must have the rounds 1 to {knobs["num_rounds"]}.')
  return run


def read_description(path: pathlib.Path) -> Record:
  """The first line of a kept run: its command, configuration, machine and cost."""
  return _read_lines(path)[0]


def _read_lines(path: pathlib.Path) -> list[Record]:
  try:
    lines = [json.loads(line) for line in _unpacked(path).splitlines()]
  except ValueError as error:
    raise UsageError(f'{path} is damaged: {error}.') from None
  if not lines or not all(isinstance(line, dict) for line in lines):
    raise UsageError(f'{path} is damaged: each line must be a JSON object.')
  return lines


def _unpacked(path: pathlib.Path) -> bytes:
  try:
    return gzip.decompress(files.contents(path))
  except (OSError, EOFError, zlib.error) as error:
    raise UsageError(f'{path} is damaged: {error}.') from None


def devices(description: Mapping[str, Any]) -> list[str]:
  """The devices of all starts of a run, 'KIND: NAME', each once.

  description: content of its config.json, or what is kept of it.
  """
  starts = _starts(description)
  names = [name for start in starts for name in start.get('devices') or []]
  return list(dict.fromkeys(names))


def _starts(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
  """What a config.json says of each start, the first one first.

  Old records have the commits alone of the earlier ones.
  """
  commits = description.get('earlier_commits', [])
  earlier = [{'git_commit': commit} for commit in commits]
  return [*description.get('earlier', earlier), description]


# --- keeping --------------------------------------------------------------------------


def keep_run(run: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Keeps a run directory under its own name; returns the file.

  Args:
    run: the directory of a run that is finished, or has diverged.
    folder: folder of the finished runs. One that has diverged goes into its folder
      diverged/.

  Raises:
    UsageError: it is no run directory, the run has neither finished nor diverged, or
      another run is kept under the same name.
  """
  description = files.read_json(run / run_directory.CONFIG)
  if not description or 'config' not in description:
    raise UsageError(f'{run} is no run directory.')
  if not _is_finished(run, description['config'].get('num_rounds')):
    folder /= DIVERGED
  path = path_of(folder, run.resolve().name)
  metrics = files.contents(run / run_directory.METRICS)
  if path.exists() and _unpacked(path).partition(b'\n')[2] != metrics:
    raise UsageError(f'{path} holds another run: rename one of them.')
  timings = files.read_lines(run / run_directory.TIMINGS)
  write(path, _describe(description, timings), metrics)
  return path


def write(path: pathlib.Path, description: Record, metrics: bytes) -> None:
  """Writes the file of a kept run; equal content makes equal bytes.

  Args:
    path: path of the file.
    description: the first line.
    metrics: content of metrics.jsonl.
  """
  files.make_folder(path.parent)
  first_line = json.dumps(description).encode()
  with files.replacing(path) as file:
    file.write(gzip.compress(first_line + b'\n' + metrics, mtime=0))


def _is_finished(run: pathlib.Path, num_rounds: int) -> bool:
  """Whether a run is finished; False if it has diverged.

  Raises:
    UsageError: neither.
  """
  rounds = files.read_lines(run / run_directory.METRICS)
  summary = files.read_json(run / run_directory.SUMMARY)
  round_numbers = [line['round'] for line in rounds]
  if summary and round_numbers == [*range(1, num_rounds + 1)]:
    return True
  if not summary and run_files.has_diverged(rounds):
    return False
  without = '' if summary else ', no summary.json'
  progress = f'{len(rounds)} of {num_rounds} rounds'
  raise UsageError(f'{run} is not finished: {progress}{without}.')


def _describe(description: Mapping[str, Any], timings: list[Record]) -> Record:
  """What is kept of a config.json: no folder of the machine, and the cost as well."""
  words = _words(description['command'])
  command = [w for w in words if w.partition('=')[0] not in _FLAGS_OF_THE_MACHINE]
  knobs = config_lib.flatten(description['config'])
  if 'data.dir' in knobs:
    knobs['data.dir'] = ''
  earlier_starts = [
    {field: start.get(field) for field in _KEPT_FIELDS_OF_A_START}
    for start in description.get('earlier', [])
  ]
  fields = {name: description[name] for name in _KEPT_FIELDS if name in description}
  return {
    'command': shlex.join(command),
    'config': config_lib.nest(knobs),
    **fields,
    'earlier': earlier_starts,
    'cost': cost(timings) if timings else {},
  }


def _words(command: str) -> list[str]:
  """The words of a command, a flag and its value in one word."""
  words = []
  for word in shlex.split(command):
    if words and words[-1].startswith('--') and '=' not in words[-1]:
      words[-1] += f'={word}'
    else:
      words.append(word)
  return words


def cost(timings: list[Record]) -> dict[str, float]:
  """Seconds of the whole run, and the median seconds of a round with its test."""
  seconds_of_rounds = [
    sum(line.get(name, 0.0) for name in _SECONDS_OF_A_ROUND) for line in timings
  ]
  return {
    'seconds': round(sum(clock.time_spent(timings).values())),
    'median': round(statistics.median(seconds_of_rounds), 1),
  }
