"""The tables of a report: their columns and captions, of rows as `results` has them."""

from collections.abc import Sequence

from moon_jax.report.numbers.results import Result
from moon_jax.report.numbers.table import Column, Row, Table


def _percent(key: str, heading: str, spec: str = '.2f') -> Column:
  return Column(key, heading, spec, 100.0)


def _mean(key: str, heading: str, spec: str = '.1f') -> Column:
  return Column(key, heading, spec, is_estimate=True)


def _percents(key: str, heading: str, spec: str = '.2f') -> Column:
  return Column(key, heading, spec, 100.0, is_estimate=True)


_NUM_RUNS = Column('n', 'n')
_ACCURACY = (
  _NUM_RUNS,
  Column('rounds', 'rounds'),
  _percents('final_accuracy', 'final accuracy, %'),
  _percents('best_accuracy', 'best accuracy, %'),
  _percents('mean_of_last_5', 'mean of last 5 tests, %'),
  _percents('difference_to_fedavg', 'final - FedAvg, points', '+.2f'),
  Column('pairs', 'pairs'),
  Column('p_value', 'p', '.4f'),
)
_TARGET = (
  _percent('target', 'target, %'),
  Column('reached', 'reached by'),
  _mean('rounds_to_target', 'rounds'),
  _mean('megabytes_to_target', 'MB'),
  _mean('seconds_to_target', 'seconds'),
  Column('round_of_the_mean', 'round of the mean curve'),
  _percent('rounds_saved', 'rounds saved against FedAvg, %', '+.0f'),
)
_CLIENTS = (
  _NUM_RUNS,
  _percents('mean_accuracy', 'mean over clients, %'),
  _percents('std_over_clients', 'std over clients, points'),
  _percents('worst_client', 'worst client, %'),
)
_CLIENT_ACCURACY = (
  _percents('accuracy', 'mean over clients, %'),
  _percent('worst_client', 'worst client, %'),
)
_RUN = (Column('run', 'run'), Column('state', 'state'))
_ROUNDS = Column('rounds', 'rounds')
_SPEED = (
  Column('seconds', 'seconds', '.1f'),
  Column('samples_per_second', 'samples/s', ',.0f'),
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
    [result.row for result in found],
  )


def target(found: Sequence[Result], described: str) -> Table:
  """What it takes to reach the target, which is described in words."""
  return _by_series(
    'target',
    'Rounds, traffic and time to the target',
    f'Target: {described}, in the same setting. Rounds, MB (10^6 bytes, all clients, '
    'both ways) and seconds (of the device, no compiling) are until the first test at '
    'it or above, mean ± sample standard deviation over the runs that come there. '
    'Rounds saved compares the first rounds in which the means over seeds are there.',
    _TARGET,
    [result.row for result in found if result.row['target'] is not None],
  )


def clients(found: Sequence[Result]) -> Table:
  """The spread over the clients' own models, where each client has one."""
  return _by_series(
    'clients',
    "Accuracy of the clients' own models",
    'Of algorithms without a global model: each client tested on the whole test set in '
    'the last round; mean ± sample standard deviation over the n runs.',
    _CLIENTS,
    [result.row for result in found if result.row['worst_client']],
  )


def client_accuracy(rows: Sequence[Row]) -> Table:
  """The spread of a global model's accuracy over its clients."""
  return _by_series(
    'client_accuracy',
    'Accuracy of the global model for its clients',
    "Accuracy of the trained global model under each client's distribution of classes: "
    "the sum over classes of the client's share of the class times the accuracy on its "
    'test images. Mean ± sample standard deviation over the clients, and the lowest.',
    _CLIENT_ACCURACY,
    rows,
  )


def runs(rows: Sequence[Row], varying: Sequence[str]) -> Table:
  """Every run with its settings, what it ran on, and how it ended.

  Args:
    rows: also of those that did not finish.
    varying: the knobs that are worth a column.
  """
  columns = (
    *_RUN,
    *(Column(name, name) for name in varying),
    _ROUNDS,
    _percent('final_accuracy', 'final accuracy, %'),
    _percent('best_accuracy', 'best accuracy, %'),
    *_SPEED,
    Column('devices', 'devices'),
    Column('jax', 'JAX'),
    Column('git_commit', 'commit'),
    Column('command', 'command'),
  )
  caption = (
    'Seconds are of training, testing and waiting; samples/s of training. Runs that '
    'are not finished are in no other table and in no figure.'
  )
  return Table('runs', 'Runs', caption, columns, rows)


def compared(rows: Sequence[Row], described: str) -> Table:
  """A few runs side by side, with what it takes to reach the target."""
  columns = (
    *_RUN,
    _ROUNDS,
    _percent('final_accuracy', 'final, %'),
    _percent('best_accuracy', 'best, %'),
    _percent('mean_of_last_5', 'last 5, %'),
    _percent('target', 'target, %'),
    Column('rounds_to_target', 'rounds to it'),
    Column('megabytes_to_target', 'MB to it', '.1f'),
    *_SPEED,
  )
  caption = f'target: {described}, in the same setting'
  return Table('compared', 'Runs', caption, columns, rows)


def _by_series(name, title, caption, columns, rows) -> Table:
  """A row for each series; the setting is told if there are several."""
  told = [Column('setting', 'setting')] if any(row['setting'] for row in rows) else []
  columns = (*told, Column('series', 'series'), *columns)
  return Table(name, title, caption, columns, rows)
