"""Each client by name: the accuracies that a run measured on the client's own tests.

What a run did not measure is estimated, under another name: the accuracy expected from
the classes that a client owns.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from moon_jax.core.errors import RunError
from moon_jax.report import charts, features, statistics, tables
from moon_jax.report.charts import Chart, Line, LineChart, Matrix, Spread
from moon_jax.report.escaping import escaped
from moon_jax.report.groups import Series, Setting
from moon_jax.report.models import Model
from moon_jax.report.naming import titled
from moon_jax.report.results import Row, cells_of, cells_over_runs
from moon_jax.report.runs import Note, Run
from moon_jax.report.statistics import PairedDifference
from moon_jax.report.tables import Column, Table
from moon_jax.report.traces import counted_clients, last, model_of_clients
from moon_jax.runner import client_file, plots
from moon_jax.runner.client_file import Clients
from moon_jax.runner.run_files import CLIENTS

# Column of clients.csv.gz -> the model that the client's own examples test.
OWN_TESTS = {
  'user_accuracy': 'global model',
  'local_accuracy': 'global model, clients that train',
  'tuned_accuracy': 'global model, fine-tuned',
  'personal_accuracy': "client's own model",
}
# The same, with what is no test of the client's own.
_MODELS = OWN_TESTS | {'test_accuracy': "client's own model, on the whole test set"}
_STATISTICS = ('mean', 'std', 'min', 'worst_tenth')
_MOST_ROWS = 100  # of a table, but in its CSV


def has_own_tests(run: Run) -> bool:
  """Whether the run has tested clients, or users, on examples of their own."""
  return any(len(run.metric(f'{column}_mean')) for column in OWN_TESTS)


# --- numbers over clients -------------------------------------------------------------


def rows_over_clients(setting: Setting) -> Iterator[Row]:
  """A row for each series and tested model: the numbers over clients, as recorded."""
  for series in setting.series:
    numbers_of_users = None
    for column, model in OWN_TESTS.items():
      runs = [
        run for run in series.finished.values() if len(run.metric(f'{column}_mean'))
      ]
      if not runs:
        continue
      row = {
        'setting': setting.title or None,
        'series': series.label,
        'model': model,
        'n': len(runs),
      }
      numbers = {
        statistic: [last(run.metric(f'{column}_{statistic}')) for run in runs]
        for statistic in _STATISTICS
      }
      if column == 'user_accuracy':
        numbers_of_users = numbers
      elif column == 'local_accuracy' and numbers == numbers_of_users:
        continue  # all users are clients that train
      for statistic, run_numbers in numbers.items():
        estimate = statistics.estimate(run_numbers)
        row.update(cells_over_runs(statistic, estimate, len(runs)))
      yield row


# --- numbers of each client -----------------------------------------------------------


class _Measured(NamedTuple):
  """The clients of a run, and what it measured of them.

  Attributes:
    run: the run.
    clients: content of its clients.csv.gz.
  """

  run: Run
  clients: Clients


def _read(run: Run, note: Note) -> _Measured | None:
  """The numbers of a run's clients; None if it has recorded none.

  Args:
    run: a finished run.
    note: called with a line if they cannot be read, or are missing.
  """
  try:
    clients = client_file.read(run.path)
  except RunError as error:
    note(f'{run.name}: no numbers of single clients: {error}')
    return None
  if clients is None:
    if has_own_tests(run):
      note(f'{run.name}: no numbers of single clients: {CLIENTS} is missing or empty')
    return None
  return _Measured(run, clients._replace(names=escaped(clients.names)))


def _are_alike(measured: _Measured, other: _Measured) -> bool:
  """Whether two runs have the same clients."""
  return measured.clients.names == other.clients.names and _share_names(measured, other)


def _share_names(measured: _Measured, other: _Measured) -> bool:
  """Whether a name stands for the same client in two runs.

  It does if both have the names from the data, whatever a seed's validation split
  leaves of the training examples. Numbers do if both runs have dealt each client
  equally many examples of each class.
  """
  if measured.run.path == other.run.path:
    return True
  if _has_names_of_data(measured) and _has_names_of_data(other):
    return True
  class_counts = measured.run.class_counts()
  other_counts = other.run.class_counts()
  return (
    class_counts is not None
    and other_counts is not None
    and np.array_equal(class_counts, other_counts)
  )


def _has_names_of_data(measured: _Measured) -> bool:
  """Whether the data name the clients of a run; otherwise they are numbered.

  A run has clients with names, or has tested users alone, of whom its file does not say
  on how many examples they train.
  """
  tested_users_alone = np.isnan(measured.clients.training_examples).all()
  return bool(measured.run.client_names()) or bool(tested_users_alone)


def difference_over_clients(
  run: Run, other: Run, note: Note
) -> PairedDifference | None:
  """The accuracy of a run's clients minus that of another's, paired by client.

  Each accuracy is of the client's own tests in the last round, of the model that the
  client would use.

  Args:
    run: a run.
    other: another run.
    note: called with a line for what cannot be read, or is not known.

  Returns:
    The difference over the clients that both runs have tested, and that count in the
    means; None if these are not the same clients, or if there are none, or if neither
    run says which of its users count.
  """
  measured, other_measured = _read(run, note), _read(other, note)
  if measured is None or other_measured is None:
    return None
  counted = counted_clients(run, measured.clients)
  other_counted = counted_clients(other, other_measured.clients)
  if counted is None and other_counted is None:
    note(f'{run.name}: no difference over clients: its users who train are not known')
    return None
  clients = _tested_clients(measured, counted)
  other_clients = _tested_clients(other_measured, other_counted)
  in_both = clients.index.intersection(other_clients.index)
  sizes = clients.loc[in_both, 'test_examples']
  if in_both.empty or not sizes.equals(other_clients.loc[in_both, 'test_examples']):
    return None
  if not _share_names(measured, other_measured):
    return None
  return statistics.paired_difference(clients['accuracy'], other_clients['accuracy'])


def _tested_clients(measured: _Measured, counted: np.ndarray | None) -> pd.DataFrame:
  """Name -> number of test examples and last accuracy, of the clients that have one.

  Args:
    measured: the clients of a run.
    counted: [V] which of them are kept; None keeps all.
  """
  clients = measured.clients
  column = f'{model_of_clients(measured.run)}_accuracy'
  no_accuracies = np.full((1, len(clients.names)), np.nan)
  accuracies = clients.numbers.get(column, no_accuracies)[-1]
  table = pd.DataFrame(
    {'test_examples': clients.test_examples, 'accuracy': accuracies},
    index=list(clients.names),
  )
  if counted is not None:
    table = table[counted]
  return table.dropna()


class _Comparable(NamedTuple):
  """The runs of a setting that have the same clients as the first one.

  Attributes:
    clients: these clients, with the numbers of the first run.
    runs_by_series: series -> its runs, at least one.
    is_partial: whether runs with other clients are left out.
  """

  clients: Clients
  runs_by_series: list[tuple[Series, list[_Measured]]]
  is_partial: bool


def _comparable(setting: Setting, note: Note) -> _Comparable | None:
  """The runs whose clients can be compared; None if no run has recorded clients."""
  first: _Measured | None = None
  runs_by_series = []
  is_partial = False
  for series in setting.series:
    measured = [_read(run, note) for run in series.finished.values()]
    recorded = [entry for entry in measured if entry is not None]
    if first is None and recorded:
      first = recorded[0]
    alike = [entry for entry in recorded if _are_alike(entry, first)]
    is_partial = is_partial or len(alike) < len(recorded)
    if alike:
      runs_by_series.append((series, alike))
  if first is None:
    return None
  return _Comparable(first.clients, runs_by_series, is_partial)


def _models(clients: Clients) -> dict[str, str]:
  """Column -> the model whose accuracy it has, for the columns that a run has.

  If there are both, the accuracies of the clients that train are among the users'.
  """
  return {
    column: model
    for column, model in _MODELS.items()
    if column in clients.numbers
    and not (column == 'local_accuracy' and 'user_accuracy' in clients.numbers)
  }


def _last_accuracies(runs: Sequence[_Measured], column: str) -> np.ndarray | None:
  """[runs, V] accuracies in the last round; None unless all runs have the column."""
  if any(column not in _models(entry.clients) for entry in runs):
    return None
  return _last_numbers(runs, column)


def _last_numbers(runs: Sequence[_Measured], column: str) -> np.ndarray | None:
  """[runs, V] numbers in the last round; None unless all runs have the column."""
  if any(column not in entry.clients.numbers for entry in runs):
    return None
  return np.stack([entry.clients.numbers[column][-1] for entry in runs])


def by_client(setting: Setting, number: int, note: Note) -> Iterator[Table | Chart]:
  """The table of a setting's clients, and the charts of their accuracies.

  Args:
    setting: a setting.
    number: number of the setting, from 1.
    note: called with a line for what cannot be read.
  """
  comparable = _comparable(setting, note)
  if comparable is None:
    return
  yield _table(setting, number, comparable)
  yield from _spreads(setting, comparable)
  for series, runs in comparable.runs_by_series:
    yield from _over_rounds(setting, series, runs[0])


def _table(setting: Setting, number: int, comparable: _Comparable) -> Table:
  """A row for each client, from the lowest accuracy of the first column."""
  clients = comparable.clients
  cells: dict[str, Sequence[Any]] = {
    'client': clients.names,
    'training_examples': _whole(clients.training_examples),
    'test_examples': clients.test_examples,
  }
  columns = [
    Column('client', 'client'),
    Column('training_examples', 'training examples'),
    Column('test_examples', 'test examples'),
  ]
  for series, runs in comparable.runs_by_series:
    for column, numbers in _columns_of_series(series, runs):
      estimates = statistics.estimates(pd.DataFrame(numbers.T))
      for statistic in ('mean', 'std', 'n'):
        cells[f'{column.key}_{statistic}'] = estimates[statistic]
      columns.append(column)
  frame = pd.DataFrame(cells, dtype=object)
  order_by = columns[3].keys[0] if len(columns) > 3 else 'client'
  frame = frame.sort_values(order_by, kind='stable')
  more = ' Runs with other clients are left out.' if comparable.is_partial else ''
  if len(frame) > _MOST_ROWS:
    more += f' The first {_MOST_ROWS} of {len(frame):,}; the CSV has all.'
  return Table(
    name=f'each_client-{number}' if number > 1 else 'each_client',
    title=titled('Each client', setting.title),
    caption='Accuracy of each client, or user, and its recorded metrics, on its own '
    'test examples in the last round, if the heading does not say otherwise, from the '
    'lowest: mean ± sample standard deviation over the finished runs with these '
    f'clients; - where a client has no such number. Sizes are of the first run.{more}',
    columns=columns,
    rows=frame.to_dict('records'),
    most_rows=_MOST_ROWS,
  )


def _columns_of_series(
  series: Series, runs: Sequence[_Measured]
) -> Iterator[tuple[Column, np.ndarray]]:
  """The columns of a series, with their numbers: [runs, V] in the last round.

  The accuracy by each tested model, and after it the metrics on clients' own tests.
  """
  metrics = {
    part.name: metric
    for entry in runs
    for part in entry.run.test_metrics
    for metric in part.metrics.values()
  }
  for accuracy, model in _MODELS.items():
    accuracies = _last_accuracies(runs, accuracy)
    if accuracies is None:
      continue
    key = f'{series.label}, {model}'
    yield tables.percent_estimate(key, f'{key}: accuracy, %'), accuracies
    if accuracy not in OWN_TESTS:
      continue
    for name, metric in metrics.items():
      numbers = _last_numbers(runs, accuracy.replace('accuracy', name))
      if numbers is not None:
        metric_title = f'{key}: {metric.title}'
        metric_column = tables.metric_estimate(
          metric_title, metric._replace(title=metric_title)
        )
        yield metric_column, numbers


def _whole(numbers: np.ndarray) -> list[int | None]:
  """Whole numbers; None for NaN."""
  return [None if np.isnan(number) else int(number) for number in numbers]


def _spreads(setting: Setting, comparable: _Comparable) -> Iterator[Spread]:
  """For each tested model, the distribution over clients in the last round."""
  for column, model in _MODELS.items():
    values, names = {}, {}
    for series, runs in comparable.runs_by_series:
      accuracies = _last_accuracies(runs, column)
      if accuracies is None:
        continue
      mean = accuracies.mean(axis=0)
      has_number = np.flatnonzero(~np.isnan(mean))
      drawn = has_number[plots.clients_drawn(mean[has_number])]
      values[series.label] = 100 * mean[drawn]
      names[series.label] = [comparable.clients.names[index] for index in drawn]
    if values:
      is_own = column in OWN_TESTS
      subject = f'Accuracy for each client: {model}' if is_own else f'Accuracy: {model}'
      yield Spread(
        name=charts.file_name(f'clients-{column}', setting.title),
        title=titled(subject, setting.title),
        x_label='accuracy on its own tests, %' if is_own else 'test accuracy, %',
        groups=values,
        names=names,
      )


def _over_rounds(
  setting: Setting, series: Series, measured: _Measured
) -> Iterator[Chart]:
  """For each tested model of a run, all its clients over the rounds."""
  clients = measured.clients
  seed = f'seed={measured.run.knobs["seed"]}'
  for column, model in _models(clients).items():
    has_number = ~np.isnan(clients.numbers[column]).any(axis=0)
    accuracies = 100 * clients.numbers[column][:, has_number]
    names = [clients.names[index] for index in np.flatnonzero(has_number)]
    subject = ', '.join([series.label, model, seed])
    title = titled(f'Each client over rounds: {subject}', setting.title)
    name = charts.file_name(f'rounds-{column}-{series.label}', setting.title)
    if len(names) <= plots.MOST_LINES:
      yield _lines_of_clients(name, title, clients.rounds, accuracies, names)
    else:
      yield _map_of_clients(name, title, clients.rounds, accuracies, names)


def _lines_of_clients(
  name: str,
  title: str,
  rounds: np.ndarray,
  accuracies: np.ndarray,
  names: Sequence[str],
) -> LineChart:
  """A line for each client; accuracies [R, V] in %."""
  return LineChart(
    name=name,
    title=title,
    x_label='communication rounds',
    y_label='accuracy, %',
    lines=[
      Line(
        label=client,
        points=statistics.estimates(pd.DataFrame(column, index=rounds)),
        style=charts.style_of(index),
      )
      for index, (client, column) in enumerate(zip(names, accuracies.T, strict=True))
    ],
  )


def _map_of_clients(
  name: str,
  title: str,
  rounds: np.ndarray,
  accuracies: np.ndarray,
  names: Sequence[str],
) -> Matrix:
  """A row for each client, or for a sample of them, from the lowest last accuracy."""
  order = np.argsort(accuracies[-1], kind='stable')
  drawn = order[plots.clients_drawn(np.arange(len(order)))]
  return Matrix(
    name=name,
    title=title,
    x_label='communication rounds',
    y_label=plots.name_of_rows(len(order)),
    values=accuracies[:, drawn].T,
    unit='accuracy, %',
    rows=[names[index] for index in drawn],
    columns=[str(number) for number in rounds],
  )


# --- what is expected from the classes that a client owns -----------------------------


class _Expected(NamedTuple):
  """The accuracies expected from class shares, of one setting.

  Attributes:
    values: label of a series -> the accuracies of all its runs' clients.
    names: label -> the clients' names or numbers.
  """

  values: dict[str, np.ndarray]
  names: dict[str, list[str]]


def expected_by_setting(trained_models: Sequence[Model]) -> Mapping[str, _Expected]:
  """Title of a setting -> what is expected; without runs whose clients were tested."""
  expected: dict[str, _Expected] = {}
  for model in trained_models:
    class_counts = model.run.class_counts()
    if class_counts is None or has_own_tests(model.run):
      continue
    values, names = expected.setdefault(model.setting.title, _Expected({}, {}))
    is_tested, run_accuracy = features.expected_accuracy(
      model.features.confusion, class_counts
    )
    label = model.series.label
    values[label] = np.concatenate([values.get(label, np.empty(0)), run_accuracy])
    names[label] = names.get(label, []) + [str(i) for i in np.flatnonzero(is_tested)]
  return expected


def rows_of_expected(expected: Mapping[str, _Expected]) -> Iterator[Row]:
  """A row for each setting and series."""
  for title, setting_expected in expected.items():
    for label, values in setting_expected.values.items():
      yield {
        'setting': title or None,
        'series': label,
        'lowest': values.min(),
        **cells_of('expected', statistics.estimate(values)),
      }


def spread_of_expected(title: str, expected: _Expected) -> Spread:
  """The distribution of one setting."""
  drawn = {
    label: plots.clients_drawn(values) for label, values in expected.values.items()
  }
  return Spread(
    name=charts.file_name('class_shares', title),
    title=titled('Accuracy expected from class shares', title),
    x_label='accuracy expected from its class shares, %',
    groups={
      label: 100 * expected.values[label][clients] for label, clients in drawn.items()
    },
    names={
      label: [expected.names[label][client] for client in clients]
      for label, clients in drawn.items()
    },
  )
