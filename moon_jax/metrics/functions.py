"""The metrics of the package; each computes a number of every test together.

scikit-learn has most of them. Here they are written for the small tests of many
clients: its functions need milliseconds for each, which a round would feel. A test
holds them to scikit-learn's results.
"""

from collections.abc import Iterator

import numpy as np

from moon_jax.metrics.classified import ClassifiedTests

_ECE_BINS = 15  # as Guo et al. 2017
# A bin holds its upper end: (0, 1/15], (1/15, 2/15], ...
_ECE_EDGES = np.linspace(0, 1, _ECE_BINS + 1)[1:-1]
_TOP = 5
# AUC sorts several tests together if the largest has at most so many times the examples
# of the smallest.
_MOST_TIMES_SMALLEST = 4
_FILLER = np.iinfo(np.uint64).max - 1


def macro_f1(tests: ClassifiedTests) -> np.ndarray:
  """[T] the mean over classes of F1 = 2 TP / (2 TP + FP + FN), in [0, 1].

  The mean is over the classes that an example has or is predicted to have; scikit-learn
  calls this `f1_score(average='macro')`.
  """
  num_either = tests.num_of_class + tests.num_predicted
  return _mean_of_classes(2 * tests.num_correct, num_either)


def balanced_accuracy(tests: ClassifiedTests) -> np.ndarray:
  """[T] the mean over the classes with examples of their accuracy, in [0, 1]."""
  return _mean_of_classes(tests.num_correct, tests.num_of_class)


def worst_class(tests: ClassifiedTests) -> np.ndarray:
  """[T] the lowest accuracy of a class with examples, in [0, 1]."""
  accuracies = tests.num_correct / np.maximum(tests.num_of_class, 1)
  return np.where(tests.num_of_class > 0, accuracies, 1.0).min(axis=1)


def auc(tests: ClassifiedTests) -> np.ndarray:
  """[T] the area under the ROC curve of one class against the rest, mean over classes.

  The area of a class is the probability that an example of it gets a higher probability
  of this class than one of another class; equal ones count half. The mean is over the
  classes that some examples have and some have not; it is NaN if there are none.
  """
  num_positive = tests.num_of_class
  num_pairs = num_positive * (tests.sizes[:, None] - num_positive)
  num_won = np.zeros(num_positive.shape)
  for chosen in _tests_of_like_sizes(tests.sizes):
    keys = _sorted_keys(tests, chosen)
    # The places of the positive ones, less those that other positive ones take.
    places = np.where(keys & 1, np.arange(keys.shape[-1]), 0).sum(axis=-1).T
    num_lower = num_positive[chosen] * (num_positive[chosen] - 1) // 2
    num_won[chosen] = places - num_lower
    is_tied = (keys[..., 1:] ^ keys[..., :-1]) == 1
    if is_tied.any():
      num_won[chosen] -= _num_tied_pairs(keys) / 2
  return _mean_of_classes(num_won, num_pairs)


def _tests_of_like_sizes(sizes: np.ndarray) -> Iterator[slice]:
  """Divides [T] tests, the smallest first, where one is much larger than the first."""
  first = 0
  while first < len(sizes):
    end = int(np.searchsorted(sizes, _MOST_TIMES_SMALLEST * sizes[first], side='right'))
    yield slice(first, end)
    first = end


def _sorted_keys(tests: ClassifiedTests, chosen: slice) -> np.ndarray:
  """[Y, C, S] uint64: the probabilities of each class in C tests, in their order.

  The last bit says whether the example is of the class; of equal probabilities those
  of other classes come first. Each test has room for S examples, as many as the largest
  has. What is left of it is filled up with even keys above all others.
  """
  num_classes = tests.examples.num_classes
  sizes = tests.sizes[chosen]
  first = int(tests.sizes[: chosen.start].sum())
  examples = slice(first, first + int(sizes.sum()))
  # The bits of numbers that are not negative, read as integers, have their order.
  probabilities = tests.examples.probabilities[examples]
  bits = np.ascontiguousarray(probabilities.T).view(np.uint64)
  labels = tests.examples.labels[examples]
  is_positive = labels == np.arange(num_classes)[:, None]
  keys = bits << 1 | is_positive
  size = int(sizes[-1])
  if size > sizes[0]:
    has_example = np.arange(size) < sizes[:, None]
    room = np.full((num_classes, *has_example.shape), _FILLER)
    room[:, has_example] = keys
    keys = room
  keys = keys.reshape(num_classes, len(sizes), size)
  keys.sort(axis=-1)
  return keys


def _num_tied_pairs(keys: np.ndarray) -> np.ndarray:
  """[T, Y] pairs of a positive and a negative example of equal probability."""
  is_positive, probability = keys & 1, keys >> 1
  num_negative = np.cumsum(1 - is_positive, axis=-1, dtype=np.int64)  # up to here
  # How many negative ones come before the first example with this probability.
  num_lower = np.zeros_like(num_negative)
  is_first = probability[..., 1:] != probability[..., :-1]
  num_lower[..., 1:] = np.where(is_first, num_negative[..., :-1], 0)
  num_lower = np.maximum.accumulate(num_lower, axis=-1)
  return np.where(is_positive, num_negative - num_lower, 0).sum(axis=-1).T


def ece(tests: ClassifiedTests) -> np.ndarray:
  """[T] the expected calibration error, in [0, 1] (Guo et al. 2017, eq. 3).

  The examples are divided by their highest probability into 15 bins of equal width. The
  error is the mean over examples of the distance, in their bin, of the mean highest
  probability to the accuracy.
  """
  examples = tests.examples
  confidence = examples.probabilities[
    np.arange(len(examples.labels)), examples.predicted
  ]
  is_correct = examples.predicted == examples.labels
  bins = np.searchsorted(_ECE_EDGES, confidence, side='left')
  num_tests = len(tests.sizes)
  gaps = np.bincount(
    tests.test_of_example * _ECE_BINS + bins,
    weights=confidence - is_correct,
    minlength=num_tests * _ECE_BINS,
  )
  return np.abs(gaps).reshape(num_tests, _ECE_BINS).sum(axis=1) / tests.sizes


def top5(tests: ClassifiedTests) -> np.ndarray:
  """[T] the fraction of the examples whose class has one of the five highest logits.

  Of equal logits that of the later class counts as higher.
  """
  examples = tests.examples
  logits, labels = examples.logits, examples.labels
  logit_of_label = logits[np.arange(len(labels)), labels][:, None]
  is_later = np.arange(examples.num_classes) > labels[:, None]
  is_higher = (logits > logit_of_label) | ((logits == logit_of_label) & is_later)
  return tests.mean(np.count_nonzero(is_higher, axis=1) < _TOP)


def nll(tests: ClassifiedTests) -> np.ndarray:
  """[T] the mean negative log-likelihood of the examples' classes, in nats."""
  examples = tests.examples
  rows = np.arange(len(examples.labels))
  return tests.mean(-examples.log_probabilities[rows, examples.labels])


def _mean_of_classes(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
  """[T, Y], [T, Y] -> [T] mean of the ratios over the classes where they are defined.

  It is NaN for a test without such a class.
  """
  is_defined = totals > 0
  ratios = np.where(is_defined, counts / np.maximum(totals, 1), 0.0)
  num_defined = np.count_nonzero(is_defined, axis=1)
  means = ratios.sum(axis=1) / np.maximum(num_defined, 1)
  return np.where(num_defined > 0, means, np.nan)
