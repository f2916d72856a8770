"""What each user has, checked and put together: what the federated sources share."""

import importlib
import pathlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from moon_jax.data import npz
from moon_jax.data.arrays import DataError
from moon_jax.data.federated import users
from moon_jax.errors import printable
from moon_jax.types import Dataset

# What sources call images and labels, if the knobs do not say: the first that is there.
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
      "pip install 'moon_jax[federated]'."
    ) from None


def feature(what: str, knob: str, chosen: str, has: Iterable[str]) -> str:
  """The name of the feature that a knob chooses, or else the usual one.

  Args:
    what: names the data, for the message.
    knob: 'image' or 'label'.
    chosen: its value.
    has: the names that the data have.

  Raises:
    DataError: there is none.
  """
  has = list(has)
  wanted = (chosen,) if chosen else {'image': IMAGES, 'label': LABELS}[knob]
  found = next((name for name in wanted if name in has), None)
  if found is None:
    told = ', '.join(map(printable, map(str, has[:20]))) or 'nothing'
    raise DataError(f'{what} has {told}: name its {knob} by --config.data.{knob}.')
  return found


def user(what: str, name: int | str, images: Any, labels: Any) -> User:
  """A user with the examples, whose pixels become uint8.

  They may be floats in [0, 1], which are rounded to whole grey levels, or any integers
  in [0, 255].

  Raises:
    DataError: there are none, or they are no images with labels.
  """
  images, labels = np.asarray(images), np.asarray(labels)
  told = f'{what}: client {printable(str(name))!r}'
  if not (images.size or labels.size):
    raise DataError(f'{told} has no examples; leave it out.')
  if images.dtype.kind == 'f':
    if not ((images >= 0) & (images <= 1)).all():
      raise DataError(f'{told} has float images that are not in [0, 1].')
    images = np.rint(255 * images).astype(np.uint8)
  if images.dtype.kind in 'iu' and ((images >= 0) & (images <= 255)).all():
    images = images.astype(np.uint8)
  labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
  if fault := npz.split_fault('train', images, labels):
    fault = fault.replace('train_x', 'images').replace('train_y', 'labels')
    raise DataError(f'{told}: {fault}.')
  return User(name, images, labels)


def once(what: str, found: Iterable[User]) -> Iterator[User]:
  """The users, whose images must be alike.

  Raises:
    DataError: one comes twice, or has images of another shape.
  """
  seen, shape = set(), None
  for one in found:
    told, shape = printable(str(one.name)), shape or one.images.shape[1:]
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
  read: Callable[[str, str, str, str], Iterator[User]],
  path: str,
  test_path: str,
  image: str,
  label: str,
) -> Dataset:
  """`dataset` of a file of training examples and a file of test examples.

  Args:
    read: (flag, path, image, label) -> the users of a file.
    path: of the training examples.
    test_path: of the test examples.
    image: the name of the images; '' is one of the usual ones.
    label: the name of the labels.
  """
  flag = f'--config.data.path={path!r}'
  splits = {
    'train': read(flag, path, image, label),
    'test': read(f'--config.data.test_path={test_path!r}', test_path, image, label),
  }
  return dataset(flag, pathlib.Path(path).stem, splits)


def dataset(
  flag: str,
  name: str,
  splits: Mapping[str, Iterable[User]],
  num_classes: int | None = None,
) -> Dataset:
  """All users' examples in memory, user by user.

  Args:
    flag: what names the data, for the message.
    name: what to call it.
    splits: 'train' and 'test', the users of each; see `once`.
    num_classes: Y, where the data tell.

  Raises:
    DataError: they are unusable.
  """
  arrays, ids = [], []
  for split, found in splits.items():
    parts = list(found)
    if not parts:
      raise DataError(f'{flag} names nobody with {split} examples.')
    arrays += [
      np.concatenate([one.images for one in parts]),
      np.concatenate([one.labels for one in parts]),
    ]
    sizes = [len(one.labels) for one in parts]
    ids.append(np.repeat(np.array([one.name for one in parts]), sizes))
  data = npz.dataset(flag, name, tuple(arrays), num_classes)
  return users.named(flag, data, *ids)
