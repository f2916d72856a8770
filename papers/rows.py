"""What a row of a table is made from: a paper's variant and this project's runs of it.

A `Row` computes the numbers; `papers.tables` writes them down. The variants, with what
the papers report, are in the config files; `configs/moon_cvpr21.py` is one.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from moon_jax import config as config_lib
from moon_jax.config import Variant
from moon_jax.core.errors import UsageError, nearest_name_hint
from moon_jax.report.statistics import Estimate, estimate
from papers.estimates import late_mean
from papers.kept_runs import KeptRun

# Words after a reported number: it is a training accuracy; its deviation is over the
# clients of a trial instead of over trials.
_IN_TRAINING = 'in training'
_OVER_CLIENTS = 'over clients'


class Reported(NamedTuple):
  """An accuracy that a paper reports, and its deviation over trials if it has one."""

  mean: float
  std: float | None


class Row:
  """A variant of a paper, and its runs in one setting, which differ in their seeds."""

  def __init__(self, config_choice: str, variant: Variant, runs: Sequence[KeptRun]):
    self.config_choice = config_choice
    self.variant = variant
    self.runs = sorted(runs, key=lambda run: run.seed)

  @property
  def name(self) -> str:
    """The name of the variant."""
    return self.config_choice.rpartition(':')[2]

  @property
  def seeds(self) -> str:
    """'0, 1'."""
    return ', '.join(str(run.seed) for run in self.runs)

  @property
  def title(self) -> str:
    """'MOON, mu 5, seeds 0, 1', with the knobs that were changed."""
    plural = 's' if len(self.runs) > 1 else ''
    words = [self.variant.setting, *self.changes(), f'seed{plural} {self.seeds}']
    return ', '.join(words)

  def reported(self) -> Reported | None:
    """The accuracy that the paper reports."""
    return _reported(self.variant)

  def accuracy(self, run: KeptRun) -> pd.Series:
    """Round -> test accuracy, or training accuracy if the paper reports that."""
    in_training = _IN_TRAINING in self.variant.reported
    return run.accuracy('train_accuracy' if in_training else 'test_accuracy')

  def last_accuracy(self) -> Estimate:
    """The estimate over seeds of the last accuracy."""
    return last_of(self.accuracy(run) for run in self.runs)

  def late_accuracy(self) -> Estimate:
    """The estimate over seeds of the mean of the last five accuracies."""
    return estimate(late_mean(self.accuracy(run)) for run in self.runs)

  def client_deviation(self) -> Estimate:
    """Of the clients' own models in the last test; of no number without such models."""
    return last_of(run.accuracy('test_accuracy_std') for run in self.runs)

  def changes(self) -> list[str]:
    """'KNOB=VALUE' for each knob of the runs that has another value in the variant."""
    knobs_of_variant = _knobs_of(self.config_choice)
    changes = {
      f'{name}={value}'
      for run in self.runs
      for name, value in _identity(run).items()
      if name != 'seed' and knobs_of_variant.get(name) != value
    }
    return sorted(changes)

  def has_full_length(self) -> bool:
    """Whether there are runs, with as many rounds as the variant has."""
    lengths = [word for word in self.changes() if word.startswith('num_rounds=')]
    return bool(self.runs) and not lengths


def _reported(variant: Variant) -> Reported | None:
  match = re.match(r'(\d+\.\d+)(?: \+- (\d+\.\d+))?', variant.reported)
  if not match:
    return None
  mean, std = match.groups()
  over_trials = std and _OVER_CLIENTS not in variant.reported
  return Reported(float(mean), float(std) if over_trials else None)


def reported_by(choice: str) -> Reported | None:
  """The accuracy that the paper of 'FILE:VARIANT' reports for it."""
  file, _, name = choice.partition(':')
  return _reported(config_lib.variants(f'configs/{file}.py')[name])


def last_of(columns: Iterable[pd.Series]) -> Estimate:
  """The estimate over columns of their last numbers."""
  return estimate(column.tail(1).mean() for column in columns)


@functools.cache
def _knobs_of(config_choice: str) -> Mapping[str, Any]:
  """Dotted name -> value, of a variant."""
  return config_lib.flatten(config_lib.validate(config_lib.load(config_choice)))


def _identity(run: KeptRun) -> dict:
  """The knobs that identify an experiment, and its length."""
  return config_lib.identity(run.knobs) | {'num_rounds': run.knobs['num_rounds']}


def rows_of(
  file: str, variant_names: Sequence[str], kept_runs: Mapping[str, KeptRun]
) -> list[Row]:
  """The rows of variants of configs/FILE.py, one for each setting of a variant's runs.

  A variant without a run has a row without runs.

  Raises:
    UsageError: there is no such file or variant, or a run is there twice, or has
      another algorithm than its variant.
  """
  path = f'configs/{file}.py'
  variants = config_lib.variants(path)
  rows = []
  for name in variant_names:
    if name not in variants:
      hint = nearest_name_hint(name, variants)
      raise UsageError(f'experiments.in.md: {path} has no variant {name!r}.{hint}')
    config_choice = f'{path}:{name}'
    runs = [run for run in kept_runs.values() if run.config_choice == config_choice]
    for runs_of_setting in _by_setting(runs) or [[]]:
      rows.append(Row(config_choice, variants[name], runs_of_setting))
  for row in rows:
    for change in row.changes():
      if change.startswith('algorithm='):
        run_name = row.runs[0].name
        raise UsageError(
          f'{run_name} has {change}, so it is no run of {row.config_choice}.'
        )
  return rows


def _by_setting(runs: Sequence[KeptRun]) -> list[list[KeptRun]]:
  """The runs, those together that differ in nothing but their seeds."""
  groups = {}
  for run in runs:
    knobs_without_seed = _identity(run) | {'seed': 0}
    setting = f'{sorted(knobs_without_seed.items())} {run.data_digest}'
    of_seeds = groups.setdefault(setting, {})
    same = of_seeds.setdefault(run.seed, run)
    if same is not run:
      raise UsageError(f'{same.name} and {run.name} are one run: delete one.')
  return [list(of_seeds.values()) for of_seeds in groups.values()]
