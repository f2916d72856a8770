"""Folders of pictures by class, and by hospital, site or other domain.

  CLASS/*           as torchvision's ImageFolder and Tiny-ImageNet have them
  DOMAIN/CLASS/*    as DomainNet has them; each domain, such as a hospital or a site, is
                    a user

`federated/npz_folder.py` reads a folder of .npz files instead, one for each client.
"""

import itertools
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from moon_jax.core import files, machine_memory
from moon_jax.core.errors import KnobError, printable
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import (
  decoded,
  drawn_test,
  picture_folders,
  pictures,
  split_names,
)
from moon_jax.data.data_errors import DataError, listed, one_line
from moon_jax.data.dataset import arrays_dataset, checked_dataset
from moon_jax.data.drawn_test import TestDraw
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import users
from moon_jax.data.picture_folders import ANNOTATIONS, ENDINGS, SplitFolders
from moon_jax.data.pictures import common_mode, decode_picture

# For messages about pictures that are in no folder by class.
_REMEDY = 'pictures must lie in folders named after their classes, CLASS/picture.png'


class Picture(NamedTuple):
  """An image that is not yet read.

  Attributes:
    path: path of its file.
    label: name of its class.
    domain: its hospital, site or other domain, which is its user; '' if the data have
      no domains.
  """

  path: pathlib.Path
  label: str
  domain: str = ''


class _Folder(NamedTuple):
  """The folder that is read, and how.

  Attributes:
    data_flag: flag of the folder, for messages.
    root: its path.
    test_draw: which pictures of each class are drawn for the test.
    side: pixels of each side after resizing; 0: not resized.
  """

  data_flag: str
  root: pathlib.Path
  test_draw: TestDraw
  side: int


class _Splits(NamedTuple):
  """The pictures of each split, class by class; [] if there is no such split."""

  train: list[Picture]
  test: list[Picture]
  validation: list[Picture]


def load_imagefolder(
  path: str,
  image_size: int,
  reading: Reading,
  test_draw: TestDraw,
) -> Dataset:
  """Loads images whose folders are their classes.

  The classes are numbered in the order of their names. The folder, or one below it, is
  divided into train/ and test/ (or val/, which is kept for validation if both exist) or
  names with these words, each with CLASS/*, or with CLASS/images/* and
  val/val_annotations.txt as in Tiny-ImageNet; or by the lists DOMAIN_train.txt and
  DOMAIN_test.txt, as in DomainNet; or it is one tree. In DOMAIN/CLASS/* the domains,
  such as hospitals or sites, are the users; a line names them and the classes. A line
  says which folders are not used. The decoded images are kept in the cache folder of
  whoever runs the program.

  Args:
    path: the folder.
    image_size: pixels of each side, to which images are resized bilinearly; 0 if all
      images have one size.
    reading: its axes are '' or 'HWC'. Without a range, 0 is black and 255 is white, and
      grey pictures of 16 bits keep their numbers.
    test_draw: which images of each class (and domain) of an undivided tree are drawn
      for the test.

  Raises:
    DataError: it is no such folder, or an image cannot be used.
  """
  if reading.axes not in ('', 'HWC'):
    raise KnobError('data.axes', reading.axes, 'is for arrays, and these are pictures.')
  reading = reading._replace(axes='')
  root = expand(path).absolute()
  folder = _Folder(
    data_flag=flag('data.path', path),
    root=root,
    test_draw=test_draw,
    side=image_size,
  )
  with one_line(f'{folder.data_flag} must be a folder of images by class'):
    layout = _layout(folder)
  dataset = decoded.load_or_decode(
    'imagefolder',
    root,
    lambda: _decode(folder, layout, reading),
    tuple(test_draw),
    image_size,
    tuple(reading),
  )
  if dataset.form.dtype == 'uint16':
    print(
      f'{folder.data_flag}: the images have 16 bits, and keep their numbers; '
      f'{flag("data.range", "0,65535")} makes grey levels of 8 bits of them.',
      file=sys.stderr,
    )
  if layout.notice:
    print(f'{folder.data_flag}: {layout.notice}', file=sys.stderr)
  if dataset.clients is not None:
    user_names, num_users = listed(dataset.clients), len(dataset.clients)
    class_names = listed(dataset.class_names or range(dataset.num_classes))
    print(
      f'{folder.data_flag} is read as DOMAIN/CLASS/*. {num_users} users: {user_names}; '
      f'{dataset.num_classes} classes: {class_names}.',
      file=sys.stderr,
    )
  return dataset


def _decode(folder, layout, reading):
  data_flag, root = folder.data_flag, folder.root
  with one_line(f'{data_flag} must be a folder of images by class'):
    splits = _divided(folder, layout)
  class_names = list(dict.fromkeys(picture.label for picture in splits.train))
  numbers = {name: number for number, name in enumerate(class_names)}
  for purpose, split in (('test', splits.test), ('validation', splits.validation)):
    labels = {picture.label for picture in split}
    for label in sorted(labels.difference(class_names)):
      raise DataError(
        f'{data_flag}: the {purpose} set has a class {label!r}, which training has '
        f'not; {_remedy_for_untrained(label, class_names)}.'
      )
  with one_line(f'{data_flag}: an image cannot be read'):
    every_picture = itertools.chain.from_iterable(splits)
    mode = common_mode(files.contents(picture.path) for picture in every_picture)
  num_bytes = sum(map(len, splits)) * folder.side**2
  machine_memory.require_room('data.image_size', folder.side, num_bytes, 'the images')
  first_image = _pixels(folder, splits.train[0].path, mode)
  arrays = []
  for split in splits:
    if not split:
      continue
    images = np.empty((len(split), *first_image.shape), first_image.dtype)
    for row, picture in enumerate(split):
      images[row] = _pixels(folder, picture.path, mode, first_image.shape)
    arrays += [images, np.array([numbers[picture.label] for picture in split])]
  reading = pictures.reading_of(first_image, reading)
  if reading == Reading():
    dataset = checked_dataset(
      data_flag,
      root.name,
      arrays,
      num_classes=len(class_names),
      class_names=class_names,
    )
  else:
    dataset = arrays_dataset(
      data_flag,
      root.name,
      arrays,
      reading=reading,
      num_classes=len(class_names),
      class_names=class_names,
    )
  if not splits.train[0].domain:
    return dataset
  return users.named(data_flag, dataset, _domains(splits.train), _domains(splits.test))


def _remedy_for_untrained(label, class_names):
  for name in class_names:
    if name.casefold() == label.casefold():
      return f'training has {name!r}, so give both one name'
  return 'remove its images, or add images of it to training'


def _domains(pictures):
  """[M] the domain of each picture; None if they have none."""
  return np.array([p.domain for p in pictures]) if pictures[0].domain else None


def _pixels(folder, path, mode, shape=None):
  name = f'{folder.data_flag}: {str(path.relative_to(folder.root))!r}'
  with one_line(f'{name} cannot be used'):
    pixels = decode_picture(files.contents(path), mode, side=folder.side)
    if shape and pixels.shape != shape:
      sizes = ' and others '.join(f'{w}x{h}' for h, w, _ in (pixels.shape, shape))
      raise DataError(
        f'{name} is {sizes} pixels; {flag("data.image_size")}=N resizes all to NxN.'
      )
    return pixels


# --- which images there are -----------------------------------------------------------


class _Lists(NamedTuple):
  """DomainNet's lists of the pictures of each split.

  Attributes:
    train: files that list training pictures.
    test: files that list test pictures.
    notice: a sentence about folders without a list; '' if there are none.
  """

  train: list[pathlib.Path]
  test: list[pathlib.Path]
  notice: str


def _layout(folder: _Folder) -> SplitFolders | _Lists:
  train_lists = sorted(folder.root.glob('*_train.txt'))
  test_lists = sorted(folder.root.glob('*_test.txt'))
  if not (train_lists and test_lists):
    return picture_folders.find(folder.data_flag, folder.root)
  listed_domains = {path.stem.rpartition('_')[0] for path in train_lists + test_lists}
  domains = {path.name for path in picture_folders.folders(folder.root)}
  unlisted = sorted(domains - listed_domains)
  notice = f'not used, because no list names them: {listed(unlisted)}.'
  return _Lists(train_lists, test_lists, notice if unlisted else '')


def _divided(folder: _Folder, layout: SplitFolders | _Lists) -> _Splits:
  data_flag, root = folder.data_flag, folder.root
  if isinstance(layout, _Lists):
    splits = _listed_pictures(root, layout)
  else:
    splits = _Splits(
      train=_tree(data_flag, layout.train),
      test=_labelled_pictures(data_flag, layout.test),
      validation=_labelled_pictures(data_flag, layout.validation),
    )
  if not splits.train:
    raise DataError(
      f'{data_flag} has no images in folders by class: {_content(root)}; {_REMEDY}.'
    )
  labels = list(dict.fromkeys(picture.label for picture in splits.train))
  if all(map(split_names.names_no_class, labels)):
    would_be = 'folder {} would be the only class'
    if len(labels) > 1:
      would_be = 'folders {} would be the classes'
    raise DataError(f'{data_flag}: the {would_be.format(listed(labels))}; {_REMEDY}.')
  if len(labels) == 1:
    raise DataError(
      f'{data_flag} has training images of one class only, {labels[0]!r}; at least 2 '
      'are needed, each in a folder of its own.'
    )
  if not isinstance(layout, _Lists):
    _require_shared_classes(data_flag, splits)
  if splits.test and folder.test_draw.test_fraction:
    raise DataError(
      f'{data_flag} is divided already: drop {flag("data.test_fraction")}.'
    )
  if splits.test:
    return splits
  if not folder.test_draw.test_fraction:
    raise DataError(
      f'{data_flag} has no test images by class: {_content(root)}. '
      f'{flag("data.test_fraction", 0.2)} draws a fifth of each class.'
    )
  return _drawn(splits.train, folder.test_draw)


def _require_shared_classes(data_flag, splits):
  """Raises DataError if the domains of a tree have no class in common.

  The outer folders are the classes then, as in CLASS/PATIENT/*, or groups of classes.
  """
  domains_by_label = {}
  for picture in itertools.chain.from_iterable(splits):
    if picture.domain:
      domains_by_label.setdefault(picture.label, set()).add(picture.domain)
  domains = sorted(set().union(*domains_by_label.values()))
  if len(domains) < 2 or any(len(d) > 1 for d in domains_by_label.values()):
    return
  labels, outer = _some(sorted(domains_by_label)), _some(domains)
  raise DataError(
    f'{data_flag}: each of the {len(domains_by_label)} folders {labels} lies in one of '
    f'{outer} alone, so they cannot be classes that sites share. If {outer} are the '
    'classes, put all images of a class into one folder, CLASS/*; for users put the '
    'site or patient first, SITE/CLASS/*. If the inner folders are the classes, move '
    'them all into one folder.'
  )


def _some(names):
  """A few names, and '...' if there are more."""
  return listed(names[:3]) + (', ...' if len(names) > 3 else '')


def _content(root):
  return f'it holds {listed(sorted(path.name for path in root.iterdir()))}'


def _tree(data_flag, folder) -> list[Picture]:
  """CLASS/*, CLASS/images/* or DOMAIN/CLASS/*; pictures of a class stand together."""
  pictures, empty_folders = [], []
  for outer in picture_folders.folders(folder):
    pictures_inside = _pictures_in(data_flag, outer)
    pictures += pictures_inside
    if not pictures_inside:
      empty_folders.append(outer.name)
  if pictures and empty_folders:
    raise DataError(
      f'{data_flag}: the folder {empty_folders[0]!r} in {folder.name!r} has no image '
      f'({", ".join(ENDINGS)}).'
    )
  if len({bool(picture.domain) for picture in pictures}) > 1:
    names = listed(path.name for path in picture_folders.folders(folder))
    raise DataError(
      f'{data_flag}: of the folders in {folder.name!r}, {names}, some hold images and '
      'others folders of images; keep one kind.'
    )
  return sorted(pictures, key=lambda picture: (picture.label, picture.domain))  # stable


def _pictures_in(data_flag, outer) -> list[Picture]:
  """The pictures of a folder: it is a class, or a hospital or other domain."""
  images_folder = picture_folders.inner_images(outer)
  if images_folder:
    images, inner_folders = picture_folders.images(images_folder), []
    _require_no_images_below(data_flag, outer, images_folder)
  else:
    images = picture_folders.images(outer)
    inner_folders = picture_folders.folders(outer)
  pictures = [Picture(path, outer.name) for path in images]
  for inner in inner_folders:
    inner_images = picture_folders.images(inner)
    if images and inner_images:
      raise DataError(
        f'{data_flag}: {outer.name!r} holds images, and so does its folder '
        f'{inner.name!r}; put all images of a class into one folder.'
      )
    _require_no_images_below(data_flag, outer, inner)
    pictures += [
      Picture(path=path, label=inner.name, domain=outer.name) for path in inner_images
    ]
  return pictures


def _require_no_images_below(data_flag, outer, folder):
  """Raises DataError if a folder in the last level has folders of images, too."""
  for below in picture_folders.folders(folder):
    if picture_folders.has_pictures(below):
      name = str(below.relative_to(outer.parent))
      raise DataError(
        f'{data_flag}: the folder {printable(name)!r} holds images, deeper than '
        'CLASS/* or DOMAIN/CLASS/*; put all images of a class into one folder.'
      )


def _labelled_pictures(data_flag, split_folder) -> list[Picture]:
  """The pictures of a split other than training; [] if there is no such split."""
  if split_folder is None:
    return []
  if picture_folders.is_annotated(split_folder):
    pictures = _annotated_pictures(split_folder)
    return sorted(pictures, key=lambda picture: (picture.label, picture.path))
  return _tree(data_flag, split_folder)


def _annotated_pictures(split_folder) -> Iterator[Picture]:
  """Tiny-ImageNet's list: each line has a file, its class and its box, by tabs."""
  for line in files.text(split_folder / ANNOTATIONS).splitlines():
    name, label = line.split('\t')[:2]
    yield Picture(files.named(split_folder / 'images', name), label)


def _listed_pictures(root, lists: _Lists) -> _Splits:
  """DomainNet's lists: each line has DOMAIN/CLASS/file and the number of the class."""
  numbers = {}

  def pictures_of(paths):
    for path in paths:
      for line in files.text(path).splitlines():
        name, number = line.rsplit(maxsplit=1)
        parts = re.fullmatch('([^/]+)/([^/]+)/[^/]+', name)
        if not parts:
          raise ValueError(f'{path.name} names {name!r}, not DOMAIN/CLASS/FILE')
        domain, label = parts.groups()
        if numbers.setdefault(label, int(number)) != int(number):
          raise ValueError(f'{path.name} has two numbers of the class {label!r}')
        yield Picture(path=files.named(root, name), label=label, domain=domain)

  train, test = list(pictures_of(lists.train)), list(pictures_of(lists.test))

  # A class keeps its number of the lists if these leave out no number.
  def by_number(picture):
    return numbers[picture.label]

  return _Splits(
    train=sorted(train, key=by_number), test=sorted(test, key=by_number), validation=[]
  )


def _drawn(pictures, test_draw) -> _Splits:
  """The training and the test pictures of one tree."""
  kinds = [(picture.label, picture.domain) for picture in pictures]
  is_test = drawn_test.is_test(kinds, test_draw)
  return _Splits(
    train=[pictures[row] for row in np.flatnonzero(~is_test)],
    test=[pictures[row] for row in np.flatnonzero(is_test)],
    validation=[],
  )
