"""Finds run directories below folders and reads their records."""

import dataclasses
import enum
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.core import files
from moon_jax.core.errors import RunError, UsageError

# What a run has that is older than the knob, whose default is 'auto'.
_OLD = {'server_optimizer.learning_rate': 1.0}

Record = dict[str, Any]
Arrays = dict[str, np.ndarray]
Value = bool | int | float | str
Note = Callable[[str], None]


class Ending(enum.StrEnum):
  """How a run ended; only finished ones are averaged."""

  FINISHED = 'finished'
  DIVERGED = 'diverged'
  UNFINISHED = 'unfinished'
  EMPTY = 'without a round'


class Algorithm(str):
  """The name of an algorithm, with its entry of the catalog or of its own run.

  Attributes:
    part: the entry.
  """

  part: catalog.Part

  def __new__(cls, part: catalog.Part) -> 'Algorithm':
    name = super().__new__(cls, part.name)
    name.part = part
    return name


@dataclasses.dataclass(frozen=True)
class Run:
  """One run directory.

  Attributes:
    path: path of the directory.
    knobs: dotted name -> value, every knob; a knob that is newer than the run has its
      value in configs/base.py.
    used: names of the knobs that the run uses.
    identity: the knobs that identify the experiment, with the seed and the digest of
      the data.
    rounds: the lines of metrics.jsonl.
    timings: the lines of timings.jsonl.
    ending: how it ended.
    about: config.json without the configuration: command, versions, devices.
  """

  path: pathlib.Path
  knobs: dict[str, Value]
  used: frozenset[str]
  identity: dict[str, Value]
  rounds: list[Record]
  timings: list[Record]
  ending: Ending
  about: Record

  @property
  def algorithm(self) -> Algorithm:
    """The algorithm of the run."""
    return self.knobs['algorithm']

  @property
  def name(self) -> str:
    """The path, as it is printed."""
    return files.plain(str(self.path))

  def column(self, name: str) -> pd.Series:
    """A column of metrics.jsonl by rounds, where there is a number."""
    return _column(self.rounds, name)

  def timing(self, name: str) -> pd.Series:
    """A column of timings.jsonl by rounds, where there is a number."""
    return _column(self.timings, name)

  def class_counts(self) -> np.ndarray | None:
    """[N, Y] training examples of each client and class; None if not recorded."""
    found = read_arrays(self.path / 'partition.npz', files.PARTITION)
    return (found or {}).get('class_counts')


def class_names(about: Record, num_classes: int) -> tuple[str, ...]:
  """[Y] names of the classes in a config.json, all different; () if there are none."""
  names = tuple(about.get('images', {}).get('class_names', ()))
  return names if len(set(names)) == len(names) == num_classes else ()


def read_arrays(path: pathlib.Path, kinds: files.Kinds) -> Arrays | None:
  """The arrays of an .npz file; None if it is missing or has other content."""
  try:
    return files.arrays(path, kinds=kinds)
  except Exception:  # reading can raise any error
    return None


def find(roots: Iterable[pathlib.Path], note: Note) -> list[Run]:
  """Reads every run directory below some folders; it looks for none inside another.

  Args:
    roots: folders; each may itself be a run directory.
    note: called with a line for each folder that is skipped, and why.

  Raises:
    UsageError: a root is not a folder, or there is no run.
  """
  found = {}
  for root in roots:
    if not os.path.isdir(root):  # Path.is_dir raises if the name is too long
      raise UsageError(f'{str(root)!r} is not a folder.')
    if not (paths := list(_directories(root, note))):
      note(f'no run was found below {root}')
    for path in paths:
      try:
        found.setdefault(path.resolve(), _read(path))
      except (OSError, ValueError, RunError) as error:
        note(f'skipped {path}: {error}')
  if not found:
    raise UsageError(f'No run was found below {", ".join(map(str, roots))}.')
  return list(found.values())


def _directories(root: pathlib.Path, note: Note) -> Iterator[pathlib.Path]:
  for folder, inside, names in os.walk(root, onerror=lambda e: note(f'skipped: {e}')):
    inside.sort()
    if 'config.json' in names:
      inside.clear()
      yield pathlib.Path(folder)


def _read(path: pathlib.Path) -> Run:
  about = files.plain(files.read_json(path / 'config.json') or {})
  with catalog.with_described(about.get('registered', ())):  # only for this run
    knobs = config_lib.with_defaults(_OLD | _knobs(about))
    used, identity = config_lib.used(knobs), config_lib.identity(knobs)
  rounds = files.read_lines(path / 'metrics.jsonl')
  return Run(
    path=path,
    knobs=knobs,
    used=frozenset(used),
    identity=identity | {'data_digest': about.get('data_digest', '')},
    rounds=rounds,
    timings=files.read_lines(path / 'timings.jsonl'),
    ending=_ending(path, rounds),
    about=about,
  )


def _knobs(about: Record) -> dict[str, Value]:
  """The knobs of a config.json, checked by their types."""
  knobs = config_lib.flatten(about.get('config', {}))
  if not {'algorithm', 'seed'} <= knobs.keys():
    raise ValueError('config.json is not what a run writes')
  for name, knob in catalog.every_knob().items():
    kinds = (int, float) if knob.kind is float else (knob.kind,)
    if type(knobs.get(name, knob.default)) not in (*kinds, type(knob.default)):
      raise ValueError(f'config.json has {name}={knobs[name]!r}')
  return knobs | {'algorithm': Algorithm(catalog.part('algorithm', knobs['algorithm']))}


def _ending(path: pathlib.Path, rounds: list[Record]) -> Ending:
  if not rounds:
    return Ending.EMPTY
  # A NaN or an infinity is recorded as null.
  if None in rounds[-1].values():
    return Ending.DIVERGED
  # If a run was continued, its summary is older than its last round.
  total = (files.read_json(path / 'summary.json') or {}).get('rounds')
  return Ending.FINISHED if total == rounds[-1]['round'] else Ending.UNFINISHED


def _column(records: Iterable[Record], name: str) -> pd.Series:
  told = [record for record in records if type(record.get(name)) in (int, float)]
  column = {record['round']: record[name] for record in told}
  return pd.Series(column, dtype=float).sort_index()
