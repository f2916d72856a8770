"""A trained model as a file of weights, with the data needed to use it again."""

import json
import pathlib

import numpy as np

from moon_jax import __version__
from moon_jax.core import files, weights
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree
from moon_jax.runner.run_directory import METRICS, Record

_FIELDS = ('config', 'registered', 'images', 'data_digest')  # of config.json


def describe(
  workdir: pathlib.Path,
  saved: Record,
  round_number: int,
  client: int | None,
  num_classes: int,
) -> Record:
  """The metadata of a file of weights, as JSON.

  Args:
    workdir: the run directory.
    saved: its config.json.
    round_number: number of completed rounds.
    client: the client whose model it is; None for the global model.
    num_classes: Y.
  """
  metadata = {'moon_jax': __version__}
  for name in _FIELDS:
    if name in saved:
      metadata[name] = saved[name]
  metadata['num_classes'] = num_classes
  metadata['round'] = round_number
  if client is not None:
    # The recorded accuracy is a mean over the clients' models, not this one's.
    return metadata | {'client': client}
  for line in files.read_lines(workdir / METRICS):
    if line['round'] == round_number and 'test_accuracy' in line:
      metadata['test_accuracy'] = line['test_accuracy']
  return metadata


def write(path: pathlib.Path, variables: PyTree, metadata: Record) -> None:
  """Writes the file; each text about the model is JSON."""
  texts = {name: json.dumps(content) for name, content in metadata.items()}
  weights.write(path, weights.flat(variables), texts)


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], Record]:
  """The arrays of a file that `write` has written, and its metadata.

  Raises:
    UsageError: it is another file, or it is damaged.
  """
  arrays, texts = weights.read(path)
  entries = [f'{json.dumps(name)}: {text}' for name, text in texts.items()]
  document = '{' + ', '.join(entries) + '}'
  try:
    metadata = files.document(pathlib.Path('weights.json'), document.encode())
  except ValueError as error:
    raise UsageError(
      f'{str(path)!r} does not say which run its weights are from: {error} '
      'Files that `save` or moon_jax.export wrote do.'
    ) from None
  return arrays, metadata
