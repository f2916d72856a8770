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
    # A class in each row: NumPy is fast over long rows.
    logits = np.array(self.logits.T, np.float64, order='C')
    logits -= logits.max(axis=0)
    return (logits - np.log(np.exp(logits).sum(axis=0))).T

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


class ClassifiedTests:
  """T tests of one model each, with their examples one after the other: M in all.

  What is computed of a test depends on its own examples alone, to the last bit.

  Attributes:
    examples: the examples of all tests, with their logits.
    sizes: [T] int, ascending: number of examples of each test, at least 1.
    test_of_example: [M] int, ascending.
  """

  def __init__(self, examples: Classified, sizes: np.ndarray):
    """Computes nothing of the examples yet; the sum of the sizes is M."""
    self.examples = examples
    self.sizes = np.asarray(sizes)
    self.test_of_example = np.repeat(np.arange(len(self.sizes)), self.sizes)

  def mean(self, numbers: np.ndarray) -> np.ndarray:
    """[M] numbers of the examples -> [T] float64, their mean over each test."""
    sums = np.bincount(self.test_of_example, numbers, minlength=len(self.sizes))
    return sums / self.sizes

  @functools.cached_property
  def num_of_class(self) -> np.ndarray:
    """[T, Y] int, number of examples of each class."""
    return self._counted(self.examples.labels, slice(None))

  @functools.cached_property
  def num_predicted(self) -> np.ndarray:
    """[T, Y] int, number of examples that are taken for each class."""
    return self._counted(self.examples.predicted, slice(None))

  @functools.cached_property
  def num_correct(self) -> np.ndarray:
    """[T, Y] int, number of examples of each class that are taken for it."""
    labels = self.examples.labels
    return self._counted(labels, self.examples.predicted == labels)

  def _counted(self, classes, chosen):
    """[T, Y] numbers of the chosen examples by class, of [M] classes."""
    num_classes = self.examples.num_classes
    cells = self.test_of_example * num_classes + classes
    shape = len(self.sizes), num_classes
    counts = np.bincount(cells[chosen], minlength=shape[0] * shape[1])
    return counts.reshape(shape)
