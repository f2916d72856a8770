"""The examples of each user, checked and put together; all federated sources use it."""

import importlib
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core.errors import printable
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import npz
from moon_jax.data.arrays import DataError, grey_levels, listed, one_line
from moon_jax.data.federated import users

# Usual names of images and labels, if the knobs name none: the first that is there.
IMAGES = ('pixels', 'image', 'img', 'images', 'x')
LABELS = ('label', 'fine_label', 'labels', 'y')


class User(NamedTuple):
  """The examples of one user.

  Attributes:
    name: an integer or text.
    images: [n, H, W] or [n, H, W, C] uint8.
    labels: [n] integers.
  """

  name: int | str
  images: np.ndarray
  labels: np.ndarray


class Federation(NamedTuple):
  """The content of a source, user by user, read when asked for.

  Attributes:
    flag: flag of the data, for messages.
    name: name of the data.
    train: the users with training examples.
    test: the users with test examples.
    num_classes: Y, if the data have it.
    class_names: [Y], if the data have them.
    validation: a single user with the examples kept for validation, or nobody.
  """

  flag: str
  name: str
  train: Iterable[User]
  test: Iterable[User]
  num_classes: int | None = None
  class_names: Sequence[str] = ()
  validation: Iterable[User] = ()


def package(source: str, name: str) -> types.ModuleType:
  """An optional package that a source needs.

  Raises:
    DataError: it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError:
    raise DataError(
      f'--config.data.source={source} needs the package {name}: '
      f'pip install {name.partition(".")[0]}'
    ) from None


def features(what: str, image: str, label: str, has: Iterable[str]) -> tuple[str, str]:
  """The names of the images and the labels: those that are chosen, or the usual ones.

  Args:
    what: name of the data, for the message.
    image: the value of `data.image`; '' stands for the usual names.
    label: the value of `data.label`.
    has: the names that the data have.

  Raises:
    DataError: the data do not have them.
  """
  has, found = list(has), []
  for knob, chosen, usual in (('image', image, IMAGES), ('label', label, LABELS)):
    wanted = (chosen,) if chosen else usual
    if not (names := [name for name in wanted if name in has]):
      told = f'{what} has {listed(has)}'
      raise DataError(f'{told}: name its {knob} by --config.data.{knob}.')
    found.append(names[0])
  return tuple(found)


def user(what: str, name: int | str, images: Any, labels: Any) -> User:
  """A user with the examples; pixels become `grey_levels`.

  Raises:
    DataError: there are no examples, or they are no images with labels.
  """
  images, labels = grey_levels(np.asarray(images)), npz.flat(np.asarray(labels))
  told = f'{what}: client {printable(str(name))!r}'
  if not (images.size or labels.size):
    raise DataError(f'{told} has no examples; leave it out.')
  if fault := npz.split_fault('images', images, 'labels', labels):
    raise DataError(f'{told}: {fault}.')
  return User(name, images, labels)


def once(what: str, found: Iterable[User]) -> Iterator[User]:
  """The users, each once, with images of one shape.

  Raises:
    DataError: a user comes twice, has images of another shape, or a name of another
      type: 7 and '7' would become one.
  """
  seen, shape, kind = set(), None, None
  for one in found:
    told, shape = printable(str(one.name)), shape or one.images.shape[1:]
    kind = kind or type(one.name)
    if type(one.name) is not kind:
      raise DataError(f'{what}: client {told!r}: name all by numbers, or all by text.')
    if one.name in seen:
      raise DataError(f'{what}: client {told!r} is there twice.')
    if one.images.shape[1:] != shape:
      raise DataError(
        f'{what}: client {told!r} has images of shape {one.images.shape[1:]}, others '
        f'of {shape}.'
      )
    seen.add(one.name)
    yield one


def two_files(
  read: Callable[[str, str, str, str], Iterable[User]],
  path: str,
  test_path: str,
  image: str,
  label: str,
) -> Federation:
  """The federation of a file of training examples and a file of test examples.

  Args:
    read: (flag, path, image, label) -> the users of a file.
    path: path of the training examples.
    test_path: path of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels, likewise.
  """
  flag = f'--config.data.path={path!r}'
  test_flag = f'--config.data.test_path={test_path!r}'
  train = once(flag, read(flag, path, image, label))
  test = once(test_flag, read(test_flag, test_path, image, label))
  return Federation(flag, pathlib.Path(path).stem, train, test)


def two_splits(path: str, read: Callable[..., Iterable[User]]) -> Federation:
  """The federation in a folder; `read(flag, folder, split)` gives a split's users."""
  flag, root = f'--config.data.path={path!r}', expand(path)
  splits = (once(flag, read(flag, root, one)) for one in ('train', 'test'))
  return Federation(flag, root.stem, *splits)


def files_in(wanted: str, folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
  """The files of a folder whose names fit a pattern, in the order of the names.

  Raises:
    DataError: there are none; `wanted` says what has to be there.
  """
  with one_line(wanted):
    found = sorted(folder.glob(pattern))
  if not found:
    raise DataError(f'{wanted}.')
  return found


def joined(
  flag: str, split: str, found: Iterable[User]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Images [M, H, W(, C)], labels [M] and ids [M] of all users, one after the other.

  Raises:
    DataError: there are no users.
  """
  parts = list(found)
  if not parts:
    raise DataError(f'{flag} has no user with {split} examples.')
  images, labels = (np.concatenate([one[i] for one in parts]) for i in (1, 2))
  sizes = [len(one.labels) for one in parts]
  return images, labels, np.repeat(np.array([one.name for one in parts]), sizes)


def dataset(federation: Federation) -> Dataset:
  """All users' examples in memory, user by user.

  Raises:
    DataError: the examples are unusable.
  """
  flag, name, train, test, num_classes, class_names, validation = federation
  *train, train_ids = joined(flag, 'train', train)
  *test, test_ids = joined(flag, 'test', test)
  held = (array for _, *pair in validation for array in pair)
  arrays = (*train, *test, *held)
  data = npz.dataset(flag, name, arrays, num_classes, class_names=class_names)
  return users.named(flag, data, train_ids, test_ids)
