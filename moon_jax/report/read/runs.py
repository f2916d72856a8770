"""Which runs are there, and how did each end?"""

import dataclasses
import enum
import json
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from moon_jax import config as config_lib
from moon_jax.errors import UsageError

Record = dict[str, Any]
Value = bool | int | float | str
Note = Callable[[str], None]


class Ending(enum.StrEnum):
  """How a run ended; only finished ones are averaged."""

  FINISHED = 'finished'
  DIVERGED = 'diverged'
  UNFINISHED = 'unfinished'
  EMPTY = 'without a round'


class BadRunError(Exception):
  """The directory holds no run that can be read; the message says why."""


@dataclasses.dataclass(frozen=True)
class Run:
  """One run directory.

  Attributes:
    path: of the directory.
    knobs: dotted name -> value, every knob of the configuration.
    identity: the part of them that makes the experiment, with the seed and the digest
      of the data.
    rounds: the lines of metrics.jsonl.
    timings: the lines of timings.jsonl.
    ending: how it ended.
    about: config.json without the configuration: command, versions, devices.
    absent: the knobs that config.json lacks, taken as in configs/base.py.
  """

  path: pathlib.Path
  knobs: dict[str, Value]
  identity: dict[str, Value]
  rounds: tuple[Record, ...]
  timings: tuple[Record, ...]
  ending: Ending
  about: Record
  absent: tuple[str, ...]

  @property
  def name(self) -> str:
    """The path as it is told."""
    return str(self.path)

  def column(self, name: str) -> dict[int, float]:
    """round -> value of a column of metrics.jsonl, where there is a number."""
    return _column(self.rounds, name)

  def timing(self, name: str) -> dict[int, float]:
    """round -> value of a column of timings.jsonl, where there is a number."""
    return _column(self.timings, name)

  def class_counts(self) -> np.ndarray | None:
    """[N, Y] training examples of each client and class; None if not recorded."""
    return (read_arrays(self.path / 'partition.npz') or {}).get('class_counts')


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray] | None:
  """The arrays of an .npz file; None if it is not there or damaged."""
  try:
    # Opened here, because np.load forgets to close a file that it cannot read.
    with path.open('rb') as file, np.load(file) as arrays:
      return dict(arrays)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
    return None


def find(roots: Iterable[pathlib.Path], note: Note) -> list[Run]:
  """Reads every run directory below some folders; one inside another is not looked for.

  Args:
    roots: folders; each may be a run directory itself.
    note: is told what was skipped and why.

  Raises:
    UsageError: a root is not a folder.
  """
  base = config_lib.validate(config_lib.load('configs/base.py'))
  defaults = config_lib.flatten(dataclasses.asdict(base))
  found, without = {}, []
  for root in roots:
    if not root.is_dir():
      raise UsageError(f'{str(root)!r} is not a folder.')
    paths = list(_directories(root, note))
    if not paths:
      without.append(root)
    for path in paths:
      if path.resolve() not in found:
        found[path.resolve()] = _read_or_note(path, defaults, note)
  runs = [run for run in found.values() if run]
  _note_other_versions(runs, note)
  for root in without if runs else ():
    note(f'no run was found below {root}')
  return runs


def _directories(root: pathlib.Path, note: Note) -> Iterator[pathlib.Path]:
  def tell(error: OSError) -> None:
    note(f'skipped {error.filename}: {error.strerror}')

  for folder, inside, files in os.walk(root, onerror=tell):
    inside.sort()
    if 'config.json' in files:
      inside.clear()
      yield pathlib.Path(folder)


def _read_or_note(path, defaults, note):
  try:
    return _read(path, defaults, note)
  except BadRunError as error:
    note(f'skipped {path}: {error}')
  except OSError as error:
    note(f'skipped {path}: {error.strerror}: {error.filename}')
  return None


def _read(path: pathlib.Path, defaults: Record, note: Note) -> Run:
  about = _document(path / 'config.json')
  if not isinstance(about.get('config'), dict):
    raise BadRunError('config.json is not what a run writes')
  knobs = config_lib.flatten(about.pop('config'))
  _require_scalars(knobs)
  if missing := [name for name in ('algorithm', 'seed') if name not in knobs]:
    raise BadRunError(f'config.json lacks {" and ".join(missing)}')
  absent = tuple(name for name in defaults if name not in knobs)
  knobs = defaults | knobs
  rounds = _lines(path, 'metrics.jsonl', note)
  ending = _ending(path, rounds, note)
  if ending is Ending.FINISHED and not _column(rounds, 'test_accuracy'):
    raise BadRunError('metrics.jsonl has no column test_accuracy')
  return Run(
    path=path,
    knobs=knobs,
    identity=config_lib.identity(knobs) | {'data_digest': about.get('data_digest', '')},
    rounds=rounds,
    timings=_lines(path, 'timings.jsonl', note),
    ending=ending,
    about=about,
    absent=absent,
  )


def _note_other_versions(runs: Iterable[Run], note: Note) -> None:
  """One line for all runs that lack the same knobs."""
  by_absent: dict[tuple[str, ...], list[Run]] = {}
  for run in runs:
    by_absent.setdefault(run.absent, []).append(run)
  for absent, lacking in by_absent.items():
    if absent:
      more = f' and {len(lacking) - 1} more' if len(lacking) > 1 else ''
      note(
        f'{lacking[0].name}{more}: config.json lacks {", ".join(absent)} (another '
        'version?); taken as in configs/base.py'
      )


def _require_scalars(knobs: Record) -> None:
  for name, value in knobs.items():
    if not isinstance(value, Value):
      raise BadRunError(f'config.json: {name} is {value!r}')


def _document(path: pathlib.Path) -> Record:
  try:
    document = json.loads(path.read_text())
  except ValueError:
    document = None
  if not isinstance(document, dict):
    raise BadRunError(f'{path.name} is damaged')
  return document


def _lines(path: pathlib.Path, name: str, note: Note) -> tuple[Record, ...]:
  """The objects of a .jsonl file; the last line may be half written."""
  if not (path / name).exists():
    return ()
  lines = (path / name).read_bytes().splitlines()
  records = [_parse(line) for line in lines]
  if records and records[-1] is None:
    note(f'{path}: the last line of {name} is half written and left out')
    records.pop()
  for number, record in enumerate(records, 1):
    if record is None or type(record.get('round')) is not int:
      raise BadRunError(f'line {number} of {name} is damaged')
  return tuple(records)


def _parse(line: bytes) -> Record | None:
  try:
    record = json.loads(line)
  except ValueError:
    return None
  return record if isinstance(record, dict) else None


def _ending(path: pathlib.Path, rounds: tuple[Record, ...], note: Note) -> Ending:
  if not rounds:
    return Ending.EMPTY
  # A NaN or an infinity is recorded as null.
  if None in rounds[-1].values():
    return Ending.DIVERGED
  if not (path / 'summary.json').exists():
    return Ending.UNFINISHED
  total, last = _document(path / 'summary.json').get('rounds'), rounds[-1]['round']
  if total == last:
    return Ending.FINISHED
  note(f'{path}: summary.json says {total} rounds, metrics.jsonl ends at {last}')
  return Ending.UNFINISHED


def _column(records: Iterable[Record], name: str) -> dict[int, float]:
  values = {record['round']: record.get(name) for record in records}
  return {
    number: value
    for number, value in values.items()
    if isinstance(value, int | float) and not isinstance(value, bool)
  }
