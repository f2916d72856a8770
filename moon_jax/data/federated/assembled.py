"""The examples of each user, checked and put together; all federated sources use it."""

import importlib
import itertools
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core.errors import nearest_name_hint, printable
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset, Form, Scale
from moon_jax.data import example_forms, texts
from moon_jax.data.data_errors import DataError, listed, one_line
from moon_jax.data.dataset import (
  Split,
  checked_dataset,
  flat,
  numbered,
  split_fault,
)
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import users
from moon_jax.data.scale import (
  FLOAT_RANGE,
  grey_levels,
  narrow_line,
  scale_fault,
  scale_of,
)

# Usual names of images and labels, if the knobs name none: the first that is there.
IMAGE_NAMES = ('pixels', 'image', 'img', 'images', 'x')
TEXT_NAMES = ('text', 'sentence', 'content', 'tweet', 'x')
LABEL_NAMES = ('label', 'fine_label', 'labels', 'y')


class User(NamedTuple):
  """The examples of one user.

  Attributes:
    name: an integer or text.
    images: [n, H, W] or [n, H, W, C]; uint8 in a Federation, and before `on_one_scale`
      numbers of any type.
    labels: [n] integers.
    owner: the user in a message, with the flag of the data.
  """

  name: int | str
  images: np.ndarray
  labels: np.ndarray
  owner: str = ''


class Federation(NamedTuple):
  """The content of a source, user by user, read when asked for.

  Attributes:
    data_flag: flag of the data, for messages.
    name: name of the data.
    train: the users with training examples.
    test: the users with test examples.
    num_classes: Y, if the data have it.
    class_names: [Y], if the data have them.
    validation: a single user with the examples kept for validation, or nobody.
    scale: the scale that the images have in the source.
    form: what the arrays hold; they keep the axes of the source.
    feature_names: [D] names of the numbers of an example; () if the data have none.
  """

  data_flag: str
  name: str
  train: Iterable[User]
  test: Iterable[User]
  num_classes: int | None = None
  class_names: Sequence[str] = ()
  validation: Iterable[User] = ()
  scale: Scale = Scale()
  form: Form = Form()
  feature_names: tuple[str, ...] = ()


class Examples(NamedTuple):
  """The examples of all users, one user after the other.

  Attributes:
    images: [M, H, W] or [M, H, W, C] uint8.
    labels: [M] integers.
    user_names: [M]; None if the users are unknown.
  """

  images: np.ndarray
  labels: np.ndarray
  user_names: np.ndarray | None


def package(source: str, name: str) -> types.ModuleType:
  """An optional package that a source needs.

  Raises:
    DataError: it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError:
    raise DataError(
      f'{flag("data.source", source)} needs the package {name}: '
      f'pip install {name.partition(".")[0]}'
    ) from None


def feature_names(
  owner: str, image: str, label: str, names: Iterable[str]
) -> tuple[str, str]:
  """The names of the images and the labels: those that are chosen, or the usual ones.

  Args:
    owner: what has the names, for the message.
    image: the value of `data.image`; '' stands for the usual names.
    label: the value of `data.label`.
    names: the names that the data have.

  Raises:
    DataError: the data do not have them.
  """
  names = list(names)
  return (
    _feature_name(owner, 'image', image, IMAGE_NAMES, names),
    label_name(owner, label, names),
  )


def label_name(owner: str, label: str, names: Iterable[str]) -> str:
  """The name of the labels alone; see `feature_names`."""
  return _feature_name(owner, 'label', label, LABEL_NAMES, list(names))


def text_name(owner: str, text: str, names: Iterable[str]) -> str:
  """The name of the texts: that which is chosen by `data.text`, or a usual one."""
  return _feature_name(owner, 'text', text, TEXT_NAMES, list(names))


def _feature_name(owner, kind, chosen_name, usual_names, names):
  for name in (chosen_name,) if chosen_name else usual_names:
    if name in names:
      return name
  if chosen_name:
    hint = nearest_name_hint(chosen_name, [printable(str(name)) for name in names])
    raise DataError(
      f'{owner} has no column {chosen_name!r} of {flag(f"data.{kind}")}; it has '
      f'{listed(names)}.{hint}'
    )
  raise DataError(
    f'{owner} has {listed(names)}: name its {kind} by {flag(f"data.{kind}")}.'
  )


def make_user(data_flag: str, name: int | str, images: Any, labels: Any) -> User:
  """A user with the examples, whose scale is checked by `on_one_scale`.

  Raises:
    DataError: there are no examples, or they are no images with labels.
  """
  images, labels = np.asarray(images), flat(np.asarray(labels))
  owner = f'{data_flag}: client {printable(str(name))!r}'
  if not (images.size or labels.size):
    raise DataError(f'{owner} has no examples; leave it out.')
  if fault := split_fault(Split('images', images, 'labels', labels)):
    raise DataError(f'{owner}: {fault}.')
  return User(name, images, labels, owner)


def make_text_user(
  data_flag: str, name: int | str, user_texts: Sequence[str], labels: Any
) -> User:
  """A user whose examples are texts, for `with_text_labels`.

  Raises:
    DataError: there are no examples, an example is no text, or there are not as many
      labels.
  """
  owner = f'{data_flag}: client {printable(str(name))!r}'
  with one_line(f'{owner} cannot be used'):
    labels = flat(np.asarray(labels))
  if not (len(user_texts) or labels.size):
    raise DataError(f'{owner} has no examples; leave it out.')
  if not texts.is_text(user_texts):
    raise DataError(
      f'{owner} has examples that are no texts; {flag("data.tokenizer", texts.NONE)} '
      'reads numbers.'
    )
  if labels.ndim != 1 or len(labels) != len(user_texts):
    raise DataError(
      f'{owner} has {len(user_texts)} texts and labels of shape {labels.shape}, not '
      f'[{len(user_texts)}].'
    )
  return User(name, np.array(user_texts, object), labels, owner)


def with_text_labels(federation: Federation, tokenizer: str) -> Federation:
  """The federation of texts whose labels are numbers; reads all users.

  Labels that are characters, if the texts are divided into these, are next characters;
  other labels of text are numbered in ascending order.

  Args:
    federation: users with texts.
    tokenizer: value of `data.tokenizer`.

  Raises:
    DataError: the labels cannot be used.
  """
  data_flag = federation.data_flag
  train, test = list(federation.train), list(federation.test)
  if not (train and test):
    # `joined` says that there is nobody.
    return federation._replace(train=train, test=test)
  validation = list(federation.validation)
  splits = [train, test, validation] if validation else [train, test]
  if all(user.labels.dtype.kind == 'U' for users in splits for user in users):
    labels = [np.concatenate([user.labels for user in users]) for users in splits]
    are_characters = all(
      (np.char.str_len(split_labels) == 1).all() for split_labels in labels
    )
    if are_characters and tokenizer == texts.CHARACTERS:
      numbers, class_names = texts.next_characters(data_flag, labels)
    else:
      names = [f'labels for {name}' for name in ('training', 'test', 'validation')]
      numbers, class_names = numbered(data_flag, labels, names)
    federation = federation._replace(
      num_classes=len(class_names), class_names=class_names
    )
    splits = [
      [
        user._replace(labels=labels_of_user)
        for user, labels_of_user in zip(
          users, _divided_among(users, split_numbers), strict=True
        )
      ]
      for users, split_numbers in zip(splits, numbers, strict=True)
    ]
  train, test, *validation = splits
  for user in itertools.chain.from_iterable(splits):
    split = Split('texts', user.images, 'labels', user.labels)
    if fault := split_fault(split, form=example_forms.TEXTS):
      raise DataError(f'{user.owner}: {fault}.')
  return federation._replace(
    train=train,
    test=test,
    validation=validation[0] if validation else (),
    form=example_forms.TEXTS,
  )


def _divided_among(users_read, rows):
  """Each user's part of the rows of all."""
  ends = np.cumsum([len(user.labels) for user in users_read])
  return np.split(rows, ends[:-1])


def each_once(data_flag: str, users_read: Iterable[User]) -> Iterator[User]:
  """The users, each once, with images of one shape.

  Raises:
    DataError: a user comes twice, has images of another shape, or a name of another
      type: 7 and '7' would become one.
  """
  names_seen = set()
  first_user = None
  for user in users_read:
    first_user = first_user or user
    owner = f'{data_flag}: client {printable(str(user.name))!r}'
    if type(user.name) is not type(first_user.name):
      raise DataError(f'{owner}: name all by numbers, or all by text.')
    if user.name in names_seen:
      raise DataError(f'{owner} is there twice.')
    shape, first_shape = user.images.shape[1:], first_user.images.shape[1:]
    if shape != first_shape:
      raise DataError(f'{owner} has images of shape {shape}, others of {first_shape}.')
    names_seen.add(user.name)
    yield user


def on_one_scale(
  federation: Federation,
  reading: Reading,
  float_range: tuple[float, float] = FLOAT_RANGE,
) -> Federation:
  """The federation with grey levels: the first training user's dtype decides the scale.

  Numbers that are no grey levels stay what they are, and have the first user's form.

  It reads this user. When the others are read, they are held to the scale. After the
  last training user a line of the output says so if all use little of the range.

  Args:
    federation: the users with the images of the source.
    reading: how the arrays are read.
    float_range: the numbers of black and white in floats, if the dtype decides.

  Raises:
    DataError: also when the users are read: a user's images are not on the scale.
  """
  train = iter(federation.train)
  first_user = next(train, None)
  if first_user is None:
    return federation  # `joined` says that there is nobody
  form = example_forms.form_of(
    federation.data_flag, 'images', first_user.images, reading
  )
  every_user = itertools.chain([first_user], train)
  if form.content != 'levels':
    return federation._replace(
      train=_with_numbers(every_user, form),
      test=_with_numbers(federation.test, form),
      validation=federation.validation and _with_numbers(federation.validation, form),
      form=form,
    )
  scale = scale_of(first_user.images, reading.range, float_range)
  if notice := example_forms.notice_of(first_user.images, form):
    print(f'{federation.data_flag}: {notice}', file=sys.stderr)
  every_user = _telling_if_narrow(federation.data_flag, every_user, scale)
  return federation._replace(
    train=_with_levels('training', every_user, scale),
    test=_with_levels('the test', federation.test, scale),
    # Nobody stays nobody.
    validation=federation.validation
    and _with_levels('validation', federation.validation, scale),
    scale=scale,
    form=form,
  )


def _with_numbers(users_read, form):
  """The users, held to the form of all."""
  for user in users_read:
    if fault := example_forms.numbers_fault('images', user.images, form):
      raise DataError(f'{user.owner}: {fault}.')
    yield user


def _with_levels(purpose, users_read, scale):
  """The users with grey levels."""
  for user in users_read:
    if fault := scale_fault(f'the array for {purpose}', user.images, scale):
      raise DataError(f'{user.owner}: {fault}.')
    yield user._replace(images=grey_levels(user.images, scale))


def _telling_if_narrow(data_flag, users_read, scale):
  """The users; at their end a line says if all use little of the scale's range."""
  extremes = []
  for user in users_read:
    yield user
    extremes += [user.images.min(), user.images.max()]
    extremes = [min(extremes), max(extremes)]
  name = f'{data_flag}: the array of all training images'
  if line := narrow_line(name, np.array(extremes), scale):
    print(line, file=sys.stderr)


def two_files(
  read: Callable[[str, str, str, str], Iterable[User]],
  path: str,
  test_path: str,
  image: str,
  label: str,
  reading: Reading,
) -> Federation:
  """The federation of a file of training examples and a file of test examples.

  Args:
    read: (data_flag, path, image, label) -> the users of a file.
    path: path of the training examples.
    test_path: path of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels, likewise.
    reading: how the arrays are read.
  """
  data_flag = flag('data.path', path)
  test_flag = flag('data.test_path', test_path)
  federation = Federation(
    data_flag=data_flag,
    name=pathlib.Path(path).stem,
    train=each_once(data_flag, read(data_flag, path, image, label)),
    test=each_once(test_flag, read(test_flag, test_path, image, label)),
  )
  return on_one_scale(federation, reading)


def two_splits(
  path: str,
  read: Callable[[str, pathlib.Path, str], Iterable[User]],
  reading: Reading,
  float_range: tuple[float, float] = FLOAT_RANGE,
) -> Federation:
  """The federation in a folder, on one scale.

  Args:
    path: the folder.
    read: (data_flag, folder, split) -> the users of a split.
    reading: how the arrays are read.
    float_range: the numbers of black and white in floats, if the dtype decides.
  """
  return on_one_scale(users_of_splits(path, read), reading, float_range)


def users_of_splits(
  path: str, read: Callable[[str, pathlib.Path, str], Iterable[User]]
) -> Federation:
  """The federation in a folder, on no scale yet; see `two_splits`."""
  data_flag = flag('data.path', path)
  folder = expand(path)
  return Federation(
    data_flag=data_flag,
    name=folder.stem,
    train=each_once(data_flag, read(data_flag, folder, 'train')),
    test=each_once(data_flag, read(data_flag, folder, 'test')),
  )


def files_in(
  requirement: str, folder: pathlib.Path, pattern: str
) -> list[pathlib.Path]:
  """The files of a folder whose names fit a pattern, in the order of the names.

  Raises:
    DataError: there are none; `requirement` says what has to be there.
  """
  with one_line(requirement):
    paths = sorted(folder.glob(pattern))
  if not paths:
    raise DataError(f'{requirement}.')
  return paths


def joined(data_flag: str, split: str, users_read: Iterable[User]) -> Examples:
  """The examples of all users, one after the other.

  Raises:
    DataError: there are no users.
  """
  users_read = list(users_read)
  if not users_read:
    raise DataError(f'{data_flag} has no user with {split} examples.')
  names = np.array([user.name for user in users_read])
  return Examples(
    images=np.concatenate([user.images for user in users_read]),
    labels=np.concatenate([user.labels for user in users_read]),
    user_names=np.repeat(names, [len(user.labels) for user in users_read]),
  )


def dataset_of(federation: Federation) -> Dataset:
  """All users' examples in memory, user by user.

  Raises:
    DataError: the examples are unusable.
  """
  data_flag = federation.data_flag
  train = joined(data_flag, 'train', federation.train)
  test = joined(data_flag, 'test', federation.test)
  arrays = [train.images, train.labels, test.images, test.labels]
  for reserved in federation.validation:
    arrays += [reserved.images, reserved.labels]
  dataset = checked_dataset(
    data_flag,
    federation.name,
    arrays,
    num_classes=federation.num_classes,
    class_names=federation.class_names,
    form=federation.form,
    numbers_are_checked=True,
  )._replace(
    scale=federation.scale,
    feature_names=federation.feature_names,
  )
  return users.named(data_flag, dataset, train.user_names, test.user_names)
