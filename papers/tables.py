"""The tables of the page: accuracies, clients' own models, attacks, skew, costs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from moon_jax import config as config_lib
from moon_jax.report.statistics import estimate
from papers import curve, kept_runs
from papers.differences import KeptRuns, compare
from papers.estimates import NOT_RUN, late_mean, text
from papers.kept_runs import KeptRun
from papers.markdown import folded, signed, table
from papers.partitions import effective_classes
from papers.rows import Row, rows_of

# The config files of experiments, in the order of the page.
FILES = (
  'moon_cvpr21',
  'curve',
  'ablation',
  'review',
  'moonflower',
  'dco_moon',
  'sa_moon',
  'rivals',
  'attacks',
  'arrays',
)
# Heading -> column of metrics.jsonl.
_PERSONAL_COLUMNS = {
  'test set': 'test_accuracy',
  'own tests': 'local_accuracy_mean',
  'fine-tuned': 'tuned_accuracy_mean',
  'own models': 'personal_accuracy_mean',
}

_USER_COLUMNS = {
  'seen users': 'user_accuracy_seen_mean',
  'unseen users': 'user_accuracy_unseen_mean',
}


def accuracies(rows: Sequence[Row]) -> list[str]:
  """A table of the rows with runs of full length: the paper's accuracies, and here.

  The paper's is left out where a run here changes more than the seed.
  """
  cells = [_accuracy_cells(row) for row in rows if row.has_full_length()]
  return table(('variant', 'paper', 'here, mean of 5', 'last round', 'seeds'), cells)


def _accuracy_cells(row: Row) -> list[str]:
  last_words = text(row.last_accuracy())
  client_deviation = row.client_deviation()
  if client_deviation.n:
    last_words += f' (clients +- {client_deviation.mean:.1f})'
  name = row.variant.setting
  if row.changes():
    name += f', with {", ".join(f"`{change}`" for change in row.changes())}'
  return [
    name,
    '-' if row.changes() else row.variant.reported or '-',
    text(row.late_accuracy()),
    last_words,
    row.seeds,
  ]


def not_run(kept_runs_of_page: KeptRuns) -> list[str]:
  """The variants that have no run as they are, a line for each config file.

  kept_runs_of_page: finished runs, and those that diverged.
  """
  lines = []
  for file in FILES:
    names = config_lib.variants(f'configs/{file}.py')
    rows = rows_of(file, [*names], kept_runs_of_page)
    run_names = {row.name for row in rows if row.runs and not row.changes()}
    left = [f'`{name}`' for name in names if name not in run_names]
    if left:
      lines.append(f'- `{file}`, {len(left)} of {len(names)}: {", ".join(left)}.')
  return lines


def personal(rows: Sequence[Row]) -> list[str]:
  """A table of accuracies in per cent, each the mean of the last five tests.

  The columns are the shared model on the test set, the shared model on the clients' own
  tests, there also after each client has fine-tuned it, and the clients' own models on
  their own tests.
  """
  lines = []
  for row in _unchanged(rows):
    cells = [row.variant.setting]
    for column in _PERSONAL_COLUMNS.values():
      means = [late_mean(run.accuracy(column)) for run in row.runs]
      cells.append(text(estimate(means)))
    lines.append([*cells, row.seeds or NOT_RUN])
  return table(['algorithm', *_PERSONAL_COLUMNS, 'seeds'], lines)


def _unchanged(rows: Sequence[Row]) -> list[Row]:
  """The rows whose runs have the knobs of their variant."""
  return [row for row in rows if not row.changes()]


def unseen(rows: Sequence[Row], diverged: Iterable[KeptRun]) -> list[str]:
  """A table of the accuracy of users who train and of users who do not, in per cent.

  Each is the mean over the users, and over the last five tests. Beside it is the mean
  difference to FedAvg on the same data, paired by seed, and its 95 % interval.

  Args:
    rows: the rows; one whose runs change a knob is left out.
    diverged: the runs that diverged; a row without another run has their seeds.
  """
  rows = _unchanged(rows)
  rows_of_fedavg = [
    row for row in rows if row.runs and row.runs[0].knobs['algorithm'] == 'fedavg'
  ]
  lines = []
  for row in rows:
    cells = [row.variant.setting]
    fedavg = next((other for other in rows_of_fedavg if _share_data(other, row)), None)
    for column in _USER_COLUMNS.values():
      late = _late_by_seed(row, column)
      cells.append(text(estimate(late)))
      cells.append(_less(late, _late_by_seed(fedavg, column)) if fedavg else '')
    lost = Row(
      row.config_choice,
      row.variant,
      [run for run in diverged if run.config_choice == row.config_choice],
    )
    without_runs = f'{lost.seeds}: diverged' if lost.runs else NOT_RUN
    lines.append([*cells, row.seeds or without_runs])
  head = ['data, algorithm']
  for name in _USER_COLUMNS:
    head += [name, '- FedAvg']
  return table([*head, 'seeds'], lines)


def _share_data(fedavg: Row, row: Row) -> bool:
  """Whether another variant has runs on the data of FedAvg's, with a seed of them."""
  pairs = {
    (run.seed, run.data_digest) for run in fedavg.runs if fedavg.name != row.name
  }
  return any((run.seed, run.data_digest) in pairs for run in row.runs)


def _late_by_seed(row: Row, column: str) -> pd.Series:
  """Seed -> the mean of the last five numbers of a column, in per cent."""
  means = {run.seed: late_mean(run.accuracy(column)) for run in row.runs}
  return pd.Series(means, dtype=float)


def _less(late: pd.Series, late_of_fedavg: pd.Series) -> str:
  """'+0.5 (-0.2 to +1.2)', of the seeds that both have."""
  comparison = compare((late - late_of_fedavg).dropna())
  mean = signed(comparison.mean)
  return mean if comparison.count < 2 else f'{mean} ({comparison.interval()})'


def attacks(kept_runs_of_page: KeptRuns) -> list[str]:
  """Accuracies of the server's rules over the fraction of attackers, by attack."""
  rules = ('mean', 'median', 'trimmed', 'krum')
  fractions = (0.1, 0.2, 0.3, 0.4)
  names = {'none': 'attacks_{}_seed0'} | {
    f'{attack.upper()}, {fraction:.0%}': f'attacks_{attack}_{fraction}_{{}}_seed0'
    for attack in ('alie', 'ipm')
    for fraction in fractions
  }
  rows = [
    [attack, *(_late(name.format(rule), kept_runs_of_page) for rule in rules)]
    for attack, name in names.items()
  ]
  return table(('attackers', 'mean', 'median', 'trimmed mean', 'Krum'), rows)


def _late(name: str, kept_runs_of_page: KeptRuns) -> str:
  run = kept_runs_of_page.get(name)
  return NOT_RUN if run is None else f'{late_mean(run.accuracy()):.1f}'


# --- skew -----------------------------------------------------------------------------


def skew_table(
  moon: curve.Curve,
  class_counts: Mapping[str, np.ndarray],
) -> list[str]:
  """Effective classes of a client beside the accuracies, by seed.

  Args:
    moon: MOON's curve.
    class_counts: name of a run -> [N, Y] its class counts.
  """
  rows = []
  for name, column in curve.COLUMNS.items():
    stem = column.choice.format('fedavg').replace(':', '_')
    for pair in moon.pairs[name].itertuples():
      counts = class_counts[f'{stem}_seed{pair.seed}']
      rows.append(
        [
          f'{name}, seed {pair.seed}',
          f'{effective_classes(counts):.2f}',
          f'{counts.sum(axis=1).min()} to {counts.sum(axis=1).max()}',
          f'{pair.second:.1f}',
          f'{pair.first:.1f}',
          signed(pair.difference),
        ]
      )
  head = (
    'skew',
    'effective classes',
    'images of a client',
    'FedAvg',
    'MOON',
    'difference',
  )
  return table(head, rows)


# --- machines and costs ---------------------------------------------------------------


def repeated(kept_runs_of_page: KeptRuns, repeated_runs: KeptRuns) -> list[str]:
  """A table of runs that were repeated on another machine, each with its first run."""
  rows = []
  for name, again in repeated_runs.items():
    for words, run in ((f'`{name}`', kept_runs_of_page[name]), ('repeated', again)):
      ends = [f'{curve.endpoint(run, end):.1f}' for end in (50, 100)]
      rows.append([words, *ends, _machine(run.provenance), _commits(run)])
  return table(('run', 'round 50', 'round 100', 'machine', 'commits'), rows)


def costs(kept_runs_of_page: KeptRuns) -> list[str]:
  """Seeds, cost, machine and commits of kept runs, folded up for each file of them."""
  lines = []
  for file in FILES:
    rows = rows_of(
      file, [*config_lib.variants(f'configs/{file}.py')], kept_runs_of_page
    )
    rows = [row for row in rows if row.runs]
    if not rows:
      continue
    runs = [run for row in rows for run in row.runs]
    hours = sum(run.provenance.get('cost', {}).get('seconds', 0) for run in runs) / 3600
    head = ('variant', 'seeds', 's a round', 'minutes in all', 'machine', 'commits')
    summary = f'{file}: {len(runs)} runs, {hours:.1f} hours'
    lines += [*folded(summary, table(head, map(_cost_cells, rows))), '']
  return lines


def _cost_cells(row: Row) -> list[str]:
  costs_of_runs = [run.provenance.get('cost', {}) for run in row.runs]
  medians = [cost['median'] for cost in costs_of_runs if 'median' in cost]
  minutes = sum(cost.get('seconds', 0) for cost in costs_of_runs) / 60
  name = f'`{" ".join([row.name, *row.changes()])}`'
  return [
    name,
    row.seeds,
    f'{np.median(medians):.1f}' if medians else 'not recorded',
    f'{minutes:.0f}' if minutes else 'not recorded',
    '; '.join(dict.fromkeys(_machine(run.provenance) for run in row.runs)),
    ', '.join(dict.fromkeys(_commits(run) for run in row.runs)),
  ]


def _commits(run: KeptRun) -> str:
  """The commits that a run was computed at, the first one first."""
  commits = [(start.get('git_commit') or '')[:7] for start in run.starts()]
  return ' then '.join(dict.fromkeys(filter(None, commits)))


def _machine(provenance: Mapping[str, Any]) -> str:
  """The accelerators that computed a run, and the processor if it did."""
  devices = [device.partition(': ') for device in kept_runs.devices(provenance)]
  names = [name for kind, _, name in devices if kind != 'cpu']
  machine = provenance.get('machine')
  used_processor = not names or len(names) < len(devices)
  if machine and used_processor:
    names.append(f'{machine["processor"]}, {machine["cores"]} core(s)')
  return ' and '.join(names)
