"""Chooses the runs whose trained model is analysed, and analyses them."""

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from moon_jax.core.errors import RunError, UsageError
from moon_jax.core.paths import expand
from moon_jax.report import naming
from moon_jax.report.features import Features, features_of
from moon_jax.report.groups import Series, Setting
from moon_jax.report.request import ALL, FIRST, NONE
from moon_jax.report.runs import Note, Run


class Model(NamedTuple):
  """A trained model that was analysed.

  Attributes:
    setting: setting of its run.
    series: series of its run.
    run: the run that trained it.
    features: results of the analysis.
  """

  setting: Setting
  series: Series
  run: Run
  features: Features

  def describe(self) -> str:
    """'MOON, mu=5, seed=0, beta=0.5, 10 rounds'."""
    # A run that lacks some of the setting's knobs is in other settings too.
    key = tuple(
      (name, value) for name, value in self.setting.key if name in self.run.identity
    )
    words = [
      self.series.label,
      f'seed={self.run.knobs["seed"]}',
      naming.describe(key),
      f'{self.features.round} rounds',
    ]
    return ', '.join(word for word in words if word)


class _Member(NamedTuple):
  """A finished run, with the first setting and series that it is in.

  Attributes:
    setting: the setting.
    series: the series.
    run: the run.
    number: number of the run in its series, from 0.
  """

  setting: Setting
  series: Series
  run: Run
  number: int


def trained_models(
  settings: Sequence[Setting], choice: Sequence[str], note: Note
) -> list[Model]:
  """Analyses the trained models of the chosen runs; prints a line before each.

  Args:
    settings: settings with their finished runs.
    choice: 'first' (of each series), 'all', 'none', or paths of runs.
    note: called with a line for each run whose model is unusable, and why.

  Raises:
    UsageError: a path is not that of a finished run.
  """
  models = []
  members = _chosen(settings, choice)
  for position, (setting, series, run, _) in enumerate(members, 1):
    print(f't-SNE and confusion matrix {position} of {len(members)}: {run.name}')
    try:
      models.append(Model(setting, series, run, features_of(run, note)))
    except (RunError, OSError, ValueError) as error:
      note(f'{run.name}: no t-SNE, no confusion matrix: {error}')
  return models


def _chosen(settings: Sequence[Setting], choice: Sequence[str]) -> list[_Member]:
  """Every chosen run once."""
  members = _members(settings)
  if tuple(choice) == (NONE,):
    return []
  if tuple(choice) == (ALL,):
    return [member for member in members.values() if _is_global(member.run)]
  if tuple(choice) == (FIRST,):
    firsts = [member for member in members.values() if member.number == 0]
    return [member for member in firsts if _is_global(member.run)]
  chosen = []
  for word in choice:
    # Not Path.resolve, which raises RuntimeError for a link to itself.
    path = pathlib.Path(os.path.realpath(expand(word)))
    if path not in members:
      raise UsageError(f'--features={word!r} is not among the finished runs.')
    chosen.append(members[path])
  return chosen


def _members(settings: Sequence[Setting]) -> dict[pathlib.Path, _Member]:
  """Path of a finished run -> the run."""
  members: dict[pathlib.Path, _Member] = {}
  for setting in settings:
    for series in setting.series:
      for number, run in enumerate(series.finished.values()):
        member = _Member(setting=setting, series=series, run=run, number=number)
        members.setdefault(run.path.resolve(), member)
  return members


def _is_global(run: Run) -> bool:
  """Whether the model that was tested is one for all clients."""
  return run.metric('test_accuracy_std').empty
