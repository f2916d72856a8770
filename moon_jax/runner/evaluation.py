"""Tests the global model, or every client's own model, a few at a time from a store."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.building import own_tests
from moon_jax.building.experiment import Experiment
from moon_jax.core.types import PyTree, State
from moon_jax.platform import devices
from moon_jax.round.evaluation import Score
from moon_jax.runner.client_store import ClientStore

_AT_A_TIME = 64


class Tested(NamedTuple):
  """The results of the tests after a round.

  Attributes:
    score: leaves [M], of the global model or of every client's; on the device or host.
    consensus_distance: mean over all clients of ||w_i - w||_2, with w the mean of all
      w_i; None with a server.
    own: column of the records -> [T] int32, the number of its own examples that each
      tested client's model gets right; None if no client is tested.
  """

  score: Score
  consensus_distance: float | None = None
  own: dict[str, np.ndarray] | None = None


def evaluate(
  built: Experiment,
  program: Callable,
  own: Callable | None,
  tune: Callable | None,
  state: State,
  store: ClientStore | None,
  taken_part: np.ndarray,
) -> Tested:
  """Tests the state after a round.

  Args:
    built: the experiment.
    program: the compiled test.
    own: the compiled test of each client on its own examples; None if there are none.
    tune: the compiled test of fine-tuned models; None without fine-tuning.
    state: the state after the round.
    store: store of the clients' memories of this round; None if they are in the state.
    taken_part: [N] bool, whether a client has trained by now.
  """
  if store and built.has_client_models:
    score = _each(built, program, state, store, taken_part)
  else:
    score = program(state, built.tests.examples, built.tests.validation)
  tested = Tested(score, own=own and _own(built, own, state, store))
  if tune:
    tested.own['tuned_accuracy'] = tune(state)
  if not built.algorithm.share:
    return tested
  clients = None if store else jax.device_get(state.clients)

  def read(chosen):
    return store.read(chosen) if store else jax.tree.map(lambda x: x[chosen], clients)

  def models(chosen):
    return built.algorithm.share(read(chosen))['params']

  return tested._replace(consensus_distance=consensus_distance(models, taken_part))


def _each(built, program, state, store, taken_part):
  """Score of every client's model; clients that never trained share a model."""
  differing, first = _differing(taken_part)

  def score(some):
    memories = devices.replicate(store.read(differing[some]), built.placement.mesh)
    given = (
      state._replace(clients=memories),
      built.tests.examples,
      built.tests.validation,
    )
    return program(*given)

  scores = _some_at_a_time(score, len(differing), built.planner.cohort_size)
  of_client = np.full(len(taken_part), np.searchsorted(differing, first))
  of_client[differing] = np.arange(len(differing))
  return jax.tree.map(lambda values: values[of_client], scores)


def _own(built, program, state, store):
  """Column -> [T] int32, one for every client that has examples of its own."""
  clients = built.tests.of_clients.clients

  def correct(chosen):
    if not store:
      return program(state, chosen)
    memories = devices.replicate(store.read(clients[chosen]), built.placement.mesh)
    return program(state._replace(clients=memories), chosen)

  return _some_at_a_time(correct, len(clients), own_tests.at_a_time(built))


def _some_at_a_time(test: Callable, count: int, size: int) -> PyTree:
  """Leaves [count]: results of a test that takes [size] positions; the last repeat."""
  groups = (np.arange(begin, begin + size) for begin in range(0, count, size))
  found = [jax.device_get(test(np.minimum(some, count - 1))) for some in groups]
  return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *found)


def _differing(taken_part: np.ndarray) -> tuple[np.ndarray, int]:
  """[N] bool -> ids that took part, and the first other id, ascending; and that id."""
  first = int(np.argmin(taken_part))
  chosen = taken_part.copy()
  chosen[first] = True
  return np.flatnonzero(chosen), first


def consensus_distance(
  models: Callable[[np.ndarray], PyTree], taken_part: np.ndarray
) -> float:
  """The mean over clients of ||w_i - w||_2, with w the mean of all w_i.

  The sums are in float64, client by client, so they are the same for every store.

  Args:
    models: clients [M] -> their parameters, leaves [M, ...]. It is called for clients
      that took part, and for one of the others, because all others have the same model.
    taken_part: [N] bool.
  """
  differing, first = _differing(taken_part)
  absent = int((~taken_part).sum())

  def each() -> Iterator[tuple[int, np.ndarray]]:
    for begin in range(0, len(differing), _AT_A_TIME):
      some = differing[begin : begin + _AT_A_TIME]
      leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(models(some))]
      for row, client in enumerate(some):
        count = absent if absent and client == first else 1
        model = [leaf[row].ravel() for leaf in leaves]
        yield count, np.concatenate(model, dtype=np.float64)

  mean = sum(count * model for count, model in each()) / len(taken_part)
  apart = (count * math.sqrt(np.square(w - mean).sum()) for count, w in each())
  return sum(apart) / len(taken_part)
