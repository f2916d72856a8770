"""Which tables are there? The page takes its cells from here too."""

from collections.abc import Iterable, Sequence

import numpy as np

from moon_jax.report.numbers import results as results_lib
from moon_jax.report.numbers import statistics
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.naming import ALGORITHM
from moon_jax.report.numbers.results import Reached, Result
from moon_jax.report.numbers.table import Cell, Column, Table
from moon_jax.report.read.runs import Run


def _accuracy(key: str, heading: str, sign: bool = False) -> Column:
  return Column(key, heading, 2, 100.0, is_estimate=True, sign=sign)


_SETTING = Column('setting', 'setting')
_ACCURACY = (
  Column('n', 'n'),
  Column('rounds', 'rounds'),
  _accuracy('final_accuracy', 'final accuracy, %'),
  _accuracy('best_accuracy', 'best accuracy, %'),
  _accuracy('mean_of_last_5', 'mean of last 5 tests, %'),
  _accuracy('difference_to_fedavg', 'final - FedAvg, points', sign=True),
  Column('pairs', 'pairs'),
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


def settings(every: Sequence[Setting]) -> Table:
  """What a numbered setting is; empty if their titles tell."""
  numbered = [setting for setting in every if setting.is_numbered]
  names = list(dict.fromkeys(name for s in numbered for name, _ in s.key))
  return Table(
    'settings',
    'Settings',
    'The knobs that differ between the settings of the other tables and the figures.',
    (_SETTING, *(Column(name, name) for name in names)),
    [(s.title, *(dict(s.key).get(name) for name in names)) for s in numbered],
  )


def accuracy(found: Found) -> Table:
  """Final, best and late accuracy of every series, and the difference to FedAvg."""
  rows = [
    (
      *_told(setting, result),
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
    (*_names(found), *_ACCURACY),
    rows,
  )


def target(found: Found, described: str) -> Table:
  """What it takes to reach the target.

  Args:
    found: the settings with their results.
    described: the target in words.
  """
  rows = [
    (*_told(setting, result), *_cost(result.reached, len(result.rounds)))
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
    (*_names(found), *_TARGET),
    rows,
  )


def clients(found: Found) -> Table:
  """The spread over the clients' own models, where each client has one."""
  rows = [
    (
      *_told(setting, result),
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
    (*_names(found), *columns),
    rows,
  )


def client_accuracy(spreads: Sequence[tuple[str, Series, np.ndarray]]) -> Table:
  """The spread of a global model's accuracy over its clients.

  Args:
    spreads: title of the setting, series, accuracy for each client.
  """
  rows = [
    (setting or None, series.label, statistics.estimate(values), float(values.min()))
    for setting, series, values in spreads
  ]
  return _trimmed(
    'client_accuracy',
    'Accuracy of the global model for its clients',
    "Accuracy of the trained global model under each client's distribution of classes: "
    "the sum over classes of the client's share of the class times the accuracy on its "
    'test images. Mean ± sample standard deviation over the clients, and the lowest.',
    (
      *_columns_of(series for _, series, _ in spreads),
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


def _names(found: Found) -> tuple[Column, Column]:
  return _columns_of(result.series for _, results in found for result in results)


def _columns_of(every: Iterable[Series]) -> tuple[Column, Column]:
  """The columns of the setting and of what --group tells apart."""
  by_algorithm = all(ALGORITHM in dict(series.key) for series in every)
  return _SETTING, Column('series', ALGORITHM if by_algorithm else 'series')


def _told(setting: Setting, result: Result) -> tuple[Cell, Cell]:
  return setting.title or None, result.series.label


def _compared(result: Result) -> tuple[Cell, Cell, Cell]:
  if result.comparison is None:
    return None, None, None
  difference, p_value = result.comparison
  return difference, difference.n, p_value


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
