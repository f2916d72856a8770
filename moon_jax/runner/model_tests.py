"""Tests the global model or the clients' own models, where a test needs the host.

It does so for models in the client store, and for tests of each client on examples of
its own. A few clients are tested at a time. The compiled tests are those of
`round.evaluation`; the records of the results are made by `runner.round_records`.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.building import client_test_programs, programs
from moon_jax.building.experiment import Experiment
from moon_jax.core.types import PyTree, State
from moon_jax.platform import devices
from moon_jax.round.evaluation import ClientScore, Score
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.measures import Measured, Measures, Numbers

_MODELS_AT_A_TIME = 64


class Tested(NamedTuple):
  """The results of the tests after a round.

  Attributes:
    score: leaves [M], of the global model or of every client's; on the device or host.
    consensus_distance: mean over all clients of ||w_i - w||_2, with w the mean of all
      w_i; None with a server.
    num_correct: column of the records -> [T] int32, for each tested client, how many of
      its own examples its model classifies correctly; None if no client is tested.
    measured: the metrics of the tests; None if there are none.
  """

  score: Score
  consensus_distance: float | None = None
  num_correct: dict[str, np.ndarray] | None = None
  measured: Measured | None = None


class HostTestPrograms(NamedTuple):
  """The compiled tests that the host calls.

  Attributes:
    evaluate: (state, test, validation, clients) -> Score; see `programs.evaluate`.
    of_clients: the test of each client on its own examples; None if there is none.
    fine_tuned: column of the records -> the test of fine-tuned models, group by group;
      {} without fine-tuning.
  """

  evaluate: Callable
  of_clients: Callable | None
  fine_tuned: dict[str, Callable]


def evaluate(
  experiment: Experiment,
  test_programs: HostTestPrograms,
  state: State,
  store: ClientStore | None,
  has_trained: np.ndarray,
  measures: Measures | None = None,
) -> Tested:
  """Tests the state after a round.

  Args:
    experiment: the experiment.
    test_programs: the compiled tests.
    state: the state after the round.
    store: store of the clients' memories of this round; None if they are in the state.
    has_trained: [N] bool, whether a client has trained by now.
    measures: the metrics to compute; None for none.
  """
  if store and experiment.has_client_models:
    tested = _test_stored_models(
      experiment, test_programs.evaluate, state, store, has_trained, measures
    )
  elif programs.models_at_a_time(experiment):
    tested = _test_models_in_groups(experiment, test_programs.evaluate, state, measures)
  else:
    score = test_programs.evaluate(
      state, experiment.tests.examples, experiment.tests.validation, None
    )
    tested = tested_models(score, measures)
  if test_programs.of_clients:
    confusions = _Confusions(measures, len(experiment.tests.of_clients.clients))
    num_correct, numbers = _test_clients(
      experiment, test_programs.of_clients, state, store, measures, confusions
    )
    for column, test_fine_tuned in test_programs.fine_tuned.items():
      num_correct[column], numbers[column] = _test_fine_tuned(
        experiment,
        functools.partial(test_fine_tuned, state),
        column,
        measures,
        confusions,
      )
    tested = tested._replace(num_correct=num_correct)
    if measures:
      for column, of_clients in numbers.items():
        tested.measured.of_clients[_kind(column)] = of_clients
      tested.measured.confusions.update(confusions.by_kind)
  distance = None
  if experiment.algorithm.share:
    distance = _distance_of_state(experiment, state, store, has_trained)
  return tested._replace(consensus_distance=distance)


def tested_models(score: Score, measures: Measures | None) -> Tested:
  """The results of a test of models, with their metrics in place of the logits.

  Args:
    score: leaves [M]; on the device or host.
    measures: the metrics to compute; None for none.
  """
  if measures is None:
    return Tested(score)
  score = jax.device_get(score)
  measured = measures.of_models(score)
  if score.validation is not None:
    score = score._replace(validation=score.validation._replace(logits=None))
  return Tested(score._replace(logits=None), measured=measured)


def _test_stored_models(
  experiment, program, state, store, has_trained, measures
) -> Tested:
  """The results of every client's model; clients that never trained share a model."""
  distinct_clients, first_untrained = _clients_with_distinct_models(has_trained)

  def test(positions):
    stored = store.read(distinct_clients[positions])
    memories = devices.replicate(stored, experiment.placement.mesh)
    with_memories = state._replace(clients=memories)
    score = program(
      with_memories, experiment.tests.examples, experiment.tests.validation, None
    )
    return tested_models(score, measures)

  tested = _in_groups(
    test, len(distinct_clients), experiment.planner.participation.cohort_size
  )
  position = np.full(
    len(has_trained), np.searchsorted(distinct_clients, first_untrained)
  )
  position[distinct_clients] = np.arange(len(distinct_clients))
  return jax.tree.map(lambda leaf: leaf[position], tested)


def _test_models_in_groups(experiment, program, state, measures) -> Tested:
  """The results of every client's model, of which a few are tested at a time."""
  tests, mesh = experiment.tests, experiment.placement.mesh

  def test(clients):
    on_device = devices.replicate(np.int32(clients), mesh)
    score = program(state, tests.examples, tests.validation, on_device)
    return tested_models(score, measures)

  num_models = programs.models_at_a_time(experiment)
  return _in_groups(test, experiment.config.num_clients, num_models)


class _Confusions:
  """The confusion matrices of the clients' own models, summed over the clients.

  Attributes:
    by_kind: 'personal' or 'tuned' -> [Y, Y]; see `Measured`.
  """

  def __init__(self, measures: Measures | None, num_tested: int):
    """num_tested: T, the number of clients with tests."""
    self.by_kind: dict[str, np.ndarray] = {}
    self._measures, self._num_tested = measures, num_tested
    self._is_counted: dict[str, np.ndarray] = {}

  def add(self, column: str, positions: np.ndarray, score: ClientScore) -> None:
    """Adds the results of [C] clients; those that were added before are left out."""
    kind = _kind(column)
    if self._measures is None or kind not in ('personal', 'tuned'):
      return
    is_counted = self._is_counted.setdefault(kind, np.zeros(self._num_tested, bool))
    confusion = self._measures.confusion_of_clients(positions, score, is_counted)
    self.by_kind[kind] = self.by_kind.get(kind, 0) + confusion


def _kind(column: str) -> str:
  """'personal_accuracy' -> 'personal', as the metrics' columns begin."""
  return column.removesuffix('_accuracy')


def _test_clients(
  experiment, program, state, store, measures, confusions
) -> tuple[dict[str, np.ndarray], dict[str, Numbers]]:
  """The tests of every client that has examples of its own.

  Returns:
    Column -> [T] int32, correct examples of each; and column -> [T] numbers of each
    metric.
  """
  clients = experiment.tests.of_clients.clients

  def test(positions):
    state_of_group = state
    if store:
      memories = devices.replicate(
        store.read(clients[positions]), experiment.placement.mesh
      )
      state_of_group = state._replace(clients=memories)
    scores = jax.device_get(program(state_of_group, positions))
    num_correct = {column: score.num_correct for column, score in scores.items()}
    numbers = {
      column: _numbers_of(measures, positions, score)
      for column, score in scores.items()
    }
    for column, score in scores.items():
      confusions.add(column, positions, score)
    return num_correct, numbers

  return _in_groups(
    test, len(clients), client_test_programs.clients_at_a_time(experiment)
  )


def _test_fine_tuned(
  experiment, groups, column, measures, confusions
) -> tuple[np.ndarray, Numbers]:
  """[T] int32, correct examples of each fine-tuned model, and its metrics."""
  num_tested = len(experiment.tests.of_clients.clients)
  num_correct = np.zeros(num_tested, np.int32)
  numbers = {
    name: np.zeros(num_tested) for name in (measures.names if measures else ())
  }
  for positions, score in groups():
    confusions.add(column, positions, score)
    num_correct[positions] = score.num_correct
    for name, of_group in _numbers_of(measures, positions, score).items():
      numbers[name][positions] = of_group
  return num_correct, numbers


def _numbers_of(
  measures: Measures | None, positions: np.ndarray, score: ClientScore
) -> Numbers:
  """[C] numbers of each metric; {} without metrics."""
  return measures.of_clients(positions, score) if measures else {}


def _in_groups(test: Callable, count: int, group_size: int) -> PyTree:
  """The results of a test that takes `group_size` positions at a time.

  Args:
    test: [group_size] positions -> leaves [group_size].
    count: number of positions; the last one is repeated to fill the last group.
    group_size: number of positions that the test takes.

  Returns:
    Leaves [count].
  """
  groups = []
  for begin in range(0, count, group_size):
    positions = np.arange(begin, begin + group_size)
    groups.append(jax.device_get(test(np.minimum(positions, count - 1))))
  return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *groups)


def _clients_with_distinct_models(has_trained: np.ndarray) -> tuple[np.ndarray, int]:
  """The clients that trained and the first untrained one, whose model all others have.

  Args:
    has_trained: [N] bool.

  Returns:
    Their ids, ascending; and the id of the first untrained client, 0 if all trained.
  """
  first_untrained = int(np.argmin(has_trained))
  is_distinct = has_trained.copy()
  is_distinct[first_untrained] = True
  return np.flatnonzero(is_distinct), first_untrained


def _distance_of_state(experiment, state, store, has_trained) -> float:
  """The consensus distance of the clients' models in the state or the store."""
  clients_on_host = None if store else jax.device_get(state.clients)

  def models(clients):
    if store:
      memories = store.read(clients)
    else:
      memories = jax.tree.map(lambda leaf: leaf[clients], clients_on_host)
    return experiment.algorithm.share(memories)['params']

  return consensus_distance(models, has_trained)


def consensus_distance(
  models: Callable[[np.ndarray], PyTree], has_trained: np.ndarray
) -> float:
  """The mean over clients of ||w_i - w||_2, with w the mean of all w_i.

  The sums are in float64, client by client, so they are the same for every store.

  Args:
    models: clients [M] -> their parameters, leaves [M, ...]. It is called for clients
      that have trained, and for one of the others, because all others have one model.
    has_trained: [N] bool.
  """
  distinct_clients, first_untrained = _clients_with_distinct_models(has_trained)
  num_untrained = int((~has_trained).sum())

  def counted_models() -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct model as a vector, and the number of clients that have it."""
    for begin in range(0, len(distinct_clients), _MODELS_AT_A_TIME):
      clients = distinct_clients[begin : begin + _MODELS_AT_A_TIME]
      leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(models(clients))]
      for row, client in enumerate(clients):
        is_shared = num_untrained > 0 and client == first_untrained
        count = num_untrained if is_shared else 1
        vector = [leaf[row].ravel() for leaf in leaves]
        yield count, np.concatenate(vector, dtype=np.float64)

  num_clients = len(has_trained)
  mean = sum(count * model for count, model in counted_models()) / num_clients
  distances = (
    count * math.sqrt(np.square(model - mean).sum())
    for count, model in counted_models()
  )
  return sum(distances) / num_clients
