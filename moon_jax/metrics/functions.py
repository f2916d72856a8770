"""The metrics of the package; each is a function of `Classified`.

scikit-learn has most of them. Here they are written for many small tests, one of each
client: its functions need milliseconds for each, which a round would feel. A test holds
them to scikit-learn's results.
"""

import numpy as np

from moon_jax.metrics.classified import Classified

_ECE_BINS = 15  # as Guo et al. 2017
_TOP = 5


def macro_f1(classified: Classified) -> float:
  """The mean over classes of F1 = 2 TP / (2 TP + FP + FN), in [0, 1].

  The mean is over the classes that an example has or is predicted to have; scikit-learn
  calls this `f1_score(average='macro')`.
  """
  confusion = classified.confusion
  num_examples = confusion.sum(axis=1) + confusion.sum(axis=0)
  occurs = num_examples > 0
  return float(np.mean(2 * np.diag(confusion)[occurs] / num_examples[occurs]))


def balanced_accuracy(classified: Classified) -> float:
  """The mean over the classes with examples of their accuracy, in [0, 1]."""
  return float(_class_accuracies(classified).mean())


def worst_class(classified: Classified) -> float:
  """The lowest accuracy of a class with examples, in [0, 1]."""
  return float(_class_accuracies(classified).min())


def auc(classified: Classified) -> float:
  """The area under the ROC curve of one class against the rest, mean over classes.

  The area of a class is the probability that an example of it gets a higher probability
  of this class than one of another class; equal ones count half. The mean is over the
  classes that some examples have and some have not; it is NaN if there are none.
  """
  areas = []
  for label in range(classified.num_classes):
    is_positive = classified.labels == label
    num_positive = np.count_nonzero(is_positive)
    num_negative = len(is_positive) - num_positive
    if num_positive and num_negative:
      scores = classified.probabilities[:, label]
      positive, negative = scores[is_positive], np.sort(scores[~is_positive])
      num_lower = np.searchsorted(negative, positive, side='left').sum()
      num_not_higher = np.searchsorted(negative, positive, side='right').sum()
      num_won = (num_lower + num_not_higher) / 2
      areas.append(num_won / (num_positive * num_negative))
  return float(np.mean(areas)) if areas else float('nan')


def ece(classified: Classified) -> float:
  """The expected calibration error, in [0, 1] (Guo et al. 2017, eq. 3).

  The examples are divided by their highest probability into 15 bins of equal width. The
  error is the mean over examples of the distance, in their bin, of the mean highest
  probability to the accuracy.
  """
  confidence = classified.probabilities.max(axis=1)
  is_correct = classified.predicted == classified.labels
  # A bin holds its upper end: (0, 1/15], (1/15, 2/15], ...
  edges = np.linspace(0, 1, _ECE_BINS + 1)
  bins = np.searchsorted(edges[1:-1], confidence, side='left')
  gaps = np.bincount(bins, weights=confidence - is_correct)
  return float(np.abs(gaps).sum() / len(bins))


def top5(classified: Classified) -> float:
  """The fraction of the examples whose class has one of the five highest logits."""
  highest = np.argsort(classified.logits, axis=1, kind='stable')[:, -_TOP:]
  return float(np.mean((highest == classified.labels[:, None]).any(axis=1)))


def nll(classified: Classified) -> float:
  """The mean negative log-likelihood of the examples' classes, in nats."""
  rows = np.arange(len(classified.labels))
  return float(-classified.log_probabilities[rows, classified.labels].mean())


def _class_accuracies(classified: Classified) -> np.ndarray:
  """The accuracy of each class that has examples."""
  confusion = classified.confusion
  num_examples = confusion.sum(axis=1)
  has_examples = num_examples > 0
  return np.diag(confusion)[has_examples] / num_examples[has_examples]
