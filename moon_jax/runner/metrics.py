"""Computes the records of a round and of a run from the arrays that training leaves."""

import itertools
import types
from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from moon_jax.core.types import ClientMetrics
from moon_jax.engine.experiment import Experiment
from moon_jax.runner.clock import PHASES
from moon_jax.runner.evaluation import Tested
from moon_jax.train.evaluation import Score
from moon_jax.train.planning import Plan

Record = dict[str, Any]
_NOTHING = types.MappingProxyType({})
_QUARTILES = ('min', 'q1', 'median', 'q3', 'max')


# What diverged is told by its record, not by a warning.
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
  """What training says in the line of metrics.jsonl.

  Args:
    round_number: completed rounds, 1 after the first.
    plan: the round's cohort and batches.
    metrics: leaves [K], as numpy.
    traffic: bytes that one client receives, and sends, in a round; without a server
      from, and to, each of its neighbours.
    measured: see `Algorithm`.
    skip_nonfinite: whether clients whose results are not finite are left out of the
      means, and named; if all are, the means are over all.

  Returns:
    What `means` says; drift, its mean and quartiles over the cohort; the same of what
    else the algorithm reports, and the numbers it computed; bytes of the whole cohort.
  """
  skipped = ~metrics.finite & skip_nonfinite
  chosen = ~skipped | skipped.all()
  of_clients = metrics._replace(computed={}, server_finite=None)
  counted = jax.tree.map(lambda values: values[chosen], of_clients)
  reports = {}
  for name, values in sorted(counted.reports.items()):
    reports |= _spread(f'{name}_mean', name, values)
  return {
    'round': round_number,
    **means(counted, measured),
    **_spread('drift', 'drift', counted.drift),
    **reports,
    **{name: float(value) for name, value in sorted(metrics.computed.items())},
    'clients': plan.clients.tolist(),
    **({'skipped_clients': plan.clients[skipped].tolist()} if skip_nonfinite else {}),
    **_differing(plan),
    'num_examples': int(metrics.num_seen.sum(dtype=np.float64)),
    'num_steps': int(plan.step_real.sum()),
    'bytes_down': traffic[0] * (plan.num_transfers() + _num_late(plan)),
    'bytes_up': traffic[1] * plan.num_transfers(),
  }


def _differing(plan: Plan) -> Record:
  """Who was too slow, and who of the cohort attacked, where anybody may be or do so."""
  record = {}
  if plan.stragglers is not None:
    record['stragglers'] = plan.stragglers.tolist()
  if plan.attackers is not None:
    record['attackers'] = plan.clients[plan.attackers >= 0].tolist()
  return record


def _num_late(plan: Plan) -> int:
  """How many receive a model and send nothing."""
  late = () if plan.stragglers is None else plan.stragglers
  return len(np.setdiff1d(late, plan.clients))


def means(metrics: ClientMetrics, measured: Mapping[str, str] = _NOTHING) -> Record:
  """The loss, its parts and the accuracy, means over the examples of a round.

  Args:
    metrics: leaves [K], as numpy.
    measured: see `Algorithm`.

  Returns:
    Losses in nats, and the accuracy of the models while they were trained, over all
    examples, each counted once an epoch; what is measured of a fraction of them over
    these, and absent if there were none.
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
    record: of a round, as `round_record` begins it: up to the drift with the means.
    measured: the parts of the loss that are no terms of it; see `Algorithm`.
  """
  others = {'round', 'train_loss', 'train_accuracy', *measured}
  found = itertools.takewhile(lambda name: name != 'drift', record)
  return [name for name in found if name not in others]


def _spread(mean: str, name: str, values: np.ndarray) -> Record:
  """[K], to its mean and name_min, name_q1, ..., interpolated between neighbours."""
  quartiles = _quartiles(name, np.asarray(values, np.float64))
  return {mean: float(values.mean(dtype=np.float64))} | quartiles


def _quartiles(name: str, values: np.ndarray, **how: Any) -> Record:
  found = np.quantile(values, np.linspace(0.0, 1.0, 5), **how).tolist()
  return {f'{name}_{of}': value for of, value in zip(_QUARTILES, found, strict=True)}


def test_record(score: Score, num_examples: int) -> Record:
  """What a test adds to the line of metrics.jsonl.

  Args:
    score: leaves [M], as numpy.
    num_examples: of the test split.

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
  """The means of `test_record` over the models, of the server's validation split."""
  record = test_record(score, num_examples)
  return {f'validation_{of}': record[f'test_{of}'] for of in ('accuracy', 'loss')}


def over_clients(
  num_correct: np.ndarray, sizes: np.ndarray, column: str = 'user_accuracy'
) -> Record:
  """How the accuracy on each user's, or client's, own test examples is spread.

  Args:
    num_correct: [N'] int.
    sizes: [N'] int, of which `num_correct` are correct; each at least 1.
    column: what it is called.

  Returns:
    `user_accuracy_...`: mean, std, quartiles, and the mean of the worst tenth, where
    each user counts once; and `user_accuracy_weighted_...`, where each counts by its
    examples (its mean is `test_accuracy`). A quartile is the lowest accuracy at which
    that part of all, users or examples, has no more.
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


# Of its own best accuracy; what a run is said to reach late or early.
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
    Of a run with a validation split, the best round is that of the highest
    `validation_accuracy`, which is told, and `best_test_accuracy` is of that round.
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
  """The line of metrics.jsonl of a round; what it takes is on the host.

  Args:
    built: what is run.
    t: rounds before it.
    plan: of the round.
    metrics: leaves [K].
    tested: leaves [M]; None if the round is not tested.
  """
  how = {'skip_nonfinite': built.config.on_nonfinite == 'skip_client'}
  how['measured'] = built.algorithm.measured
  record = round_record(t + 1, plan, metrics, built.traffic, **how)
  if tested is None:
    return record
  record |= test_record(tested.score, len(built.test.labels))
  if tested.score.validation is not None:
    record |= validation_record(tested.score.validation, len(built.validation.labels))
  if tested.score.by_client is not None:
    record |= over_clients(tested.score.by_client[0], built.test_sizes)
  for column, num_correct in (tested.own or {}).items():
    record |= over_clients(num_correct, built.own_tests.sizes, column)
  if tested.consensus_distance is not None:
    record['consensus_distance'] = tested.consensus_distance
  return record
