"""The numbers as CSV, Markdown and LaTeX; the page takes its cells from here too."""

import csv
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from moon_jax.report import results as results_lib
from moon_jax.report import statistics
from moon_jax.report.groups import Setting
from moon_jax.report.results import Reached, Result
from moon_jax.report.runs import Run
from moon_jax.report.statistics import Estimate

Cell = str | int | float | Estimate | None
NOTHING = '-'


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    key: its name in the CSV, which holds the values as recorded: accuracies in [0, 1].
    heading: elsewhere, with the unit.
    digits: after the point.
    scale: from the recorded unit to that of the heading.
    is_estimate: whether its cells are estimates.
    sign: whether positive numbers have one.
  """

  key: str
  heading: str
  digits: int = 0
  scale: float = 1.0
  is_estimate: bool = False
  sign: bool = False


class Table(NamedTuple):
  """A table.

  Attributes:
    name: of the files, without their ending.
    title: what it holds.
    caption: how its numbers were made.
    columns: from the left.
    rows: a cell for each column.
  """

  name: str
  title: str
  caption: str
  columns: Sequence[Column]
  rows: Sequence[Sequence[Cell]]


def _accuracy(key: str, heading: str, sign: bool = False) -> Column:
  return Column(key, heading, 2, 100.0, is_estimate=True, sign=sign)


_NAMES = (Column('setting', 'setting'), Column('series', 'algorithm'))
_ACCURACY = (
  Column('n', 'n'),
  Column('rounds', 'rounds'),
  _accuracy('final_accuracy', 'final accuracy, %'),
  _accuracy('best_accuracy', 'best accuracy, %'),
  _accuracy('mean_of_last_5', 'mean of last 5 tests, %'),
  _accuracy('difference_to_fedavg', 'final - FedAvg, points', sign=True),
  Column('p_value', 'p', 4),
)
_TARGET = (
  Column('target', 'target, %', 2, 100.0),
  Column('reached', 'reached by'),
  Column('rounds_to_target', 'rounds', 1, is_estimate=True),
  Column('megabytes_to_target', 'MB', 1, is_estimate=True),
  Column('seconds_to_target', 'seconds', 1, is_estimate=True),
  Column('round_of_the_mean', 'round of the mean curve'),
  Column('rounds_saved', 'rounds saved against FedAvg, %', 0, 100.0, sign=True),
)

Found = Sequence[tuple[Setting, Sequence[Result]]]


def accuracy(found: Found) -> Table:
  """Final, best and late accuracy of every series, and the difference to FedAvg."""
  rows = [
    (
      *_names(setting, result),
      len(result.rounds),
      statistics.ranges(result.rounds),
      result.final,
      result.best,
      result.tail,
      *_compared(result),
    )
    for setting, results in found
    for result in results
  ]
  return _trimmed(
    'accuracy',
    'Accuracy',
    'Mean ± sample standard deviation over the n finished runs of a series. The '
    'difference to FedAvg is the mean over the seeds that both have, with equally many '
    'rounds; p is of the two-sided paired t-test over them (none with fewer than two).',
    (*_NAMES, *_ACCURACY),
    rows,
  )


def target(found: Found, described: str) -> Table:
  """What it takes to reach the target.

  Args:
    found: the settings with their results.
    described: the target in words.
  """
  rows = [
    (*_names(setting, result), *_cost(result.reached, len(result.rounds)))
    for setting, results in found
    for result in results
    if result.reached
  ]
  return _trimmed(
    'target',
    'Rounds, traffic and time to the target',
    f'Target: {described}, in the same setting. Rounds, MB (10^6 bytes that all '
    'clients receive and send) and seconds (training, testing and waiting; no '
    'compiling) are until the first test at the target or above, mean ± sample '
    'standard deviation over the runs that reach it. Rounds saved compares the first '
    'rounds in which the means over seeds are there.',
    (*_NAMES, *_TARGET),
    rows,
  )


def clients(found: Found) -> Table:
  """The spread over the clients' own models, where each client has one."""
  rows = [
    (
      *_names(setting, result),
      len(result.rounds),
      result.final,
      result.std_over_clients,
      result.worst_client,
    )
    for setting, results in found
    for result in results
    if result.worst_client
  ]
  columns = (
    Column('n', 'n'),
    _accuracy('mean_accuracy', 'mean over clients, %'),
    _accuracy('std_over_clients', 'std over clients, points'),
    _accuracy('worst_client', 'worst client, %'),
  )
  return _trimmed(
    'clients',
    "Accuracy of the clients' own models",
    'Of algorithms without a global model: each client tested on the whole test set in '
    'the last round; mean ± sample standard deviation over the n runs.',
    (*_NAMES, *columns),
    rows,
  )


def client_accuracy(spreads: Sequence[tuple[str, str, np.ndarray]]) -> Table:
  """The spread of a global model's accuracy over its clients.

  Args:
    spreads: title of the setting, label of the series, accuracy for each client.
  """
  rows = [
    (setting or None, label, statistics.estimate(values), float(values.min()))
    for setting, label, values in spreads
  ]
  return _trimmed(
    'client_accuracy',
    'Accuracy of the global model for its clients',
    "Accuracy of the trained global model under each client's distribution of classes: "
    "the sum over classes of the client's share of the class times the accuracy on its "
    'test images. Mean ± sample standard deviation over the clients, and the lowest.',
    (
      *_NAMES,
      _accuracy('accuracy', 'mean over clients, %'),
      Column('worst_client', 'worst client, %', 2, 100.0),
    ),
    rows,
  )


def runs(every: Iterable[Run], varying: Sequence[str]) -> Table:
  """Every run with its settings, what it ran on, and how it ended.

  Args:
    every: also those that did not finish.
    varying: the knobs that are worth a column.
  """
  columns = (
    Column('run', 'run'),
    Column('state', 'state'),
    *(Column(name, name) for name in varying),
    Column('rounds', 'rounds'),
    Column('final_accuracy', 'final accuracy, %', 2, 100.0),
    Column('best_accuracy', 'best accuracy, %', 2, 100.0),
    Column('seconds', 'seconds', 1),
    Column('samples_per_second', 'samples/s'),
    Column('devices', 'devices'),
    Column('jax', 'JAX'),
    Column('git_commit', 'commit'),
    Column('command', 'command'),
  )
  rows = [_run_row(run, varying) for run in every]
  caption = (
    'Seconds are of training, testing and waiting; samples/s of training. Runs that '
    'are not finished are in no other table and in no figure.'
  )
  return Table('runs', 'Runs', caption, columns, rows)


def _run_row(run: Run, varying: Sequence[str]) -> list[Cell]:
  found = results_lib.summary(run)
  devices = run.about.get('devices') or []
  return [
    run.name,
    str(run.ending),
    *(run.identity.get(name) for name in varying),
    found.rounds,
    found.final,
    found.best,
    found.seconds,
    found.samples_per_second,
    _counted(devices),
    (run.about.get('versions') or {}).get('jax'),
    (run.about.get('git_commit') or '')[:10] or None,
    run.about.get('command'),
  ]


def _counted(devices: Sequence[str]) -> str:
  """'2 x cpu: cpu'."""
  kinds = dict.fromkeys(devices)
  return ', '.join(f'{list(devices).count(kind)} x {kind}' for kind in kinds)


def _names(setting: Setting, result: Result) -> tuple[Cell, Cell]:
  return setting.title or None, result.series.label


def _compared(result: Result) -> tuple[Cell, Cell]:
  if result.comparison is None:
    return None, None
  return result.comparison.difference, result.comparison.p_value


def _cost(reached: Reached, n: int) -> tuple[Cell, ...]:
  return (
    reached.target,
    f'{reached.num_reached} of {n}',
    reached.rounds,
    reached.megabytes,
    reached.seconds,
    reached.mean_round,
    reached.saved,
  )


def _trimmed(name, title, caption, columns, rows) -> Table:
  """The table without the column of settings if there is one setting only."""
  if any(row[0] for row in rows):
    return Table(name, title, caption, columns, rows)
  return Table(name, title, caption, columns[1:], [row[1:] for row in rows])


def text(value: Cell, column: Column) -> str:
  """A cell as a reader sees it: '83.12 ± 0.41'."""
  if value is None:
    return NOTHING
  if isinstance(value, Estimate):
    mean = _number(value.mean, column)
    if value.std is None:
      return mean
    return f'{mean} ± {_number(value.std, column._replace(sign=False))}'
  if isinstance(value, str | bool):
    return str(value)
  if column.key == 'p_value' and value < 1e-4:
    return '<0.0001'
  if isinstance(value, float) and not column.digits and column.scale == 1.0:
    return f'{value:g}' if abs(value) < 1000 else f'{value:,.0f}'
  return str(value) if isinstance(value, int) else _number(value, column)


def _number(value: float, column: Column) -> str:
  sign = '+' if column.sign else ''
  return f'{value * column.scale:{sign}.{column.digits}f}'


def write(table: Table, folder: pathlib.Path) -> list[str]:
  """Writes a table as CSV, Markdown and LaTeX; the names of the files.

  Args:
    table: what is written.
    folder: exists.
  """
  headings = [column.heading for column in table.columns]
  cells = [
    [text(v, c) for v, c in zip(row, table.columns, strict=True)] for row in table.rows
  ]
  markdown = tabulate(
    [[cell.replace('|', '\\|') for cell in row] for row in cells],
    headings,
    tablefmt='github',
    disable_numparse=True,
  )
  latex = tabulate(cells, headings, tablefmt='latex_booktabs', disable_numparse=True)
  contents = {
    f'{table.name}.md': f'{markdown}\n\n{table.caption}\n',
    f'{table.name}.tex': latex.replace('±', '$\\pm$') + '\n',
  }
  for name, content in contents.items():
    (folder / name).write_text(content)
  _write_csv(table, folder / f'{table.name}.csv')
  return [f'{table.name}.csv', *contents]


def _write_csv(table: Table, path: pathlib.Path) -> None:
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow([name for column in table.columns for name in _csv_names(column)])
    for row in table.rows:
      pairs = zip(row, table.columns, strict=True)
      writer.writerow([cell for value, column in pairs for cell in _csv(value, column)])


def _csv_names(column: Column) -> tuple[str, ...]:
  if not column.is_estimate:
    return (column.key,)
  return tuple(f'{column.key}_{part}' for part in Estimate._fields)


def _csv(value: Cell, column: Column) -> tuple[Cell, ...]:
  if not column.is_estimate:
    return (value,)
  return tuple(value) if value is not None else (None,) * len(Estimate._fields)
