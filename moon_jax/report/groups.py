"""Chooses runs, and groups them.

A *series* is an algorithm with its own settings, averaged over seeds: a line of a plot.
A *setting* is what several series have in common: a plot, a block of a table.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax import catalog
from moon_jax.core.errors import UsageError, did_you_mean
from moon_jax.report import naming
from moon_jax.report.naming import ALGORITHM, DIGEST, PLAIN, Key
from moon_jax.report.runs import Ending, Note, Run, Value

# Groups of knobs that change how clients and server work together, like an algorithm.
_OF_ALGORITHMS = {'topology', 'server_optimizer'}


class Choice(NamedTuple):
  """How runs are grouped.

  Attributes:
    group: knobs that distinguish series; None: the algorithm and its own knobs.
    over: knobs whose values are the samples.
    where: knob -> the words for the values that are chosen.
  """

  group: tuple[str, ...] | None
  over: tuple[str, ...]
  where: Mapping[str, Sequence[str]]


def select(runs: Sequence[Run], choice: Choice) -> list[Run]:
  """The runs that --where chooses; one that lacks a knob, not of data, has all values.

  Raises:
    UsageError: no run has such a knob, or none is chosen.
  """
  known = {name for run in runs for name in run.used}
  telling = {name for run in runs for name in run.identity}
  _require_known('where', choice.where, known)
  _require_known('group', choice.group or (), telling)
  _require_known('over', choice.over, telling)

  def has(run, name):
    words = choice.where[name]
    return name in run.used and any(_is(run.knobs[name], word) for word in words)

  def fits(run, name):  # another data set is not the same run without a knob
    return has(run, name) or not (name in run.used or name.startswith('data.'))

  found = all(any(has(run, name) for run in runs) for name in choice.where)
  chosen = [run for run in runs if all(fits(run, name) for name in choice.where)]
  if not (found and chosen):
    raise UsageError(f'--where: none of the {len(runs)} runs is chosen.')
  return chosen


def _require_known(flag: str, names: Iterable[str], known: set[str]) -> None:
  for name in names:
    if name not in known:
      hint = did_you_mean(name, known)
      raise UsageError(f'--{flag}: no run has a setting {name!r}.{hint}')


def _is(value: Value | None, word: str) -> bool:
  """Whether the word stands for the value of a knob."""
  try:
    return value == (word if isinstance(value, str) else float(word))
  except ValueError:
    return word.lower() == str(value).lower()


def without_duplicates(runs: Sequence[Run], note: Note) -> list[Run]:
  """Of finished runs with the same experiment and seed, keeps the one with most rounds.

  Args:
    runs: runs of any experiments.
    note: called with a line for each run that is left out.
  """
  kept: dict[object, Run] = {}
  for run in sorted(runs, key=lambda run: -len(run.rounds)):
    is_finished = run.ending is Ending.FINISHED
    key = frozenset(run.identity.items()) if is_finished else run.path
    longest = kept.setdefault(key, run)
    if run is not longest:
      note(f'skipped {run.name}: the same experiment and seed as {longest.name}')
  return sorted(kept.values(), key=lambda run: run.path)


@dataclasses.dataclass(frozen=True)
class Series:
  """Runs that differ only in what is averaged over.

  Attributes:
    key: the knobs that distinguish it from other series of its setting, and their
      values.
    label: these in words, for a legend.
    algorithm: algorithm of the runs.
    runs: all of them.
    finished: sample, the value of what is averaged over, -> finished run.
  """

  key: Key
  label: str
  algorithm: str
  runs: tuple[Run, ...]
  finished: dict[Key, Run]


@dataclasses.dataclass(frozen=True)
class Setting:
  """What several series have in common.

  Attributes:
    key: the knobs that distinguish it from other settings, and their values.
    series: in the order of the algorithms.
  """

  key: Key
  series: tuple[Series, ...]

  @property
  def title(self) -> str:
    """The key in words, for a heading; '' if there is one setting only."""
    return naming.describe(self.key)


def settings(runs: Sequence[Run], choice: Choice) -> list[Setting]:
  """Groups runs.

  Args:
    runs: at least one, without duplicates.
    choice: what distinguishes series, and what is averaged over.

  Returns:
    Settings ordered by their values. A run without one of the knobs, such as
    `partition.beta` of the centralized bound, belongs to every setting that differs
    only in that knob.
  """
  differing = varying(runs, choice.over)
  group = choice.group
  if group is None:
    parts = [run.algorithm.part for run in runs]
    own = {part.group or part.name for part in parts} | _OF_ALGORITHMS
    group = [ALGORITHM, *(n for n in differing if n.split('.')[0] in own)]
  shared = [name for name in differing if name not in group]
  places = {run.path: _part(run, shared) for run in runs}
  keys = set(places.values())
  whole = [key for key in keys if not any(set(key) < set(other) for other in keys)]
  found = []
  for key in sorted(whole, key=_order):
    members = [run for run in runs if set(places[run.path]) <= set(key)]
    found.append(Setting(key, tuple(_series(members, group, choice.over, differing))))
  return found


def varying(runs: Sequence[Run], over: Sequence[str] = ()) -> list[str]:
  """The knobs with two values or more; a knob that only some runs have does not vary.

  Args:
    runs: any runs.
    over: knobs to leave out.
  """
  names = [name for name in _varied(run.identity for run in runs) if name not in over]
  if 'data.source' in names and 'data.name' not in (*names, *over):
    names.append('data.name')  # also if only one source has it
  # If knobs of the data tell the data sets apart, the digest need not.
  of_knobs = {}
  for run in runs:
    knobs = _part(run, (name for name in names if name.startswith('data.')))
    of_knobs.setdefault(knobs, set()).add(run.identity[DIGEST])
  told = all(len(digests) == 1 for digests in of_knobs.values())
  return [name for name in names if name != DIGEST or not told]


def common(runs: Sequence[Run]) -> dict[str, Value]:
  """The knobs that all runs have with the same value."""
  table = pd.DataFrame([run.identity for run in runs], dtype=object)
  same = (table.nunique() == 1) & table.notna().all() & (table.columns != DIGEST)
  return table.loc[0, same].to_dict()


def swept(found: Sequence[Setting]) -> list[str]:
  """The knobs with two numbers or more."""
  keys = [(*setting.key, *one.key) for setting in found for one in setting.series]
  return _varied(
    {n: value for n, value in key if not isinstance(value, bool | str)} for key in keys
  )


def _varied(rows: Iterable[Mapping[str, Value]]) -> list[str]:
  counts = pd.DataFrame(list(rows), dtype=object).nunique()
  return [name for name, count in counts.items() if count > 1]


def _part(run: Run, names: Iterable[str]) -> Key:
  return tuple((name, run.identity[name]) for name in names if name in run.identity)


def _series(members, group, over, differing):
  by_key = {}
  for run in members:
    by_key.setdefault(_part(run, group), []).append(run)
  for key in sorted(by_key, key=_order):
    same = by_key[key]
    told = tuple(item for item in key if item[0] in differing or item[0] == ALGORITHM)
    yield Series(
      key=key,
      label=naming.describe_series(told or key, same[0].identity) or 'runs',
      algorithm=same[0].algorithm,
      runs=tuple(same),
      finished=_samples(same, over),
    )


def _samples(runs: Sequence[Run], over: Sequence[str]) -> dict[Key, Run]:
  samples = {}
  for run in runs:
    if run.ending is Ending.FINISHED:
      sample = _part(run, over)
      # Two runs with one seed are here only if `without_duplicates` was not called.
      samples[(*sample, ('path', run.name)) if sample in samples else sample] = run
  return samples


def labels(settings: Iterable[Setting]) -> list[str]:
  """The labels of all series in the order of the algorithms and their knobs."""
  every = [series for setting in settings for series in setting.series]
  ordered = sorted(every, key=lambda series: _order(series.key))
  return list(dict.fromkeys(series.label for series in ordered))


def _order(key: Key) -> tuple:
  """Algorithms as in the documentation, a plain server first, numbers before words."""
  return tuple(
    (name, (name, value) not in PLAIN.items(), *_place(name, value))
    for name, value in key
  )


def in_order(knob: str, values: Iterable[Value]) -> list[Value]:
  """The values of a knob, each once, in the order of `labels`."""
  return sorted(set(values), key=lambda value: _place(knob, value))


def _place(name, value):
  if name == ALGORITHM:
    known = catalog.names(ALGORITHM)
    return (0, known.index(value) if value in known else len(known), value)
  return (1, 0, value) if isinstance(value, str) else (0, value, '')


def matching(setting: Setting, series: Series, algorithm: str) -> Series | None:
  """The series of an algorithm with which another series is compared.

  If the algorithm has several series, it is the one whose common knobs agree. If not
  exactly one agrees, or if the other series is of the same algorithm with a server
  optimizer, it is the one whose server takes the plain mean and whose other common
  knobs agree.

  Returns:
    The series; None if there is none, or if several fit.
  """
  found = [s for s in setting.series if s.algorithm == algorithm and s.finished]
  if len(found) > 1 and (series.algorithm != algorithm or _is_plain(series)):
    agreeing = [s for s in found if _agree(s.key, series.key)]
    found = agreeing if len(agreeing) == 1 else found
  if len(found) > 1:
    plain = [s for s in found if _is_plain(s)]
    found = [s for s in plain if _agree(s.key, series.key, PLAIN)]
  return found[0] if len(found) == 1 else None


def _agree(a: Key, b: Key, but: Iterable[str] = ()) -> bool:
  a, b = dict(a), dict(b)
  return all(a[name] == b[name] for name in a.keys() & b.keys() - {ALGORITHM, *but})


def _is_plain(series: Series) -> bool:
  return naming.is_plain(series.runs[0].identity)
