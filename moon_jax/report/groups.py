"""Chooses runs, and groups them.

A *series* is an algorithm with its own settings, averaged over seeds: a line of a plot.
A *setting* is what several series have in common: a plot, a block of a table.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from moon_jax import catalog
from moon_jax.core.errors import UsageError, printable
from moon_jax.core.flags import option
from moon_jax.report import naming
from moon_jax.report.naming import ALGORITHM, DIGESTS, PLAIN, Key, Value
from moon_jax.report.request import Choice
from moon_jax.report.runs import Ending, Note, Run

_MAX_VALUES_NAMED = 20  # in a message
# Groups of knobs that change how clients and server work together, like an algorithm.
_GROUPS_LIKE_ALGORITHMS = {'topology', 'server_optimizer'}


def select(runs: Sequence[Run], choice: Choice) -> list[Run]:
  """The runs that --where chooses.

  A run that does not use a knob fits all of its values, unless the knob is of the data.

  Raises:
    UsageError: no run has such a knob, or none is chosen.
  """
  used_knobs = {name for run in runs for name in run.used_knobs}
  identity_knobs = {name for run in runs for name in run.identity}
  _require_known('where', choice.where, used_knobs)
  _require_known('group', choice.group or (), identity_knobs)
  _require_known('over', choice.over, identity_knobs)

  def has_chosen_value(run, name):
    words = choice.where[name]
    # A value may have commas itself, as a list of metrics has.
    values = [*words, ','.join(words)]
    return name in run.used_knobs and any(_is(run.knobs[name], word) for word in values)

  def is_chosen(run, name):
    # A run without a knob of the algorithm has all its values; a run of another data
    # set is another run.
    lacks_knob = name not in run.used_knobs and not name.startswith('data.')
    return lacks_knob or has_chosen_value(run, name)

  chosen = [run for run in runs if all(is_chosen(run, name) for name in choice.where)]
  for name, words in choice.where.items():
    if not any(has_chosen_value(run, name) for run in runs):
      raise UsageError(
        f'{option("where")}: no run has {name}={",".join(words)}, '
        f'only {_values_of(name, runs)}.'
      )
  if not chosen:
    raise UsageError(f'{option("where")}: none of the {len(runs)} runs is chosen.')
  return chosen


def _require_known(flag_name: str, names: Iterable[str], known_names: set[str]) -> None:
  for name in names:
    if name not in known_names:
      hint = catalog.did_you_mean(name, known_names)
      raise UsageError(f'{option(flag_name)}: no run has a setting {name!r}.{hint}')


def _values_of(knob: str, runs: Sequence[Run]) -> str:
  """'0.5, 5': the values that runs have for a knob, the first of them if many."""
  values = {run.knobs[knob] for run in runs if knob in run.used_knobs}
  numbers = sorted(value for value in values if isinstance(value, int | float))
  words = sorted(str(value) for value in values if not isinstance(value, int | float))
  texts = [naming.value_text(number) for number in numbers] + words
  shown = [printable(text) or "''" for text in texts[:_MAX_VALUES_NAMED]]
  if len(texts) > len(shown):
    shown.append('...')
  return ', '.join(shown)


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
  longest_runs: dict[object, Run] = {}
  for run in sorted(runs, key=lambda run: -len(run.rounds)):
    is_finished = run.ending is Ending.FINISHED
    key = frozenset(run.identity.items()) if is_finished else run.path
    longest = longest_runs.setdefault(key, run)
    if run is not longest:
      note(f'skipped {run.name}: the same experiment and seed as {longest.name}')
  return sorted(longest_runs.values(), key=lambda run: run.path)


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
    diverged: further runs, which differ from these only in what is averaged over, and
      diverged.
  """

  key: Key
  label: str
  algorithm: str
  runs: tuple[Run, ...]
  finished: dict[Key, Run]
  diverged: tuple[Run, ...] = ()


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


def settings(
  runs: Sequence[Run], choice: Choice, diverged: Sequence[Run] = ()
) -> list[Setting]:
  """Groups runs.

  Args:
    runs: at least one, without duplicates.
    choice: what distinguishes series, and what is averaged over.
    diverged: further runs, which diverged; those that belong to a series of `runs` are
      listed there.

  Returns:
    Settings ordered by their values. A run without one of the knobs, such as
    `partition.beta` of the centralized bound, belongs to every setting that differs
    only in that knob.
  """
  varying_knobs = varying(runs, choice.over)
  series_knobs = choice.group
  if series_knobs is None:
    series_knobs = [ALGORITHM, *_knobs_of_algorithms(runs, varying_knobs)]
  setting_knobs = [name for name in varying_knobs if name not in series_knobs]
  keys_by_path = {run.path: _key(run, setting_knobs) for run in runs}
  found_settings = []
  for setting_key in sorted(_complete(set(keys_by_path.values())), key=_order):
    members = [run for run in runs if set(keys_by_path[run.path]) <= set(setting_key)]
    diverged_members = [
      run for run in diverged if set(_key(run, setting_knobs)) <= set(setting_key)
    ]
    series = [
      _with_diverged(plain_series, diverged_members, series_knobs, choice.over)
      for plain_series in _series(members, series_knobs, choice.over, varying_knobs)
    ]
    found_settings.append(Setting(key=setting_key, series=tuple(series)))
  return found_settings


def _with_diverged(
  series: Series,
  diverged: Sequence[Run],
  series_knobs: Sequence[str],
  over: Sequence[str],
) -> Series:
  """The series, with those of the diverged runs of its setting that belong to it."""
  diverged_of_series = [
    run
    for run in diverged
    if _key(run, series_knobs) == series.key and not varying([*series.runs, run], over)
  ]
  return dataclasses.replace(series, diverged=tuple(diverged_of_series))


def _knobs_of_algorithms(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
  """Those of the knobs that belong to an algorithm of the runs, or are like it."""
  parts = [run.algorithm.part for run in runs]
  knob_groups = {part.group or part.name for part in parts} | _GROUPS_LIKE_ALGORITHMS
  return [name for name in names if name.split('.')[0] in knob_groups]


def _complete(keys: set[Key]) -> list[Key]:
  """The keys that are no part of another one."""
  return [key for key in keys if not any(set(key) < set(other) for other in keys)]


def _series(
  runs: Sequence[Run],
  series_knobs: Sequence[str],
  over: Sequence[str],
  varying_knobs: Sequence[str],
) -> Iterable[Series]:
  """The series of a setting, in the order of the algorithms.

  Args:
    runs: the runs of the setting.
    series_knobs: knobs that distinguish series.
    over: knobs whose values are the samples.
    varying_knobs: knobs with several values, which a label tells.
  """
  runs_by_key: dict[Key, list[Run]] = {}
  for run in runs:
    runs_by_key.setdefault(_key(run, series_knobs), []).append(run)
  told_knobs = {ALGORITHM, *varying_knobs}
  for key in sorted(runs_by_key, key=_order):
    series_runs = runs_by_key[key]
    told_key = tuple((name, value) for name, value in key if name in told_knobs)
    label = naming.describe_series(told_key or key, series_runs[0].identity)
    yield Series(
      key=key,
      label=label or 'runs',
      algorithm=series_runs[0].algorithm,
      runs=tuple(series_runs),
      finished=_samples(series_runs, over),
    )


def _samples(runs: Sequence[Run], over: Sequence[str]) -> dict[Key, Run]:
  """Sample -> finished run."""
  samples = {}
  for run in runs:
    if run.ending is Ending.FINISHED:
      sample = _key(run, over)
      # Two runs with one seed are here only if `without_duplicates` was not called.
      if sample in samples:
        sample = (*sample, ('path', run.name))
      samples[sample] = run
  return samples


def _key(run: Run, names: Iterable[str]) -> Key:
  """Those of the knobs that the run has, and their values."""
  return tuple((name, run.identity[name]) for name in names if name in run.identity)


def varying(runs: Sequence[Run], over: Sequence[str] = ()) -> list[str]:
  """The knobs with two values or more; a knob that only some runs have does not vary.

  Args:
    runs: any runs.
    over: knobs to leave out.
  """
  varied = _with_several_values(run.identity for run in runs)
  names = [name for name in varied if name not in over]
  if 'data.source' in names and 'data.name' not in (*names, *over):
    names.append('data.name')  # also if only one source has it
  for digest in DIGESTS:
    if digest in names and _tell_apart(digest, [*names, *over], runs):
      names.remove(digest)
  return names


def _tell_apart(digest: str, names: Sequence[str], runs: Sequence[Run]) -> bool:
  """Whether runs with equal knobs of the data, for example, have the same data.

  Args:
    digest: a digest of `DIGESTS`.
    names: the knobs that are told.
    runs: any runs.
  """
  knobs = [name for name in names if name.startswith(DIGESTS[digest].knobs)]
  digests_by_key: dict[Key, set[Value]] = {}
  for run in runs:
    digests = digests_by_key.setdefault(_key(run, knobs), set())
    digests.add(run.identity[digest])
  return all(len(digests) == 1 for digests in digests_by_key.values())


def common(runs: Sequence[Run]) -> dict[str, Value]:
  """The knobs with one value in the runs that have them, such as `moon.mu`."""
  varied = {*DIGESTS, *_with_several_values(run.identity for run in runs)}
  values = {}
  for run in runs:
    values |= {name: run.identity[name] for name in run.identity if name not in varied}
  return values


def swept(settings: Sequence[Setting]) -> list[str]:
  """The knobs with two numbers or more."""
  numbers_of_series = [
    {
      name: value
      for name, value in (*setting.key, *series.key)
      if not isinstance(value, bool | str)
    }
    for setting in settings
    for series in setting.series
  ]
  return _with_several_values(numbers_of_series)


def _with_several_values(knobs: Iterable[Mapping[str, Value]]) -> list[str]:
  counts = pd.DataFrame(list(knobs), dtype=object).nunique()
  return [name for name, count in counts.items() if count > 1]


def labels(settings: Iterable[Setting]) -> list[str]:
  """The labels of all series in the order of the algorithms and their knobs."""
  all_series = [series for setting in settings for series in setting.series]
  ordered = sorted(all_series, key=lambda series: _order(series.key))
  return list(dict.fromkeys(series.label for series in ordered))


def in_order(knob: str, values: Iterable[Value]) -> list[Value]:
  """The values of a knob, each once, in the order of `labels`."""
  return sorted(set(values), key=lambda value: _order_of_value(knob, value))


def _order(key: Key) -> tuple:
  """Algorithms as in the documentation, a plain server first, numbers before words."""
  return tuple(
    (name, (name, value) not in PLAIN.items(), *_order_of_value(name, value))
    for name, value in key
  )


def _order_of_value(knob: str, value: Value) -> tuple:
  if knob == ALGORITHM:
    algorithms = catalog.names(ALGORITHM)
    is_registered = value in algorithms
    return (0, algorithms.index(value) if is_registered else len(algorithms), value)
  return (1, 0, value) if isinstance(value, str) else (0, value, '')


def matching(setting: Setting, series: Series, algorithm: str) -> Series | None:
  """The series of an algorithm with which another series is compared.

  If the algorithm has several series, it is the one whose common knobs agree. If not
  exactly one agrees, or if the other series is of the same algorithm with a server
  optimizer, it is the one whose server takes the plain mean and whose other common
  knobs agree.

  Returns:
    The series; None if there is none, or if several match.
  """
  candidates = [
    candidate
    for candidate in setting.series
    if candidate.algorithm == algorithm and candidate.finished
  ]
  if len(candidates) > 1 and (series.algorithm != algorithm or _is_plain(series)):
    agreeing = [other for other in candidates if _agree(other.key, series.key)]
    if len(agreeing) == 1:
      candidates = agreeing
  if len(candidates) > 1:
    candidates = [
      other
      for other in candidates
      if _is_plain(other) and _agree(other.key, series.key, ignored=PLAIN)
    ]
  return candidates[0] if len(candidates) == 1 else None


def _agree(key: Key, other_key: Key, ignored: Iterable[str] = ()) -> bool:
  """Whether the knobs that both keys have are equal; the algorithm may differ."""
  knobs = dict(key)
  other_knobs = dict(other_key)
  common_names = knobs.keys() & other_knobs.keys() - {ALGORITHM, *ignored}
  return all(knobs[name] == other_knobs[name] for name in common_names)


def _is_plain(series: Series) -> bool:
  return naming.is_plain(series.runs[0].identity)
