"""The tables of a report: columns that format their cells, and rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from moon_jax.catalog import Metric
from moon_jax.report import traces
from moon_jax.report.naming import titled
from moon_jax.report.results import Result, Row, best_key, note_key
from moon_jax.report.traces import TestMetric

Cell = str | int | float | None
_ESTIMATE = ('_mean', '_std', '_n')


class Column(NamedTuple):
  """A column of a table.

  Attributes:
    key: its name in the CSV, which holds the values as recorded: accuracies in [0, 1].
    heading: its heading in other files, with the unit.
    number_format: format of numbers that are no counts, for `format`.
    scale: factor from the recorded unit to that of the heading.
    suffixes: what follows the key in the keys of a row: one for each number of an
      estimate.
  """

  key: str
  heading: str
  number_format: str = 'g'
  scale: float = 1.0
  suffixes: tuple[str, ...] = ('',)

  def is_best(self, row: Row) -> bool:
    """Whether the cell of a row is clearly the best of its column and setting."""
    return bool(row.get(best_key(self.key)))

  @property
  def keys(self) -> list[str]:
    """The keys of its cells in a row."""
    return [self.key + suffix for suffix in self.suffixes]

  def cell(self, row: Row) -> Cell:
    """The value of a row, for an estimate the mean; None if there is none."""
    cell = row.get(self.keys[0])
    return None if pd.isna(cell) else cell

  def note(self, row: Row) -> str:
    """What a reader must know of a cell: '(1 of 3)' if two runs lack it; else ''."""
    note = row.get(note_key(self.key))
    return f'({note})' if note else ''

  def text(self, row: Row) -> str:
    """A cell as a reader sees it: '83.12 ± 0.41', or '83.12 (1 of 3)'."""
    return f'{self.number(row)} {self.note(row)}'.rstrip()

  def number(self, row: Row) -> str:
    """A cell without its note: '83.12 ± 0.41'."""
    cell = self.cell(row)
    if cell is None:
      return '-'
    if isinstance(cell, str | int):
      return str(cell)
    if self.key.endswith('p_value') and cell < 1e-4:
      return '<0.0001'
    text = f'{cell * self.scale:{self.number_format}}'
    std = row.get(f'{self.key}_std')
    if pd.isna(std):
      return text
    std_format = self.number_format.lstrip('+')
    return f'{text} ± {std * self.scale:{std_format}}'


class Table(NamedTuple):
  """A table.

  Attributes:
    name: name of the files, without their ending.
    title: title of the table.
    caption: how its numbers were made.
    columns: columns from the left.
    rows: key of a column -> cell; None or NaN for a missing one.
    most_rows: the number of rows that readers see; the CSV has all. None: all.
  """

  name: str
  title: str
  caption: str
  columns: Sequence[Column]
  rows: Sequence[Row]
  most_rows: int | None = None

  @property
  def shown_rows(self) -> Sequence[Row]:
    """The rows that readers see."""
    return self.rows[: self.most_rows]

  def cells(self) -> list[list[Cell]]:
    """A cell for each column of each row that readers see."""
    return [[column.cell(row) for column in self.columns] for row in self.shown_rows]

  def texts(self) -> list[list[str]]:
    """Every cell as a reader sees it."""
    return [[column.text(row) for column in self.columns] for row in self.shown_rows]

  def numeric(self) -> list[bool]:
    """For each column, whether it has numbers."""
    columns = zip(*self.cells(), strict=True)
    return [any(isinstance(cell, int | float) for cell in column) for column in columns]

  def csv(self) -> str:
    """The keys and the plain values; an estimate takes three columns."""
    keys = [key for column in self.columns for key in column.keys]
    frame = pd.DataFrame([*self.rows], dtype=object).reindex(columns=keys)
    return frame.to_csv(index=False, lineterminator='\r\n')


# --- kinds of columns -----------------------------------------------------------------


def _percent(key: str, heading: str, number_format: str = '.2f') -> Column:
  """The column of an accuracy, or of another share, of one run."""
  return Column(key, heading, number_format, scale=100.0)


def percent_estimate(
  key: str,
  heading: str,
  number_format: str = '.2f',
) -> Column:
  """The column of an estimate of an accuracy, or of another share."""
  return Column(
    key,
    heading,
    number_format,
    scale=100.0,
    suffixes=_ESTIMATE,
  )


def metric_estimate(key: str, metric: Metric) -> Column:
  """The column of an estimate of a metric of tests."""
  is_percent = metric.factor == 100
  return Column(
    key,
    f'{metric.title}, %' if is_percent else metric.title,
    '.2f' if is_percent else '.4g',
    scale=metric.factor,
    suffixes=_ESTIMATE,
  )


def _cost_estimate(key: str, heading: str) -> Column:
  """The column of an estimate of a cost."""
  return Column(key, heading, '.1f', suffixes=_ESTIMATE)


# --- tables over series ---------------------------------------------------------------


def _by_series(name: str, title: str, caption: str, columns: Sequence[Column]) -> Table:
  """A table without rows, which `of_series` adds."""
  return Table(
    name=name,
    title=title,
    caption=caption,
    columns=(Column('series', 'series'), *columns),
    rows=(),
  )


# It may be below the final accuracy, if another number than it chooses the round.
BEST_ROUND = 'accuracy of the best round, %'
BEST_BY = Column('best_by', 'best by')
CLIENT_MEAN = percent_estimate(traces.CLIENT_MEAN, "mean over clients' own tests, %")
# The difference of this mean to FedAvg's.
_CLIENT_DIFFERENCE = (
  percent_estimate('client_difference_to_fedavg', 'own tests - FedAvg, points', '+.2f'),
  Column('client_pairs', 'own tests: pairs'),
  Column('client_p_value', 'own tests: p', '.4f'),
)
_OF_CLIENT_TESTS = (CLIENT_MEAN, *_CLIENT_DIFFERENCE)
# What captions add where it applies.
OF_CLIENTS_MODELS = (
  'Of algorithms without a global model, numbers on the test set are means over the '
  "clients' models, each on the whole test set."
)
OF_CLIENT_MEAN = (
  "The mean over clients' own tests is of the model that a client would use: its own, "
  'else the fine-tuned, else the global model; if the clients are users and some do '
  'not train, it is over users who train. The other accuracies of algorithms that have '
  'a global model are those of the global model (of Ditto, too). For each client see '
  'Clients.'
)
OF_CLIENT_DIFFERENCE = (
  '"own tests - FedAvg" is the difference of this mean, to compare methods by. "final '
  '- FedAvg" is that of the final accuracy, about 0 with Ditto, whose global model is '
  "FedAvg's."
)
ACCURACY = _by_series(
  name='accuracy',
  title='Accuracy',
  caption='Mean ± sample standard deviation over the n finished runs of a series. A '
  'difference to FedAvg is the mean over the seeds that both have, with equally many '
  'rounds; p is the p-value of a two-sided paired t-test, not corrected for the number '
  'of comparisons, and - with fewer than two pairs, or if all differences are equal. '
  '(2 of 3): so many of the runs have the number. '
  'The accuracy of the best round is on the test set, in the round in which the number '
  'under "best by" is best, and may be below the final accuracy: "test" is the '
  'accuracy on the test split, "validation macro f1" another number on the validation '
  'split.',
  columns=[
    Column('n', 'n'),
    Column('rounds', 'rounds'),
    percent_estimate('final_accuracy', 'final accuracy, %'),
    *_OF_CLIENT_TESTS,
    percent_estimate('best_accuracy', BEST_ROUND),
    BEST_BY,
    percent_estimate('mean_of_last_5', 'mean of last 5 tests, %'),
    percent_estimate('difference_to_fedavg', 'final - FedAvg, points', '+.2f'),
    Column('pairs', 'pairs'),
    Column('p_value', 'p', '.4f'),
  ],
)
TARGET = _by_series(
  name='target',
  title='Rounds, traffic and time to the target',
  caption='Target: {}, in the same setting. Rounds, MB (10^6 bytes, all clients, both '
  'ways) and seconds (of the device, no compiling) are counted to the first test that '
  'reaches the target: mean ± sample standard deviation over the runs that reach it. '
  'Rounds saved compares the rounds in which the mean curves reach it.',
  columns=[
    _percent('target', 'target, %'),
    Column('reached', 'reached by'),
    _cost_estimate('rounds_to_target', 'rounds'),
    _cost_estimate('megabytes_to_target', 'MB'),
    _cost_estimate('seconds_to_target', 'seconds'),
    Column('round_of_the_mean', 'round of the mean curve'),
    _percent('rounds_saved', 'rounds saved against FedAvg, %', '+.0f'),
  ],
)
CHOSEN = _by_series(
  name='chosen',
  title='Chosen values',
  caption='For each line of a sweep, the value with the highest mean accuracy, after '
  'the given rounds, on the split under "chosen by", and its mean accuracy on the test '
  'set: means over the n finished runs with this value. A value with which a run '
  'diverged is chosen only if no value is without one; "diverged" counts the runs with '
  'the chosen value that did.',
  columns=[
    Column('knob', 'knob'),
    Column('value', 'chosen value'),
    Column('n', 'n'),
    Column('diverged', 'diverged'),
    Column('by', 'chosen by'),
    Column('rounds', 'rounds'),
    _percent('chosen_accuracy', 'accuracy chosen by, %'),
    _percent('test_accuracy', 'test accuracy, %'),
  ],
)
OF_CLIENT_METRICS = (
  "Compare methods by the mean over clients' own tests: it is of the model that a "
  'client would use, its own, else the fine-tuned, else the global model, and if the '
  'clients are users and some do not train, over users who train, - where the run does '
  'not say who they are; other means over clients are there only if their numbers '
  'differ from it.'
)
METRICS = _by_series(
  name='metrics',
  title='Metrics',
  caption='In the last test: mean ± sample standard deviation over the n finished runs '
  'of a series, or over those that have the number: (2 of 3).',
  columns=[],
)
OWN_MODELS = _by_series(
  name='own_models',
  title="The clients' own models on the whole test set",
  caption="Of algorithms without a global model: each client's model on the whole test "
  'set, not on the examples of the client, in the last round; mean ± sample standard '
  'deviation over the n runs.',
  columns=[
    Column('n', 'n'),
    percent_estimate('mean_accuracy', 'mean over models, %'),
    percent_estimate('std_over_models', 'std over models, points'),
    percent_estimate('lowest_model', 'lowest model, %'),
  ],
)
CLIENT_TESTS = _by_series(
  name='clients',
  title='Accuracy of clients on their own tests',
  caption='Each client, or user, is tested on examples of its own in the last round, '
  'and counts once. The worst tenth is there if a tenth is at least one client. Mean ± '
  'sample standard deviation over the n runs, or over those that have the number: (2 '
  'of 3).',
  columns=[
    Column('model', 'model'),
    Column('n', 'n'),
    percent_estimate('mean', 'mean over clients, %'),
    percent_estimate('std', 'std over clients, points'),
    percent_estimate('min', 'worst client, %'),
    percent_estimate('worst_tenth', 'worst tenth, %'),
  ],
)
EXPECTED = _by_series(
  name='class_shares',
  title='Accuracy expected from class shares',
  caption="No client was tested: for each, the sum over classes of the client's share "
  'of the class times the accuracy of the trained global model on the test examples of '
  'the class. Mean ± sample standard deviation over the clients, and the lowest.',
  columns=[
    percent_estimate('expected', 'expected, mean over clients, %'),
    _percent('lowest', 'lowest expected, %'),
  ],
)


def of_series(kind: Table, rows: Sequence[Row]) -> Table:
  """A table with a row for each series, and the settings if there are several."""
  if any(row['setting'] for row in rows):
    return kind._replace(
      columns=(Column('setting', 'setting'), *kind.columns), rows=rows
    )
  return kind._replace(rows=rows)


def results(series_results: Sequence[Result], target: str) -> list[Table]:
  """The tables over series that have rows; the target is described in words."""
  target_table = TARGET._replace(caption=TARGET.caption.format(target))
  # Only series of the clients' own models have a lowest model.
  needed_keys = {'n': ACCURACY, 'target': target_table, 'lowest_model_n': OWN_MODELS}
  tables = []
  for key, kind in needed_keys.items():
    rows = [result.row for result in series_results if result.row[key] is not None]
    if rows:
      tables.append(of_series(_explained(kind, rows), rows))
  return [*tables, *_metrics(series_results)]


def _explained(kind: Table, rows: Sequence[Row]) -> Table:
  """A table whose caption says which models its accuracies are of.

  The columns of clients' own tests stay if a row has a number there.
  """
  if kind.name == OWN_MODELS.name:
    return kind
  caption = kind.caption
  if any(row['lowest_model_n'] for row in rows):
    caption += f' {OF_CLIENTS_MODELS}'
  columns = kind.columns
  if CLIENT_MEAN in columns:
    if any(row[f'{CLIENT_MEAN.key}_n'] for row in rows):
      caption += f' {OF_CLIENT_MEAN} {OF_CLIENT_DIFFERENCE}'
    else:
      columns = [column for column in columns if column not in _OF_CLIENT_TESTS]
  return kind._replace(caption=caption, columns=columns)


def _metrics(series_results: Sequence[Result]) -> Iterator[Table]:
  """The table of the metrics of tests, if some runs have such metrics."""
  finished = [
    run for result in series_results for run in result.series.finished.values()
  ]
  metrics = traces.test_metrics_of(finished)
  if not metrics:
    return
  run_rows = pd.concat([result.runs for result in series_results])
  columns = [Column('n', 'n')]
  for key in _without_repeated(metrics, run_rows):
    columns.append(metric_estimate(key, metrics[key].metric))
  rows = [result.row for result in series_results]
  caption = METRICS.caption
  if any(metric.is_of_clients for metric in metrics.values()):
    caption += f' {OF_CLIENT_METRICS}'
  kind = METRICS._replace(caption=caption, columns=(*METRICS.columns, *columns))
  yield of_series(_explained(kind, rows), rows)


def _without_repeated(
  metrics: Mapping[str, TestMetric], run_rows: pd.DataFrame
) -> list[str]:
  """The columns, without those of clients whose numbers an earlier one of them has.

  Args:
    metrics: key of a column -> its metric.
    run_rows: a row of each run, with these columns.
  """
  kept: list[str] = []
  for key, metric in metrics.items():
    numbers = run_rows[key].dropna()
    earlier_keys = [
      earlier
      for earlier in kept
      if metric.is_of_clients
      and metrics[earlier].is_of_clients
      and metrics[earlier].name == metric.name
    ]
    is_repeated = any(
      numbers.equals(run_rows.loc[run_rows[key].notna(), earlier])
      for earlier in earlier_keys
    )
    if not is_repeated:
      kept.append(key)
  return kept


# --- tables over runs -----------------------------------------------------------------

_RUN = (Column('run', 'run'), Column('state', 'state'))
_FINAL = (
  Column('rounds', 'rounds'),
  _percent('final_accuracy', 'final accuracy, %'),
  _percent('best_accuracy', BEST_ROUND),
  BEST_BY,
)
_CLIENT_MEAN = _percent(traces.CLIENT_MEAN, CLIENT_MEAN.heading)
DIFFERENCE_TO_FIRST = percent_estimate(
  'difference_to_first', 'own tests - first run, points', '+.2f'
)
_SPEED = (
  Column('seconds', 'seconds', '.1f'),
  Column('samples_per_second', 'samples/s', ',.0f'),
)


def runs(rows: Sequence[Row], varying: Sequence[str]) -> Table:
  """Every run with its knobs, its machine, and how it ended.

  Args:
    rows: rows of all runs, also of those that did not finish.
    varying: the knobs that get a column.
  """
  return Table(
    name='runs',
    title='Runs',
    caption='Seconds are of training, testing and waiting; samples/s of training. Runs '
    'that are not finished are in no other table and in no figure.',
    columns=(
      *_RUN,
      *(Column(knob, knob) for knob in varying),
      *_FINAL,
      *_SPEED,
      Column('devices', 'devices'),
      Column('jax', 'JAX'),
      Column('git_commit', 'commit'),
      Column('command', 'command'),
    ),
    rows=rows,
  )


def compared(rows: Sequence[Row], target: str) -> Table:
  """A few runs side by side, with the costs of reaching the target.

  The mean over clients' own tests comes first, if a run has it.
  """
  own_tests = [
    column
    for column in (_CLIENT_MEAN, DIFFERENCE_TO_FIRST)
    if any(column.cell(row) is not None for row in rows)
  ]
  captions = [f'target: {target}, in the same setting']
  if own_tests:
    captions += [
      f'{_CLIENT_MEAN.heading}: each client tests the model that it would use, its '
      'own, else the fine-tuned, else the global one, on its own test examples; if '
      'the clients are users and some do not train, it is over users who train',
      f'{DIFFERENCE_TO_FIRST.heading}: paired by client, mean ± sample standard '
      'deviation over the clients that both runs have tested',
      'the other accuracies are on the whole test set: of the global model, or without '
      "one the mean over the clients' models",
    ]
  return Table(
    name='compared',
    title='Runs',
    caption='\n'.join(captions),
    columns=(
      *_RUN,
      *own_tests,
      *_FINAL,
      _percent('mean_of_last_5', 'last 5, %'),
      _percent('target', 'target, %'),
      Column('rounds_to_target', 'rounds to target'),
      Column('megabytes_to_target', 'MB to target', '.1f'),
      *_SPEED,
    ),
    rows=rows,
  )


# --- tables over classes --------------------------------------------------------------


def by_class(
  number: int, setting: str, headings: Mapping[str, str], rows: Sequence[Row]
) -> Table:
  """The accuracy of global models for each class.

  Args:
    number: number of the table, from 1.
    setting: what its models share, 'beta=0.5'; '' if all models do.
    headings: key of a model's column -> its heading.
    rows: for each class, its name, its test examples, and each model's accuracy.
  """
  caption = titled('Trained global model on the test examples of each class', setting)
  return Table(
    name=f'class_accuracy-{number}' if number > 1 else 'class_accuracy',
    title=titled('Accuracy for each class', setting),
    caption=f'{caption}.',
    columns=[
      Column('class', 'class'),
      Column('images', 'test examples'),
      *(_percent(key, heading) for key, heading in headings.items()),
    ],
    rows=rows,
  )
