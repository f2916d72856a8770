"""The sections of the page: which tables and charts stand under which heading."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.report.draw import charts
from moon_jax.report.draw.charts import Chart, Matrix, Scatter, Spread
from moon_jax.report.numbers import tables
from moon_jax.report.numbers.groups import Setting
from moon_jax.report.numbers.models import Model
from moon_jax.report.numbers.naming import titled
from moon_jax.report.numbers.results import Result, Target, numbers
from moon_jax.report.numbers.statistics import estimate
from moon_jax.report.numbers.table import Table
from moon_jax.report.read import features
from moon_jax.report.read.runs import Run
from moon_jax.runner import plots


class Section(NamedTuple):
  """A part of the page under one heading.

  Attributes:
    title: the heading.
    text: below it; '' for none.
    tables: from the top.
    charts: from the left.
  """

  title: str
  text: str = ''
  tables: Sequence[Table] = ()
  charts: Sequence[Chart] = ()


def results(found: Sequence[Result], target: Target) -> Section:
  """The tables of all settings."""
  every = (
    tables.accuracy(found),
    tables.target(found, target.describe()),
    tables.clients(found),
  )
  return Section('Results', tables=[table for table in every if table.rows])


def curves(setting: Setting) -> Section:
  """What is followed over the rounds in a setting, and who owns which class there."""
  return Section(
    title=titled('Over rounds', setting.title),
    text='Lines are means over the finished runs of a series, in the rounds '
    'that all of them have; bands are one sample standard deviation. Who owns which '
    'class is told of one run.',
    charts=charts.of_setting(setting) + charts.partition(setting),
  )


def sweeps(settings: Sequence[Setting]) -> Section:
  """Accuracy against the knobs that have several values."""
  return Section(
    title='Sweeps',
    text='Means over the finished runs in the last round that all runs of a plot were '
    'tested in; bands are one sample standard deviation.',
    charts=charts.sweeps(settings),
  )


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
    drawn.append(
      Spread(
        name=charts.file_name('clients', title),
        title=titled('Accuracy for each client', title),
        x_label='test accuracy, %',
        groups={
          label: 100 * values[plots.shown(values)] for label, values in joined.items()
        },
      )
    )
    for label, values in joined.items():
      means = {'accuracy': estimate(values), 'worst_client': float(values.min())}
      rows.append({'setting': title or None, 'series': label} | means)
  return Section(
    title='Clients',
    text='Clients of the runs whose model was looked at (--features); of more than '
    f'{plots.MOST_CLIENTS} so many, at equal distances, are drawn.',
    tables=[tables.client_accuracy(rows)] if rows else [],
    charts=drawn,
  )


def models(looked_at: Sequence[Model]) -> Section:
  """t-SNE and confusion matrix of the trained models."""
  embedded = [
    Scatter(
      charts.safe(f'tsne-{model.run.name}'),
      f't-SNE: {model.describe()}',
      model.features.embedded,
      model.features.classes,
    )
    for model in looked_at
  ]
  confused = [
    Matrix(
      name=charts.safe(f'confusion-{model.run.name}'),
      title=f'Confusion: {model.describe()}',
      x_label='predicted class',
      y_label='true class',
      values=model.features.confusion,
      unit='test images',
    )
    for model in looked_at
  ]
  return Section(
    title='Trained models',
    text=f'Representations of at most {features.NUM_EMBEDDED:,} test images by the '
    'global model of the newest checkpoint, the same images and the same random state '
    'of t-SNE for each; colour and number are the class. The confusion matrices count '
    'all test images.',
    charts=[*embedded, *confused],
  )


def runs(every: Sequence[Run], varying: Sequence[str]) -> Section:
  """Every run, however it ended."""
  return Section('Runs', tables=[tables.runs([numbers(run) for run in every], varying)])
