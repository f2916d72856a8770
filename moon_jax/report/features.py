"""Representations and predictions of trained models, kept in each run's directory."""

from typing import NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import RunError
from moon_jax.report.runs import Arrays, Note, Run, read_arrays

NUM_EMBEDDED = 2000
CACHE = 'features.npz'
# The arrays of the file; see `files.arrays`.
KINDS = {'round': 'iu ', 'confusion': 'iu YY', 'classes': 'iu M', 'embedded': 'f M2'}
_SEED = 0  # seed of the choice of images and of t-SNE, the same for every run


class Features(NamedTuple):
  """Results of analysing a trained global model.

  Attributes:
    round: number of completed rounds of the checkpoint.
    confusion: [Y, Y] test examples by class and predicted class.
    classes: [M] classes of the embedded test examples, at most 2,000.
    embedded: [M, 2] their representations, by t-SNE.
  """

  round: np.ndarray
  confusion: np.ndarray
  classes: np.ndarray
  embedded: np.ndarray


def features_of(run: Run, note: Note) -> Features:
  """Computes the features from the newest checkpoint, or reads those kept from it.

  Args:
    run: a run with a global model.
    note: called with a line if they cannot be kept in the run directory.

  Raises:
    RunError: there is no global model, no usable checkpoint, or other data.
    OSError: the checkpoint or the data cannot be read.
  """
  arrays = read_arrays(run.path / CACHE, KINDS)
  if arrays and _is_newest(run, arrays):
    return Features(**arrays)
  features = _compute(run)
  try:
    files.write_arrays(run.path / CACHE, features._asdict())
  except RunError as error:
    reason = error.__cause__.strerror
    note(f'{run.path / CACHE} cannot be written ({reason}): computed each time')
  return features


def _is_newest(run: Run, arrays: Arrays) -> bool:
  """Whether the run has no newer checkpoint than the one of these arrays."""
  folders = (run.path / 'checkpoints').glob('*')
  saved_rounds = [int(folder.name) for folder in folders if folder.name.isdecimal()]
  return max(saved_rounds, default=arrays['round']) == arrays['round']


def _compute(run: Run) -> Features:
  from sklearn.metrics import confusion_matrix  # here, because it takes seconds

  from moon_jax.predict.inference import load

  model = load(run.path)
  images, classes = model.test_data()
  predictions = model.predict(images)
  shuffled = np.random.default_rng(_SEED).permutation(len(images))
  embedded = shuffled[:NUM_EMBEDDED]
  num_classes = model.class_counts.shape[1]
  return Features(
    round=np.asarray(model.round),
    confusion=confusion_matrix(classes, predictions.labels, labels=range(num_classes)),
    classes=classes[embedded],
    embedded=embed(predictions.representations[embedded]),
  )


def embed(representations: np.ndarray) -> np.ndarray:
  """[M, D] -> [M, 2] by t-SNE, with a fixed random state."""
  from sklearn.manifold import TSNE  # here, because it takes seconds

  perplexity = min(30.0, (len(representations) - 1) / 3)
  return TSNE(perplexity=perplexity, random_state=_SEED).fit_transform(representations)


def expected_accuracy(
  confusion: np.ndarray, class_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The accuracy that is expected of the global model from a client's class shares.

  It is no client's accuracy: a client whose images look different is not noticed.

  Args:
    confusion: [Y, Y] test examples by class and predicted class.
    class_counts: [N, Y] training examples of each client and class.

  Returns:
    [N] bool, the clients that own a class with test examples; and for each of these, in
    [0, 1], the sum over such classes of the client's share of the class times the
    accuracy on its test examples.
  """
  num_tested = confusion.sum(1)
  is_tested = num_tested > 0
  class_accuracy = np.diag(confusion)[is_tested] / num_tested[is_tested]
  counts = class_counts[:, is_tested]
  has_tested_class = counts.sum(1) > 0
  counts = counts[has_tested_class]
  return has_tested_class, counts @ class_accuracy / counts.sum(1)
