"""A trained model as a file of weights, with the data needed to use it again."""

import json
import pathlib

import numpy as np

from moon_jax import __version__
from moon_jax.core import files, weights
from moon_jax.core.errors import UsageError
from moon_jax.core.types import PyTree
from moon_jax.runner.run_directory import METRICS, Record

_KEPT = ('config', 'registered', 'images', 'data_digest')  # of config.json


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
  lines = files.read_lines(workdir / METRICS)
  # If clients have their own models, the recorded accuracy is a mean, not one model's.
  tested = [line for line in lines if line['round'] == round_number and client is None]
  accuracy = tested[0].get('test_accuracy') if tested else None
  return {
    'moon_jax': __version__,
    **{name: saved[name] for name in _KEPT if name in saved},
    'num_classes': num_classes,
    'round': round_number,
    **({} if client is None else {'client': client}),
    **({} if accuracy is None else {'test_accuracy': accuracy}),
  }


def write(path: pathlib.Path, variables: PyTree, about: Record) -> None:
  """Writes the file; each text about the model is JSON."""
  texts = {name: json.dumps(value) for name, value in about.items()}
  weights.write(path, weights.flat(variables), texts)


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], Record]:
  """The arrays of a file that `write` has written, and its metadata.

  Raises:
    UsageError: it is another file, or it is damaged.
  """
  arrays, texts = weights.read(path)
  try:
    told = ', '.join(f'{json.dumps(name)}: {text}' for name, text in texts.items())
    about = files.document(pathlib.Path('weights.json'), f'{{{told}}}'.encode())
  except ValueError as error:
    raise UsageError(
      f'{str(path)!r} does not say which run its weights are from: {error} '
      'Files that `save` or moon_jax.export wrote do.'
    ) from None
  return arrays, about
