"""The sections of the page: the tables and charts under each heading."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.core.paths import file_name
from moon_jax.report import charts, clients, features, naming, tables, traces
from moon_jax.report.charts import Chart, Matrix, Scatter, Sweep
from moon_jax.report.groups import Setting
from moon_jax.report.models import Model
from moon_jax.report.naming import Key, titled
from moon_jax.report.request import Target
from moon_jax.report.results import Result, Row, run_row
from moon_jax.report.runs import Note, Run, class_names
from moon_jax.report.tables import Table
from moon_jax.runner import plots


class Section(NamedTuple):
  """A part of the page under one heading.

  Attributes:
    title: the heading.
    text: text below it; '' for none.
    tables: tables from the top.
    charts: charts from the left.
  """

  title: str
  text: str = ''
  tables: Sequence[Table] = ()
  charts: Sequence[Chart] = ()


def with_own_file_names(page_sections: Sequence[Section]) -> list[Section]:
  """The sections, of whose charts no two have one file name."""
  all_charts = [chart for section in page_sections for chart in section.charts]
  names = iter(_own_names([chart.name for chart in all_charts]))
  return [
    section._replace(
      charts=[chart._replace(name=next(names)) for chart in section.charts]
    )
    for section in page_sections
  ]


def _own_names(names: Sequence[str]) -> list[str]:
  """The names, a repeated one with a number: runs/a_b and runs/a/b have one name."""
  names_at_first = {*names}
  own_names: dict[str, None] = {}  # in their order
  for name_at_first in names:
    name, number = name_at_first, 1
    while name in own_names or (number > 1 and name in names_at_first):
      number += 1
      name = f'{name_at_first}-{number}'
    own_names[name] = None
  return [*own_names]


# --- numbers of runs ------------------------------------------------------------------


def results(series_results: Sequence[Result], target: Target) -> Section:
  """The tables of all settings."""
  return Section(
    title='Results', tables=tables.results(series_results, target.describe())
  )


def runs(every_run: Sequence[Run], varying_knobs: Sequence[str]) -> Section:
  """Every run, however it ended."""
  rows = [run_row(run) for run in every_run]
  return Section(title='Runs', tables=[tables.runs(rows, varying_knobs)])


# --- numbers over rounds --------------------------------------------------------------


def curves(setting: Setting) -> Section:
  """The numbers over the rounds in a setting, and the classes that each client owns."""
  return Section(
    title=titled('Over rounds', setting.title),
    text='Lines are means over the finished runs of a series, in the rounds '
    'that all of them have; bands are one sample standard deviation. A wide line has '
    'another one on it. The classes that each client owns are those of one run. '
    f'{tables.OF_CLIENTS_MODELS}',
    charts=charts.of_setting(setting) + partition(setting),
  )


def partition(setting: Setting) -> list[Matrix]:
  """The classes that clients own, in the first run that records them; else nothing."""
  for series in setting.series:
    for sample, run in series.finished.items():
      class_counts = run.class_counts()
      if class_counts is not None and len(class_counts) > 1:
        return [_partition_of_run(setting, sample, run, class_counts)]
  return []


def _partition_of_run(
  setting: Setting, sample: Key, run: Run, class_counts: np.ndarray
) -> Matrix:
  """The training examples, [N, Y], of each client and class."""
  num_clients, num_classes = class_counts.shape
  title = titled('Training examples of each client and class', setting.title)
  seed = naming.describe(sample)
  drawn_clients = plots.clients_drawn(class_counts.sum(axis=1))
  names = run.client_names()
  return Matrix(
    name=charts.file_name('partition', setting.title),
    title=f'{title} ({seed})' if seed else title,
    x_label=plots.name_of_columns(num_clients),
    y_label='class',
    values=class_counts[drawn_clients].T,
    unit='training examples',
    rows=class_names(run.provenance, num_classes),
    columns=[names[client] if names else str(client) for client in drawn_clients],
  )


# --- numbers over the values of a knob ------------------------------------------------


def sweeps(settings: Sequence[Setting]) -> Section:
  """Accuracy against the knobs that have several values."""
  all_sweeps = charts.sweeps(settings)
  rows = [row for sweep in all_sweeps for row in _chosen_values(sweep)]
  return Section(
    title='Sweeps',
    text='Means over the finished runs in the last round that all runs of a plot were '
    'tested in; bands are one sample standard deviation. "(2 diverged)" after a value '
    'counts the runs with it that diverged, which are in no mean.',
    tables=[tables.of_series(tables.CHOSEN, rows)] if rows else [],
    charts=[charts.of_sweep(sweep) for sweep in all_sweeps],
  )


def _chosen_values(sweep: Sweep) -> Iterator[Row]:
  """The value of the knob that is best on each line.

  A value with which a run diverged is chosen only if no value is without one.
  """
  for label, series_by_value in sweep.lines.items():
    without_diverged = [
      value for value, series in series_by_value.items() if not series.diverged
    ]
    accuracies = {
      value: sweep.accuracy(series_by_value[value], sweep.chosen_by)
      for value in without_diverged or series_by_value
    }
    best_value = max(accuracies, key=accuracies.get)
    chosen_series = series_by_value[best_value]
    yield {
      'setting': sweep.setting or None,
      'knob': sweep.knob,
      'series': label,
      'rounds': sweep.num_rounds,
      'value': naming.value_text(best_value),
      'n': len(chosen_series.finished),
      'diverged': len(chosen_series.diverged),
      'by': sweep.chosen_by.partition('_')[0],
      'chosen_accuracy': accuracies[best_value],
      'test_accuracy': sweep.accuracy(chosen_series, traces.ACCURACY),
    }


# --- trained models -------------------------------------------------------------------


def each_client(settings: Sequence[Setting], note: Note) -> Section:
  """The accuracies of clients on their own tests, by name."""
  rows = [row for setting in settings for row in clients.rows_over_clients(setting)]
  all_tables = [tables.of_series(tables.CLIENT_TESTS, rows)] if rows else []
  all_charts = []
  for number, setting in enumerate(settings, 1):
    for part in clients.by_client(setting, number, note):
      (all_tables if isinstance(part, Table) else all_charts).append(part)
  return Section(
    title='Clients',
    text='Each client, or user, is tested on examples of its own. Charts over rounds '
    f'are of the first run of each series. At most {plots.MOST_CLIENTS} clients are '
    'drawn, at equal distances.',
    tables=all_tables,
    charts=all_charts,
  )


def class_shares(trained_models: Sequence[Model]) -> Section:
  """What is expected for clients that were not tested on examples of their own."""
  expected = clients.expected_by_setting(trained_models)
  rows = list(clients.rows_of_expected(expected))
  return Section(
    title='Class shares',
    text='Clients without tests of their own: the accuracy that is expected of the '
    'global model if the examples of a class are equally hard for all clients, in the '
    f'runs whose model was analysed (--features). At most {plots.MOST_CLIENTS} clients '
    'are drawn, at equal distances.',
    tables=[tables.of_series(tables.EXPECTED, rows)] if rows else [],
    charts=[
      clients.spread_of_expected(title, setting_expected)
      for title, setting_expected in expected.items()
    ],
  )


def models(trained_models: Sequence[Model]) -> Section:
  """t-SNE and confusion matrix of the trained models."""
  return Section(
    title='Trained models',
    text=f'Representations of at most {features.NUM_EMBEDDED:,} test examples by the '
    'global model of the newest checkpoint, the same examples and the same random '
    'state of t-SNE for each; colour and number or name are the class. The confusion '
    'matrices count all test examples, and so do the accuracies for each class.',
    tables=list(_by_class(trained_models)),
    charts=[
      *(_embedding(model) for model in trained_models),
      *(_confusion(model) for model in trained_models),
    ],
  )


def _embedding(model: Model) -> Scatter:
  return Scatter(
    name=file_name(f'tsne-{model.run.name}'),
    title=f't-SNE: {model.describe()}',
    points=model.features.embedded,
    classes=model.features.classes,
    class_names=_class_names(model),
  )


def _confusion(model: Model) -> Matrix:
  return Matrix(
    name=file_name(f'confusion-{model.run.name}'),
    title=f'Confusion: {model.describe()}',
    x_label='predicted class',
    y_label='true class',
    values=model.features.confusion,
    unit='test examples',
    rows=_class_names(model),
    columns=_class_names(model),
  )


def _class_names(model: Model) -> tuple[str, ...]:
  """The names of the classes; () if they are numbered."""
  return class_names(model.run.provenance, len(model.features.confusion))


class _TestSet(NamedTuple):
  """What models of one table of classes share.

  Attributes:
    setting: title of the models' setting.
    class_names: names or numbers of the classes.
    class_counts: test examples of each class.
  """

  setting: str
  class_names: tuple[str, ...]
  class_counts: tuple[int, ...]


def _test_set(model: Model) -> _TestSet:
  class_counts = model.features.confusion.sum(axis=1)
  names = _class_names(model) or range(len(class_counts))
  return _TestSet(
    setting=model.setting.title,
    class_names=tuple(map(str, names)),
    class_counts=tuple(class_counts.tolist()),
  )


def _by_class(trained_models: Sequence[Model]) -> Iterator[Table]:
  """The accuracy of each model for each class; a table for each test set."""
  models_by_test_set: dict[_TestSet, list[Model]] = {}
  for model in trained_models:
    models_by_test_set.setdefault(_test_set(model), []).append(model)
  for number, (test_set, alike) in enumerate(models_by_test_set.items(), 1):
    headings = {}
    rows = [
      {'class': name, 'images': count}
      for name, count in zip(test_set.class_names, test_set.class_counts, strict=True)
    ]
    for model in alike:
      key = f'accuracy_{model.run.name}'  # no key of another column
      headings[key] = f'{model.series.label}, seed={model.run.knobs["seed"]}, %'
      num_correct = np.diag(model.features.confusion)
      for row, correct in zip(rows, num_correct, strict=True):
        row[key] = correct / row['images'] if row['images'] else None
    yield tables.by_class(number, test_set.setting, headings, rows)
