"""The tables of a report: columns that format their cells, and rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax.report.naming import titled
from moon_jax.report.results import Result, Row

Cell = str | int | float | None


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    key: its name in the CSV, which holds the values as recorded: accuracies in [0, 1].
    heading: its heading in other files, with the unit.
    spec: format of numbers that are no counts, for `format`.
    scale: factor from the recorded unit to that of the heading.
    of: an estimate's further keys in a row, after the key: `_mean`, `_std`, `_n`.
    better: 1 if higher numbers are better, -1 if lower ones are, 0 if neither.
  """

  key: str
  heading: str
  spec: str = 'g'
  scale: float = 1.0
  of: tuple[str, ...] = ('',)
  better: int = 0

  def cell(self, row: Row) -> Cell:
    """The value of a row, for an estimate the mean; None if there is none."""
    cell = row.get(self.key + self.of[0])
    return None if pd.isna(cell) else cell

  def text(self, row: Row) -> str:
    """A cell as a reader sees it: '83.12 ± 0.41'."""
    cell = self.cell(row)
    if cell is None:
      return '-'
    if isinstance(cell, str | int):
      return str(cell)
    if self.key == 'p_value' and cell < 1e-4:
      return '<0.0001'
    std = row.get(f'{self.key}_std')
    spread = '' if pd.isna(std) else f' ± {std * self.scale:{self.spec.lstrip("+")}}'
    return f'{cell * self.scale:{self.spec}}{spread}'


class Table(NamedTuple):
  """A table.

  Attributes:
    name: name of the files, without their ending.
    title: title of the table.
    caption: how its numbers were made.
    columns: columns from the left.
    rows: key of a column -> cell; None or NaN for a missing one.
  """

  name: str
  title: str
  caption: str
  columns: Sequence[Column]
  rows: Sequence[Row]

  def cells(self) -> list[list[Cell]]:
    """A cell for each column of each row."""
    return [[column.cell(row) for column in self.columns] for row in self.rows]

  def texts(self) -> list[list[str]]:
    """Every cell as a reader sees it."""
    return [[column.text(row) for column in self.columns] for row in self.rows]

  def numeric(self) -> list[bool]:
    """For each column, whether it has numbers."""
    columns = zip(*self.cells(), strict=True)
    return [any(isinstance(cell, int | float) for cell in column) for column in columns]

  def csv(self) -> str:
    """The keys and the plain values; an estimate takes three columns."""
    keys = [column.key + of for column in self.columns for of in column.of]
    frame = pd.DataFrame([*self.rows], dtype=object).reindex(columns=keys)
    return frame.to_csv(index=False, lineterminator='\r\n')


def _percent(key: str, heading: str, spec: str = '.2f') -> Column:
  return Column(key, heading, spec, 100.0)


def _mean(key: str, heading: str, spec: str = '.1f', scale: float = 1.0) -> Column:
  return Column(key, heading, spec, scale, ('_mean', '_std', '_n'))


def percents(key: str, heading: str, spec: str = '.2f') -> Column:
  """The column of an accuracy, or of another share that is better if it is higher."""
  return _mean(key, heading, spec, 100.0)._replace(better=1)


def _less(key: str, heading: str) -> Column:
  return _mean(key, heading)._replace(better=-1)


def _by_series(name: str, title: str, caption: str, *columns: Column) -> Table:
  """A table without rows, which `of_series` adds."""
  return Table(name, title, caption, (Column('series', 'series'), *columns), ())


BEST_BY = Column('best_by', 'best by')
ACCURACY = _by_series(
  'accuracy',
  'Accuracy',
  'Mean ± sample standard deviation over the n finished runs of a series. The '
  'difference to FedAvg is the mean over the seeds that both have, with equally many '
  'rounds; p is the p-value of a two-sided paired t-test over at least two seeds. '
  'The best accuracy is on the test set, in the round in which the accuracy on the '
  'split that is named under "best by" is highest.',
  Column('n', 'n'),
  Column('rounds', 'rounds'),
  percents('final_accuracy', 'final accuracy, %'),
  percents('best_accuracy', 'best accuracy, %'),
  BEST_BY,
  percents('mean_of_last_5', 'mean of last 5 tests, %'),
  percents('difference_to_fedavg', 'final - FedAvg, points', '+.2f'),
  Column('pairs', 'pairs'),
  Column('p_value', 'p', '.4f'),
)
TARGET = _by_series(
  'target',
  'Rounds, traffic and time to the target',
  'Target: {}, in the same setting. Rounds, MB (10^6 bytes, all clients, both ways) '
  'and seconds (of the device, no compiling) are counted to the first test that '
  'reaches the target: mean ± sample standard deviation over the runs that reach it. '
  'Rounds saved compares the rounds in which the mean curves reach it.',
  _percent('target', 'target, %'),
  Column('reached', 'reached by'),
  _less('rounds_to_target', 'rounds'),
  _less('megabytes_to_target', 'MB'),
  _less('seconds_to_target', 'seconds'),
  Column('round_of_the_mean', 'round of the mean curve'),
  _percent('rounds_saved', 'rounds saved against FedAvg, %', '+.0f'),
)
CHOSEN = _by_series(
  'chosen',
  'Chosen values',
  'For each line of a sweep, the value with the highest mean accuracy, after the given '
  'rounds, on the split under "chosen by", and its mean accuracy on the test set.',
  Column('knob', 'knob'),
  Column('value', 'chosen value'),
  Column('by', 'chosen by'),
  Column('rounds', 'rounds'),
  _percent('chosen_accuracy', 'accuracy chosen by, %'),
  _percent('test_accuracy', 'test accuracy, %'),
)
CLIENTS = _by_series(
  'clients',
  "Accuracy of the clients' own models",
  'Of algorithms without a global model: each client tested on the whole test set in '
  'the last round; mean ± sample standard deviation over the n runs.',
  Column('n', 'n'),
  percents('mean_accuracy', 'mean over clients, %'),
  percents('std_over_clients', 'std over clients, points')._replace(better=-1),
  percents('worst_client', 'worst client, %'),
)
CLIENT_ACCURACY = _by_series(
  'client_accuracy',
  'Accuracy of the global model for its clients',
  "Accuracy of the trained global model under each client's distribution of classes: "
  "the sum over classes of the client's share of the class times the accuracy on its "
  'test images. Mean ± sample standard deviation over the clients, and the lowest.',
  percents('accuracy', 'mean over clients, %'),
  _percent('worst_client', 'worst client, %'),
)
_RUN = (Column('run', 'run'), Column('state', 'state'))
_FINAL = (
  Column('rounds', 'rounds'),
  _percent('final_accuracy', 'final accuracy, %'),
  _percent('best_accuracy', 'best accuracy, %'),
  BEST_BY,
)
_SPEED = (
  Column('seconds', 'seconds', '.1f'),
  Column('samples_per_second', 'samples/s', ',.0f'),
)


def by_class(
  number: int, setting: str, models: Mapping[str, str], rows: Sequence[Row]
) -> Table:
  """The accuracy of global models for each class.

  Args:
    number: number of the table, from 1.
    setting: what its models share, 'beta=0.5'; '' if all models do.
    models: key of a model's column -> its heading.
    rows: for each class, its name and its test images.
  """
  caption = titled('Trained global model on the test images of each class', setting)
  title = titled('Accuracy for each class', setting)
  columns = [Column('class', 'class'), Column('images', 'test images')]
  columns += [_percent(key, heading) for key, heading in models.items()]
  name = f'class_accuracy-{number}' if number > 1 else 'class_accuracy'
  return Table(name, title, f'{caption}.', columns, rows)


def of_series(kind: Table, rows: Sequence[Row]) -> Table:
  """A table with a row for each series, and the settings if there are several."""
  told = [Column('setting', 'setting')] if any(row['setting'] for row in rows) else []
  return kind._replace(columns=(*told, *kind.columns), rows=rows)


def results(found: Sequence[Result], target: str) -> list[Table]:
  """The tables over series; the target is described in words."""
  rows = [result.row for result in found]
  of_target = TARGET._replace(caption=TARGET.caption.format(target))
  kinds = {'n': ACCURACY, 'target': of_target, 'worst_client_n': CLIENTS}
  own = {key: [row for row in rows if row[key] is not None] for key in kinds}
  return [of_series(kind, own[key]) for key, kind in kinds.items() if own[key]]


def runs(rows: Sequence[Row], varying: Sequence[str]) -> Table:
  """Every run with its knobs, its machine, and how it ended.

  Args:
    rows: rows of all runs, also of those that did not finish.
    varying: the knobs that get a column.
  """
  knobs = (Column(name, name) for name in varying)
  about = {'devices': 'devices', 'jax': 'JAX'}
  about |= {'git_commit': 'commit', 'command': 'command'}
  caption = (
    'Seconds are of training, testing and waiting; samples/s of training. Runs that '
    'are not finished are in no other table and in no figure.'
  )
  columns = (*_RUN, *knobs, *_FINAL, *_SPEED, *map(Column, about, about.values()))
  return Table('runs', 'Runs', caption, columns, rows)


def compared(rows: Sequence[Row], described: str) -> Table:
  """A few runs side by side, with the costs of reaching the target."""
  columns = (
    *_RUN,
    *_FINAL,
    _percent('mean_of_last_5', 'last 5, %'),
    _percent('target', 'target, %'),
    Column('rounds_to_target', 'rounds to target'),
    Column('megabytes_to_target', 'MB to target', '.1f'),
    *_SPEED,
  )
  caption = f'target: {described}, in the same setting'
  return Table('compared', 'Runs', caption, columns, rows)
