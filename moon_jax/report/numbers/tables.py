"""The tables of a report: their columns, captions and rows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.numbers.naming import ALGORITHM
from moon_jax.report.numbers.results import Result, RunNumbers
from moon_jax.report.numbers.statistics import estimate, ranges
from moon_jax.report.numbers.table import Column, Table


def _own(key: str, heading: str, name: str = '', *how: Any, **more: Any) -> Column:
  """A number of what a row is about, by its name there if that is not the key."""
  return Column(key, heading, lambda one: getattr(one, name or key), *how, **more)


def _mean(key: str, heading: str, digits: int = 2, scale: float = 100.0, **how: Any):
  """An estimate; of a number that the runs of a result have, if no `value` is given."""
  how = {'value': lambda one: one.mean(key)} | how
  return Column(key, heading, digits=digits, scale=scale, is_estimate=True, **how)


def _of_comparison(pick: Callable) -> Callable[[Result], Any]:
  return lambda one: pick(one.comparison) if one.comparison else None


_NUM_RUNS = Column('n', 'n', lambda one: len(one.each))
_FINAL = _mean('final', 'final accuracy, %')._replace(key='final_accuracy')
_ACCURACY = (
  _NUM_RUNS,
  Column('rounds', 'rounds', lambda one: ranges(one.all('last_test'))),
  _FINAL,
  _mean('best', 'best accuracy, %')._replace(key='best_accuracy'),
  _mean('tail', 'mean of last 5 tests, %')._replace(key='mean_of_last_5'),
  _mean(
    'difference_to_fedavg',
    'final - FedAvg, points',
    value=_of_comparison(lambda found: found.difference),
    sign=True,
  ),
  Column('pairs', 'pairs', _of_comparison(lambda found: found.difference.n)),
  Column('p_value', 'p', _of_comparison(lambda found: found.p_value), 4),
)
_TARGET = (
  _own('target', 'target, %', '', 2, 100.0),
  Column('reached', 'reached by', lambda one: one.reached_by),
  _mean('rounds_to_target', 'rounds', 1, 1.0),
  _mean('megabytes_to_target', 'MB', 1, 1.0),
  _mean('seconds_to_target', 'seconds', 1, 1.0),
  _own('round_of_the_mean', 'round of the mean curve', 'mean_round'),
  _own('rounds_saved', 'rounds saved against FedAvg, %', 'saved', 0, 100.0, sign=True),
)
_CLIENTS = (
  _NUM_RUNS,
  _FINAL._replace(key='mean_accuracy', heading='mean over clients, %'),
  _mean('std_over_clients', 'std over clients, points'),
  _mean('worst_client', 'worst client, %'),
)
_RUN = (
  Column('run', 'run', lambda one: one.run.name),
  Column('state', 'state', lambda one: str(one.run.ending)),
)
_SPEED = (_own('seconds', 'seconds', '', 1), _own('samples_per_second', 'samples/s'))


class ClientAccuracy(NamedTuple):
  """The accuracy of a series' global models for each client.

  Attributes:
    setting: of the series.
    series: whose.
    values: [clients] in [0, 1], of all its models that were looked at.
  """

  setting: Setting
  series: Series
  values: np.ndarray


_CLIENT_ACCURACY = (
  _mean(
    'accuracy',
    'mean over clients, %',
    value=lambda one: estimate(one.values),
  ),
  Column('worst_client', 'worst client, %', lambda one: one.values.min(), 2, 100.0),
)


def settings(every: Sequence[Setting]) -> Table:
  """What a numbered setting is; empty if their titles tell."""
  numbered = [setting for setting in every if setting.is_numbered]
  names = list(dict.fromkeys(name for s in numbered for name, _ in s.key))
  return Table(
    'settings',
    'Settings',
    'The knobs that differ between the settings of the other tables and the figures.',
    [
      _own('setting', 'setting', 'title'),
      *(Column(n, n, lambda one, n=n: dict(one.key).get(n)) for n in names),
    ],
    numbered,
  )


def accuracy(found: Sequence[Result]) -> Table:
  """Final, best and late accuracy of every series, and the difference to FedAvg."""
  return _by_series(
    'accuracy',
    'Accuracy',
    'Mean ± sample standard deviation over the n finished runs of a series. The '
    'difference to FedAvg is the mean over the seeds that both have, with equally many '
    'rounds; p is of the two-sided paired t-test over them (none with fewer than two).',
    _ACCURACY,
    found,
  )


def target(found: Sequence[Result], described: str) -> Table:
  """What it takes to reach the target, which is described in words."""
  return _by_series(
    'target',
    'Rounds, traffic and time to the target',
    f'Target: {described}, in the same setting. Rounds, MB (10^6 bytes that all '
    'clients receive and send) and seconds (training, testing and waiting; no '
    'compiling) are until the first test at the target or above, mean ± sample '
    'standard deviation over the runs that reach it. Rounds saved compares the first '
    'rounds in which the means over seeds are there.',
    _TARGET,
    [result for result in found if result.target is not None],
  )


def clients(found: Sequence[Result]) -> Table:
  """The spread over the clients' own models, where each client has one."""
  return _by_series(
    'clients',
    "Accuracy of the clients' own models",
    'Of algorithms without a global model: each client tested on the whole test set in '
    'the last round; mean ± sample standard deviation over the n runs.',
    _CLIENTS,
    [result for result in found if result.all('worst_client')],
  )


def client_accuracy(spreads: Sequence[ClientAccuracy]) -> Table:
  """The spread of a global model's accuracy over its clients."""
  return _by_series(
    'client_accuracy',
    'Accuracy of the global model for its clients',
    "Accuracy of the trained global model under each client's distribution of classes: "
    "the sum over classes of the client's share of the class times the accuracy on its "
    'test images. Mean ± sample standard deviation over the clients, and the lowest.',
    _CLIENT_ACCURACY,
    spreads,
  )


def runs(every: Sequence[RunNumbers], varying: Sequence[str]) -> Table:
  """Every run with its settings, what it ran on, and how it ended.

  Args:
    every: also those that did not finish.
    varying: the knobs that are worth a column.
  """
  columns = (
    *_RUN,
    *(Column(n, n, lambda one, n=n: one.run.identity.get(n)) for n in varying),
    _own('rounds', 'rounds'),
    _own('final_accuracy', 'final accuracy, %', 'final', 2, 100.0),
    _own('best_accuracy', 'best accuracy, %', 'best', 2, 100.0),
    *_SPEED,
    Column('devices', 'devices', lambda one: _counted(one.run.about.get('devices'))),
    Column('jax', 'JAX', lambda one: one.run.about.get('versions', {}).get('jax')),
    Column(
      'git_commit',
      'commit',
      lambda one: (one.run.about.get('git_commit') or '')[:10] or None,
    ),
    Column('command', 'command', lambda one: one.run.about.get('command')),
  )
  caption = (
    'Seconds are of training, testing and waiting; samples/s of training. Runs that '
    'are not finished are in no other table and in no figure.'
  )
  return Table('runs', 'Runs', caption, columns, every)


def compared(every: Sequence[RunNumbers], described: str) -> Table:
  """A few runs side by side, with what it takes to reach the target."""
  columns = (
    *_RUN,
    _own('rounds', 'rounds'),
    _own('final', 'final, %', '', 2, 100.0),
    _own('best', 'best, %', '', 2, 100.0),
    _own('tail', 'last 5, %', '', 2, 100.0),
    _own('target', 'target, %', '', 2, 100.0),
    _own('rounds_to_target', 'rounds to it'),
    _own('megabytes_to_target', 'MB to it', '', 1),
    *_SPEED,
  )
  caption = f'target: {described}, in the same setting'
  return Table('compared', 'Runs', caption, columns, every)


def _counted(devices: Sequence[str] | None) -> str:
  """'2 x cpu: cpu'."""
  devices = devices or []
  return ', '.join(f'{devices.count(kind)} x {kind}' for kind in dict.fromkeys(devices))


def _by_series(name, title, caption, columns, about) -> Table:
  """A row for each series; the setting is told if there are several."""
  by_algorithm = all(ALGORITHM in dict(one.series.key) for one in about)
  names = [
    Column('setting', 'setting', lambda one: one.setting.title or None),
    Column(
      'series', ALGORITHM if by_algorithm else 'series', lambda one: one.series.label
    ),
  ]
  told = names if any(one.setting.title for one in about) else names[1:]
  return Table(name, title, caption, (*told, *columns), about)
