"""The tables and lists of rows: accuracies, costs, comparisons, clients' own models."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from moon_jax.report.statistics import estimate, paired_difference
from papers import kept_runs
from papers.estimates import NOT_RUN, late_mean, text
from papers.markdown import folded, table
from papers.rows import Row

_ACCURACY_HEAD = (
  'variant',
  'reported',
  'last',
  'mean of 5',
  'best',
  'rounds',
  'seeds',
  'what differs',
  'comparison',
)
_COST_HEAD = (
  'command',
  'seconds a round, median',
  'minutes in all',
  'machine',
  'commit',
)
# Heading -> column of metrics.jsonl.
_PERSONAL_COLUMNS = {
  'test set': 'test_accuracy',
  'own tests': 'local_accuracy_mean',
  'fine-tuned': 'tuned_accuracy_mean',
  'own models': 'personal_accuracy_mean',
}
# Heading -> column of metrics.jsonl.
_USER_COLUMNS = {
  'seen users': 'user_accuracy_seen_mean',
  'unseen users': 'user_accuracy_unseen_mean',
}


# --- @table ---------------------------------------------------------------------------


def accuracies(rows: Sequence[Row]) -> list[str]:
  """A table of the rows that have runs; the others are folded up below it."""
  with_runs = [row for row in rows if row.runs]
  without_runs = [row for row in rows if not row.runs]
  lines = table(_ACCURACY_HEAD, map(_accuracy_cells, with_runs)) if with_runs else []
  if with_runs and without_runs:
    lines.append('')
  if without_runs:
    summary = f'Not run: {len(without_runs)} of {len(rows)}'
    names = '; '.join(f'`{row.name}`{_reported_words(row)}' for row in without_runs)
    lines += folded(summary, [f'{names}.'])
  return lines


def _accuracy_cells(row: Row) -> list[str]:
  """The cells of a row that has runs."""
  last_words = text(row.last_accuracy())
  client_deviation = row.client_deviation()
  if client_deviation.n:
    last_words += f' (clients +- {client_deviation.mean:.1f})'
  best = max(row.accuracy(run).max() for run in row.runs)
  last_rounds = {str(run.rounds[-1]['round']) for run in row.runs}
  return [
    f'`{row.name}`: {row.variant.setting}',
    row.variant.reported or '-',
    last_words,
    text(row.late_accuracy()),
    f'{best:.1f}',
    ', '.join(sorted(last_rounds)),
    row.seeds,
    row.differences(),
    row.comparison(),
  ]


def _reported_words(row: Row) -> str:
  return f', reported {row.variant.reported}' if row.variant.reported else ''


# --- @personal ------------------------------------------------------------------------


def personal(rows: Sequence[Row]) -> list[str]:
  """A table of accuracies in per cent, each the mean of the last five tests.

  The columns are the shared model on the test set, the shared model on the clients' own
  tests, there also after each client has fine-tuned it, and the clients' own models on
  their own tests.
  """
  lines = []
  for row in rows:
    cells = [row.variant.setting]
    for column in _PERSONAL_COLUMNS.values():
      means = [late_mean(run.accuracy(column)) for run in row.runs]
      cells.append(text(estimate(means)))
    lines.append([*cells, row.seeds or NOT_RUN])
  return table(['algorithm', *_PERSONAL_COLUMNS, 'seeds'], lines)


# --- @unseen --------------------------------------------------------------------------


def unseen(rows: Sequence[Row]) -> list[str]:
  """A table of the accuracy of users who train and of users who do not, in per cent.

  Each is the mean over the users, and over the last five tests. Beside it is the mean
  difference to FedAvg on the same data, paired by seed.
  """
  of_fedavg = [
    row for row in rows if row.runs and row.runs[0].knobs['algorithm'] == 'fedavg'
  ]
  lines = []
  for row in rows:
    cells = [row.variant.setting]
    fedavg = next((r for r in of_fedavg if _are_comparable(r, row)), None)
    for column in _USER_COLUMNS.values():
      of_row = _late_by_seed(row, column)
      cells.append(text(estimate(of_row)))
      cells.append(_difference_to(fedavg, row, of_row, column))
    lines.append([*cells, row.seeds or NOT_RUN])
  head = ['data, algorithm']
  for name in _USER_COLUMNS:
    head += [name, '- FedAvg']
  return table([*head, 'seeds'], lines)


def _difference_to(fedavg: Row | None, row: Row, of_row: pd.Series, column: str) -> str:
  """'+0.5 +- 0.3 (p = 0.2)', of seeds that both have; '' if there is nothing to say."""
  if fedavg is None:
    return ''
  difference = paired_difference(of_row, _late_by_seed(fedavg, column))
  mean, std, num_pairs = difference.estimate
  words = f'{mean:+.1f}'
  if num_pairs > 1:
    words += f' +- {std:.1f}'
  if difference.p_value is not None:
    words += f' (p = {difference.p_value:.2g})'
  return words


# --- @costs ---------------------------------------------------------------------------


def costs(rows: Sequence[Row]) -> list[str]:
  """The commands and costs of the rows that have runs."""
  runs = [run for row in rows for run in row.runs]
  if not runs:
    return []
  lines = []
  hours = 0.0
  for run in runs:
    cost = run.provenance.get('cost', {})
    seconds = cost.get('seconds', 0)
    hours += seconds / 3600
    lines.append(
      [
        f'`{run.command}`',
        f'{cost["median"]:.1f}' if 'median' in cost else 'not recorded',
        f'{seconds / 60:.1f}' if 'seconds' in cost else 'not recorded',
        _machine(run.provenance),
        (run.provenance.get('git_commit') or '')[:7],
      ]
    )
  summary = f'Commands and costs of {len(runs)} runs, {hours:.1f} hours in all'
  return folded(summary, table(_COST_HEAD, lines))


def _machine(provenance: Mapping[str, Any]) -> str:
  """The accelerators that computed a run, and the processor if it did."""
  devices = [device.partition(': ') for device in kept_runs.devices(provenance)]
  names = [name for kind, _, name in devices if kind != 'cpu']
  machine = provenance.get('machine')
  used_processor = not names or len(names) < len(devices)
  if machine and used_processor:
    names.append(f'{machine["processor"]}, {machine["cores"]} core(s)')
  return ' and '.join(names)


# --- @compare -------------------------------------------------------------------------


def comparisons(rows: Sequence[Row]) -> list[str]:
  """'MOON - FedAvg: ...': the first variant minus each of the others."""
  first_variant = [row for row in rows if row.name == rows[0].name]
  return [
    f'- {_comparison(first, second)}'
    for second in rows
    for first in first_variant
    if _are_comparable(first, second)
  ]


def _are_comparable(first: Row, second: Row) -> bool:
  """Whether two variants have runs of one seed under equal conditions."""
  if first.name == second.name or first.conditions != second.conditions:
    return False
  seeds = {run.seed for run in first.runs} & {run.seed for run in second.runs}
  return bool(seeds)


def _comparison(first: Row, second: Row) -> str:
  """The difference of two comparable rows, paired by seed."""
  names = f'`{first.name}` - `{second.name}`'
  changes = first.changes()
  if changes:
    names += f' ({", ".join(changes)})'
  difference = paired_difference(_late_by_seed(first), _late_by_seed(second))
  mean, std, num_pairs = difference.estimate
  if num_pairs == 1:
    details = ['1 seed', 'too few to rank them']
  else:
    details = [f'{num_pairs} seeds', f'+- {std:.1f}']
  if difference.p_value is not None:
    details.append(f'p = {difference.p_value:.2g} of a paired t-test')
  reported = '' if changes else _reported_difference(first, second)
  return (
    f'{names}, mean of 5 tests: {mean:+.1f} points ({", ".join(details)}){reported}.'
  )


def _reported_difference(first: Row, second: Row) -> str:
  reported_first, reported_second = first.reported(), second.reported()
  if not reported_first or not reported_second:
    return ''
  difference = round(reported_first.mean - reported_second.mean, 2)
  return f'; reported {difference:+g}'


def _late_by_seed(row: Row, column: str = 'test_accuracy') -> pd.Series:
  """Seed -> the mean of an accuracy over the last five tests of its run."""
  means = {run.seed: late_mean(run.accuracy(column)) for run in row.runs}
  return pd.Series(means, dtype=float)
