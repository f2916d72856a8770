"""What stands on the page, under which heading?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.report.draw import charts
from moon_jax.report.draw.charts import Chart, Matrix, Scatter, Spread
from moon_jax.report.numbers import naming, tables
from moon_jax.report.numbers.groups import Setting
from moon_jax.report.numbers.naming import Key
from moon_jax.report.numbers.results import Result, Target
from moon_jax.report.numbers.table import Table
from moon_jax.report.read import features
from moon_jax.report.read.features import Model
from moon_jax.report.read.runs import Run


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


Found = Sequence[tuple[Setting, list[Result]]]


def numbers(found: Found, target: Target) -> Section:
  """The tables of all settings."""
  every = (
    tables.settings([setting for setting, _ in found]),
    tables.accuracy(found),
    tables.target(found, target.describe()),
    tables.clients(found),
  )
  return Section('Results', tables=[table for table in every if table.rows])


def curves(setting: Setting) -> Section:
  """What is followed over the rounds in a setting, and who owns which class there."""
  counts, told = charts.partition(setting), ''
  if setting.is_numbered:
    told = f'{setting.title.capitalize()}: {naming.describe(setting.key)}. '
  return Section(
    title=f'Over rounds: {setting.title}' if setting.title else 'Over rounds',
    text=f'{told}Lines are means over the finished runs of a series, in the rounds '
    'that all of them have; bands are one sample standard deviation.',
    charts=charts.of_setting(setting) + ([counts] if counts else []),
  )


def sweeps(settings: Sequence[Setting]) -> Section:
  """Accuracy against the knobs that have several values."""
  return Section(
    title='Sweeps',
    text='Means over the finished runs in the last round that all runs of a plot were '
    'tested in; bars are one sample standard deviation.',
    charts=charts.sweeps(settings),
  )


def clients(models: Sequence[Model]) -> Section:
  """The global model's accuracy for each client."""
  by_setting: dict[Key, tuple[Setting, dict[str, list[np.ndarray]]]] = {}
  for model in models:
    counts = model.run.class_counts()
    if counts is not None:
      values = features.client_accuracy(model.features.confusion, counts)
      drawn = by_setting.setdefault(model.setting.key, (model.setting, {}))[1]
      drawn.setdefault(model.series.label, []).append(values)
  spreads = [
    (setting, {label: np.concatenate(values) for label, values in drawn.items()})
    for setting, drawn in by_setting.values()
  ]
  series = {model.series.label: model.series for model in models}
  table = tables.client_accuracy(
    [(s.title, series[label], v) for s, drawn in spreads for label, v in drawn.items()]
  )
  return Section(
    title='Clients',
    text='Clients of the runs whose model was looked at (--features).',
    tables=[table] if table.rows else [],
    charts=[
      Spread(
        name=charts.file_name('clients', setting.title),
        title=charts.titled('Accuracy for each client', setting.title),
        y_label='test accuracy, %',
        groups={label: 100 * values for label, values in drawn.items()},
      )
      for setting, drawn in spreads
    ],
  )


def models(looked_at: Sequence[Model]) -> Section:
  """t-SNE and confusion matrix of the trained models."""
  drawn: list[Chart] = []
  for model in looked_at:
    what, found = model.describe(), model.features
    drawn.append(
      Scatter(
        charts.safe(f'tsne-{model.run.name}'),
        f't-SNE: {what}',
        found.embedded,
        found.classes,
      )
    )
  for model in looked_at:
    drawn.append(
      Matrix(
        name=charts.safe(f'confusion-{model.run.name}'),
        title=f'Confusion: {model.describe()}',
        x_label='predicted class',
        y_label='true class',
        values=model.features.confusion,
        unit='test images',
      )
    )
  return Section(
    title='Trained models',
    text=f'Representations of at most {features.NUM_EMBEDDED:,} test images by the '
    'global model of the newest checkpoint, the same images and the same random state '
    'of t-SNE for each; colour and number are the class. The confusion matrices count '
    'all test images.',
    charts=drawn,
  )


def runs(every: Sequence[Run], varying: Sequence[str]) -> Section:
  """Every run, however it ended."""
  return Section('Runs', tables=[tables.runs(every, varying)])
