"""Computes the metrics of a run's tests from the logits that its programs keep."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax.building.experiment import Experiment
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import Numbers, measure_tests
from moon_jax.round.evaluation import ClientScore, Score

# Kinds of tests of clients, as their columns begin: 'user', 'local', 'tuned',
# 'personal' -> [T] numbers of each metric, by tested user or client.
ClientNumbers = dict[str, Numbers]

_MOST_WAITING_LOGITS = 2**22  # 16 MiB; the tests of a large model of CIFAR-10: 2**17


class Measured(NamedTuple):
  """The metrics of the tests after a round.

  Attributes:
    test: [M] numbers of each metric, of the global model or of every client's.
    validation: likewise, on the server's validation split; {} if there is none.
    of_clients: those of the tests of users and clients.
    confusions: [Y, Y] examples by class and predicted class: 'global', of the global
      model on the test split, if there is one; 'personal' and 'tuned', of each client's
      own or fine-tuned model on its own tests, summed over the clients.
  """

  test: Numbers
  validation: Numbers
  of_clients: ClientNumbers
  confusions: dict[str, np.ndarray]


class Measures:
  """The metrics of an experiment, and the labels that they need on the host.

  Attributes:
    names: names of the metrics.
    labels: [n] int, the classes of the test split.
    validation_labels: [n] int, those of the server's validation split; None if there is
      none.
    has_client_models: whether each client has a model of its own.
    num_models: M, the number of clients then, otherwise 1.
    rows_of_users: [N'] arrays, the rows of each user's examples in the test split.
    labels_of_clients: [T] arrays [n] int, the classes of the examples that test one
      client each.
  """

  def __init__(self, experiment: Experiment):
    """experiment: an experiment with `metrics`."""
    self.names = catalog.listed_words(experiment.config.metrics)
    tests = experiment.tests
    self.labels = np.asarray(tests.examples.labels)
    self.validation_labels = None
    if tests.validation is not None:
      self.validation_labels = np.asarray(tests.validation.labels)
    self.has_client_models = experiment.has_client_models
    num_clients = experiment.config.num_clients
    self.num_models = num_clients if self.has_client_models else 1
    self.rows_of_users: list[np.ndarray] = []
    if tests.examples.clients is not None:
      owners = np.asarray(tests.examples.clients)
      ends = np.cumsum(np.bincount(owners))[:-1]
      self.rows_of_users = np.split(np.argsort(owners, kind='stable'), ends)
    self.labels_of_clients: list[np.ndarray] = []
    if client_tests := tests.of_clients:
      split_labels = self.labels
      if client_tests.of_training:
        split_labels = np.asarray(experiment.data.train.examples.labels)
      labels = split_labels[client_tests.rows]
      self.labels_of_clients = np.split(labels, client_tests.offsets[1:-1])

  def of_round(self) -> 'RoundMeasures':
    """Those of one round, to which its tests are added."""
    return RoundMeasures(self)

  def labels_of_users(self) -> list[np.ndarray]:
    """[N'] arrays [n] int, the classes of each user's test examples."""
    return [self.labels[rows] for rows in self.rows_of_users]


class _Waiting(NamedTuple):
  """Tests that are not measured yet.

  Attributes:
    numbers: metric -> the numbers of all tests of this kind, to be filled in.
    places: [T] int, where the numbers of these tests go.
    labels: [T] arrays [n] int.
    logits: [T] arrays [n, Y] float.
  """

  numbers: Numbers
  places: np.ndarray
  labels: Sequence[np.ndarray]
  logits: Sequence[np.ndarray]


class RoundMeasures:
  """The metrics of the tests after one round.

  The tests wait for `finished`, which measures all of them together, because each call
  of NumPy takes its time, and while the device trains the next round. If there are
  many logits, some are measured before, so that little memory is needed.
  """

  def __init__(self, measures: Measures):
    """measures: the metrics, and the labels of the tests."""
    self._measures = measures
    self._waiting: list[_Waiting] = []
    self._num_waiting_logits = 0
    self._test: Numbers = {}
    self._validation: Numbers = {}
    self._of_clients: ClientNumbers = {}
    self._confusions: dict[str, np.ndarray] = {}
    self._is_counted: dict[str, np.ndarray] = {}  # kind -> [T] bool, in the confusion
    self._model_of_client: np.ndarray | slice = slice(None)

  def add_models(self, models: np.ndarray | None, score: Score) -> None:
    """Adds the tests of models, and those of a global model for each user.

    Args:
      models: [m] int, the clients whose models these are; None for all M models.
      score: leaves [m], as numpy, with logits.
    """
    measures = self._measures
    num_models = measures.num_models
    if models is None:
      models = np.arange(num_models)
    if not self._test:
      self._test = self._no_numbers(num_models)
    self._wait(self._test, models, [measures.labels] * len(models), score.logits)
    if score.validation is not None:
      if not self._validation:
        self._validation = self._no_numbers(num_models)
      labels = [measures.validation_labels] * len(models)
      self._wait(self._validation, models, labels, score.validation.logits)
    if measures.has_client_models:
      return
    logits = score.logits[0]
    self._confusions['global'] = Classified(measures.labels, logits).confusion
    if measures.rows_of_users:
      num_users = len(measures.rows_of_users)
      self._of_clients['user'] = self._no_numbers(num_users)
      self._wait(
        self._of_clients['user'],
        np.arange(num_users),
        measures.labels_of_users(),
        [logits[rows] for rows in measures.rows_of_users],
      )

  def assign_models(self, model_of_client: np.ndarray) -> None:
    """Says whose model each client has, if not all were added because some share one.

    Args:
      model_of_client: [N] int, a client with the same model that was added.
    """
    self._model_of_client = model_of_client

  def add_clients(self, kind: str, positions: np.ndarray, score: ClientScore) -> None:
    """Adds tests of clients on their own examples.

    Args:
      kind: 'local', 'personal' or 'tuned'.
      positions: [C] int positions among the clients with tests.
      score: their results, as numpy, with logits.
    """
    labels = [self._measures.labels_of_clients[position] for position in positions]
    # Copied, because a part would keep the whole, with its filler, while it waits.
    logits = [
      client_logits[: len(client_labels)].copy()
      for client_logits, client_labels in zip(score.logits, labels, strict=True)
    ]
    num_tested = len(self._measures.labels_of_clients)
    if kind not in self._of_clients:
      self._of_clients[kind] = self._no_numbers(num_tested)
    self._wait(self._of_clients[kind], positions, labels, logits)
    if kind not in ('personal', 'tuned'):
      return
    # Some groups of clients are filled up with clients of other groups.
    is_counted = self._is_counted.setdefault(kind, np.zeros(num_tested, bool))
    _, firsts = np.unique(positions, return_index=True)
    is_new = [index for index in firsts if not is_counted[positions[index]]]
    is_counted[positions] = True
    if is_new:
      confusion = Classified(
        np.concatenate([labels[index] for index in is_new]),
        np.concatenate([logits[index] for index in is_new]),
      ).confusion
      self._confusions[kind] = self._confusions.get(kind, 0) + confusion

  def finished(self) -> Measured:
    """The metrics of all tests that were added."""
    self._measure_waiting()
    return Measured(
      test=self._of_each_client(self._test),
      validation=self._of_each_client(self._validation),
      of_clients=self._of_clients,
      confusions=self._confusions,
    )

  def _of_each_client(self, numbers: Numbers) -> Numbers:
    """The numbers of the models, once for each client that has one."""
    return {name: numbers[name][self._model_of_client] for name in numbers}

  def _no_numbers(self, num_tests: int) -> Numbers:
    return {name: np.full(num_tests, np.nan) for name in self._measures.names}

  def _wait(self, numbers, places, labels, logits) -> None:
    """Adds tests to those that wait; see `_Waiting`."""
    self._waiting.append(_Waiting(numbers, places, labels, logits))
    self._num_waiting_logits += sum(test_logits.size for test_logits in logits)
    if self._num_waiting_logits > _MOST_WAITING_LOGITS:
      self._measure_waiting()

  def _measure_waiting(self) -> None:
    labels: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    for waiting in self._waiting:
      labels.extend(waiting.labels)
      logits.extend(waiting.logits)
    measured = measure_tests(self._measures.names, labels, logits)
    begin = 0
    for waiting in self._waiting:
      end = begin + len(waiting.places)
      for name in self._measures.names:
        waiting.numbers[name][waiting.places] = measured[name][begin:end]
      begin = end
    self._waiting = []
    self._num_waiting_logits = 0
