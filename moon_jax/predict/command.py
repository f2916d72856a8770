"""Classifies images by the trained model of a run.

  python -m moon_jax.predict --workdir=DIR --input=FILE [--output=FILE] [--client=N]
                             [--round=ROUND] [--config=FILE]

  --workdir=DIR   the run directory
  --input=FILE    an .npz file with `images`, or else `test_x`: [M, H, W] or
                  [M, H, W, C], of the size of the training images and with
                  the same numbers of black and white; other examples have the
                  axes of the run's data
  --output=FILE   an .npz file for `labels` [M], `logits` [M, classes] and
                  `representations` [M, D]; default <input>_predictions.npz
  --client=N      the client, by name or by number from 0, if each client has a model
                  of its own
  --round=ROUND   best, with keep_best, or the number of a round whose checkpoint is
                  kept; default the newest
  --config=FILE   a config file to run first: it registers parts that the run uses

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no usable checkpoint, 75 SIGTERM
or SIGHUP, 130 Ctrl-C.
"""

import os
import pathlib
import sys
import warnings

import numpy as np
from absl import flags

from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError, print_or_help
from moon_jax.core.flags import option
from moon_jax.core.outputs import require_output
from moon_jax.core.paths import expand
from moon_jax.data.errors import one_line
from moon_jax.runner import layout

_ARRAYS = ('images', 'test_x')


def main(argv: list[str]) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  return print_or_help(argv, __doc__, lambda: predict(parse(argv)))


def predict(values: flags.FlagValues) -> str:
  """Writes the predictions; returns a line that says so.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  source = expand(values.input)
  target = _target(values.output, source)
  layout.require_run_or_weights(expand(values.workdir))
  input_flag = option('input', values.input)
  with one_line(f'{input_flag} must be an .npz file with {" or ".join(_ARRAYS)}'):
    arrays = files.arrays(source, _ARRAYS)
  if not arrays:
    raise UsageError(f'{input_flag} must be an .npz file with {" or ".join(_ARRAYS)}.')
  images = next(iter(arrays.values()))
  if values.config is not None:
    config_lib.load(values.config)
  # Imported here: a mistake is answered before JAX is loaded.
  from moon_jax.predict import inference

  trained = inference.load(
    values.workdir, client=values.client, round=cli.round_choice(values.round)
  )
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always', UserWarning)
    try:
      predictions = trained.predict(images)
    except UsageError as error:
      raise UsageError(f'{input_flag}: {error}') from None
  for warning in caught:
    print(f'{input_flag}: {warning.message}', file=sys.stderr)
  predicted_arrays = predictions._asdict()
  class_names = trained.about['images'].get('class_names')
  if class_names:
    predicted_arrays['class_names'] = np.array(class_names)
  with files.replacing(target) as file:
    np.savez(file, **predicted_arrays)
  model = 'the global model'
  if trained.client is not None:
    model = f'client {trained.client_name}'
  return (
    f'{target}: {len(images)} images, by {model} after round {trained.round} of '
    f'{values.workdir}'
  )


def parse(argv: list[str]) -> flags.FlagValues:
  """The flags.

  Raises:
    UsageError: a flag is missing or unknown, or there is a stray word.
  """
  flag_types = {
    'workdir': str,
    'input': str,
    'output': str,
    'config': str,
    'client': str,
    'round': str,
  }
  stray_words, values = cli.read_flags(argv, flag_types)
  if stray_words:
    raise UsageError(f'{stray_words[0]!r} is a stray word; see --help.')
  for name in ('workdir', 'input'):
    if not values[name].value:
      raise UsageError(f'{option(name)} is missing; see --help.')
  cli.round_choice(values.round)
  return values


def _target(output: str | None, source: pathlib.Path) -> pathlib.Path:
  """The path of the predictions."""
  if output is None:
    output = str(source.parent / f'{source.stem}_predictions.npz')
  path = require_output('output', output, ('.npz',))
  if os.path.realpath(path) == os.path.realpath(source):
    raise UsageError(f'{option("output", output)} is the {option("input")}.')
  return path
