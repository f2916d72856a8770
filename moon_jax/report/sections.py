"""The sections of the page: the tables and charts under each heading."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.core.paths import file_name
from moon_jax.report import charts, features, naming, statistics, tables, traces
from moon_jax.report.charts import Chart, Matrix, Scatter, Spread, Sweep
from moon_jax.report.groups import Setting
from moon_jax.report.models import Model
from moon_jax.report.naming import titled
from moon_jax.report.results import Result, Row, Target, cells_of, numbers
from moon_jax.report.runs import Run, class_names
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


def results(found: Sequence[Result], target: Target) -> Section:
  """The tables of all settings."""
  return Section('Results', tables=tables.results(found, target.describe()))


def curves(setting: Setting) -> Section:
  """The numbers over the rounds in a setting, and the classes that each client owns."""
  return Section(
    title=titled('Over rounds', setting.title),
    text='Lines are means over the finished runs of a series, in the rounds '
    'that all of them have; bands are one sample standard deviation. The classes that '
    'each client owns are those of one run.',
    charts=charts.of_setting(setting) + partition(setting),
  )


def partition(setting: Setting) -> list[Matrix]:
  """The classes that clients own, in the first run that records them; else nothing."""
  for series in setting.series:
    for sample, run in series.finished.items():
      counts = run.class_counts()
      if counts is not None and len(counts) > 1:
        file = charts.file_name('partition', setting.title)
        seed = naming.describe(sample)
        title = titled('Training examples of each client and class', setting.title)
        title += f' ({seed})' if seed else ''
        x_label, totals = plots.name_of_columns(len(counts)), counts.sum(1)
        shown, unit = counts[plots.clients_drawn(totals)].T, 'training examples'
        names = class_names(run.about, counts.shape[1])
        return [Matrix(file, title, x_label, 'class', shown, unit, names)]
  return []


def sweeps(settings: Sequence[Setting]) -> Section:
  """Accuracy against the knobs that have several values."""
  swept = charts.sweeps(settings)
  rows = [row for sweep in swept for row in _chosen(sweep)]
  return Section(
    title='Sweeps',
    text='Means over the finished runs in the last round that all runs of a plot were '
    'tested in; bands are one sample standard deviation.',
    tables=[tables.of_series(tables.CHOSEN, rows)] if rows else [],
    charts=list(map(charts.of_sweep, swept)),
  )


def _chosen(sweep: Sweep) -> Iterator[Row]:
  """The value of the knob that is best on each line."""
  for label, points in sweep.lines.items():
    found = {value: sweep.accuracy(points[value], sweep.by) for value in points}
    value = max(found, key=found.get)
    yield {
      'setting': sweep.setting or None,
      'knob': sweep.knob,
      'series': label,
      'rounds': sweep.after,
      'value': naming.word(value),
      'by': sweep.by.partition('_')[0],
      'chosen_accuracy': found[value],
      'test_accuracy': sweep.accuracy(points[value], traces.ACCURACY),
    }


def clients(models: Sequence[Model]) -> Section:
  """The global model's accuracy for each client."""
  found: dict[str, dict[str, list[np.ndarray]]] = {}
  for model in models:
    counts = model.run.class_counts()
    if counts is not None:
      of_series = found.setdefault(model.setting.title, {})
      values = features.client_accuracy(model.features.confusion, counts)
      of_series.setdefault(model.series.label, []).append(values)
  drawn, rows = [], []
  for title, by_label in found.items():
    joined = {label: np.concatenate(each) for label, each in by_label.items()}
    shown = {
      label: 100 * each[plots.clients_drawn(each)] for label, each in joined.items()
    }
    file, what = charts.file_name('clients', title), 'Accuracy for each client'
    drawn.append(Spread(file, titled(what, title), 'test accuracy, %', shown))
    for label, values in joined.items():
      means = cells_of('accuracy', statistics.estimate(values))
      told = {'setting': title or None, 'series': label, 'worst_client': values.min()}
      rows.append(told | means)
  return Section(
    title='Clients',
    text='Clients of the runs whose model was examined (--features). At most '
    f'{plots.MOST_CLIENTS} clients are drawn, at equal distances.',
    tables=[tables.of_series(tables.CLIENT_ACCURACY, rows)] if rows else [],
    charts=drawn,
  )


def models(looked_at: Sequence[Model]) -> Section:
  """t-SNE and confusion matrix of the trained models."""
  embedded, confused, axes = [], [], ('predicted class', 'true class')
  for model in looked_at:
    what, found = model.describe(), model.features
    file, other = (file_name(f'{a}-{model.run.name}') for a in ('tsne', 'confusion'))
    names = class_names(model.run.about, len(found.confusion))
    points = found.embedded, found.classes, names
    embedded.append(Scatter(file, f't-SNE: {what}', *points))
    values = found.confusion, 'test images', names, names
    confused.append(Matrix(other, f'Confusion: {what}', *axes, *values))
  return Section(
    title='Trained models',
    text=f'Representations of at most {features.NUM_EMBEDDED:,} test images by the '
    'global model of the newest checkpoint, the same images and the same random state '
    'of t-SNE for each; colour and number or name are the class. The confusion '
    'matrices count all test images, and so do the accuracies for each class.',
    tables=list(_by_class(looked_at)),
    charts=[*embedded, *confused],
  )


def _by_class(looked_at: Sequence[Model]) -> Iterator[Table]:
  """The accuracy of each model for each class; a table for each setting."""
  alike: dict[tuple, list[Model]] = {}
  for model in looked_at:
    confusion = model.features.confusion
    names = class_names(model.run.about, len(confusion)) or range(len(confusion))
    key = model.setting.title, (*map(str, names),), (*confusion.sum(1).tolist(),)
    alike.setdefault(key, []).append(model)
  for number, ((title, names, counts), models) in enumerate(alike.items(), 1):
    rows = [{'class': n, 'images': c} for n, c in zip(names, counts, strict=True)]
    heads = {}
    for model in models:
      key = f'accuracy_{model.run.name}'  # no key of another column
      heads[key] = f'{model.series.label}, seed={model.run.knobs["seed"]}, %'
      for row, right in zip(rows, np.diag(model.features.confusion), strict=True):
        row[key] = right / row['images'] if row['images'] else None
    yield tables.by_class(number, title, heads, rows)


def runs(every: Sequence[Run], varying: Sequence[str]) -> Section:
  """Every run, however it ended."""
  return Section('Runs', tables=[tables.runs([numbers(run) for run in every], varying)])
