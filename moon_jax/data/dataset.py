"""Puts the arrays of a source together as a Dataset, if they fit each other."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.core.flags import flag
from moon_jax.core.types import Dataset, Form, Scale
from moon_jax.data import example_forms, texts
from moon_jax.data.data_errors import DataError, one_line
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import users
from moon_jax.data.pixels import pixel_statistics, with_channels
from moon_jax.data.scale import (
  different_scales,
  grey_levels,
  is_on_scale,
  narrow_line,
  scale_fault,
  scale_of,
)

# The names of the arrays, for messages; few data have the validation arrays.
ARRAY_NAMES = ('train_x', 'train_y', 'test_x', 'test_y', 'val_x', 'val_y')
NUM_REQUIRED = 4  # of these names
# The user of each example; data may have one of these arrays, both or none.
USER_ARRAYS = ('train_client', 'test_client')


class Split(NamedTuple):
  """The images and labels of a split, with the names by which their author knows them.

  Attributes:
    images_name: name of the images, for messages.
    images: an array of any type and shape.
    labels_name: name of the labels, for messages.
    labels: an array of any type and shape, made `flat`.
  """

  images_name: str
  images: np.ndarray
  labels_name: str
  labels: np.ndarray


def checked_dataset(
  data_flag: str,
  name: str,
  arrays: Sequence[np.ndarray],
  *,
  num_classes: int | None = None,
  statistics: tuple[np.ndarray, np.ndarray] | None = None,
  class_names: Sequence[str] = (),
  array_names: Sequence[str] = ARRAY_NAMES,
  scale: Scale | None = None,
  form: Form | None = None,
  numbers_are_checked: bool = False,
) -> Dataset:
  """The Dataset of the arrays of a source, without users.

  Args:
    data_flag: flag of the data, for messages.
    name: name of the data set.
    arrays: images and labels for training, for the test, and perhaps for validation.
    num_classes: Y, if the data have it; otherwise every label up to the largest must
      occur.
    statistics: [C] mean and deviation of pixel / 255; None: they are computed.
    class_names: [Y], if the data have them; text labels give them too.
    array_names: names of the arrays in the data.
    scale: scale of the images; None: that of pictures, uint8.
    form: what the arrays hold; None: grey levels of pictures.
    numbers_are_checked: whether each array was held to the form before they were joined
      in one dtype. Float16's 4095, which is 4096, is not beyond a range up to 4095.

  Raises:
    DataError: an array is unusable, or does not fit another one.
  """
  scale, form = scale or Scale(), form or Form()
  images = arrays[::2]
  labels = [flat(array) for array in arrays[1::2]]
  label_kinds = {array.dtype.kind for array in labels}
  if label_kinds in ({'S'}, {'U'}):
    labels, class_names = numbered(data_flag, labels, array_names[1::2])
  splits = _splits(array_names, images, labels)
  _check_each(data_flag, splits, scale, form, check_numbers=not numbers_are_checked)
  if form.content == 'levels':
    images = _arranged_levels(data_flag, images, scale, form)
  elif form.content != 'texts':
    images, form = _arranged_numbers(data_flag, array_names[::2], images, form)
  _check_pairs(data_flag, _splits(array_names, images, labels), num_classes)
  num_classes = num_classes or int(labels[0].max()) + 1
  if class_names == [*map(str, range(num_classes))]:  # also TFDS's for unnamed classes
    class_names = ()
  if form.content != 'levels':
    statistics = example_forms.statistics_of_numbers(images[0], form)
    mean, std = statistics
    example_forms.say_if_too_fine(data_flag, form, mean, std)
  train, test, *validation = zip(images, labels, strict=True)
  data = make_dataset(
    name, train, test, num_classes, statistics, class_names, scale, form
  )
  for validation_images, validation_labels in validation:
    data = data._replace(
      validation_images=np.ascontiguousarray(validation_images),
      validation_labels=np.ascontiguousarray(validation_labels, np.int32),
    )
  return data


def _check_each(data_flag, splits, scale, form, *, check_numbers):
  """Raises DataError if a split has a fault of its own."""
  for split in splits:
    fault = split_fault(split, scale, form, check_numbers=check_numbers)
    if not fault:
      continue
    images = [split.images for split in splits]
    are_levels = form.content == 'levels'
    if are_levels and not all(is_on_scale(array, scale) for array in images):
      images_names = [split.images_name for split in splits]
      fault = different_scales(images_names, images) or fault
      if not form.axes and split.images.ndim == 3:
        fault += f'. If they are signals [T, C], {flag("data.axes", "TC")} keeps them'
    raise DataError(f'{data_flag}: {fault}.')


def _check_pairs(data_flag, splits, num_classes):
  """Raises DataError if a split does not fit the first one, for training."""
  train, *others = splits
  for other in others:
    if fault := pair_fault(train, other, num_classes):
      raise DataError(f'{data_flag}: {fault}.')


def _arranged_levels(data_flag, images, scale, form):
  """Pictures of all splits as grey levels, with their channels last."""
  return [
    example_forms.arranged(
      grey_levels(array, scale), form, data_flag if number == 0 else ''
    )
    for number, array in enumerate(images)
  ]


def _arranged_numbers(data_flag, names, examples, form):
  """Examples of numbers or words of all splits, as they are stored, and their form.

  Raises:
    DataError: a number is beyond the dtype, or a word beyond the vocabulary.
  """
  with one_line(f'{data_flag} cannot be kept on the device'):
    stored, form = example_forms.as_stored(examples, form)
  arranged = [
    example_forms.arranged(array, form, data_flag if number == 0 else '')
    for number, array in enumerate(stored)
  ]
  form = example_forms.with_vocabulary(form, arranged[0])
  if form.content == 'words':
    for name, array in zip(names, arranged, strict=False):
      if fault := example_forms.numbers_fault(name, array, form):
        raise DataError(f'{data_flag}: {fault}.')
  return arranged, form


def arrays_dataset(
  data_flag: str,
  name: str,
  arrays: Sequence[np.ndarray],
  *,
  reading: Reading,
  num_classes: int | None = None,
  class_names: Sequence[str] = (),
  array_names: Sequence[str] = ARRAY_NAMES,
  tokenizer: str = '',
) -> Dataset:
  """`checked_dataset` of any arrays: all are held to the form and scale of the first.

  A line of the output says so if the images use little of their range.

  Args:
    data_flag: flag of the data, for messages.
    name: name of the data set.
    arrays: see `checked_dataset`.
    reading: how the arrays are read.
    num_classes: see `checked_dataset`.
    class_names: see `checked_dataset`.
    array_names: see `checked_dataset`.
    tokenizer: value of `data.tokenizer`; '': the source has no texts.
  """
  if tokenizer and _has_texts(data_flag, arrays, array_names, tokenizer):
    texts.require_no_other_reading(reading)
    arrays = _with_texts(arrays)
    form = example_forms.TEXTS
  else:
    form = example_forms.form_of(data_flag, array_names[0], arrays[0], reading)
  if form.content != 'levels':
    return checked_dataset(
      data_flag,
      name,
      arrays,
      num_classes=num_classes,
      class_names=class_names,
      array_names=array_names,
      form=form,
    )
  scale = scale_of(arrays[0], reading.range)
  dataset = checked_dataset(
    data_flag,
    name,
    arrays,
    num_classes=num_classes,
    class_names=class_names,
    array_names=array_names,
    scale=scale,
    form=form,
  )
  if notice := example_forms.notice_of(arrays[0], form):
    print(f'{data_flag}: {array_names[0]}: {notice}', file=sys.stderr)
  for images_name, images in zip(array_names[::2], arrays[::2], strict=False):
    if line := narrow_line(f'{data_flag}: {images_name}', images, scale):
      if fault := different_scales(array_names[::2], arrays[::2]):
        line = f'{data_flag}: {fault}.'
      print(line, file=sys.stderr)
      break
  return dataset


def _has_texts(data_flag, arrays, array_names, tokenizer):
  """Whether the examples are texts.

  Raises:
    DataError: some are texts and others are not, or the knobs say otherwise.
  """
  are_texts = [texts.is_text(examples) for examples in arrays[::2]]
  if tokenizer == texts.NONE and not any(are_texts):
    return False
  for name, examples, are_text in zip(
    array_names[::2], arrays[::2], are_texts, strict=False
  ):
    if not are_text:
      raise DataError(
        f'{data_flag}: {name} is {np.asarray(examples).dtype} of shape '
        f'{np.shape(examples)}, and not texts [M]; '
        f'{flag("data.tokenizer", texts.NONE)} reads numbers.'
      )
  if tokenizer == texts.NONE:
    raise texts.tokenizer_needed(data_flag)
  return True


def _with_texts(arrays):
  """The arrays, with the texts as objects: each has the space of its own length."""
  return [
    np.array(array, object) if number % 2 == 0 else array
    for number, array in enumerate(arrays)
  ]


def registered_dataset(
  source: str, arrays: tuple[np.ndarray, ...], reading: Reading
) -> Dataset:
  """The Dataset of the arrays that a registered source returns.

  Args:
    source: name of the source.
    arrays: train_x, train_y, test_x, test_y, as in a .npz file, and perhaps
      train_client, test_client, of which one may be None.
    reading: how the arrays are read.

  Raises:
    DataError: an array is unusable.
  """
  data_flag = flag('data.source', source)
  required = ARRAY_NAMES[:NUM_REQUIRED]
  if len(arrays) not in (len(required), len(required + USER_ARRAYS)):
    raise DataError(
      f'{data_flag} must return ({", ".join(required)}), and with users '
      f'{", ".join(USER_ARRAYS)} too.'
    )
  with one_line(f'{data_flag} must return arrays'):
    arrays = [None if array is None else _plain_array(array) for array in arrays]
  data = arrays_dataset(data_flag, source, arrays[: len(required)], reading=reading)
  train_users, test_users = arrays[len(required) :] or (None, None)
  return users.named(data_flag, data, train_users, test_users)


def make_dataset(
  name: str,
  train: tuple[np.ndarray, np.ndarray],
  test: tuple[np.ndarray, np.ndarray],
  num_classes: int,
  statistics: tuple[np.ndarray, np.ndarray] | None = None,
  class_names: Sequence[str] = (),
  scale: Scale | None = None,
  form: Form | None = None,
) -> Dataset:
  """A Dataset of arrays that are known to fit each other.

  Args:
    name: name of the data set.
    train: training images [M, H, W] or [M, H, W, C] uint8, and their labels [M].
    test: test images and their labels.
    num_classes: Y.
    statistics: [C] mean and deviation of pixel / 255; None: they are computed.
    class_names: [Y]; left out if they do not name Y different classes.
    scale: scale that the images had in the source; None: grey levels, 0 to 255.
    form: what the arrays hold, if they are `arranged` as it says; None: pictures.
  """
  if form is None or not form.axes:
    train, test = ((with_channels(images), labels) for images, labels in (train, test))
  train_images, train_labels = _contiguous(train)
  test_images, test_labels = _contiguous(test)
  mean, std = statistics or pixel_statistics(train_images)
  class_names = tuple(map(str, class_names))
  if not len(set(class_names)) == len(class_names) == num_classes:
    class_names = ()
  return Dataset(
    name=name,
    train_images=train_images,
    train_labels=train_labels,
    test_images=test_images,
    test_labels=test_labels,
    num_classes=num_classes,
    mean=np.asarray(mean, np.float32),
    std=np.asarray(std, np.float32),
    class_names=class_names,
    scale=scale or Scale(),
    form=form or Form(),
  )


def flat(labels: np.ndarray) -> np.ndarray:
  """Labels [M, 1] as [M]; other labels unchanged."""
  return labels[:, 0] if labels.shape[1:] == (1,) else labels


def split_fault(
  split: Split,
  scale: Scale | None = None,
  form: Form | None = None,
  *,
  check_numbers: bool = True,
) -> str:
  """What is wrong with one split, and the remedy if there is one; '' if nothing is.

  Args:
    split: the split.
    scale: the scale of the training images; None: it is not checked here.
    form: what the images are; None: it is not checked here.
    check_numbers: whether numbers that are no grey levels are held to the form.
  """
  images_name, images, labels_name, labels = split
  if fault := _shape_fault(images_name, images, form):
    return fault
  if labels.ndim != 1:
    remedy = _one_hot_remedy(labels_name, labels)
    return f'{labels_name} has shape {labels.shape}, not [M]{remedy}'
  if not len(images) == len(labels) > 0:
    return (
      f'{images_name} holds {len(images)} images, {labels_name} {len(labels)} labels; '
      'save as many'
    )
  if form and form.content != 'levels':
    fault = check_numbers and example_forms.numbers_fault(images_name, images, form)
    if fault:
      return fault
  elif scale and (fault := scale_fault(images_name, images, scale)):
    return fault
  if labels.dtype.kind not in 'iu':
    remedy = _integer_remedy(labels_name, labels)
    return f'{labels_name} is {labels.dtype}, not integer{remedy}'
  if labels.min() < 0:
    row = labels.argmin()
    return f'{labels_name}[{row}] is {labels[row]}; number the classes from 0'
  return ''


def _shape_fault(images_name, images, form):
  """What is wrong with the number of axes, or an axis of size 0."""
  if not form:
    fits, expected = images.ndim > 1, 'examples along the first axis'
  else:
    fits, expected = example_forms.has_axes(images, form), '[M, H, W] or [M, H, W, C]'
    if form.axes:
      expected = f'[M, {", ".join(form.axes)}]'
  if fits and 0 not in images.shape[1:]:
    return ''
  return f'{images_name} has shape {images.shape}, not {expected}'


def pair_fault(train: Split, other: Split, num_classes: int | None) -> str:
  """What is wrong between two splits, in the form of `split_fault`; '' if nothing is.

  Args:
    train: the training split, without a fault of its own.
    other: another split, without a fault of its own.
    num_classes: Y, if the data have it.
  """
  if train.images.shape[1:] != other.images.shape[1:]:
    return (
      f'{train.images_name} is {train.images.shape}, {other.images_name} '
      f'{other.images.shape}; make images alike'
    )
  if (train.labels == train.labels[0]).all():
    return f'{train.labels_name} holds one class only; at least 2 are needed'
  if num_classes:
    largest, labels_name = max(
      (train.labels.max(), train.labels_name), (other.labels.max(), other.labels_name)
    )
    if largest >= num_classes:
      return f'{labels_name} holds {largest}, beyond {num_classes - 1}'
    return ''
  classes = np.unique(train.labels)  # not a count up to the largest, which may be 2**63
  gaps = np.flatnonzero(classes != np.arange(len(classes)))
  if gaps.size:
    return (
      f'{train.labels_name} holds no {gaps[0]}; number the classes from 0 without gaps'
    )
  if other.labels.max() > classes[-1]:
    return (
      f'{other.labels_name} holds {other.labels.max()}, a class that '
      f'{train.labels_name} has not; remove it'
    )
  return ''


def _contiguous(split):
  images, labels = split
  return np.ascontiguousarray(images), np.ascontiguousarray(labels, np.int32)


def _splits(array_names, images, labels):
  """The splits that there are: the last names may stand for no array."""
  images_names, labels_names = array_names[::2], array_names[1::2]
  return [
    Split(images_names[i], images[i], labels_names[i], labels[i])
    for i in range(len(images))
  ]


def _plain_array(values):
  """The values as an array; text in an array of objects, as of pandas, as text."""
  array = np.asarray(values)
  is_text = array.dtype == object and all(isinstance(word, str) for word in array.flat)
  return array.astype(str) if is_text else array


def numbered(
  data_flag: str, labels: Sequence[np.ndarray], label_names: Sequence[str]
) -> tuple[list[np.ndarray], list[str]]:
  """Text labels as numbers, in the ascending order of the classes, and the classes.

  Args:
    data_flag: flag of the data, for messages.
    labels: the labels [M] of each split, training first, as text.
    label_names: names of these arrays.

  Raises:
    DataError: a class is not in training.
  """
  classes = np.unique(labels[0])
  for label_texts, name in zip(labels, label_names, strict=False):
    unseen_texts = label_texts[~np.isin(label_texts, classes)]
    if unseen_texts.size:
      raise DataError(
        f'{data_flag}: {name} holds {unseen_texts[0].item()!r}, a class that '
        f'{label_names[0]} has not; remove it.'
      )
  numbers = [np.searchsorted(classes, label_texts) for label_texts in labels]
  if classes.dtype.kind == 'S':
    classes = users.as_text(classes)
  return numbers, classes.tolist()


def _one_hot_remedy(labels_name, labels):
  """How to convert one-hot labels to [M], or what is wrong with them; '' for others."""
  if labels.ndim != 2 or labels.dtype.kind not in 'biuf':
    return ''
  if not np.isin(labels, (0, 1)).all():
    return ''
  wrong_rows = np.flatnonzero(labels.sum(1) != 1)
  if wrong_rows.size:
    row = wrong_rows[0]
    return (
      f': row {row} names {int(labels[row].sum())} classes, and an example must have '
      'one; several labels of an example are not supported'
    )
  return f'; convert one-hot with {labels_name}.argmax(1)'


def _integer_remedy(labels_name, labels):
  """How to convert labels that are not integers; '' if there is no way."""
  if labels.dtype.kind in 'SU':
    return ': number the classes from 0, alike in all the data'
  if labels.dtype.kind in 'fb' and (labels == np.rint(labels.astype(float))).all():
    return f"; convert it with {labels_name}.astype('int32')"
  return ': a label is a class, and regression is not supported'
