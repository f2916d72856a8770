"""Chooses runs: those that --where names, each experiment and seed once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moon_jax.core.errors import UsageError, did_you_mean
from moon_jax.report.read.runs import Ending, Note, Run, Value


class Choice(NamedTuple):
  """How runs are put together.

  Attributes:
    group: knobs that tell series apart; None: the algorithm and its own knobs.
    over: knobs whose values are the samples.
    where: knob -> the words for the values that are chosen.
  """

  group: tuple[str, ...] | None
  over: tuple[str, ...]
  where: Mapping[str, tuple[str, ...]]


def select(runs: Sequence[Run], choice: Choice) -> list[Run]:
  """The runs that --where chooses.

  Raises:
    UsageError: no run has such a knob, or none is chosen.
  """
  known = {name for run in runs for name in run.knobs}
  telling = {name for run in runs for name in run.identity}
  _require_known('where', choice.where, known)
  _require_known('group', choice.group or (), telling)
  _require_known('over', choice.over, telling)
  chosen = [
    run
    for run in runs
    if all(
      any(_is(run.knobs.get(name), word) for word in words)
      for name, words in choice.where.items()
    )
  ]
  if not chosen:
    raise UsageError(f'--where: none of the {len(runs)} runs is chosen.')
  return chosen


def _is(value: Value | None, word: str) -> bool:
  """Whether the word stands for the value of a knob."""
  if isinstance(value, bool):
    return word.lower() == str(value).lower()
  if isinstance(value, str):
    return word == value
  try:
    return value == float(word)
  except ValueError:
    return False


def _require_known(flag: str, names: Iterable[str], known: set[str]) -> None:
  for name in names:
    if name not in known:
      hint = did_you_mean(name, known)
      raise UsageError(f'--{flag}: no run has a setting {name!r}.{hint}')


def without_duplicates(runs: Sequence[Run], note: Note) -> list[Run]:
  """Of finished runs of the same experiment and seed the one with the most rounds.

  Args:
    runs: of any experiments.
    note: is told what was left out and why.
  """
  kept = [run for run in runs if run.ending is not Ending.FINISHED]
  by_identity: dict[frozenset, Run] = {}
  finished = [run for run in runs if run.ending is Ending.FINISHED]
  for run in sorted(finished, key=lambda run: -len(run.rounds)):
    longest = by_identity.setdefault(frozenset(run.identity.items()), run)
    if run is not longest:
      note(f'skipped {run.name}: the same experiment and seed as {longest.name}')
  return sorted([*kept, *by_identity.values()], key=lambda run: run.path)
