"""Finds run directories below folders and reads their records."""

import dataclasses
import enum
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.core import client_names, files
from moon_jax.core.errors import RunError, UsageError
from moon_jax.report.directories import run_directories
from moon_jax.report.escaping import escaped
from moon_jax.report.naming import DIGESTS, Value
from moon_jax.runner import run_files

# The value in runs that are older than the knob; its default today is 'auto'.
_BEFORE_THE_KNOB = {'server_optimizer.learning_rate': 1.0}

Record = dict[str, Any]
Arrays = dict[str, np.ndarray]
Note = Callable[[str], None]


class Ending(enum.StrEnum):
  """How a run ended; only finished ones are averaged."""

  FINISHED = 'finished'
  DIVERGED = 'diverged'
  UNFINISHED = 'unfinished'
  EMPTY = 'without a round'


class Algorithm(str):
  """The name of an algorithm, with its entry from the catalog or from its run.

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
    used_knobs: names of the knobs that the run uses.
    identity: the knobs that identify the experiment, with the seed, and the digests of
      what it reads; '' for what it does not read.
    rounds: the lines of metrics.jsonl.
    timings: the lines of timings.jsonl.
    ending: how it ended.
    provenance: config.json: command, versions, devices, registered parts.
    test_metrics: the entries of its `metrics`, from the catalog or from the run.
  """

  path: pathlib.Path
  knobs: dict[str, Value]
  used_knobs: frozenset[str]
  identity: dict[str, Value]
  rounds: list[Record]
  timings: list[Record]
  ending: Ending
  provenance: Record
  test_metrics: tuple[catalog.Part, ...] = ()

  @property
  def algorithm(self) -> Algorithm:
    """The algorithm of the run."""
    return self.knobs['algorithm']

  @property
  def name(self) -> str:
    """The path, as it is printed."""
    return escaped(str(self.path))

  def metric(self, name: str) -> pd.Series:
    """Round -> a number of metrics.jsonl, in the rounds that have it."""
    return _by_round(self.rounds, name)

  def timing(self, name: str) -> pd.Series:
    """Round -> a number of timings.jsonl, in the rounds that have it."""
    return _by_round(self.timings, name)

  def class_counts(self) -> np.ndarray | None:
    """[N, Y] training examples of each client and class; None if not recorded."""
    arrays = read_arrays(self.path / run_files.PARTITION, run_files.PARTITION_KINDS)
    return None if arrays is None else arrays['class_counts']

  def test_class_counts(self) -> np.ndarray | None:
    """[Y] test examples of each class; None if not recorded.

    They are in the confusion matrix of a run with a global model and `metrics`.
    """
    kinds = {'confusion': run_files.CONFUSION_KINDS['confusion']}
    arrays = read_arrays(self.path / run_files.CONFUSION, kinds)
    return None if arrays is None else arrays['confusion'].sum(axis=1)

  def client_names(self) -> list[str]:
    """[N] names of the clients; [] if they are numbered."""
    try:
      names = client_names.saved_names(self.path / run_files.PARTITION)
    except Exception:  # reading can raise any error
      return []
    return escaped(names or [])


def class_names(provenance: Record, num_classes: int) -> tuple[str, ...]:
  """[Y] names of the classes in a config.json, all different; () if there are none."""
  names = tuple(provenance.get('images', {}).get('class_names', ()))
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
  runs: dict[pathlib.Path, Run] = {}
  for root in roots:
    if not os.path.isdir(root):  # Path.is_dir raises if the name is too long
      raise UsageError(f'{str(root)!r} is not a folder.')
    paths = list(run_directories(root, lambda error: note(f'skipped: {error}')))
    if not paths:
      note(f'no run was found below {root}')
    for path in paths:
      try:
        runs.setdefault(path.resolve(), _read(path))
      except (OSError, ValueError, RunError) as error:
        note(f'skipped {path}: {error}')
  if not runs:
    raise UsageError(f'No run was found below {", ".join(map(str, roots))}.')
  return list(runs.values())


def _read(path: pathlib.Path) -> Run:
  provenance = escaped(files.read_json(path / run_files.CONFIG) or {})
  registered = provenance.get('registered', ())
  with catalog.with_described(registered):  # only for this run
    knobs = config_lib.with_defaults(_BEFORE_THE_KNOB | _recorded_knobs(provenance))
    used_knobs = frozenset(config_lib.used_knobs(knobs))
    identity = config_lib.identity(knobs)
    identity |= {digest: provenance.get(digest, '') for digest in DIGESTS}
    test_metrics = tuple(catalog.listed('metric', knobs))
  rounds = files.read_lines(path / run_files.METRICS)
  return Run(
    path=path,
    knobs=knobs,
    used_knobs=used_knobs,
    identity=identity,
    rounds=rounds,
    timings=files.read_lines(path / run_files.TIMINGS),
    ending=_ending(path, rounds),
    provenance=provenance,
    test_metrics=test_metrics,
  )


def _recorded_knobs(provenance: Record) -> dict[str, Value]:
  """The knobs of a config.json, checked by their types."""
  knobs = config_lib.flatten(provenance.get('config', {}))
  if not {'algorithm', 'seed'} <= knobs.keys():
    raise ValueError('config.json is not what a run writes')
  for name, knob in catalog.every_knob().items():
    kinds = (int, float) if knob.kind is float else (knob.kind,)
    if type(knobs.get(name, knob.default)) not in (*kinds, type(knob.default)):
      raise ValueError(f'config.json has {name}={knobs[name]!r}')
  algorithm = Algorithm(catalog.part('algorithm', knobs['algorithm']))
  return knobs | {'algorithm': algorithm}


def _ending(path: pathlib.Path, rounds: list[Record]) -> Ending:
  if not rounds:
    return Ending.EMPTY
  if run_files.has_diverged(rounds):
    return Ending.DIVERGED
  # If a run was continued, its summary is older than its last round.
  summary = files.read_json(path / run_files.SUMMARY) or {}
  is_complete = summary.get('rounds') == rounds[-1]['round']
  return Ending.FINISHED if is_complete else Ending.UNFINISHED


def _by_round(records: Iterable[Record], name: str) -> pd.Series:
  numbers = {
    record['round']: record[name]
    for record in records
    if type(record.get(name)) in (int, float)
  }
  return pd.Series(numbers, dtype=float).sort_index()
