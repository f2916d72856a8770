"""Reads what is to be classified: pictures, arrays, a table, or a split of data."""

import os
import pathlib
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from moon_jax import catalog
from moon_jax import config as config_lib
from moon_jax.building.data import DataOptions, load_data
from moon_jax.config import Config, flatten
from moon_jax.core import files
from moon_jax.core.errors import UsageError, printable
from moon_jax.core.flags import flag, option
from moon_jax.core.output_files import any_of
from moon_jax.core.paths import walk
from moon_jax.core.types import Form, Scale
from moon_jax.data import example_forms, pickles, table, texts
from moon_jax.data.audiofolder import (
  ENDING,
  may_hold_sounds,
  read_sound,
  seconds_of,
  spectrograms,
)
from moon_jax.data.data_errors import listed, one_line
from moon_jax.data.federated import users
from moon_jax.data.layouts import TABLE_SUFFIXES
from moon_jax.data.picture_folders import ENDINGS, may_hold_data
from moon_jax.data.pictures import DEEP, decode_picture
from moon_jax.data.scale import numbers_of
from moon_jax.predict.exported import has_deep_pictures, turns_pictures

IMAGE_ARRAYS = ('images', 'test_x', 'x_test', 'test_images')
LABEL_ARRAYS = ('labels', 'test_y', 'y_test', 'test_labels')
_MODES = {1: 'L', 3: 'RGB', 4: 'RGBA'}
_NO_TEXTS = texts.Vocabulary(tokenizer=texts.NONE, words=(), length=0)
_CHUNK = 1024  # pictures that are decoded at a time


class Model(NamedTuple):
  """What a model needs to know of its inputs.

  Attributes:
    config: the configuration of the run.
    shape: (H, W, C) of the images, or the shape of another example.
    scale: the numbers of black and white; None in runs before 0.4.0, and of examples
      that are no grey levels.
    form: what the examples are.
    num_classes: Y.
    class_names: names of the classes; () if they have none.
    feature_names: names of the columns of a table; () if they have none.
    vocabulary: how its texts were read; without words if its examples were no texts.
    sample_rate: samples in a second of its sounds; 0 if its examples were no sounds.
  """

  config: Config
  shape: tuple[int, ...]
  scale: Scale | None
  form: Form
  num_classes: int
  class_names: tuple[str, ...]
  feature_names: tuple[str, ...] = ()
  vocabulary: texts.Vocabulary = _NO_TEXTS
  sample_rate: int = 0

  def number_of(self, name: str) -> int | None:
    """The number of a class by its name, or by its number if classes have no names."""
    if name in self.class_names:
      return self.class_names.index(name)
    is_number = not self.class_names and _is_number(name)
    return int(name) if is_number and int(name) < self.num_classes else None


class Inputs(NamedTuple):
  """M images to classify.

  Attributes:
    names: [M] names of the files, or numbers of the rows, or a table's index.
    labels: [M] int32 classes; None if they are not known.
    chunks: the images, in numbers of the run's data, some at a time.
  """

  names: list[str]
  labels: np.ndarray | None
  chunks: Iterator[np.ndarray]


def read(path: pathlib.Path, model: Model) -> Inputs:
  """The examples of a folder of pictures, of a picture, an .npz file or a table.

  Raises:
    UsageError: it is none of these, or does not fit the model.
  """
  if path.suffix == '.npz':
    return _arrays(path, model)
  if path.suffix in TABLE_SUFFIXES:
    return _rows(path, model)
  with one_line(f'{option("input", str(path))} cannot be read'):
    if os.path.isfile(path):
      paths = [path]
    elif model.sample_rate:
      paths = _files_below(path, (ENDING,), may_hold_sounds)
    else:
      paths = _files_below(path, ENDINGS, may_hold_data)
  if not paths:
    noun = 'WAV files' if model.sample_rate else 'pictures'
    raise UsageError(f'{option("input", str(path))} has no {noun}.')
  root = path.parent if paths == [path] else path
  names = [str(file.relative_to(root)) for file in paths]
  if model.sample_rate:
    labels = None if paths == [path] else _labels_of_folders(path, paths, model)
    return Inputs(names=names, labels=labels, chunks=_sounds(root, paths, model))
  takes_pictures = model.scale or model.form.dtype in ('uint8', 'uint16')
  is_picture = model.form.kind == 'picture' and model.shape[2] in _MODES
  if not (takes_pictures and is_picture):
    suffixes = ['.npz']
    if model.feature_names or model.vocabulary.words:
      suffixes += TABLE_SUFFIXES
    raise UsageError(
      f'{option("input", str(path))}: this model takes no pictures, but a file that '
      f'ends in {any_of(suffixes)}.'
    )
  labels = None if paths == [path] else _labels_of_folders(path, paths, model)
  return Inputs(names=names, labels=labels, chunks=_decoded(root, paths, model))


def split_of(source: str, where: str, split: str, model: Model) -> Inputs:
  """The images of a split of a data set, read as for training.

  Args:
    source: name of the data source.
    where: `data.name` of the source, or else its `data.path`.
    split: test, train or validation.
    model: the model.

  Raises:
    UsageError: there is no such split, or it does not fit the model.
  """
  part = catalog.part('data', source)
  changes = {'data.source': source, 'data.limit': 0}
  if part.has('files') and part.has('named') and model.config.data.source != source:
    raise UsageError(
      f'{option("source", source)} has several data sets in a folder, and this model '
      'was trained on none of them: write the one that you mean to a file by python -m '
      f'moon_jax.data.convert, and give {option("input", "FILE.npz")}.'
    )
  if part.has('pair'):  # the file is read as both
    changes |= {'data.path': where, 'data.test_path': where}
  else:
    changes['data.path' if part.has('files') else 'data.name'] = where
  changes['data.trust_pickles'] = False
  if model.sample_rate and source == 'audiofolder':
    changes['data.seconds'] = seconds_of(model.shape[0], model.sample_rate)
  if _takes_no_knobs_of_arrays(source, model):
    changes |= {'data.range': '', 'data.axes': ''}
  config = config_lib.validate(flatten(model.config) | changes)
  options = DataOptions(config)
  try:
    dataset = load_data(
      options, may_download=False, trust_pickles=False, describes_tests=False
    )
  except pickles.UntrustedPickleError as error:
    raise UsageError(
      f'{option("input", where)}: {error.problem}. predict reads no pickles; if you '
      'trust whoever made it, python -m moon_jax.data.convert with '
      f'{flag("data.trust_pickles", True)} writes an .npz file of the data.'
    ) from None
  if dataset.form.content == 'texts':
    dataset, notice = texts.in_words(options.data_flag, dataset, model.vocabulary)
    print(notice, file=sys.stderr)
  if dataset.form.kind == model.form.kind == 'picture':
    _require_equal_content(dataset, model, where, are_files=part.has('pictures'))
  images, labels = {
    'test': (dataset.test_images, dataset.test_labels),
    'train': (dataset.train_images, dataset.train_labels),
    'validation': (dataset.validation_images, dataset.validation_labels),
  }[split]
  if dataset.sample_rate != model.sample_rate and dataset.sample_rate:
    raise UsageError(
      f'{where!r} has {dataset.sample_rate} samples in a second, and this model was '
      f'trained on {model.sample_rate or "no sounds"}.'
    )
  if images is None or not len(images):
    raise UsageError(f'{option("split", split)}: {where!r} has no such examples.')
  labels = _renumbered(labels, dataset.class_names, model, where)
  if model.feature_names and dataset.feature_names:
    images = images[:, _columns(dataset.feature_names, model, where)]
  return Inputs(
    names=[str(row) for row in range(len(images))],
    labels=labels,
    chunks=iter([_numbers(images, model)]),
  )


def _takes_no_knobs_of_arrays(source, model):
  """Whether the run's range and axes are of arrays, and the source has pictures alone.

  Huggingface has columns of arrays, too, which may be those of the run. The range of
  pictures of 16 bits is that of others.
  """
  part = catalog.part('data', source)
  has_pictures_alone = part.has('pictures') and not part.has('number_columns')
  return (
    has_pictures_alone
    and model.config.data.source != source
    and not has_deep_pictures(model.config, model.scale)
  )


def _require_equal_content(dataset, model, where, *, are_files):
  """Raises UsageError if pictures are grey levels here and other numbers there."""

  def described(form):
    if form.content == 'levels':
      return 'grey levels'
    return f'{form.dtype} numbers' if are_files else 'numbers'

  numbers_of_data, numbers_of_model = described(dataset.form), described(model.form)
  if numbers_of_data != numbers_of_model:
    raise UsageError(
      f'{where!r} has pictures of {numbers_of_data} and the model was trained '
      f'on {numbers_of_model}: '
      'save all with as many bits.'
    )


def _columns(names, model, where):
  """The position in a table of each feature of the model.

  Raises:
    UsageError: the table has other features.
  """
  different = sorted({*names}.symmetric_difference(model.feature_names))
  if different:
    raise UsageError(
      f'{where!r} has the features {listed(names)}, and the model was trained on '
      f'{listed(model.feature_names)}; only one of them has {listed(different)}.'
    )
  return [names.index(name) for name in model.feature_names]


def _rows(path, model):
  """All rows of a table, in their order.

  Raises:
    UsageError: the model was trained on no table, or this one does not fit it.
  """
  input_flag = option('input', str(path))
  if model.vocabulary.words:
    return _rows_of_texts(input_flag, path, model)
  if not model.feature_names:
    raise UsageError(
      f'{input_flag}: this model was trained on no table with names of columns.'
    )
  data = model.config.data
  rows = table.read_rows(
    input_flag,
    path,
    model.feature_names,
    label=data.label,
    client=data.client,
    categories=data.categories,
    class_names=model.class_names,
  )
  labels = rows.labels
  if labels is not None:
    labels = _renumbered(labels, (), model, input_flag)
  features = rows.features
  if not model.form.dtype.startswith('float'):
    int32 = np.iinfo(np.int32)
    whole = np.clip(features, int32.min, int32.max).astype(np.int64)
    if np.array_equal(whole, features):
      features = whole  # a table of integers is read as floats
  return Inputs(names=rows.names, labels=labels, chunks=iter([features]))


def _rows_of_texts(input_flag, path, model):
  """All texts of a table, in their order."""
  data = model.config.data
  names, texts_of_rows, labels = table.read_texts(
    input_flag,
    path,
    text=data.text,
    label=data.label,
    class_names=model.class_names,
  )
  if labels is not None:
    labels = _renumbered(labels, (), model, input_flag)
  return Inputs(names=names, labels=labels, chunks=iter([texts_of_rows]))


def _arrays(path, model):
  input_flag = option('input', str(path))
  requirement = (
    f'{input_flag} must be an .npz file with {" or ".join(IMAGE_ARRAYS[:2])}'
  )
  with one_line(requirement):
    arrays = files.arrays(path, (*IMAGE_ARRAYS, *LABEL_ARRAYS, 'class_names'))
  images = next((arrays[name] for name in IMAGE_ARRAYS if name in arrays), None)
  if images is None or not images.ndim:
    raise UsageError(f'{requirement}.')
  labels = next((arrays[name] for name in LABEL_ARRAYS if name in arrays), None)
  if labels is not None:
    labels = labels.reshape(-1)
    if labels.dtype.kind == 'S':
      labels = users.as_text(labels)
    if len(labels) != len(images) or labels.dtype.kind not in 'iuU':
      raise UsageError(
        f'{input_flag}: the labels must be integers or text, one for each image.'
      )
    class_names = arrays.get('class_names', np.empty(0, str))
    if class_names.ndim != 1:
      raise UsageError(f'{input_flag}: class_names must be a list of names.')
    names = class_names.tolist()
    labels = _renumbered(labels, names, model, input_flag)
  return Inputs(
    names=[str(row) for row in range(len(images))], labels=labels, chunks=iter([images])
  )


def _renumbered(labels, class_names, model, where):
  """[M] labels as the model numbers its classes.

  Raises:
    UsageError: a class is unknown to the model.
  """
  is_text = labels.dtype.kind == 'U'
  # Folders 0 to 11 are in the order of text: the third is called 10.
  goes_by_name = len(class_names) and (
    model.class_names or all(_is_number(str(name)) for name in class_names)
  )
  numbers = {}
  for label in np.unique(labels).tolist():
    if is_text:
      numbers[label] = model.number_of(label)
    elif goes_by_name:
      is_named = 0 <= label < len(class_names)
      numbers[label] = model.number_of(str(class_names[label])) if is_named else None
    else:
      numbers[label] = label if 0 <= label < model.num_classes else None
  unknown = [label for label, number in numbers.items() if number is None]
  if unknown:
    if not is_text:
      unknown = [
        class_names[label] if 0 <= label < len(class_names) else label
        for label in unknown
      ]
    raise UsageError(f'{where}: {_unknown_classes(unknown, model)}')
  return np.array([numbers[label] for label in labels.tolist()], np.int32)


def _is_number(name):
  return name.isascii() and name.isdigit()


def _unknown_classes(unknown, model):
  known = listed(model.class_names or range(model.num_classes))
  return f'the model does not know the classes {listed(unknown)}; it has {known}.'


def _files_below(folder, endings, may_hold_some):
  """All such files below a folder, without hidden ones, in the order of their names.

  Folders behind links are looked into, and others left out, as in training.
  """
  paths = []
  for parent, folders, names in walk(folder, follow=True, on_error=_raise):
    folders[:] = filter(may_hold_some, folders)
    paths += [
      pathlib.Path(parent, name)
      for name in names
      if name.lower().endswith(endings) and not name.startswith('.')
    ]
  return sorted(paths)


def _raise(error):
  raise error


def _labels_of_folders(root, paths, model):
  """[M] the classes by the names of the folders around pictures; None: they are none.

  Raises:
    UsageError: some folders are named after classes, others are not.
  """
  numbers = []
  unknown = set()
  for path in paths:
    folder = path.parent
    if folder.name == 'images' and folder != root:  # CLASS/images/picture.png
      folder = folder.parent
    number = None if folder == root else model.number_of(folder.name)
    if number is None:
      unknown.add('' if folder == root else folder.name)
    numbers.append(number)
  if all(number is None for number in numbers):
    return None
  if '' in unknown:
    raise UsageError(
      f'{option("input", str(root))} has folders of classes, and files outside of '
      'them: put all in such folders, or none.'
    )
  if unknown:
    raise UsageError(
      f'{option("input", str(root))}: {_unknown_classes(sorted(unknown), model)}'
    )
  return np.array(numbers, np.int32)


def _sounds(root, paths, model):
  """The spectrograms of WAV files, some at a time.

  Raises:
    UsageError: a file cannot be read, or has another sample rate than in training.
  """
  num_frames, bands = model.shape[:2]
  for first in range(0, len(paths), _CHUNK):
    sounds = []
    for path in paths[first : first + _CHUNK]:
      name = printable(str(path.relative_to(root)))
      with one_line(f'{option("input")}: {name!r} cannot be used'):
        sound = read_sound(files.contents(path), model.config.data.stereo)
      if sound.rate != model.sample_rate:
        raise UsageError(
          f'{option("input")}: {name!r} has {sound.rate} samples in a second, and this '
          f'model was trained on {model.sample_rate}; convert it to that rate.'
        )
      sounds.append(sound)
    yield spectrograms(sounds, num_frames, bands)


def _decoded(root, paths, model):
  """The pictures in numbers of the run's data, some at a time."""
  height, width, channels = model.shape
  side = config_lib.used_value(model.config, 'data.image_size')
  upright = turns_pictures(model.config)
  mode, dtype = _MODES[channels], np.uint8
  if _has_deep_pictures(model):
    mode, dtype = DEEP, np.uint16
  for first in range(0, len(paths), _CHUNK):
    chunk = paths[first : first + _CHUNK]
    levels = np.empty((len(chunk), height, width, channels), dtype)
    for row, path in enumerate(chunk):
      name = printable(str(path.relative_to(root)))
      with one_line(f'{option("input")}: the picture {name!r} cannot be used'):
        pixels = decode_picture(files.contents(path), mode, upright=upright, side=side)
      if pixels.shape != levels.shape[1:]:
        raise UsageError(
          f'{option("input")}: the picture {name!r} has {pixels.shape[1]}x'
          f'{pixels.shape[0]} pixels; this model takes {width}x{height}, and its run '
          'resized no pictures.'
        )
      levels[row] = pixels
    # Pictures of 16 bits are numbers of the run's data.
    yield levels if mode == DEEP else _numbers(levels, model)


def _has_deep_pictures(model):
  """Whether the model was trained on grey pictures of 16 bits.

  Without a scale the model takes the numbers of its data as they are, whatever source
  they came from: 8-bit pictures would have a 256th of the brightness.
  """
  if not model.scale:
    return model.form.dtype == 'uint16'
  return has_deep_pictures(model.config, model.scale)


def _numbers(levels, model):
  numbers = numbers_of(levels, model.scale) if model.scale else levels
  return example_forms.as_in_source(numbers, model.form)
