"""The user's own images, in one .npz file or from a registered source."""

import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from moon_jax.core import files
from moon_jax.core.types import Dataset
from moon_jax.data.arrays import (
  DataError,
  listed,
  make_dataset,
  one_line,
  with_channels,
)
from moon_jax.data.federated import users

NPZ_ARRAYS = ('train_x', 'train_y', 'test_x', 'test_y')
# What Keras and MedMNIST call the same.
OTHERS = (
  ('x_train', 'y_train', 'x_test', 'y_test'),
  ('train_images', 'train_labels', 'test_images', 'test_labels'),
)
# Of each of these, what the examples for validation are called; few files have some.
VALIDATION = (('val_x', 'val_y'), ('x_val', 'y_val'), ('val_images', 'val_labels'))
# Whose each example is; a file may have one, both or none.
IDS = ('train_client', 'test_client')


def load_npz(path: str) -> Dataset:
  """Loads the arrays train_x, train_y, test_x and test_y of a .npz file.

  Those of Keras (x_train, ...) and MedMNIST (train_images, ...) do, too.

  Args:
    path: the file. Images are uint8 [M, H, W] or [M, H, W, C], labels integers [M];
      [M, C, H, W] are turned, and [M, 1] labels are [M]. The classes are 0 to the
      largest training label; labels may be text, too. Few files have class_names [Y];
      train_client and test_client [M], integers or text, which name the user of each
      example; val_x and val_y (x_val, ...; val_images, ...), kept for validation.

  Raises:
    DataError: the file or one of its arrays is missing or unusable.
  """
  flag = f'--config.data.path={path!r}'
  found, names = read(flag, path, NPZ_ARRAYS, (*IDS, 'class_names')), NPZ_ARRAYS
  if missing := [name for name in NPZ_ARRAYS if name not in found]:
    has = files.array_names(os.path.expanduser(path))
    names = next((one for one in OTHERS if set(one) <= set(has)), None)
    if names is None or len(missing) < len(NPZ_ARRAYS):
      raise DataError(f'{flag} lacks {missing}; it has {listed(has)}.')
    found |= read(flag, path, names)
  classes = found.get('class_names', np.empty(0, str))
  if classes.ndim != 1 or classes.dtype.kind != 'U':
    raise DataError(f'{flag}: class_names must be text, [classes].')
  arrays, stem = tuple(found[name] for name in names), pathlib.Path(path).stem
  told = {'num_classes': len(classes) or None, 'class_names': classes.tolist()}
  data = dataset(flag, stem, arrays, **told, names=names)
  pair = VALIDATION[(NPZ_ARRAYS, *OTHERS).index(names)]
  if held := read(flag, path, pair):
    if len(held) < len(pair):
      raise DataError(f'{flag} has {", ".join(held)} alone, of {", ".join(pair)}.')
    data = validated(flag, data, *held.values(), pair)
  return users.named(flag, data, *map(found.get, IDS))


def read(
  flag: str, path: str, names: Sequence[str], more: Sequence[str] = ()
) -> dict[str, np.ndarray]:
  """Those of the named arrays that a .npz file has.

  Args:
    flag: what names the file, for the message.
    path: the file.
    names: of the arrays.
    more: of arrays that few files have.

  Raises:
    DataError: it is no such file, or damaged.
  """
  file_path = os.path.expanduser(path)
  if not os.path.isfile(file_path):
    raise DataError(f'{flag} is not a file.')
  wanted = f'{flag} must be an .npz file of plain arrays {", ".join(names)}'
  with one_line(wanted):
    return files.arrays(file_path, (*names, *more))


def checked(source: str, arrays: tuple[np.ndarray, ...]) -> Dataset:
  """The Dataset of what a registered source returns.

  Args:
    source: its name.
    arrays: train_x, train_y, test_x, test_y, as in a .npz file, and perhaps
      train_client, test_client, of which one may be None.

  Raises:
    DataError: one of them is unusable.
  """
  flag = f'--config.data.source={source!r}'
  if len(arrays) not in (len(NPZ_ARRAYS), len(NPZ_ARRAYS + IDS)):
    wanted = f'({", ".join(NPZ_ARRAYS)}), and with users {", ".join(IDS)} too'
    raise DataError(f'{flag} must return {wanted}.')
  data = dataset(flag, source, tuple(map(np.asarray, arrays[: len(NPZ_ARRAYS)])))
  return users.named(flag, data, *(arrays[len(NPZ_ARRAYS) :] or (None, None)))


def dataset(
  flag: str,
  name: str,
  arrays: tuple[np.ndarray, ...],
  num_classes: int | None = None,
  statistics: tuple[np.ndarray, np.ndarray] | None = None,
  class_names: Sequence[str] = (),
  names: tuple[str, ...] = NPZ_ARRAYS,
) -> Dataset:
  """The Dataset of train_x, train_y, test_x, test_y, if they fit each other.

  Args:
    flag: what names the data, for the message.
    name: what to call it.
    arrays: the four.
    num_classes: Y, where the data tell; else all up to the largest label must occur.
    statistics: [C] mean and deviation of pixel / 255; None computes them.
    class_names: [Y], where the data tell; labels that are text tell them too.
    names: what the data call the arrays.

  Raises:
    DataError: one of them is unusable.
  """
  train_x, train_y, test_x, test_y = arrays
  train_y, test_y = flat(train_y), flat(test_y)
  if train_y.dtype.kind in 'SU' and test_y.dtype.kind == train_y.dtype.kind:
    train_y, test_y, class_names = _numbered(flag, train_y, test_y)
  if fault := (
    split_fault('train_x', train_x, 'train_y', train_y)
    or split_fault('test_x', test_x, 'test_y', test_y)
    or pair_fault(train_x, train_y, test_x, test_y, num_classes)
  ):
    for own, theirs in zip(NPZ_ARRAYS, names, strict=True):
      fault = re.sub(rf'\b{own}\b', theirs, fault)
    raise DataError(f'{flag}: {fault}.')
  train_x, test_x = with_channels(train_x, flag), with_channels(test_x)
  num_classes = num_classes or int(train_y.max()) + 1
  splits = (train_x, train_y), (test_x, test_y)
  return make_dataset(name, *splits, num_classes, statistics, class_names)


def validated(
  flag: str,
  data: Dataset,
  images: np.ndarray,
  labels: np.ndarray,
  names: tuple[str, str] = VALIDATION[0],
) -> Dataset:
  """The data set with examples for validation.

  Args:
    flag: what names the data, for the message.
    data: the data set without them.
    images: [V, H, W] or [V, H, W, C] uint8, or channels first, as the others.
    labels: [V] or [V, 1], numbers of classes.
    names: what the data call both.

  Raises:
    DataError: they are unusable, or of another shape than the others.
  """
  (x, y), labels = names, flat(labels)
  if labels.dtype.kind in 'SU' and data.class_names:
    _, labels, _ = _numbered(flag, np.array(data.class_names), labels.astype(str), y)
  fault = split_fault(x, images, y, labels)
  images = images if fault else with_channels(images)
  if not fault and images.shape[1:] != data.test_images.shape[1:]:
    fault = f'{x} is {images.shape}, test images {data.test_images.shape}'
  if not fault and labels.max() >= data.num_classes:
    fault = f'{y} holds {labels.max()}, beyond {data.num_classes - 1}'
  if fault:
    raise DataError(f'{flag}: {fault}.')
  images, labels = (np.ascontiguousarray(one) for one in (images, labels))
  labels = labels.astype(np.int32)
  return data._replace(validation_images=images, validation_labels=labels)


def _numbered(flag, train_y, test_y, name='test_y'):
  """Text labels as numbers, in the ascending order of the names, and the names."""
  names = np.unique(train_y)
  if (strange := test_y[~np.isin(test_y, names)]).size:
    told = f'{flag}: {name} holds {strange[0].item()!r}, a class that train_y has not'
    raise DataError(f'{told}; remove it.')
  numbers = (np.searchsorted(names, labels) for labels in (train_y, test_y))
  if names.dtype.kind == 'S':
    names = np.char.decode(names, 'utf-8', 'backslashreplace')
  return *numbers, names.tolist()


def flat(labels: np.ndarray) -> np.ndarray:
  """Labels [M, 1] as [M]; others as they are."""
  return labels[:, 0] if labels.shape[1:] == (1,) else labels


def split_fault(x, images, y, labels):
  """What is wrong with one split, and the remedy if there is one; '' if nothing is.

  Args:
    x: what the images are called.
    images: of any type and shape, as are the labels.
    y: what the labels are called.
    labels: `flat`.
  """
  if images.ndim not in (3, 4) or 0 in images.shape[1:]:
    return f'{x} has shape {images.shape}, not [M, H, W] or [M, H, W, C]'
  if labels.ndim != 1:
    return f'{y} has shape {labels.shape}, not [M]{_if_one_hot(y, labels)}'
  if not len(images) == len(labels) > 0:
    return f'{x} holds {len(images)} images, {y} {len(labels)} labels; save as many'
  if images.dtype != np.uint8:
    return f'{x} is {images.dtype}, not uint8{_if_pixels(x, images)}'
  if labels.dtype.kind not in 'iu':
    return f'{y} is {labels.dtype}, not integer{_if_whole(y, labels)}'
  if labels.min() < 0:
    row = labels.argmin()
    return f'{y}[{row}] is {labels[row]}; number the classes from 0'
  return ''


def _if_pixels(x, images):
  """How to make uint8 of pixels, if they tell what they are; their range if not."""
  kind = images.dtype.kind
  if kind == 'b':
    return f"; convert it with 255 * {x}.astype('uint8')"
  if kind not in 'iuf':
    return ''
  low, high = images.min(), images.max()
  if kind == 'f' and low >= 0 and high <= 1:
    return f"; convert it with (255 * {x}).round().astype('uint8')"
  if low >= 0 and 1 < high <= 255 and (images == np.rint(images)).all():
    return f"; convert it with {x}.astype('uint8')"
  if kind in 'iu' and low >= 0 and 255 < high < 2**16 and not (images % 257).any():
    return f"; convert it with ({x} // 257).astype('uint8')"
  return f', and from {low} to {high}'


def _if_one_hot(y, labels):
  """How to make [M] of one-hot labels; what is wrong with those of many classes."""
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
  if labels.dtype.kind in 'bf':
    whole = np.rint(labels).astype(float)
    wrong = (labels != whole) | (abs(whole) >= 2**31)
    if not wrong.any():
      return f"; convert it with {y}.astype('int32')"
    return f', and {y}[{wrong.argmax()}] is {labels[wrong.argmax()]}'
  return ''


def pair_fault(train_x, train_y, test_x, test_y, num_classes):
  """What is wrong between two splits that are right by themselves; '' if nothing is."""
  if train_x.shape[1:] != test_x.shape[1:]:
    return f'train_x is {train_x.shape}, test_x {test_x.shape}; make images alike'
  if num_classes:
    most, y = max((train_y.max(), 'train_y'), (test_y.max(), 'test_y'))
    return f'{y} holds {most}, beyond {num_classes - 1}' if most >= num_classes else ''
  classes = np.unique(train_y)  # not the numbers up to the largest: it may be 2**63
  if (gaps := np.flatnonzero(classes != np.arange(len(classes)))).size:
    return f'train_y holds no {gaps[0]}; number the classes from 0 without gaps'
  if len(classes) < 2:
    return 'train_y holds one class only; at least 2 are needed'
  if test_y.max() > classes[-1]:
    return f'test_y holds {test_y.max()}, a class that train_y has not; remove it'
  return ''
