"""Tests the global model or the clients' own models, where a test needs the host.

It does so for models in the client store, and for tests of each client on examples of
its own. A few clients are tested at a time.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.building import client_tests
from moon_jax.building.experiment import Experiment
from moon_jax.core.types import PyTree, State
from moon_jax.platform import devices
from moon_jax.round.evaluation import Score
from moon_jax.runner.client_store import ClientStore

_MODELS_AT_A_TIME = 64


class Tested(NamedTuple):
  """The results of the tests after a round.

  Attributes:
    score: leaves [M], of the global model or of every client's; on the device or host.
    consensus_distance: mean over all clients of ||w_i - w||_2, with w the mean of all
      w_i; None with a server.
    num_correct: column of the records -> [T] int32, for each tested client, how many of
      its own examples its model classifies correctly; None if no client is tested.
  """

  score: Score
  consensus_distance: float | None = None
  num_correct: dict[str, np.ndarray] | None = None


class HostTestPrograms(NamedTuple):
  """The compiled tests that the host calls.

  Attributes:
    evaluate: (state, test, validation) -> Score.
    of_clients: the test of each client on its own examples; None if there is none.
    fine_tuned: column of the records -> the test of fine-tuned models; {} without
      fine-tuning.
  """

  evaluate: Callable
  of_clients: Callable | None
  fine_tuned: dict[str, Callable]


def evaluate(
  experiment: Experiment,
  programs: HostTestPrograms,
  state: State,
  store: ClientStore | None,
  has_trained: np.ndarray,
) -> Tested:
  """Tests the state after a round.

  Args:
    experiment: the experiment.
    programs: the compiled tests.
    state: the state after the round.
    store: store of the clients' memories of this round; None if they are in the state.
    has_trained: [N] bool, whether a client has trained by now.
  """
  if store and experiment.has_client_models:
    score = _score_stored_models(
      experiment, programs.evaluate, state, store, has_trained
    )
  else:
    score = programs.evaluate(
      state, experiment.tests.examples, experiment.tests.validation
    )
  num_correct = None
  if programs.of_clients:
    num_correct = _test_clients(experiment, programs.of_clients, state, store)
  for column, test_fine_tuned in programs.fine_tuned.items():
    num_correct[column] = test_fine_tuned(state)
  distance = None
  if experiment.algorithm.share:
    distance = _distance_of_state(experiment, state, store, has_trained)
  return Tested(score=score, consensus_distance=distance, num_correct=num_correct)


def _score_stored_models(experiment, program, state, store, has_trained) -> Score:
  """Score of every client's model; clients that never trained share a model."""
  distinct_clients, first_untrained = _clients_with_distinct_models(has_trained)

  def score(positions):
    stored = store.read(distinct_clients[positions])
    memories = devices.replicate(stored, experiment.placement.mesh)
    with_memories = state._replace(clients=memories)
    return program(
      with_memories, experiment.tests.examples, experiment.tests.validation
    )

  scores = _in_groups(
    score, len(distinct_clients), experiment.planner.participation.cohort_size
  )
  position = np.full(
    len(has_trained), np.searchsorted(distinct_clients, first_untrained)
  )
  position[distinct_clients] = np.arange(len(distinct_clients))
  return jax.tree.map(lambda leaf: leaf[position], scores)


def _test_clients(experiment, program, state, store) -> dict[str, np.ndarray]:
  """Column -> [T] int32, one for every client that has examples of its own."""
  clients = experiment.tests.of_clients.clients

  def count_correct(positions):
    if not store:
      return program(state, positions)
    memories = devices.replicate(
      store.read(clients[positions]), experiment.placement.mesh
    )
    return program(state._replace(clients=memories), positions)

  return _in_groups(count_correct, len(clients), client_tests.at_a_time(experiment))


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
