"""Computes the metrics of a run's tests from the logits that its programs keep."""

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
  """

  def __init__(self, experiment: Experiment):
    """experiment: an experiment with `metrics`."""
    self.names = catalog.listed_words(experiment.config.metrics)
    tests = experiment.tests
    self._labels = np.asarray(tests.examples.labels)
    self._validation_labels = None
    if tests.validation is not None:
      self._validation_labels = np.asarray(tests.validation.labels)
    self._has_client_models = experiment.has_client_models
    self._rows_of_users: list[np.ndarray] = []
    if tests.examples.clients is not None:
      owners = np.asarray(tests.examples.clients)
      ends = np.cumsum(np.bincount(owners))[:-1]
      self._rows_of_users = np.split(np.argsort(owners, kind='stable'), ends)
    self._labels_of_clients: list[np.ndarray] = []
    if of_clients := tests.of_clients:
      split_labels = self._labels
      if of_clients.of_training:
        split_labels = np.asarray(experiment.data.train.examples.labels)
      labels = split_labels[of_clients.rows]
      self._labels_of_clients = np.split(labels, of_clients.offsets[1:-1])

  def of_models(self, score: Score) -> Measured:
    """The metrics of the models of a score, and of the global model for each user.

    Args:
      score: leaves [M], as numpy, with logits.
    """
    validation = {}
    if score.validation is not None:
      validation = self._of_models(self._validation_labels, score.validation.logits)
    of_clients = {}
    confusions = {}
    if not self._has_client_models:
      logits = score.logits[0]
      confusions['global'] = Classified(self._labels, logits).confusion
      if self._rows_of_users:
        of_clients['user'] = self._of_users(logits)
    return Measured(
      test=self._of_models(self._labels, score.logits),
      validation=validation,
      of_clients=of_clients,
      confusions=confusions,
    )

  def _of_models(self, labels: np.ndarray, logits: np.ndarray) -> Numbers:
    """[n], [M, n, Y] of the same examples -> [M] numbers of each metric, by model."""
    return measure_tests(self.names, [labels] * len(logits), logits)

  def _of_users(self, logits: np.ndarray) -> Numbers:
    """[M, Y] logits of the test split -> [N'] numbers of each metric, by user."""
    labels = [self._labels[rows] for rows in self._rows_of_users]
    return measure_tests(
      self.names, labels, [logits[rows] for rows in self._rows_of_users]
    )

  def of_clients(self, positions: np.ndarray, score: ClientScore) -> Numbers:
    """[C] positions among the clients with tests -> [C] numbers of each metric.

    Args:
      positions: [C] int.
      score: their results, as numpy, with logits.
    """
    labels = [self._labels_of_clients[position] for position in positions]
    logits = [
      of_client[: len(of_labels)]
      for of_client, of_labels in zip(score.logits, labels, strict=True)
    ]
    return measure_tests(self.names, labels, logits)

  def confusion_of_clients(
    self, positions: np.ndarray, score: ClientScore, is_counted: np.ndarray
  ) -> np.ndarray:
    """[Y, Y] examples by class and predicted class, summed over clients.

    Args:
      positions: [C] int positions among the clients with tests.
      score: their results, as numpy, with logits.
      is_counted: [T] bool, the clients that were counted in earlier calls; those of
        this call are added.
    """
    num_classes = score.logits.shape[-1]
    labels = [np.zeros(0, np.int64)]
    logits = [np.zeros((0, num_classes), np.float32)]
    for index, position in enumerate(positions):
      if not is_counted[position]:
        is_counted[position] = True
        labels.append(self._labels_of_clients[position])
        logits.append(score.logits[index, : len(labels[-1])])
    return Classified(np.concatenate(labels), np.concatenate(logits)).confusion
