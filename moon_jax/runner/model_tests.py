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
from moon_jax.round.evaluation import Score
from moon_jax.runner.client_store import ClientStore
from moon_jax.runner.measures import Measured, RoundMeasures

_MODELS_AT_A_TIME = 64


class Tested(NamedTuple):
  """The results of the tests after a round.

  Attributes:
    score: leaves [M], of the global model or of every client's; on the device or host.
    consensus_distance: mean over all clients of ||w_i - w||_2, with w the mean of all
      w_i; None with a server.
    num_correct: column of the records -> [T] int32, for each tested client, how many of
      its own examples its model classifies correctly; None if no client is tested.
    measured: the metrics of the tests; None if there are none, or not yet.
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
  measures: RoundMeasures | None = None,
) -> Tested:
  """Tests the state after a round.

  Args:
    experiment: the experiment.
    test_programs: the compiled tests.
    state: the state after the round.
    store: store of the clients' memories of this round; None if they are in the state.
    has_trained: [N] bool, whether a client has trained by now.
    measures: gets the tests, whose metrics are to be computed; None for none.
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
    tested = tested_models(score, measures, models=None)
  if test_programs.of_clients:
    num_correct = _test_clients(
      experiment, test_programs.of_clients, state, store, measures
    )
    for column, test_fine_tuned in test_programs.fine_tuned.items():
      num_correct[column] = _test_fine_tuned(
        experiment, functools.partial(test_fine_tuned, state), column, measures
      )
    tested = tested._replace(num_correct=num_correct)
  distance = None
  if experiment.algorithm.share:
    distance = _distance_of_state(experiment, state, store, has_trained)
  return tested._replace(consensus_distance=distance)


def tested_models(
  score: Score, measures: RoundMeasures | None, models: np.ndarray | None
) -> Tested:
  """The results of a test of models; their logits are left to the metrics.

  Args:
    score: leaves [m]; on the device or host.
    measures: gets the tests; None for none.
    models: [m] int, the clients whose models these are; None for all M models.
  """
  if measures is None:
    return Tested(score)
  score = jax.device_get(score)
  measures.add_models(models, score)
  if score.validation is not None:
    score = score._replace(validation=score.validation._replace(logits=None))
  return Tested(score._replace(logits=None))


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
    return tested_models(score, measures, distinct_clients[positions])

  tested = _in_groups(
    test, len(distinct_clients), experiment.planner.participation.cohort_size
  )
  position = np.full(
    len(has_trained), np.searchsorted(distinct_clients, first_untrained)
  )
  position[distinct_clients] = np.arange(len(distinct_clients))
  if measures:
    measures.assign_models(distinct_clients[position])
  return jax.tree.map(lambda leaf: leaf[position], tested)


def _test_models_in_groups(experiment, program, state, measures) -> Tested:
  """The results of every client's model, of which a few are tested at a time."""
  tests, mesh = experiment.tests, experiment.placement.mesh

  def test(clients):
    on_device = devices.replicate(np.int32(clients), mesh)
    score = program(state, tests.examples, tests.validation, on_device)
    return tested_models(score, measures, clients)

  num_models = programs.models_at_a_time(experiment)
  return _in_groups(test, experiment.config.num_clients, num_models)


def _kind(column: str) -> str:
  """'personal_accuracy' -> 'personal', as the metrics' columns begin."""
  return column.removesuffix('_accuracy')


def _test_clients(experiment, program, state, store, measures) -> dict[str, np.ndarray]:
  """The tests of every client that has examples of its own.

  Returns:
    Column -> [T] int32, correct examples of each.
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
    if measures:
      for column, score in scores.items():
        measures.add_clients(_kind(column), positions, score)
    return {column: score.num_correct for column, score in scores.items()}

  return _in_groups(
    test, len(clients), client_test_programs.clients_at_a_time(experiment)
  )


def _test_fine_tuned(experiment, groups, column, measures) -> np.ndarray:
  """[T] int32, correct examples of each fine-tuned model."""
  num_correct = np.zeros(len(experiment.tests.of_clients.clients), np.int32)
  for positions, score in groups():
    num_correct[positions] = score.num_correct
    if measures:
      measures.add_clients(_kind(column), positions, score)
  return num_correct


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
