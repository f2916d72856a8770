"""Computes the records of a round and of a run from the results of the training.

Tests arrive as sums (see `round.evaluation.Score`); `test_record` divides them. What a
metric of `moon_jax/metrics/` gives is summarised by `measured_record`.
"""

import itertools
import types
from collections.abc import Collection, Mapping, Sequence

import jax
import numpy as np

from moon_jax import catalog
from moon_jax.building.experiment import Experiment
from moon_jax.config import Config
from moon_jax.core import files
from moon_jax.core.errors import UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import ClientMetrics
from moon_jax.metrics.measuring import Numbers
from moon_jax.planning.plan import RoundPlan
from moon_jax.round.evaluation import Score
from moon_jax.round.traffic import Traffic
from moon_jax.runner.clock import PHASES
from moon_jax.runner.measures import Measured
from moon_jax.runner.model_tests import Tested
from moon_jax.runner.run_files import Record

_NOTHING_MEASURED = types.MappingProxyType({})
# How the columns of tests begin.
_TEST_PREFIXES = (
  'test_',
  'validation_',
  'user_accuracy',
  'local_accuracy',
  'personal_accuracy',
  'tuned_accuracy',
)
_PLAN_COLUMNS_OF_SOME_RUNS = {'skipped_clients', 'stragglers', 'attackers'}
# How the columns of clients end whose metric is not defined.
UNDEFINED = '_undefined'
_QUARTILES = ('min', 'q1', 'median', 'q3', 'max')
_FEWEST_WITH_TENTH = 10  # clients of which a tenth is at least one
_QUARTILE_FRACTIONS = np.linspace(0.0, 1.0, 5)


# Records show a divergence, so NumPy need not warn of it.
@np.errstate(invalid='ignore')
def round_record(
  round_number: int,
  plan: RoundPlan,
  metrics: ClientMetrics,
  traffic: Traffic,
  *,
  measured: Mapping[str, str] = _NOTHING_MEASURED,
  skip_nonfinite: bool = False,
) -> Record:
  """The training's part of the line of metrics.jsonl.

  Args:
    round_number: completed rounds, 1 after the first.
    plan: the round's cohort and batches.
    metrics: leaves [K], as numpy.
    traffic: what one client exchanges in a round.
    measured: see `Algorithm`.
    skip_nonfinite: whether clients whose results are not finite are left out of the
      means, and named; if all are, the means are over all.

  Returns:
    The result of `means`; the mean and quartiles over the cohort of the drift, and of
    what else the algorithm reports; numbers that it computed; bytes of the whole
    cohort.

  Raises:
    UsageError: the algorithm reports or computes a number with the name of a column, or
      `measured` names a part that the loss lacks.
  """
  is_skipped = ~metrics.finite & skip_nonfinite
  is_counted = ~is_skipped | is_skipped.all()
  client_metrics = metrics._replace(computed={}, server_finite=None)
  counted = jax.tree.map(lambda leaf: leaf[is_counted], client_metrics)
  mean_columns = means(counted, measured)
  drift_columns = _spread('drift', 'drift', counted.drift)
  report_columns = {}
  for name, numbers in sorted(counted.reports.items()):
    report_columns |= _spread(f'{name}_mean', name, numbers)
  computed_columns = {
    name: float(number) for name, number in sorted(metrics.computed.items())
  }
  plan_columns = {'clients': plan.clients.tolist()}
  if skip_nonfinite:
    plan_columns['skipped_clients'] = plan.clients[is_skipped].tolist()
  if plan.stragglers is not None:
    plan_columns['stragglers'] = plan.stragglers.tolist()
  if plan.attackers is not None:
    plan_columns['attackers'] = plan.attackers.tolist()
  num_downloads = plan.num_transfers() + _num_without_upload(plan)
  plan_columns |= {
    'num_examples': int(metrics.num_seen.sum(dtype=np.float64)),
    'num_steps': int(plan.step_real.sum()),
    'bytes_down': traffic.bytes_received * num_downloads,
    'bytes_up': traffic.bytes_sent * plan.num_transfers(),
  }
  parts = sorted(counted.sums.keys() - {'train_loss', 'train_accuracy'})
  own_columns = {'round', 'train_loss', 'train_accuracy', *drift_columns, *plan_columns}
  _require_other_names(
    [*parts, *report_columns, *computed_columns],
    own_columns | _PLAN_COLUMNS_OF_SOME_RUNS,
  )
  return {
    'round': round_number,
    **mean_columns,
    **drift_columns,
    **report_columns,
    **computed_columns,
    **plan_columns,
  }


def require_columns(
  experiment: Experiment, plan: RoundPlan, metrics: ClientMetrics
) -> None:
  """Checks before the first round that its record can be made, by one of zeros.

  Args:
    experiment: the experiment.
    plan: plan of any round.
    metrics: leaves [K], with shapes in place of arrays.

  Raises:
    UsageError: it cannot; see `round_record`.
  """
  zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), metrics)
  measured = experiment.algorithm.measured
  round_record(1, plan, zeros, experiment.traffic, measured=measured)


def _require_other_names(
  algorithm_names: Sequence[str], columns: Collection[str]
) -> None:
  """Raises UsageError if a number of the algorithm has the name of another column."""
  for name in algorithm_names:
    is_taken = name in columns or algorithm_names.count(name) > 1
    if is_taken or name.startswith(_TEST_PREFIXES):
      raise UsageError(
        f'{name!r} is another column of the records: give this number of '
        f'{flag("algorithm")} another name.'
      )


def is_column_name(name: str) -> bool:
  """Whether a run may write a column with this name, in this round or in another."""
  return name.startswith(_TEST_PREFIXES) or files.is_explained_column(name)


def _num_without_upload(plan: RoundPlan) -> int:
  """Number of clients that receive a model and send nothing."""
  if plan.stragglers is None:
    return 0
  return len(np.setdiff1d(plan.stragglers, plan.clients))


def means(
  metrics: ClientMetrics, measured: Mapping[str, str] = _NOTHING_MEASURED
) -> Record:
  """The loss, its parts and the accuracy, means over the examples of a round.

  Args:
    metrics: leaves [K], as numpy.
    measured: see `Algorithm`.

  Returns:
    Losses in nats; the accuracy of the models during training, over all examples of the
    sums, each counted once an epoch. A part that covers a fraction of the examples is a
    mean over these, and absent if there are none.

  Raises:
    UsageError: there is no part with such a fraction.
  """
  num_examples = float(metrics.num_summed.sum(dtype=np.float64))
  totals = {
    name: float(sums.sum(dtype=np.float64))
    for name, sums in sorted(metrics.sums.items())
  }
  record = {}
  for name, total in totals.items():
    covered_by = measured.get(name)
    if covered_by and covered_by not in totals:
      raise UsageError(
        f'measured: {name!r} cannot cover the fraction {covered_by!r} of the examples, '
        'which is no part of the loss.'
      )
    count = totals[covered_by] if covered_by else num_examples
    if count:
      record[name] = total / count
  return record


def terms(record: Record, measured: Collection[str]) -> list[str]:
  """The columns that are terms of the loss, all in nats.

  Args:
    record: record of a round as `round_record` begins it: the means come before drift.
    measured: parts that are recorded and no terms of the loss; see `Algorithm`.
  """
  no_terms = {'round', 'train_loss', 'train_accuracy', *measured}
  columns = itertools.takewhile(lambda name: name != 'drift', record)
  return [name for name in columns if name not in no_terms]


def _spread(mean_column: str, name: str, numbers: np.ndarray) -> Record:
  """[K] -> the mean and name_min, name_q1, ..., interpolated between neighbours."""
  mean = float(numbers.mean(dtype=np.float64))
  quartiles = np.quantile(np.asarray(numbers, np.float64), _QUARTILE_FRACTIONS)
  return {mean_column: mean} | _quartile_columns(name, quartiles)


def _quartile_columns(name: str, quartiles: np.ndarray) -> Record:
  columns = [f'{name}_{quartile}' for quartile in _QUARTILES]
  return dict(zip(columns, quartiles.tolist(), strict=True))


def test_record(score: Score, num_examples: int) -> Record:
  """What a test adds to the line of metrics.jsonl.

  Args:
    score: leaves [M], as numpy.
    num_examples: number of examples of the test split.

  Returns:
    Accuracy in [0, 1] and cross entropy in nats; with several models their means, and
    the accuracy's standard deviation over the models and its lowest value.
  """
  accuracy = score.num_correct / num_examples
  record = {
    'test_accuracy': float(accuracy.mean()),
    'test_loss': float(score.loss_sum.mean(dtype=np.float64) / num_examples),
  }
  if len(accuracy) > 1:
    record['test_accuracy_std'] = float(accuracy.std())
    record['test_accuracy_worst'] = float(accuracy.min())
  return record


def validation_record(score: Score, num_examples: int) -> Record:
  """The means of `test_record` over the models, on the server's validation split."""
  record = test_record(score, num_examples)
  return {
    'validation_accuracy': record['test_accuracy'],
    'validation_loss': record['test_loss'],
  }


def over_clients(
  num_correct: np.ndarray, sizes: np.ndarray, column: str = 'user_accuracy'
) -> Record:
  """The distribution of the accuracy on each user's, or client's, own test examples.

  Args:
    num_correct: [N'] int.
    sizes: [N'] int, number of examples, at least 1; `num_correct` of them are correct.
    column: beginning of the columns' names.

  Returns:
    `user_accuracy_...`: mean, std, quartiles, and, if a tenth is at least one user, the
    mean of the worst tenth, where each user counts once; and
    `user_accuracy_weighted_...`, where each counts by its examples (its mean is
    `test_accuracy`). A quartile is the lowest accuracy that this part of all users, or
    examples, does not exceed.
  """
  accuracy = num_correct / sizes
  (spread,) = _spreads(accuracy[None], np.ones(1))
  by_user = {f'{column}_{statistic}': number for statistic, number in spread.items()}
  by_example = _weighted_spread(
    f'{column}_weighted', accuracy, sizes.astype(np.float64)
  )
  return by_user | by_example


def columns_of_seen_and_unseen_users(
  num_correct: np.ndarray, sizes: np.ndarray, num_unseen: int
) -> Record:
  """The mean accuracies of users with and without training examples, apart.

  Args:
    num_correct: [N'] int, of each user's own test examples.
    sizes: [N'] int, their numbers, at least 1.
    num_unseen: how many of the users, the last ones, own no training examples.

  Returns:
    `user_accuracy_seen_mean` and `user_accuracy_unseen_mean`, where each user counts
    once; nothing unless there are users of both kinds.
  """
  if not 0 < num_unseen < len(sizes):
    return {}
  accuracy = num_correct / sizes
  return {
    'user_accuracy_seen_mean': float(accuracy[:-num_unseen].mean()),
    'user_accuracy_unseen_mean': float(accuracy[-num_unseen:].mean()),
  }


def _spreads(rows: np.ndarray, signs: np.ndarray) -> list[Record]:
  """The distribution of each row's numbers, each counted once.

  The rows are taken together, because each call of NumPy takes its time, however few
  clients there are.

  Args:
    rows: [R, n] finite numbers.
    signs: [R] 1 if the worst numbers of a row are the lowest, -1 if the highest.

  Returns:
    [R] statistic -> number; nothing if n is 0.
  """
  num_rows, num_clients = rows.shape
  if num_clients == 0:
    return [{}] * num_rows
  mean = rows.sum(axis=1) / num_clients
  variance = ((rows - mean[:, None]) ** 2).sum(axis=1) / num_clients
  counts = np.arange(1.0, num_clients + 1)
  places = np.searchsorted(counts / num_clients, _QUARTILE_FRACTIONS, side='left')
  statistics = {'mean': mean, 'std': np.sqrt(variance)}
  statistics |= zip(_QUARTILES, np.sort(rows, axis=1)[:, places].T, strict=True)
  if num_clients >= _FEWEST_WITH_TENTH:
    worst_first = np.sort(rows * signs[:, None], axis=1)
    weights = _weights_in_share(counts, 0.1)
    statistics['worst_tenth'] = (
      signs * (worst_first * weights).sum(axis=1) / weights.sum()
    )
  columns = np.stack([*statistics.values()], axis=1).tolist()
  return [dict(zip(statistics, numbers, strict=True)) for numbers in columns]


def _weighted_spread(name: str, accuracy: np.ndarray, weights: np.ndarray) -> Record:
  mean = _average(accuracy, weights)
  variance = _average((accuracy - mean) ** 2, weights)
  quartiles = _weighted_quartiles(accuracy, weights)
  spread = {
    f'{name}_mean': float(mean),
    f'{name}_std': float(np.sqrt(variance)),
    **_quartile_columns(name, quartiles),
  }
  if len(accuracy) >= _FEWEST_WITH_TENTH:
    spread[f'{name}_worst_tenth'] = _mean_of_worst(accuracy, weights, 0.1)
  return spread


def _average(numbers: np.ndarray, weights: np.ndarray) -> np.floating:
  """`np.average` without its checks, which a round with tests of clients feels."""
  return (numbers * weights).sum() / weights.sum()


def _weighted_quartiles(numbers: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """`np.quantile(..., method='inverted_cdf')` of positive weights, four times as fast.

  A round with tests of clients takes it for each column of accuracies and metrics.
  """
  order = np.argsort(numbers)
  ends = np.cumsum(weights[order])
  places = np.searchsorted(ends / ends[-1], _QUARTILE_FRACTIONS, side='left')
  return numbers[order[np.minimum(places, len(numbers) - 1)]]


def _mean_of_worst(accuracy: np.ndarray, weights: np.ndarray, share: float) -> float:
  """The mean of the lowest, up to this share of the weight; the last counts in part."""
  order = np.argsort(accuracy, kind='stable')
  weights_in_share = _weights_in_share(np.cumsum(weights[order]), share)
  return float(_average(accuracy[order], weights_in_share))


def _weights_in_share(ends: np.ndarray, share: float) -> np.ndarray:
  """[n] sums of the weights up to each -> how much of each is in this first share."""
  weights = np.minimum(ends, share * ends[-1])
  weights[1:] -= weights[:-1].copy()
  return weights


# Fraction of its own best accuracy at which a run counts as having reached it.
TARGET = 0.95
_METRIC_SPREAD = ('mean', 'std', 'worst_tenth')
_KINDS_OF_CLIENT_TESTS = ('user', 'local', 'tuned', 'personal')
_SPREAD = ('mean', 'weighted_mean', 'std', 'min', 'worst_tenth')
# The columns of the last tested round that a summary has.
_SUMMARY_COLUMNS = (
  'test_accuracy',
  'test_loss',
  'test_accuracy_std',
  'test_accuracy_worst',
  'validation_accuracy',
  'validation_loss',
  'user_accuracy_mean',
  'user_accuracy_std',
  'user_accuracy_min',
  'user_accuracy_worst_tenth',
  *(f'local_accuracy_{statistic}' for statistic in _SPREAD),
  *(f'tuned_accuracy_{statistic}' for statistic in _SPREAD),
  *(f'personal_accuracy_{statistic}' for statistic in _SPREAD),
)


class SummaryOptions:
  """What a configuration says about the summary of a run.

  Attributes:
    best_by: 'accuracy', 'loss' or the metric that chooses the best round.
    metrics: names of the metrics of tests.
  """

  def __init__(self, config: Config | None = None):
    """config: None for a run of which nothing is known."""
    self.best_by = config.best_by if config else 'accuracy'
    self.metrics = catalog.listed_words(config.metrics) if config else ()

  def columns(self) -> list[str]:
    """The columns of the metrics that a summary has."""
    columns = []
    for name in self.metrics:
      columns += [f'test_{name}', f'validation_{name}']
      for kind in _KINDS_OF_CLIENT_TESTS:
        columns += [f'{kind}_{name}_{statistic}' for statistic in _METRIC_SPREAD]
    return columns


def choosing_column(tested: Sequence[Record], best_by: str) -> str:
  """The column that chooses the best of tested rounds.

  It is that of the validation split if there is one, otherwise of the test split. The
  accuracy chooses if the metric is not defined in any round.
  """
  has_validation = any('validation_accuracy' in record for record in tested)
  split = 'validation' if has_validation else 'test'
  is_defined = any(f'{split}_{best_by}' in record for record in tested)
  return f'{split}_{best_by}' if is_defined else f'{split}_accuracy'


def best_round(tested: Sequence[Record], column: str) -> Record:
  """The first record with the best number in a column; some rounds may lack it."""
  sign = -1 if catalog.is_lower_better(column.partition('_')[2]) else 1
  with_number = [record for record in tested if column in record]
  return max(with_number, key=lambda record: sign * record[column])


def summarise(
  rounds: list[Record],
  timings: list[Record],
  options: SummaryOptions | None = None,
) -> Record:
  """The content of summary.json: what a table of runs needs.

  Args:
    rounds: the lines of metrics.jsonl, at least one with a test.
    timings: the lines of timings.jsonl; a phase that is absent took no time.
    options: what the configuration says; None: it sets nothing.

  Returns:
    Numbers for a table of runs. With a validation split, the best round has the highest
    `validation_accuracy`, which is included, or the best of another number in
    `best_by`; `best_test_accuracy` is of that round.
  """
  options = options or SummaryOptions()
  tested = [record for record in rounds if 'test_accuracy' in record]
  last_tested = tested[-1]
  chosen_by = choosing_column(tested, options.best_by)
  best = best_round(tested, chosen_by)
  target = TARGET * best['test_accuracy']
  reached = next(record for record in tested if record['test_accuracy'] >= target)
  summary = {'rounds': rounds[-1]['round']}
  for column in (*_SUMMARY_COLUMNS, *options.columns()):
    if column in last_tested:
      summary[column] = last_tested[column]
  summary |= {
    f'best_{chosen_by}': best[chosen_by],
    'best_test_accuracy': best['test_accuracy'],
    'best_round': best['round'],
    'target_test_accuracy': target,
    'target_round': reached['round'],
    'bytes_down': sum(record['bytes_down'] for record in rounds),
    'bytes_up': sum(record['bytes_up'] for record in rounds),
  }
  if options.best_by != 'accuracy':
    summary['best_by'] = chosen_by
  for phase in PHASES:
    column = f'{phase}_seconds'
    summary[column] = round(sum(line.get(column, 0.0) for line in timings), 3)
  return summary


def metrics_record(
  experiment: Experiment,
  round_number: int,
  plan: RoundPlan,
  metrics: ClientMetrics,
  tested: Tested | None,
) -> Record:
  """The line of metrics.jsonl of a round; its arguments are on the host.

  Args:
    experiment: the experiment.
    round_number: completed rounds, 1 after the first.
    plan: plan of the round.
    metrics: leaves [K].
    tested: leaves [M]; None if the round is not tested.
  """
  record = round_record(
    round_number,
    plan,
    metrics,
    experiment.traffic,
    measured=experiment.algorithm.measured,
    skip_nonfinite=experiment.config.on_nonfinite == 'skip_client',
  )
  if tested is None:
    return record
  score = tested.score
  record |= test_record(score, len(experiment.tests.examples.labels))
  if score.validation is not None:
    num_validation = len(experiment.tests.validation.labels)
    record |= validation_record(score.validation, num_validation)
  if score.num_correct_of_users is not None:
    num_correct_of_users = score.num_correct_of_users[0]
    sizes = experiment.tests.users.sizes
    num_unseen = experiment.tests.num_users_without_training_data
    record |= over_clients(num_correct_of_users, sizes)
    record |= columns_of_seen_and_unseen_users(num_correct_of_users, sizes, num_unseen)
  for column, num_correct in (tested.num_correct or {}).items():
    record |= over_clients(num_correct, experiment.tests.of_clients.sizes, column)
  if tested.consensus_distance is not None:
    record['consensus_distance'] = tested.consensus_distance
  if tested.measured:
    record |= measured_record(tested.measured)
  return record


def measured_record(measured: Measured) -> Record:
  """The columns of the metrics of a round's tests.

  Returns:
    `test_NAME` and `validation_NAME`, means over the models for which the metric is
    defined, absent if there is none; and `user_NAME_...` and so on, see
    `metrics_over_clients`.
  """
  record = {}
  for split, numbers in (
    ('test', measured.test),
    ('validation', measured.validation),
  ):
    for name, model_numbers in numbers.items():
      defined = model_numbers[~np.isnan(model_numbers)]
      if len(defined):
        record[f'{split}_{name}'] = float(defined.mean())
  for kind, numbers in measured.of_clients.items():
    record |= metrics_over_clients(numbers, kind)
  return record


def metrics_over_clients(numbers: Numbers, kind: str) -> Record:
  """The distribution of each metric over users, or clients, each on its own examples.

  Args:
    numbers: name of a metric -> [N'] one number for each user; NaN if the metric is not
      defined for its examples.
    kind: beginning of the columns' names.

  Returns:
    `KIND_NAME_...`: mean, std, quartiles, and the mean of the worst tenth, of the users
    for which the metric is defined, each counted once; the number of the others is
    `..._undefined`, if there are some. No number is weighted by examples: such a mean
    is not the metric of all examples.
  """
  rows = np.stack([*numbers.values()])
  signs = np.array([-1.0 if catalog.is_lower_better(name) else 1.0 for name in numbers])
  is_undefined = np.isnan(rows)
  num_undefined = is_undefined.sum(axis=1).tolist()
  is_complete = ~is_undefined.any(axis=1)
  complete_spreads = iter(_spreads(rows[is_complete], signs[is_complete]))
  record = {}
  for row, name in enumerate(numbers):
    if is_complete[row]:
      spread = next(complete_spreads)
    else:
      defined = rows[row, ~is_undefined[row]]
      (spread,) = _spreads(defined[None], signs[[row]])
    for statistic, number in spread.items():
      record[f'{kind}_{name}_{statistic}'] = number
    if num_undefined[row]:
      record[f'{kind}_{name}{UNDEFINED}'] = num_undefined[row]
  return record
