"""Puts runs together that belong together.

A *series* is an algorithm with its own settings, averaged over seeds: a line of a plot.
A *setting* is what several series have in common: a plot, a block of a table.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from moon_jax import catalog
from moon_jax.report.numbers import naming
from moon_jax.report.numbers.choice import Choice
from moon_jax.report.numbers.naming import ALGORITHM, DIGEST, PLAIN, Key
from moon_jax.report.read.runs import Ending, Run, Value

# Groups of knobs that say how clients and server work together, as an algorithm does.
_OF_ALGORITHMS = {'topology', 'server_optimizer'}


@dataclasses.dataclass(frozen=True)
class Series:
  """Runs that differ in nothing but what is averaged over.

  Attributes:
    key: the knobs that tell it from the others of its setting, and their values.
    label: the same for a legend.
    algorithm: of the runs.
    runs: all of them.
    finished: sample, the value of what is averaged over, -> run that is finished.
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
    key: the knobs that tell it from other settings, and their values.
    series: in the order of the algorithms.
  """

  key: Key
  series: tuple[Series, ...]

  @property
  def title(self) -> str:
    """The same for a heading; '' if there is one setting only."""
    return naming.describe(self.key)


def settings(runs: Sequence[Run], choice: Choice) -> list[Setting]:
  """Puts runs together.

  Args:
    runs: at least one, without duplicates.
    choice: what tells series apart, and what is averaged over.

  Returns:
    Ordered by their values. A run without one of the knobs, such as `partition.beta` of
    the centralized bound, belongs to every setting that differs in that knob only.
  """
  differing = varying(runs, choice.over)
  if choice.group is None:
    parts = [run.algorithm.part for run in runs]
    own = {part.group or part.name for part in parts} | _OF_ALGORITHMS
    group = [ALGORITHM, *(n for n in differing if n.split('.')[0] in own)]
  else:
    group = list(choice.group)
  shared = [name for name in differing if name not in group]
  places = {run.path: _part(run, shared) for run in runs}
  keys = _maximal(set(places.values()))
  found = []
  for key in sorted(keys, key=_order):
    members = [run for run in runs if set(places[run.path]) <= set(key)]
    found.append(Setting(key, tuple(_series(members, group, choice.over, differing))))
  return found


def varying(runs: Sequence[Run], over: Sequence[str] = ()) -> list[str]:
  """The knobs that have two values or more; what only some runs have, does not vary.

  Args:
    runs: any.
    over: knobs to leave out.
  """
  items = [item for run in runs for item in run.identity.items()]
  names = [name for name in _of_several_values(items) if name not in over]
  if 'data.source' in names:
    names.append('data.name')  # also if one source only has it
  # Where knobs of the data tell that it differs, its digest need not.
  told = any(name.startswith('data.') for name in names)
  return [name for name in names if name != DIGEST or not told]


def common(runs: Sequence[Run]) -> dict[str, Value]:
  """The knobs that all runs have, with the same value."""
  first, *others = (run.identity for run in runs)
  return {
    name: value
    for name, value in first.items()
    if name != DIGEST and all(other.get(name) == value for other in others)
  }


def _part(run: Run, names: Iterable[str]) -> Key:
  return tuple((name, run.identity[name]) for name in names if name in run.identity)


def _maximal(keys: set[Key]) -> list[Key]:
  return [key for key in keys if not any(set(key) < set(other) for other in keys)]


def _series(members, group, over, differing):
  by_key = {}
  for run in members:
    by_key.setdefault(_part(run, group), []).append(run)
  for key in sorted(by_key, key=_order):
    same = by_key[key]
    told = tuple(item for item in key if item[0] in differing or item[0] == ALGORITHM)
    yield Series(
      key=key,
      label=naming.describe_series(told or key) or 'runs',
      algorithm=same[0].algorithm,
      runs=tuple(same),
      finished=_samples(same, over),
    )


def _samples(runs: Sequence[Run], over: Sequence[str]) -> dict[Key, Run]:
  samples = {}
  for run in runs:
    if run.ending is Ending.FINISHED:
      sample = _part(run, over)
      # Two with one seed are there if nobody asked for `without_duplicates`.
      samples[(*sample, ('path', run.name)) if sample in samples else sample] = run
  return samples


def labels(settings: Iterable[Setting]) -> list[str]:
  """The labels of all series in the order of the algorithms and their knobs."""
  every = [series for setting in settings for series in setting.series]
  ordered = sorted(every, key=lambda series: _order(series.key))
  return list(dict.fromkeys(series.label for series in ordered))


def _order(key: Key) -> tuple:
  """Algorithms as in the documentation, numbers by size, words by the alphabet."""
  return tuple((name, *_place(name, value)) for name, value in key)


def _place(name, value):
  if (name, value) in PLAIN.items():
    return (-1, 0, '')
  if name == ALGORITHM:
    known = catalog.names(ALGORITHM)
    return (0, known.index(value) if value in known else len(known), value)
  if isinstance(value, str):
    return (1, 0, value)
  return (0, value, '')


def matching(setting: Setting, series: Series, algorithm: str) -> Series | None:
  """The series of an algorithm with which another is to be compared.

  Of several it is the one that agrees in the knobs that both have; else the one that
  does so but for the server's optimizer, and whose server takes the plain mean. With
  the latter another server optimizer of the same algorithm is compared. None if there
  is none, or still more than one.
  """
  found = [s for s in setting.series if s.algorithm == algorithm and s.finished]
  if len(found) > 1 and (series.algorithm != algorithm or _is_plain(series)):
    agreeing = [s for s in found if _agree(dict(s.key), dict(series.key))]
    found = agreeing if len(agreeing) == 1 else found
  if len(found) > 1:
    found = [s for s in found if _is_plain(s) and _agree(_others(s), _others(series))]
  return found[0] if len(found) == 1 else None


def _agree(a: Mapping[str, Value], b: Mapping[str, Value]) -> bool:
  return all(a[name] == b[name] for name in a.keys() & b.keys() - {ALGORITHM})


def _others(series: Series) -> dict[str, Value]:
  """Its knobs but those of the server's optimizer."""
  return {name: value for name, value in series.key if name not in PLAIN}


def _is_plain(series: Series) -> bool:
  return all(PLAIN.get(name, value) == value for name, value in series.key)


def swept(found: Sequence[Setting]) -> list[str]:
  """The knobs with two numbers or more."""
  every = [(setting, series) for setting in found for series in setting.series]
  items = [item for setting, series in every for item in (*setting.key, *series.key)]
  return _of_several_values(
    item for item in items if not isinstance(item[1], bool | str)
  )


def _of_several_values(items: Iterable[tuple[str, Value]]) -> list[str]:
  values = {}
  for name, value in items:
    values.setdefault(name, set()).add(value)
  return [name for name in values if len(values[name]) > 1]
