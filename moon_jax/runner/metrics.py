"""Computes the records of a round and of a run from the results of the training."""

import itertools
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from moon_jax.building.experiment import Experiment
from moon_jax.core.errors import UsageError
from moon_jax.core.types import ClientMetrics
from moon_jax.planning.planner import Plan
from moon_jax.round.evaluation import Score
from moon_jax.runner.clock import PHASES
from moon_jax.runner.evaluation import Tested

Record = dict[str, Any]
_NOTHING = types.MappingProxyType({})
# How the columns of tests begin.
_OF_TESTS = ('test_', 'validation_', 'user_accuracy', 'local_accuracy')
_OF_TESTS += ('personal_accuracy', 'tuned_accuracy')
_QUARTILES = ('min', 'q1', 'median', 'q3', 'max')


# Records show a divergence, so NumPy need not warn of it.
@np.errstate(invalid='ignore')
def round_record(
  round_number: int,
  plan: Plan,
  metrics: ClientMetrics,
  traffic: tuple[int, int],
  *,
  measured: Mapping[str, str] = _NOTHING,
  skip_nonfinite: bool = False,
) -> Record:
  """The training's part of the line of metrics.jsonl.

  Args:
    round_number: completed rounds, 1 after the first.
    plan: the round's cohort and batches.
    metrics: leaves [K], as numpy.
    traffic: bytes that one client receives, and sends, in a round; without a server,
      from and to each of its neighbours.
    measured: see `Algorithm`.
    skip_nonfinite: whether clients whose results are not finite are left out of the
      means, and named; if all are, the means are over all.

  Returns:
    The result of `means`; the mean and quartiles over the cohort of the drift, and of
    what else the algorithm reports; numbers that it computed; bytes of the whole
    cohort.

  Raises:
    UsageError: the algorithm reports or computes a number with the name of a column.
  """
  skipped = ~metrics.finite & skip_nonfinite
  chosen = ~skipped | skipped.all()
  of_clients = metrics._replace(computed={}, server_finite=None)
  counted = jax.tree.map(lambda values: values[chosen], of_clients)
  reports = {}
  for name, values in sorted(counted.reports.items()):
    reports |= _spread(f'{name}_mean', name, values)
  computed = {name: float(value) for name, value in sorted(metrics.computed.items())}
  drift = _spread('drift', 'drift', counted.drift)
  last = {
    'clients': plan.clients.tolist(),
    **({'skipped_clients': plan.clients[skipped].tolist()} if skip_nonfinite else {}),
    **_differing(plan),
    'num_examples': int(metrics.num_seen.sum(dtype=np.float64)),
    'num_steps': int(plan.step_real.sum()),
    'bytes_down': traffic[0] * (plan.num_transfers() + _num_late(plan)),
    'bytes_up': traffic[1] * plan.num_transfers(),
  }
  parts = sorted(counted.sums.keys() - {'train_loss', 'train_accuracy'})
  _require_free([*parts, *reports, *computed], {'round', *drift, *last})
  found = means(counted, measured)
  return {'round': round_number} | found | drift | reports | computed | last


def _require_free(own: Sequence[str], columns: Collection[str]) -> None:
  """Raises UsageError if the algorithm's own names are not their own columns."""
  columns = {'train_loss', 'train_accuracy', *columns}
  for name in own:
    if name in columns or name.startswith(_OF_TESTS) or own.count(name) > 1:
      raise UsageError(
        f'{name!r} is another column of the records: give this number of '
        '--config.algorithm another name.'
      )


def _differing(plan: Plan) -> Record:
  """The stragglers, and the attackers of the cohort, if the run has any."""
  record = {}
  if plan.stragglers is not None:
    record['stragglers'] = plan.stragglers.tolist()
  if plan.attackers is not None:
    record['attackers'] = plan.clients[plan.attackers >= 0].tolist()
  return record


def _num_late(plan: Plan) -> int:
  """Number of clients that receive a model and send nothing."""
  late = () if plan.stragglers is None else plan.stragglers
  return len(np.setdiff1d(late, plan.clients))


def means(metrics: ClientMetrics, measured: Mapping[str, str] = _NOTHING) -> Record:
  """The loss, its parts and the accuracy, means over the examples of a round.

  Args:
    metrics: leaves [K], as numpy.
    measured: see `Algorithm`.

  Returns:
    Losses in nats; the accuracy of the models during training, over all examples, each
    counted once an epoch. A part that covers a fraction of the examples is a mean over
    these, and absent if there are none.
  """
  sums = sorted(metrics.sums.items())
  totals = {name: float(values.sum(dtype=np.float64)) for name, values in sums}
  count = float(metrics.num_seen.sum(dtype=np.float64))
  parts = {name: measured.get(name) for name in totals}
  counts = {name: totals[part] if part else count for name, part in parts.items()}
  return {name: totals[name] / counts[name] for name in totals if counts[name]}


def terms(record: Record, measured: Collection[str]) -> list[str]:
  """The columns that are terms of the loss, all in nats.

  Args:
    record: record of a round as `round_record` begins it: the means come before drift.
    measured: parts that are recorded and no terms of the loss; see `Algorithm`.
  """
  others = {'round', 'train_loss', 'train_accuracy', *measured}
  found = itertools.takewhile(lambda name: name != 'drift', record)
  return [name for name in found if name not in others]


def _spread(mean: str, name: str, values: np.ndarray) -> Record:
  """[K] -> its mean and name_min, name_q1, ..., interpolated between neighbours."""
  quartiles = _quartiles(name, np.asarray(values, np.float64))
  return {mean: float(values.mean(dtype=np.float64))} | quartiles


def _quartiles(name: str, values: np.ndarray, **how: Any) -> Record:
  found = np.quantile(values, np.linspace(0.0, 1.0, 5), **how).tolist()
  return {f'{name}_{of}': value for of, value in zip(_QUARTILES, found, strict=True)}


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
  return {f'validation_{of}': record[f'test_{of}'] for of in ('accuracy', 'loss')}


def over_clients(
  num_correct: np.ndarray, sizes: np.ndarray, column: str = 'user_accuracy'
) -> Record:
  """The distribution of the accuracy on each user's, or client's, own test examples.

  Args:
    num_correct: [N'] int.
    sizes: [N'] int, number of examples, at least 1; `num_correct` of them are correct.
    column: beginning of the columns' names.

  Returns:
    `user_accuracy_...`: mean, std, quartiles, and the mean of the worst tenth, where
    each user counts once; and `user_accuracy_weighted_...`, where each counts by its
    examples (its mean is `test_accuracy`). A quartile is the lowest accuracy that this
    part of all users, or examples, does not exceed.
  """
  accuracy, record = num_correct / sizes, {}
  for name, weights in (
    (column, np.ones(len(sizes))),
    (f'{column}_weighted', sizes.astype(np.float64)),
  ):
    mean = np.average(accuracy, weights=weights)
    variance = np.average((accuracy - mean) ** 2, weights=weights)
    counted = {'weights': weights, 'method': 'inverted_cdf'}
    record |= {
      f'{name}_mean': float(mean),
      f'{name}_std': float(np.sqrt(variance)),
      **_quartiles(name, accuracy, **counted),
      f'{name}_worst_tenth': _worst(accuracy, weights, 0.1),
    }
  return record


def _worst(accuracy: np.ndarray, weights: np.ndarray, share: float) -> float:
  """The mean of the lowest, up to this share of the weight; the last counts in part."""
  order = np.argsort(accuracy, kind='stable')
  ends = np.cumsum(weights[order])
  taken = np.diff(np.minimum(ends, share * ends[-1]), prepend=0.0)
  return float(np.average(accuracy[order], weights=taken))


# Fraction of its own best accuracy at which a run counts as having reached it.
TARGET = 0.95
_TESTED = ('test_accuracy', 'test_loss', 'test_accuracy_std', 'test_accuracy_worst')
_TESTED += ('validation_accuracy', 'validation_loss')
_TESTED += tuple(f'user_accuracy_{of}' for of in ('mean', 'std', 'worst_tenth'))
_TESTED += tuple(
  f'{of_clients}_accuracy_{of}'
  for of_clients in ('local', 'tuned', 'personal')
  for of in ('mean', 'weighted_mean', 'std', 'worst_tenth')
)


def summarise(rounds: list[Record], timings: list[Record]) -> Record:
  """The content of summary.json: what a table of runs needs.

  Args:
    rounds: the lines of metrics.jsonl, at least one with a test.
    timings: the lines of timings.jsonl; a phase that is absent took no time.

  Returns:
    Numbers for a table of runs. With a validation split, the best round has the highest
    `validation_accuracy`, which is included; `best_test_accuracy` is of that round.
  """
  tested = [record for record in rounds if 'test_accuracy' in record]
  is_validated = 'validation_accuracy' in tested[-1]
  chosen_by = 'validation_accuracy' if is_validated else 'test_accuracy'
  best = max(tested, key=lambda record: record[chosen_by])
  chosen = {f'best_{chosen_by}': best[chosen_by]}
  target = TARGET * best['test_accuracy']
  reached = next(record for record in tested if record['test_accuracy'] >= target)
  names = [f'{phase}_seconds' for phase in PHASES]
  return {
    'rounds': rounds[-1]['round'],
    **{name: tested[-1][name] for name in _TESTED if name in tested[-1]},
    **chosen,
    'best_test_accuracy': best['test_accuracy'],
    'best_round': best['round'],
    'target_test_accuracy': target,
    'target_round': reached['round'],
    'bytes_down': sum(record['bytes_down'] for record in rounds),
    'bytes_up': sum(record['bytes_up'] for record in rounds),
  } | {name: round(sum(line.get(name, 0.0) for line in timings), 3) for name in names}


def line_of(
  built: Experiment, t: int, plan: Plan, metrics: ClientMetrics, tested: Tested | None
) -> Record:
  """The line of metrics.jsonl of a round; its arguments are on the host.

  Args:
    built: the experiment.
    t: number of rounds before it.
    plan: plan of the round.
    metrics: leaves [K].
    tested: leaves [M]; None if the round is not tested.
  """
  how = {'skip_nonfinite': built.config.on_nonfinite == 'skip_client'}
  how['measured'] = built.algorithm.measured
  record = round_record(t + 1, plan, metrics, built.traffic, **how)
  if tested is None:
    return record
  record |= test_record(tested.score, len(built.tests.examples.labels))
  if tested.score.validation is not None:
    record |= validation_record(
      tested.score.validation, len(built.tests.validation.labels)
    )
  if tested.score.by_client is not None:
    record |= over_clients(tested.score.by_client[0], built.tests.user_sizes)
  for column, num_correct in (tested.own or {}).items():
    record |= over_clients(num_correct, built.tests.of_clients.sizes, column)
  if tested.consensus_distance is not None:
    record['consensus_distance'] = tested.consensus_distance
  return record
