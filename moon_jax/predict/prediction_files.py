"""Writes predictions as a table, and counts what is right."""

import csv
import io
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from moon_jax.core import files
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import measure

# Of every table; those that the run measured come after them.
_METRICS = ('balanced_accuracy', 'macro_f1', 'nll')


def write_predictions(
  path: pathlib.Path,
  names: Sequence[str],
  classified: Classified,
  class_names: Sequence[str],
  *,
  has_labels: bool,
) -> None:
  """Writes a CSV file with a row for each image.

  Args:
    path: the file.
    names: [M] names of the images.
    classified: the M images.
    class_names: [Y].
    has_labels: whether there is a column of their labels.
  """
  header = ['name', 'predicted', *(f'probability of {name}' for name in class_names)]
  if has_labels:
    header.insert(1, 'label')
  rows = [header]
  for row, probabilities in enumerate(classified.probabilities):
    words = [names[row], class_names[classified.predicted[row]]]
    if has_labels:
      words.insert(1, class_names[classified.labels[row]])
    rows.append([*words, *(f'{probability:.6g}' for probability in probabilities)])
  _write(path, rows)


def write_confusion(
  path: pathlib.Path, confusion: np.ndarray, class_names: Sequence[str]
) -> None:
  """Writes the confusion matrix [Y, Y]: a row for each true class."""
  header = ['label', *(f'predicted {name}' for name in class_names)]
  lines = zip(class_names, confusion.tolist(), strict=True)
  _write(path, [header, *([name, *counts] for name, counts in lines)])


def _write(path: pathlib.Path, rows: Iterable[Sequence]) -> None:
  text = io.StringIO(newline='')
  # Python before 3.13 quotes no \r in the name of a file, unless lines end in it.
  csv.writer(text, lineterminator='\r\n').writerows(rows)
  with files.replacing(path) as file:
    # A name on the disk may be no text.
    file.write(text.getvalue().encode(errors='backslashreplace'))


def scores(classified: Classified, metrics: Iterable[str]) -> dict[str, float]:
  """Name -> number, of labelled images: the accuracy, some metrics, and these."""
  names = dict.fromkeys((*_METRICS, *metrics))
  accuracy = float(np.mean(classified.predicted == classified.labels))
  return {'accuracy': accuracy} | measure(names, classified)
