"""Chooses runs: those that --where names, each experiment and seed once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moon_jax.errors import UsageError, did_you_mean
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


def _require_known(flag: str, names: Iterable[str], known: set[str]) -> None:
  for name in names:
    if name not in known:
      hint = did_you_mean(name, known)
      raise UsageError(f'--{flag}: no run has a setting {name!r}.{hint}')


def _is(value: Value | None, word: str) -> bool:
  """Whether a word of the command line names a value: 5 is 5.0, true is True."""
  if isinstance(value, str):
    return value == word
  if isinstance(value, bool) or value is None:
    return str(value).lower() == word.lower()
  try:
    return value == float(word)
  except ValueError:
    return False


def without_duplicates(runs: Sequence[Run], note: Note) -> list[Run]:
  """Leaves out copies; where finished runs contradict each other, all of them.

  Args:
    runs: of any experiments.
    note: is told what was left out and why.
  """
  kept = [run for run in runs if run.ending is not Ending.FINISHED]
  by_identity: dict[frozenset, list[Run]] = {}
  for run in runs:
    if run.ending is Ending.FINISHED:
      by_identity.setdefault(frozenset(run.identity.items()), []).append(run)
  for same in by_identity.values():
    # Of copies with the same rounds, the one that went on the longest.
    longest = max(same, key=lambda run: len(run.rounds))
    if not all(_is_prefix(run, longest) for run in same):
      names = ', '.join(run.name for run in same)
      note(
        f'skipped {names}: the same experiment and seed with different results'
        f'{_execution_hint(same)}'
      )
      continue
    for copy in same:
      if copy is not longest:
        note(f'skipped {copy.name}: the same results as {longest.name}')
    kept.append(longest)
  return sorted(kept, key=lambda run: run.path)


def _is_prefix(run: Run, longer: Run) -> bool:
  theirs = longer.column('test_accuracy')
  return all(theirs.get(r, v) == v for r, v in run.column('test_accuracy').items())


def _execution_hint(same: Sequence[Run]) -> str:
  """What of the execution differs, which changes results by rounding."""
  flags = ' or '.join(
    f'--where={name}=VALUE'
    for name in same[0].knobs
    if name.startswith('execution.') and len({run.knobs[name] for run in same}) > 1
  )
  return f'; choose by {flags}' if flags else ''
