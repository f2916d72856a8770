"""The user's own images, in one .npz file or from a registered source."""

import itertools
import pathlib
from collections.abc import Sequence

import numpy as np

from moon_jax.core import files
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data.arrays import (
  PIXELS,
  DataError,
  grey_levels,
  listed,
  make_dataset,
  one_line,
  with_channels,
)
from moon_jax.data.federated import users

NPZ_ARRAYS = ('train_x', 'train_y', 'test_x', 'test_y')
# The names of the arrays, with validation arrays, which few files have; and the names
# that Keras and MedMNIST use.
NAMES = (
  (*NPZ_ARRAYS, 'val_x', 'val_y'),
  ('x_train', 'y_train', 'x_test', 'y_test', 'x_val', 'y_val'),
  (
    *('train_images', 'train_labels', 'test_images', 'test_labels'),
    *('val_images', 'val_labels'),
  ),
)
# The user of each example; a file may have one of these arrays, both or none.
IDS = ('train_client', 'test_client')


def load_npz(path: str) -> Dataset:
  """Loads the arrays train_x, train_y, test_x and test_y of a .npz file.

  The names of Keras (x_train, ...) and MedMNIST (train_images, ...) are accepted, too.

  Args:
    path: the file. Images are [M, H, W] or [M, H, W, C], of uint8, whole numbers to
      255, or floats in [0, 1], which become whole grey levels; labels integers [M];
      [M, C, H, W] are turned, and [M, 1] labels are [M]. The classes are 0 to the
      largest training label; labels may be text, too. Few files have class_names [Y];
      train_client and test_client [M], integers or text, the user id of each
      example; val_x and val_y (x_val, ...; val_images, ...), kept for validation.

  Raises:
    DataError: the file or one of its arrays is missing or unusable.
  """
  flag = f'--config.data.path={path!r}'
  found = read(flag, path, NPZ_ARRAYS, (*sum(NAMES, ()), *IDS, 'class_names'))
  names = next((one for one in NAMES if found.keys() >= {*one[:4]}), None)
  if names is None:
    missing = [name for name in NPZ_ARRAYS if name not in found]
    has = listed(files.array_names(expand(path)))
    raise DataError(f'{flag} lacks {missing}; it has {has}.')
  if len(there := [name for name in names if name in found]) == 5:
    raise DataError(f'{flag} has {there[4]} alone, of {", ".join(names[4:])}.')
  classes = found.get('class_names', np.empty(0, str))
  if classes.ndim != 1 or classes.dtype.kind != 'U':
    raise DataError(f'{flag}: class_names must be text, [classes].')
  arrays, stem = [found[name] for name in there], pathlib.Path(path).stem
  told = {'num_classes': len(classes) or None, 'class_names': classes.tolist()}
  data = dataset(flag, stem, arrays, **told, names=names)
  return users.named(flag, data, *map(found.get, IDS))


def read(
  flag: str, path: str, names: Sequence[str], more: Sequence[str] = ()
) -> dict[str, np.ndarray]:
  """The named arrays that a .npz file has.

  Args:
    flag: flag of the file, for the message.
    path: the file.
    names: names of the arrays.
    more: names of arrays that few files have.

  Raises:
    DataError: it is no such file, or it is damaged.
  """
  wanted = f'{flag} must be an .npz file of plain arrays {", ".join(names)}'
  with one_line(wanted):
    return files.arrays(expand(path), (*names, *more))


def checked(source: str, arrays: tuple[np.ndarray, ...]) -> Dataset:
  """The Dataset of the arrays that a registered source returns.

  Args:
    source: name of the source.
    arrays: train_x, train_y, test_x, test_y, as in a .npz file, and perhaps
      train_client, test_client, of which one may be None.

  Raises:
    DataError: an array is unusable.
  """
  flag = f'--config.data.source={source!r}'
  if len(arrays) not in (len(NPZ_ARRAYS), len(NPZ_ARRAYS + IDS)):
    wanted = f'({", ".join(NPZ_ARRAYS)}), and with users {", ".join(IDS)} too'
    raise DataError(f'{flag} must return {wanted}.')
  with one_line(f'{flag} must return arrays'):
    plain = [None if one is None else _as_plain(one) for one in arrays]
  data = dataset(flag, source, plain[: len(NPZ_ARRAYS)])
  return users.named(flag, data, *(plain[len(NPZ_ARRAYS) :] or (None, None)))


def _as_plain(values):
  """The values as an array; text in an array of objects, as of pandas, as text."""
  array = np.asarray(values)
  is_text = array.dtype == object and all(isinstance(one, str) for one in array.flat)
  return array.astype(str) if is_text else array


def dataset(
  flag: str,
  name: str,
  arrays: Sequence[np.ndarray],
  num_classes: int | None = None,
  statistics: tuple[np.ndarray, np.ndarray] | None = None,
  class_names: Sequence[str] = (),
  names: Sequence[str] = NAMES[0],
) -> Dataset:
  """The Dataset of train_x, train_y, test_x, test_y, if they fit each other.

  Args:
    flag: flag of the data, for the message.
    name: name of the data set.
    arrays: the four arrays, and perhaps the two validation arrays.
    num_classes: Y, if the data have it; otherwise every label up to the largest must
      occur.
    statistics: [C] mean and deviation of pixel / 255; None: they are computed.
    class_names: [Y], if the data have them; text labels give them too.
    names: names of the arrays in the data.

  Raises:
    DataError: an array is unusable.
  """
  images, labels = [*map(grey_levels, arrays[::2])], [*map(flat, arrays[1::2])]
  if labels[0].dtype.kind in 'SU' and len({each.dtype.kind for each in labels}) == 1:
    labels, class_names = _numbered(flag, labels, names[1::2])
  splits = [*zip(names[::2], images, names[1::2], labels, strict=False)]
  fault = next(filter(None, itertools.starmap(split_fault, splits)), '')
  if not fault:
    images = [with_channels(images[0], flag), *map(with_channels, images[1:])]
    train, *others = zip(names[::2], images, names[1::2], labels, strict=False)
    faults = (pair_fault(train, other, num_classes) for other in others)
    fault = next(filter(None, faults), '')
  if fault:
    raise DataError(f'{flag}: {fault}.')
  train, test, *held = zip(images, labels, strict=True)
  num_classes = num_classes or int(labels[0].max()) + 1
  if class_names == [*map(str, range(num_classes))]:  # also TFDS's for unnamed classes
    class_names = ()
  data = make_dataset(name, train, test, num_classes, statistics, class_names)
  for x, y in held:
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y, np.int32)
    data = data._replace(validation_images=x, validation_labels=y)
  return data


def _numbered(flag, labels, names):
  """Text labels as numbers, in the ascending order of the classes, and the classes."""
  classes = np.unique(labels[0])
  for each, name in zip(labels, names, strict=False):
    if (strange := each[~np.isin(each, classes)]).size:
      told = f'{name} holds {strange[0].item()!r}, a class that {names[0]} has not'
      raise DataError(f'{flag}: {told}; remove it.')
  numbers = [np.searchsorted(classes, each) for each in labels]
  if classes.dtype.kind == 'S':
    classes = np.char.decode(classes, 'utf-8', 'backslashreplace')
  return numbers, classes.tolist()


def flat(labels: np.ndarray) -> np.ndarray:
  """Labels [M, 1] as [M]; other labels unchanged."""
  return labels[:, 0] if labels.shape[1:] == (1,) else labels


def split_fault(x, images, y, labels):
  """What is wrong with one split, and the remedy if there is one; '' if nothing is.

  Args:
    x: name of the images.
    images: an array of any type and shape.
    y: name of the labels.
    labels: an array of any type and shape, made `flat`.
  """
  if images.ndim not in (3, 4) or 0 in images.shape[1:]:
    return f'{x} has shape {images.shape}, not [M, H, W] or [M, H, W, C]'
  if labels.ndim != 1:
    return f'{y} has shape {labels.shape}, not [M]{_if_one_hot(y, labels)}'
  if not len(images) == len(labels) > 0:
    return f'{x} holds {len(images)} images, {y} {len(labels)} labels; save as many'
  if images.dtype != np.uint8:
    told = str(images.dtype)
    if images.dtype.kind in 'iuf':
      told += f', from {images.min()} to {images.max()}'
    return f'{x} is {told}; pixels must be {PIXELS}'
  if labels.dtype.kind not in 'iu':
    return f'{y} is {labels.dtype}, not integer{_if_whole(y, labels)}'
  if labels.min() < 0:
    row = labels.argmin()
    return f'{y}[{row}] is {labels[row]}; number the classes from 0'
  return ''


def _if_one_hot(y, labels):
  """How to convert one-hot labels to [M]; or what is wrong with them."""
  if labels.ndim != 2 or labels.dtype.kind not in 'biuf':
    return ''
  if not np.isin(labels, (0, 1)).all():
    return ''
  if (others := np.flatnonzero(labels.sum(1) != 1)).size:
    named = int(labels[others[0]].sum())
    return f': row {others[0]} names {named} classes, and an image must have one'
  return f'; convert one-hot with {y}.argmax(1)'


def _if_whole(y, labels):
  if labels.dtype.kind in 'SU':
    return ': number the classes from 0, alike in all the data'
  if labels.dtype.kind in 'fb' and (labels == np.rint(labels.astype(float))).all():
    return f"; convert it with {y}.astype('int32')"
  return ''


def pair_fault(train, other, num_classes):
  """What is wrong between splits, in the form of `split_fault`; '' if nothing is."""
  (train_x, images, train_y, labels), (x, more_images, y, more_labels) = train, other
  if images.shape[1:] != more_images.shape[1:]:
    return f'{train_x} is {images.shape}, {x} {more_images.shape}; make images alike'
  if num_classes:
    most, where = max((labels.max(), train_y), (more_labels.max(), y))
    return (
      f'{where} holds {most}, beyond {num_classes - 1}' if most >= num_classes else ''
    )
  classes = np.unique(labels)  # not a count up to the largest, which may be 2**63
  if (gaps := np.flatnonzero(classes != np.arange(len(classes)))).size:
    return f'{train_y} holds no {gaps[0]}; number the classes from 0 without gaps'
  if len(classes) < 2:
    return f'{train_y} holds one class only; at least 2 are needed'
  if more_labels.max() > classes[-1]:
    return f'{y} holds {more_labels.max()}, a class that {train_y} has not; remove it'
  return ''
