"""Chooses the runs whose trained model is examined, and examines them."""

from collections.abc import Sequence
from typing import NamedTuple

from moon_jax.core.errors import RunError, UsageError
from moon_jax.core.paths import expand
from moon_jax.report import naming
from moon_jax.report.features import Features, features_of
from moon_jax.report.groups import Series, Setting
from moon_jax.report.runs import Note, Run

FIRST, ALL, NONE = 'first', 'all', 'none'


class Model(NamedTuple):
  """A trained model that was examined.

  Attributes:
    setting: setting of its run.
    series: series of its run.
    run: the run that trained it.
    features: results of the examination.
  """

  setting: Setting
  series: Series
  run: Run
  features: Features

  def describe(self) -> str:
    """'MOON, mu=5, seed=0, beta=0.5, 10 rounds'."""
    # A run that lacks some of the setting's knobs is in other settings too.
    own = tuple(item for item in self.setting.key if item[0] in self.run.identity)
    words = (self.series.label, f'seed={self.run.knobs["seed"]}', naming.describe(own))
    return ', '.join(filter(None, (*words, f'{self.features.round} rounds')))


def look_at(
  settings: Sequence[Setting], asked: Sequence[str], note: Note
) -> list[Model]:
  """Examines the trained models of the chosen runs; prints a line before each.

  Args:
    settings: settings with their finished runs.
    asked: 'first' (of each series), 'all', 'none', or paths of runs.
    note: called with a line for each run whose model is unusable, and why.

  Raises:
    UsageError: a path is not that of a finished run.
  """
  found, chosen = [], _asked_for(settings, asked)
  for number, (setting, series, run) in enumerate(chosen, 1):
    print(f't-SNE and confusion matrix {number} of {len(chosen)}: {run.name}')
    try:
      found.append(Model(setting, series, run, features_of(run, note)))
    except (RunError, OSError, ValueError) as error:
      note(f'{run.name}: no t-SNE, no confusion matrix: {error}')
  return found


def _asked_for(
  settings: Sequence[Setting], asked: Sequence[str]
) -> list[tuple[Setting, Series, Run]]:
  """Every chosen run once, with the first setting and series that it is in."""
  every = {}
  for setting in settings:
    for series in setting.series:
      for index, run in enumerate(series.finished.values()):
        every.setdefault(run.path.resolve(), (index, setting, series, run))
  most = {(FIRST,): 1, (ALL,): len(every), (NONE,): 0}.get(tuple(asked))
  if most is not None:
    chosen = [place for index, *place in every.values() if index < most]
    return [place for place in chosen if _is_global(place[-1])]
  for word in asked:
    if expand(word).resolve() not in every:
      raise UsageError(f'--features={word!r} is not among the finished runs.')
  return [every[expand(word).resolve()][1:] for word in asked]


def _is_global(run: Run) -> bool:
  """Whether the model that was tested is one for all clients."""
  return run.column('test_accuracy_std').empty
