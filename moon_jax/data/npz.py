"""The user's own images in one .npz file."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from moon_jax import catalog
from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data.data_errors import DataError, listed, one_line
from moon_jax.data.dataset import (
  ARRAY_NAMES,
  NUM_REQUIRED,
  USER_ARRAYS,
  arrays_dataset,
)
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import users
from moon_jax.data.texts import TextOptions

# Our names of the arrays, and those that Keras and MedMNIST use.
NAMINGS = (
  ARRAY_NAMES,
  ('x_train', 'y_train', 'x_test', 'y_test', 'x_val', 'y_val'),
  (
    *('train_images', 'train_labels', 'test_images', 'test_labels'),
    *('val_images', 'val_labels'),
  ),
)

# Arrays with which `data.convert` says what the examples are.
_AXES, _NORMALIZE, _RANGE = 'axes', 'normalize', 'range'
_FEATURE_NAMES = 'feature_names'
_FORM_ARRAYS = (_AXES, _NORMALIZE, _RANGE, _FEATURE_NAMES)


def load_npz(
  path: str,
  reading: Reading,
  text_options: TextOptions,
) -> Dataset:
  """Loads the arrays train_x, train_y, test_x and test_y of a .npz file.

  The names of Keras (x_train, ...) and MedMNIST (train_images, ...) are accepted, too.

  Args:
    path: the file. Images are [M, H, W] or [M, H, W, C], of integers in [0, 255] or
      floats in [0, 1], which become whole grey levels; labels integers [M];
      [M, C, H, W] are turned, and [M, 1] labels are [M]. The classes are 0 to the
      largest training label; labels may be text, too. A file may also have class_names
      [Y]; train_client and test_client [M], integers or text, the user id of each
      example; val_x and val_y (x_val, ...; val_images, ...), kept for validation; axes,
      normalize and range, the knobs of that name, which `data.convert` writes.
    reading: how the arrays are read. Without a range, it is as above; without axes, as
      `example_forms.form_of` says.
    text_options: how texts [M] are read, if the examples are these.

  Raises:
    DataError: the file or one of its arrays is missing or unusable.
  """
  data_flag = flag('data.path', path)
  required = ARRAY_NAMES[:NUM_REQUIRED]
  optional = *sum(NAMINGS, ()), *USER_ARRAYS, 'class_names', *_FORM_ARRAYS
  arrays = read(data_flag, path, required, optional)
  if _AXES in arrays:
    reading = _reading_of_file(data_flag, arrays, reading)
  array_names = _array_names(data_flag, path, arrays)
  class_names = arrays.get('class_names', np.empty(0, str))
  if class_names.ndim != 1 or class_names.dtype.kind != 'U':
    raise DataError(f'{data_flag}: class_names must be text, [classes].')
  data = arrays_dataset(
    data_flag,
    pathlib.Path(path).stem,
    [arrays[name] for name in array_names],
    num_classes=len(class_names) or None,
    class_names=class_names.tolist(),
    array_names=array_names,
    reading=reading,
    tokenizer=text_options.tokenizer,
  )
  feature_names = _names_in(arrays, _FEATURE_NAMES)
  if len(feature_names) == math.prod(data.train_images.shape[1:]):
    data = data._replace(feature_names=feature_names)
  train_users, test_users = (arrays.get(name) for name in USER_ARRAYS)
  return users.named(data_flag, data, train_users, test_users)


def arrays_of_form(dataset: Dataset) -> dict[str, np.ndarray]:
  """The arrays that say what the data are, for `load_npz`.

  There are none of grey levels whose shape says their axes. The examples are written
  with the channels last.

  Args:
    dataset: the data set.
  """
  form = dataset.form
  if form.content == 'levels':
    return {_AXES: np.array('HWC')} if form.axes else {}
  axes = {'table': 'D', 'signal': 'TC', 'volume': 'DHWC', 'words': 'T'}
  arrays = {
    _AXES: np.array(axes.get(form.kind, 'HWC')),
    _NORMALIZE: np.array(form.normalize),
  }
  allowed = form.range
  if form.content == 'words':
    allowed = 0, form.vocabulary - 1
  if allowed:
    arrays[_RANGE] = np.array(','.join(map(repr, map(float, allowed))))
  if dataset.feature_names:
    arrays[_FEATURE_NAMES] = np.array(dataset.feature_names, str)
  return arrays


def _reading_of_file(data_flag, arrays, reading):
  """The reading, of which the file says what no knob does.

  Raises:
    DataError: the file says what no knob could.
  """
  in_file = {name: str(arrays[name]) for name in _FORM_ARRAYS[:3] if name in arrays}
  knobs = catalog.every_knob()
  for name, word in in_file.items():
    if not knobs[f'data.{name}'].bound.holds(word):
      raise DataError(f'{data_flag}: its array {name!r} is {printable(word)!r}.')
  if reading.axes not in ('', in_file[_AXES]):
    raise DataError(
      f'{flag("data.axes", reading.axes)}: {data_flag} says that its axes are '
      f'{in_file[_AXES]!r}; leave the flag out.'
    )
  normalize = reading.normalize
  if normalize == 'auto':
    normalize = in_file.get(_NORMALIZE, 'auto')
  return Reading(
    range=reading.range or in_file.get(_RANGE, ''),
    axes=in_file[_AXES],
    normalize=normalize,
  )


def _names_in(arrays, name):
  """The names in an array of text; () if it is none."""
  names = arrays.get(name)
  if names is None or names.ndim != 1 or names.dtype.kind != 'U':
    return ()
  return tuple(names.tolist())


def _array_names(data_flag, path, arrays):
  """The names of the images and labels that a file has, in the order of ARRAY_NAMES."""
  for naming in NAMINGS:
    if arrays.keys() >= {*naming[:NUM_REQUIRED]}:
      break
  else:
    missing = [name for name in ARRAY_NAMES[:NUM_REQUIRED] if name not in arrays]
    names_there = listed(files.array_names(expand(path)))
    raise DataError(f'{data_flag} lacks {missing}; it has {names_there}.')
  array_names = [name for name in naming if name in arrays]
  if len(array_names) == NUM_REQUIRED + 1:
    pair = ', '.join(naming[NUM_REQUIRED:])
    raise DataError(f'{data_flag} has {array_names[-1]} alone, of {pair}.')
  return array_names


def read(
  data_flag: str, path: str, names: Sequence[str], optional_names: Sequence[str] = ()
) -> dict[str, np.ndarray]:
  """The named arrays that a .npz file has.

  Args:
    data_flag: flag of the file, for messages.
    path: the file.
    names: names of the arrays, which a message lists.
    optional_names: names of arrays that few files have.

  Raises:
    DataError: it is no such file, or it is damaged.
  """
  with one_line(f'{data_flag} must be an .npz file of plain arrays {", ".join(names)}'):
    return files.arrays(expand(path), (*names, *optional_names))
