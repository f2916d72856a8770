"""Computes the metrics of a run's tests from the logits that its programs keep."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax.building.experiment import Experiment
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import measure, measure_models
from moon_jax.round.evaluation import ClientScore, Score

# Name of a metric -> numbers; NaN where the metric is not defined.
Numbers = Mapping[str, np.ndarray]
# Kinds of tests of clients, as their columns begin: 'user', 'local', 'tuned',
# 'personal' -> [T] numbers of each metric, by tested user or client.
ClientNumbers = dict[str, Numbers]


class Measured(NamedTuple):
  """The metrics of the tests after a round.

  Attributes:
    test: [M] numbers of each metric, of the global model or of every client's.
    validation: likewise, on the server's validation split; {} if there is none.
    of_clients: those of the tests of users and clients.
    confusion: [Y, Y] test examples by class and predicted class, of the global model;
      None if there is none.
  """

  test: Numbers
  validation: Numbers
  of_clients: ClientNumbers
  confusion: np.ndarray | None


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
      validation = measure_models(
        self.names, self._validation_labels, score.validation.logits
      )
    of_clients = {}
    confusion = None
    if not self._has_client_models:
      logits = score.logits[0]
      confusion = Classified(self._labels, logits).confusion
      if self._rows_of_users:
        of_clients['user'] = self._of_users(logits)
    return Measured(
      test=measure_models(self.names, self._labels, score.logits),
      validation=validation,
      of_clients=of_clients,
      confusion=confusion,
    )

  def _of_users(self, logits: np.ndarray) -> Numbers:
    """[M, Y] logits of the test split -> [N'] numbers of each metric, by user."""
    tests = [(self._labels[rows], logits[rows]) for rows in self._rows_of_users]
    return self._of_each(tests)

  def of_clients(self, positions: np.ndarray, score: ClientScore) -> Numbers:
    """[C] positions among the clients with tests -> [C] numbers of each metric.

    Args:
      positions: [C] int.
      score: their results, as numpy, with logits.
    """
    tests = []
    for position, logits in zip(positions, score.logits, strict=True):
      labels = self._labels_of_clients[position]
      tests.append((labels, logits[: len(labels)]))
    return self._of_each(tests)

  def _of_each(self, tests: list[tuple[np.ndarray, np.ndarray]]) -> Numbers:
    """The metrics of several tests: labels [n] and logits [n, Y] of each."""
    numbers = {name: np.full(len(tests), np.nan) for name in self.names}
    for index, (labels, logits) in enumerate(tests):
      if len(labels) and np.isfinite(logits).all():
        measured = measure(self.names, Classified(labels, logits))
        for name, number in measured.items():
          numbers[name][index] = number
    return numbers
