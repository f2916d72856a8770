"""The rows of a table: a paper's variant, its reported accuracy, and its runs."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from docs.records import Kept
from moon_jax import config as config_lib
from moon_jax.config import Variant
from moon_jax.core.errors import UsageError, did_you_mean
from moon_jax.report import statistics

# SHA-256 of a data set that differs from the original -> the difference.
_COPY = 'a1928db65e5547bb57a6decf2a309992e6cdbf937a1870e4802fcc6c3f0e5461'
_COPIES = {_COPY: 'pixels decoded from JPEG'}
NOT_RUN = 'not run'
# Words beside a reported number: it is a training accuracy; its deviation is over the
# clients of a trial instead of over trials.
_TRAINED, _AMONG = 'in training', 'over clients'
_TRIALS = 3  # in each paper that reports a spread


class Estimate(NamedTuple):
  """The mean of n numbers, and their sample standard deviation; None if n = 1."""

  mean: float
  std: float | None
  n: int


def estimate(values: Iterable[float]) -> Estimate | None:
  """The estimate from these numbers; None if there are none."""
  mean, std, n = statistics.estimate(values)
  return Estimate(mean, std if n > 1 else None, n) if n else None


class Row:
  """A variant of a paper, and its runs in one setting, which differ in their seeds."""

  def __init__(self, choice: str, variant: Variant, runs: Sequence[Kept]):
    self.choice, self.variant = choice, variant
    self.runs = sorted(runs, key=lambda run: run.seed)

  @property
  def name(self) -> str:
    """The name of the variant."""
    return self.choice.rpartition(':')[2]

  @property
  def title(self) -> str:
    """'MOON, mu 5, seeds 0, 1', with the knobs that were changed."""
    seeds = ', '.join(str(run.seed) for run in self.runs)
    words = f'seed{"s" if len(self.runs) > 1 else ""} {seeds}'
    return ', '.join([self.variant.setting, *self.changed(), words])

  @property
  def conditions(self) -> tuple:
    """What two rows must share to be compared: changes, rounds, and the data."""
    rounds = {len(run.rounds) for run in self.runs}
    return self.changed(), rounds, {run.digest for run in self.runs}

  def reported(self) -> tuple[float, float | None] | None:
    """The accuracy that the paper reports, and its spread over trials if it has one."""
    found = re.match(r'(\d+\.\d+)(?: \+- (\d+\.\d+))?', self.variant.reported)
    if not found:
      return None
    trials = found[2] and _AMONG not in self.variant.reported
    return float(found[1]), float(found[2]) if trials else None

  def accuracy(self, run: Kept) -> pd.Series:
    """Round -> test accuracy, or training accuracy if the paper reports that."""
    trained = _TRAINED in self.variant.reported
    return run.accuracy('train_accuracy' if trained else 'test_accuracy')

  def estimate(self, last: int = 1) -> Estimate | None:
    """The estimate over seeds of the mean of each run's last `last` accuracies."""
    return estimate(self.accuracy(run).tail(last).mean() for run in self.runs)

  def among(self) -> Estimate | None:
    """The deviation over the clients' own models in the last test, if there are any."""
    return estimate(
      run.accuracy('test_accuracy_std').tail(1).mean() for run in self.runs
    )

  def differs(self) -> str:
    """How the runs differ from the variant, and their data from the original data."""
    copies = {_COPIES[run.digest] for run in self.runs if run.digest in _COPIES}
    told = [f'`{one}`' for one in self.changed()]
    return ', '.join([*told, *sorted(copies)]) or 'nothing'

  def changed(self) -> list[str]:
    """'KNOB=VALUE' for each knob of the runs that has another value in the variant."""
    wanted = config_lib.flatten(config_lib.validate(config_lib.load(self.choice)))
    told = {
      f'{name}={value}'
      for run in self.runs
      for name, value in (config_lib.identity(run.knobs) | _length(run)).items()
      if name != 'seed' and wanted.get(name) != value
    }
    return sorted(told)

  def is_whole(self) -> bool:
    """Whether there are runs, with as many rounds as the variant has."""
    told = [one for one in self.changed() if one.startswith('num_rounds=')]
    return bool(self.runs) and not told

  def comparison(self) -> str:
    """How far the runs, at least one, are from the reported accuracy, in words."""
    ours, theirs = self.estimate(), self.reported()
    if not theirs:
      return 'no number reported'
    if self.changed():
      return 'other settings'
    apart, spread = ours.mean - theirs[0], theirs[1]
    told = f'{abs(apart):.1f} {"above" if apart > 0 else "below"}'
    if spread is None or ours.std is None:
      return told
    error = math.hypot(ours.std / math.sqrt(ours.n), spread / math.sqrt(_TRIALS))
    inside = 'within' if abs(apart) <= 2 * error else 'outside'
    return f'{told}, {inside} two standard errors'


def _length(run: Kept) -> dict[str, int]:
  return {'num_rounds': run.knobs['num_rounds']}


def rows(words: str, kept: Mapping[str, Kept]) -> list[Row]:
  """The rows of 'FILE: VARIANT ...'; a variant has a row for each setting of its runs.

  Raises:
    UsageError: there is no such file or variant, or a run is there twice, or has
      another algorithm than its variant.
  """
  file, _, names = words.partition(':')
  path = f'configs/{file.strip()}.py'
  variants, found = config_lib.variants(path), []
  for name in names.split():
    if name not in variants:
      hint = did_you_mean(name, variants)
      raise UsageError(f'experiments.in.md: {path} has no variant {name!r}.{hint}')
    choice, settings = f'{path}:{name}', {}
    for run in kept.values():
      if run.choice == choice:
        same = config_lib.identity(run.knobs) | _length(run) | {'seed': 0}
        key = str(sorted(same.items())) + run.digest
        settings.setdefault(key, {})
        if (other := settings[key].setdefault(run.seed, run)) is not run:
          raise UsageError(
            f'{other.name} and {run.name} are one run: delete one, with its .sha256.'
          )
    each = [[*runs.values()] for runs in settings.values()] or [()]
    found += [Row(choice, variants[name], runs) for runs in each]
  for row in found:
    if other := [one for one in row.changed() if one.startswith('algorithm=')]:
      run = row.runs[0].name
      raise UsageError(f'{run} has {other[0]}, so it is no run of {row.choice}.')
  return found
