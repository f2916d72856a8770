"""Classifies images, or other examples, by the trained model of a run.

  python -m moon_jax.predict --workdir=DIR --input=PATH [--output=FILE] [--client=N]
                             [--source=NAME [--split=test]] [--round=ROUND]
                             [--config=FILE]

  --workdir=DIR   the run directory, or a file of weights
  --input=PATH    a folder of pictures, perhaps in folders named after their
                  classes; a picture; or an .npz file with `images`, or else
                  `test_x`: [M, H, W] or [M, H, W, C], with the same numbers of
                  black and white as the training images; other examples have
                  the axes of the run's data. Pictures are resized as in
                  training. Of a run on a table: a .csv or .parquet file, of
                  which every row is classified; it may lack the labels
  --source=NAME   a data source, as in --config.data.source: --input is then its
                  data.name or data.path
  --split=NAME    its split: test, train or validation; default test. Of a table in
                  one file it takes the rows that the training would draw;
                  default all rows
  --output=FILE   a .csv file: a row for each image, with its name (of a table, the
                  number of the row from 0, or its index), the predicted class
                  and the probability of each class; or an .npz file for
                  `labels` [M], `logits` [M, classes] and `representations`
                  [M, D]. Default <input>_predictions.npz for an .npz file,
                  <input>_predictions.csv for the others. If the classes are
                  known, the scores are printed, and <output>_confusion.csv and
                  .png have the confusion matrix
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

import numpy as np
from absl import flags

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.config import cli
from moon_jax.core import files
from moon_jax.core.errors import UsageError, print_or_help, warnings_as_lines
from moon_jax.core.flags import option
from moon_jax.core.output_files import any_of, require_output
from moon_jax.core.paths import expand
from moon_jax.data.data_errors import one_line
from moon_jax.data.layouts import TABLE_SUFFIXES
from moon_jax.data.picture_folders import ENDINGS
from moon_jax.runner import run_files

_SPLITS = ('test', 'train', 'validation')


def main(argv: list[str]) -> int:
  """Runs the program; returns the exit code. An error of the user is one clear line."""
  return print_or_help(argv, __doc__, lambda: predict(parse(argv)))


def predict(values: flags.FlagValues) -> str:
  """Writes the predictions; returns a line that says so.

  Raises:
    RunError: it has the message for the user and the exit code.
  """
  source = expand(values.input)
  target = _target(values, source)
  run_files.require_run_or_weights(expand(values.workdir))
  if not values.source:
    _require_input(source, values.input)
  if values.config is not None:
    config_lib.load(values.config)
  if values.source:
    _require_source(values.source)
  # Imported here: a mistake is answered before JAX is loaded.
  from moon_jax.catalog.general import listed_words
  from moon_jax.metrics.classified import Classified
  from moon_jax.predict import inference, prediction_files

  trained = inference.load(
    values.workdir, client=values.client, round=cli.round_choice(values.round)
  )
  model = _model_of(trained)
  images = _read_images(values, source, model)
  predictions = _predictions(trained, images.chunks, option('input', values.input))
  class_names = model.class_names or tuple(map(str, range(model.num_classes)))
  has_labels = images.labels is not None
  classified = Classified(
    labels=images.labels if has_labels else predictions.labels,
    logits=predictions.logits,
  )
  if target.suffix == '.npz':
    _write_arrays(target, predictions, model.class_names)
  else:
    prediction_files.write_predictions(
      target, images.names, classified, class_names, has_labels=has_labels
    )
  model_title = 'the global model'
  if trained.client is not None:
    model_title = f'client {trained.client_name}'
  noun = {'picture': 'images', 'table': 'rows'}.get(trained.form.kind, 'examples')
  num_examples = len(images.names)
  count = f'1 {noun[:-1]}' if num_examples == 1 else f'{num_examples} {noun}'
  line = (
    f'{target}: {count}, by {model_title} after round {trained.round} of '
    f'{values.workdir}'
  )
  if not has_labels or target.suffix == '.npz':
    return line
  confusion_file = _write_confusion(
    target,
    classified,
    class_names,
    model.class_names,
    model_title=model_title,
    noun=noun,
  )
  scores = prediction_files.scores(classified, listed_words(trained.config.metrics))
  listed_scores = ', '.join(f'{name} {score:.4f}' for name, score in scores.items())
  return f'{line}; {listed_scores}; confusion matrix: {confusion_file} and .png'


def _model_of(trained):
  """What reading examples needs to know of a trained model."""
  from moon_jax.predict import inputs

  about_images = trained.about['images']
  return inputs.Model(
    config=trained.config,
    shape=trained.image_shape,
    scale=trained.scale,
    form=trained.form,
    num_classes=trained.about['num_classes'],
    class_names=tuple(about_images.get('class_names', ())),
    feature_names=tuple(about_images.get('feature_names', ())),
    vocabulary=trained.vocabulary,
    sample_rate=about_images.get('sample_rate', 0),
  )


def _read_images(values, source, model):
  """The examples to classify: a split of a data source, or those of a path."""
  from moon_jax.predict import inputs

  is_file_of_rows = (
    values.source == 'table'
    and not values.split
    and bool(model.feature_names or model.vocabulary.words)
    and source.suffix in TABLE_SUFFIXES
    and os.path.isfile(source)
  )
  if values.source and not is_file_of_rows:
    return inputs.split_of(values.source, values.input, values.split or 'test', model)
  return inputs.read(source, model)


def _predictions(trained, chunks, input_flag):
  """The `Predictions` for all images; a warning is a line."""
  from moon_jax.predict.inference import Predictions

  parts = []
  with warnings_as_lines(f'{input_flag}: '):
    for images in chunks:
      try:
        parts.append(trained.predict(images))
      except UsageError as error:
        raise UsageError(f'{input_flag}: {error}') from None
  return Predictions(
    labels=np.concatenate([part.labels for part in parts]),
    logits=np.concatenate([part.logits for part in parts]),
    representations=np.concatenate([part.representations for part in parts]),
  )


def _write_arrays(target, predictions, class_names):
  predicted_arrays = predictions._asdict()
  if class_names:
    predicted_arrays['class_names'] = np.array(class_names)
  with files.replacing(target) as file:
    np.savez(file, **predicted_arrays)


def _write_confusion(
  target, classified, class_names, given_names, *, model_title, noun
):
  """Writes the confusion matrix beside the predictions, as CSV and PNG.

  Returns:
    The CSV file.
  """
  # Imported here: only labelled examples need matplotlib.
  from moon_jax.predict import prediction_files
  from moon_jax.runner import plots

  confusion_file = target.with_name(f'{target.stem}_confusion.csv')
  prediction_files.write_confusion(confusion_file, classified.confusion, class_names)
  plots.confusion_matrix(
    confusion_file.with_suffix('.png'),
    classified.confusion,
    f'{target.name}, by {model_title}',
    given_names,
    unit=noun,
  )
  return confusion_file


def _require_input(source, word):
  """Refuses what is no input, before anything slow is loaded."""
  given = option('input', word)
  if os.path.isdir(source):
    return
  with one_line(f'{given} cannot be read'):
    if not os.path.exists(source):
      raise FileNotFoundError('No such file')
  # As in a folder, .WAV and .JPG of recorders and cameras are such files too.
  is_picture_or_sound = source.name.lower().endswith((*ENDINGS, '.wav'))
  if not is_picture_or_sound and source.suffix not in ('.npz', *TABLE_SUFFIXES):
    raise UsageError(
      f'{given} must be a folder of pictures or of WAV files, a picture, a WAV file, '
      'an .npz file, or a table '
      f'({any_of(TABLE_SUFFIXES)}); another data set needs {option("source")}=NAME.'
    )


def _require_source(name):
  """Refuses a data source that does not exist, or that --input cannot choose from."""
  source = catalog.part('data', name)
  if not (source.has('named') or source.has('files')):
    raise UsageError(
      f'{option("source", name)} has neither data.name nor data.path, so '
      f'{option("input")} names none of its examples: in Python, '
      'moon_jax.load(DIR).predict(images) classifies them, and .test_data() gives the '
      'tests of the run.'
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
    'source': str,
    'split': str,
  }
  stray_words, values = cli.read_flags(argv, flag_types)
  if stray_words:
    raise UsageError(f'{stray_words[0]!r} is a stray word; see --help.')
  for name in ('workdir', 'input'):
    if not values[name].value:
      raise UsageError(f'{option(name)} is missing; see --help.')
  cli.round_choice(values.round)
  if values.split and not values.source:
    raise UsageError(f'{option("split")} needs {option("source")}=NAME.')
  if values.split and values.split not in _SPLITS:
    raise UsageError(f'{option("split", values.split)} must be {any_of(_SPLITS)}.')
  return values


def _target(values: flags.FlagValues, source: pathlib.Path) -> pathlib.Path:
  """The path of the predictions."""
  output = values.output
  if output is None:
    ending = '.npz' if source.suffix == '.npz' and not values.source else '.csv'
    place = pathlib.Path(os.path.abspath(source))  # `.` and `..` have no name
    stem = place.name if place.is_dir() else place.stem
    name = f'{stem}_predictions{ending}'
    # Not inside a folder of pictures, and not beside a data set of this name.
    parent = pathlib.Path() if values.source else place.parent
    output = str((source.parent if ending == '.npz' else parent) / name)
  path = require_output('output', output, ('.csv', '.npz'))
  if os.path.realpath(path) == os.path.realpath(source):
    raise UsageError(f'{option("output", output)} is the {option("input")}.')
  return path
