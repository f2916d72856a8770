"""What do the trained models say about the test images? Kept beside each run."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax import config as config_lib
from moon_jax.errors import RunError, UsageError
from moon_jax.report.command import ALL, FIRST, NONE
from moon_jax.report.numbers import naming
from moon_jax.report.numbers.groups import Series, Setting
from moon_jax.report.read.runs import Note, Run, read_arrays

NUM_EMBEDDED = 2000
CACHE = 'features.npz'
_SEED = 0  # of the choice of images and of t-SNE, for every run the same


class Features(NamedTuple):
  """Of a trained global model.

  Attributes:
    round: completed rounds of the checkpoint.
    confusion: [Y, Y] test images by class and predicted class.
    classes: [M] of the embedded test images, at most 2,000.
    representations: [M, D] of them.
    embedded: [M, 2] by t-SNE.
  """

  round: np.ndarray
  confusion: np.ndarray
  classes: np.ndarray
  representations: np.ndarray
  embedded: np.ndarray


class Model(NamedTuple):
  """A trained model that was looked at.

  Attributes:
    setting: of its run.
    series: of its run.
    run: that trained it.
    features: what it says.
  """

  setting: Setting
  series: Series
  run: Run
  features: Features

  def describe(self) -> str:
    """'MOON, mu=5, seed=0, beta=0.5, 10 rounds'."""
    seed = f'seed={self.run.knobs["seed"]}'
    key = self.setting.key
    own = tuple(item for item in key if item[0] in self.run.identity)
    # A run without some of the setting's knobs is in others too.
    where = self.setting.title if own == key else naming.describe(own)
    words = (self.series.label, seed, where)
    return ', '.join(filter(None, (*words, f'{self.features.round} rounds')))


def look_at(
  settings: Sequence[Setting], asked: Sequence[str], note: Note, say: Note
) -> list[Model]:
  """Looks at the trained models of runs that are asked for.

  Args:
    settings: with their finished runs.
    asked: 'first' (of each series), 'all', 'none', or paths of runs.
    note: is told which run's model cannot be had, and why.
    say: is told what takes its time.

  Raises:
    UsageError: a path is of no finished run.
  """
  found, chosen = [], _asked_for(settings, asked)
  for number, (setting, series, run) in enumerate(chosen, 1):
    say(f't-SNE and confusion matrix {number} of {len(chosen)}: {run.name}')
    try:
      found.append(Model(setting, series, run, features_of(run, note)))
    except RunError as error:
      note(f'{run.name}: no t-SNE, no confusion matrix: {error}')
    except OSError as error:
      note(f'{run.name}: no t-SNE, no confusion matrix: {error.strerror}')
  return found


def _asked_for(
  settings: Sequence[Setting], asked: Sequence[str]
) -> list[tuple[Setting, Series, Run]]:
  """Every run once, with the first setting and series that it is in."""
  every = {}
  for setting in settings:
    for series in setting.series:
      for index, run in enumerate(series.finished.values()):
        every.setdefault(run.path.resolve(), (index, setting, series, run))
  if tuple(asked) in ((FIRST,), (ALL,), (NONE,)):
    most = {FIRST: 1, ALL: len(every), NONE: 0}[asked[0]]
    return [
      place
      for index, *place in every.values()
      if index < most and _is_global(place[-1])
    ]
  chosen = []
  for word in asked:
    if (path := pathlib.Path(word).resolve()) not in every:
      raise UsageError(f'--features={word!r} is not among the finished runs.')
    chosen.append(every[path][1:])
  return chosen


def _is_global(run: Run) -> bool:
  """Whether the run has one model for all clients."""
  served = run.knobs['algorithm'] in (*config_lib.SERVED, 'centralized')
  return served and run.identity.get('batch_norm') != 'local'


def features_of(run: Run, note: Note) -> Features:
  """Computes them from the newest checkpoint, or reads what was computed from it.

  Args:
    run: with a global model.
    note: is told if they cannot be kept in the run directory.

  Raises:
    RunError: there is no global model, no usable checkpoint, or other data.
    OSError: the checkpoint or the data cannot be read.
  """
  kept = _kept(run.path / CACHE)
  if kept is not None and _is_newest(run, int(kept.round)):
    return kept
  found = _computed(run)
  try:
    _keep(run.path / CACHE, found)
  except OSError as error:
    note(f'{run.path / CACHE} cannot be written ({error.strerror}): computed each time')
  return found


def _kept(path: pathlib.Path) -> Features | None:
  """What is kept; None if it is not there or damaged, and so computed anew."""
  arrays = read_arrays(path)
  return Features(**arrays) if arrays and set(arrays) == set(Features._fields) else None


def _is_newest(run: Run, number: int) -> bool:
  saved = [
    int(p.name) for p in (run.path / 'checkpoints').glob('*') if p.name.isdigit()
  ]
  return not saved or max(saved) == number


def _computed(run: Run) -> Features:
  from moon_jax.inference import load

  model = load(run.path)
  images, classes = model.test_data()
  predictions = model.predict(images)
  chosen = np.random.default_rng(_SEED).permutation(len(images))[:NUM_EMBEDDED]
  representations = predictions.representations[chosen]
  return Features(
    round=np.asarray(model.round),
    confusion=confusion(classes, predictions.labels, model.class_counts.shape[1]),
    classes=classes[chosen],
    representations=representations,
    embedded=embed(representations),
  )


def _keep(path: pathlib.Path, found: Features) -> None:
  partial = path.with_name('partial-' + path.name)
  np.savez_compressed(partial, **found._asdict())
  partial.replace(path)


def confusion(classes: np.ndarray, predicted: np.ndarray, num_classes: int):
  """[M], [M] -> [Y, Y] counts; rows are the true classes."""
  counts = np.zeros((num_classes, num_classes), np.int64)
  np.add.at(counts, (classes, predicted), 1)
  return counts


def embed(representations: np.ndarray) -> np.ndarray:
  """[M, D] -> [M, 2] by t-SNE, with a fixed random state."""
  from sklearn.manifold import TSNE  # only now: it takes seconds

  perplexity = min(30.0, (len(representations) - 1) / 3)
  return TSNE(perplexity=perplexity, random_state=_SEED).fit_transform(representations)


def client_accuracy(confusion: np.ndarray, class_counts: np.ndarray) -> np.ndarray:
  """The global model's accuracy under each client's distribution of classes.

  Args:
    confusion: [Y, Y] test images by class and predicted class.
    class_counts: [N, Y] training examples of each client and class.

  Returns:
    [N] in [0, 1]: the sum over classes of the client's share of the class times the
    accuracy on its test images. Classes without a test image are left out, and so are
    clients that own nothing else.
  """
  tested = confusion.sum(1)
  there = tested > 0
  accuracy = np.diag(confusion)[there] / tested[there]
  counts = class_counts[:, there]
  counts = counts[counts.sum(1) > 0]
  return counts @ accuracy / counts.sum(1)
