"""The rows of a table: a variant of a paper, what it reports, and the runs of it."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from docs.records import Kept
from moon_jax import config as config_lib
from moon_jax.config import Variant
from moon_jax.core.errors import UsageError, did_you_mean
from moon_jax.report.traces import estimates

# Digest of a data set that is not the original -> the difference.
_COPY = 'a1928db65e5547bb57a6decf2a309992e6cdbf937a1870e4802fcc6c3f0e5461'
_COPIES = {_COPY: 'pixels decoded from JPEG'}
NOT_RUN = 'not run'
# Words beside a reported figure that is training accuracy, and beside a deviation that
# is between the clients of a trial instead of between trials.
_TRAINED, _AMONG = 'in training', 'over clients'
_TRIALS = 3  # of each paper that has a spread


class Estimate(NamedTuple):
  """The mean of n numbers, and their sample standard deviation; None of one."""

  mean: float
  std: float | None
  n: int


def estimate(values: Iterable[float]) -> Estimate | None:
  """None without a number."""
  table = pd.DataFrame([list(values)])
  ((mean, std, n),) = estimates(table).itertuples(index=False)
  return Estimate(mean, std if n > 1 else None, n) if n else None


class Row:
  """A variant of a paper, with its runs in one setting: of several seeds, or none."""

  def __init__(self, choice: str, variant: Variant, runs: Sequence[Kept]):
    self.choice, self.variant = choice, variant
    self.runs = sorted(runs, key=lambda run: run.seed)

  @property
  def name(self) -> str:
    """Of the variant."""
    return self.choice.rpartition(':')[2]

  @property
  def title(self) -> str:
    """'MOON, mu 5, seeds 0, 1', with what was changed in it."""
    seeds = ', '.join(str(run.seed) for run in self.runs)
    words = f'seed{"s" if len(self.runs) > 1 else ""} {seeds}'
    return ', '.join([self.variant.setting, *self.changed(), words])

  def reported(self) -> tuple[float, float | None] | None:
    """The accuracy that the paper reports, and its spread over trials if it has one."""
    found = re.match(r'(\d+\.\d+)(?: \+- (\d+\.\d+))?', self.variant.reported)
    if not found:
      return None
    trials = found[2] and _AMONG not in self.variant.reported
    return float(found[1]), float(found[2]) if trials else None

  def accuracy(self, run: Kept) -> pd.Series:
    """By rounds what the paper reports: of tests, unless its figure is of training."""
    trained = _TRAINED in self.variant.reported
    return run.accuracy('train_accuracy' if trained else 'test_accuracy')

  def estimate(self, last: int = 1) -> Estimate | None:
    """Over the seeds, of the last accuracy, or of the mean of several."""
    return estimate(self.accuracy(run).tail(last).mean() for run in self.runs)

  def among(self) -> Estimate | None:
    """The deviation between the clients' own models in the last test; None of one."""
    found = (run.accuracy('test_accuracy_std').tail(1).mean() for run in self.runs)
    return estimate(value for value in found if value == value)  # it is NaN of one

  def differs(self) -> str:
    """What sets the runs apart from the variant, and their data from the original."""
    copies = {
      _COPIES[digest] for run in self.runs if (digest := _digest(run)) in _COPIES
    }
    told = [f'`{one}`' for one in self.changed()]
    return ', '.join([*told, *sorted(copies)]) or 'nothing'

  def changed(self) -> list[str]:
    """'KNOB=VALUE' of the runs, where the variant has another."""
    wanted = config_lib.flatten(config_lib.validate(config_lib.load(self.choice)))
    told = {
      f'{name}={value}'
      for run in self.runs
      for name, value in (config_lib.identity(run.knobs) | _length(run)).items()
      if name != 'seed' and wanted.get(name) != value
    }
    return sorted(told)

  def sentence(self) -> str:
    """What the runs, of which there is one or more, say of the reported figure."""
    ours, theirs = self.estimate(), self.reported()
    seeds = 'One seed' if ours.n == 1 else f'{ours.n} seeds'
    if not theirs:
      return f'{seeds}; no number is reported.'
    apart, spread = ours.mean - theirs[0], theirs[1]
    where = f'{abs(apart):.1f} {"above" if apart > 0 else "below"} the reported value'
    if spread is None or ours.std is None:
      return f'{seeds}, {where}.'
    error = math.hypot(ours.std / math.sqrt(ours.n), spread / math.sqrt(_TRIALS))
    inside = 'within' if abs(apart) <= 2 * error else 'outside'
    return f'{seeds}, {where}, {inside} two standard deviations of the difference.'


def _length(run: Kept) -> dict[str, int]:
  return {'num_rounds': run.knobs['num_rounds']}


def _digest(run: Kept) -> str:
  return run.about.get('data_digest', '')


def rows(words: str, kept: Mapping[str, Kept]) -> list[Row]:
  """The rows of 'FILE: VARIANT ...'; of a variant with runs in two settings, two.

  Raises:
    UsageError: there is no such file or variant.
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
        settings.setdefault(str(sorted(same.items())), []).append(run)
    found += [Row(choice, variants[name], runs) for runs in settings.values() or [()]]
  return found
