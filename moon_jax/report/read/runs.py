"""Finds run directories below folders and reads their records."""

import dataclasses
import enum
import json
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from moon_jax import catalog
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
    absent: the knobs in use that config.json lacks, taken as in configs/base.py.
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
  except (OSError, ValueError, zipfile.BadZipFile):
    return None


def find(roots: Iterable[pathlib.Path], note: Note) -> list[Run]:
  """Reads every run directory below some folders; one inside another is not looked for.

  Args:
    roots: folders; each may be a run directory itself.
    note: is told what was skipped and why.

  Raises:
    UsageError: a root is not a folder, or there is no run.
  """
  valid = config_lib.validate(config_lib.defaults())
  defaults = config_lib.flatten(config_lib.ordered(valid))
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
  if not runs:
    raise UsageError(f'No run was found below {", ".join(map(str, roots))}.')
  _note_other_versions(runs, note)
  for root in without:
    note(f'no run was found below {root}')
  return runs


def _directories(root: pathlib.Path, note: Note) -> Iterator[pathlib.Path]:
  for folder, inside, files in os.walk(root, onerror=lambda e: note(f'skipped: {e}')):
    inside.sort()
    if 'config.json' in files:
      inside.clear()
      yield pathlib.Path(folder)


def _read_or_note(path: pathlib.Path, defaults: Record, note: Note) -> Run | None:
  try:
    return _read(path, defaults, note)
  except (OSError, ValueError) as error:
    note(f'skipped {path}: {error}')
    return None


def _read(path: pathlib.Path, defaults: Record, note: Note) -> Run:
  about = _document(path / 'config.json')
  for description in about.get('registered', ()):
    catalog.remember(description)
  knobs = config_lib.flatten(about.pop('config', {}))
  if not {'algorithm', 'seed'} <= knobs.keys():
    raise ValueError('config.json is not what a run writes')
  catalog.part('algorithm', knobs['algorithm'])  # or there is none
  told, knobs = knobs, defaults | knobs
  rounds = _lines(path / 'metrics.jsonl', note)
  ending = _ending(path, rounds)
  return Run(
    path=path,
    knobs=knobs,
    identity=config_lib.identity(knobs) | {'data_digest': about.get('data_digest', '')},
    rounds=rounds,
    timings=_lines(path / 'timings.jsonl', note),
    ending=ending,
    about=about,
    absent=tuple(name for name in config_lib.used(knobs) if name not in told),
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


def _document(path: pathlib.Path) -> Record:
  try:
    return dict(json.loads(path.read_text()))
  except (ValueError, TypeError):
    raise ValueError(f'{path.name} is damaged') from None


def _lines(path: pathlib.Path, note: Note) -> tuple[Record, ...]:
  """The objects of a .jsonl file; the last line of a run may be half written."""
  lines = path.read_bytes().splitlines() if path.exists() else []
  records = []
  for number, line in enumerate(lines, 1):
    try:
      records.append(json.loads(line))
    except ValueError:
      if number < len(lines):
        raise ValueError(f'line {number} of {path.name} is damaged') from None
      note(f'{path.parent}: the last line of {path.name} is half written and left out')
  return tuple(records)


def _ending(path: pathlib.Path, rounds: tuple[Record, ...]) -> Ending:
  if not rounds:
    return Ending.EMPTY
  # A NaN or an infinity is recorded as null.
  if None in rounds[-1].values():
    return Ending.DIVERGED
  if not (path / 'summary.json').exists():
    return Ending.UNFINISHED
  # The summary of a run that was continued is older than its last round.
  total = _document(path / 'summary.json').get('rounds')
  return Ending.FINISHED if total == rounds[-1]['round'] else Ending.UNFINISHED


def _column(records: Iterable[Record], name: str) -> dict[int, float]:
  told = [record for record in records if type(record.get(name)) in (int, float)]
  return {record['round']: record[name] for record in told}
