"""Examples that a model has classified: what every metric gets."""

import functools

import numpy as np


class Classified:
  """M examples of Y classes, with the logits of one model.

  Attributes:
    labels: [M] int, the classes of the examples.
    logits: [M, Y] float, finite.

  >>> two = Classified(labels=[0, 1], logits=[[0.0, 0.0, -9e9], [2.0, 1.0, 0.0]])
  >>> two.predicted.tolist(), two.probabilities[0].tolist()
  ([0, 0], [0.5, 0.5, 0.0])
  """

  def __init__(self, labels: np.ndarray, logits: np.ndarray):
    """Computes nothing yet; M and Y are at least 1."""
    self.labels = np.asarray(labels)
    self.logits = np.asarray(logits)

  @property
  def num_classes(self) -> int:
    """Y, the number of classes of the data; some may have no example here."""
    return self.logits.shape[1]

  @functools.cached_property
  def predicted(self) -> np.ndarray:
    """[M] int, the class of the highest logit; the first one of several."""
    return np.argmax(self.logits, axis=1)

  @functools.cached_property
  def log_probabilities(self) -> np.ndarray:
    """[M, Y] float64, the logarithms of `probabilities`."""
    logits = self.logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

  @functools.cached_property
  def probabilities(self) -> np.ndarray:
    """[M, Y] float64, the softmax of the logits; each row has the sum 1."""
    return np.exp(self.log_probabilities)

  @functools.cached_property
  def confusion(self) -> np.ndarray:
    """[Y, Y] int, number of examples by class and predicted class."""
    num_classes = self.num_classes
    cells = self.labels.astype(np.int64) * num_classes + self.predicted
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)
