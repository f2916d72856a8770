"""Images in folders by class: torchvision's ImageFolder, Tiny-ImageNet, DomainNet."""

import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import decoded, npz
from moon_jax.data.arrays import DataError, image_of, listed, mode_of, one_line
from moon_jax.data.federated import users

# File endings that torchvision's ImageFolder takes for images; .jfif is JPEG too.
ENDINGS = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp')
ENDINGS += ('.jfif',)
_TRAIN = ('train', 'training')
_TESTS = ('test', 'testing', 'val', 'validation', 'valid')
_NO_CLASSES = {*_TRAIN, *_TESTS, 'images', 'masks', 'labels', 'annotations'}
_ANNOTATIONS = 'val/val_annotations.txt'
_DRAW = 8  # of Purpose.SUBSET: smaller numbers are for limits and made-up users


class Picture(NamedTuple):
  """An image that is not yet read.

  Attributes:
    path: path of its file.
    label: name of its class.
    domain: its domain, which is its user; '' if the data have no domains.
  """

  path: pathlib.Path
  label: str
  domain: str = ''


def load_imagefolder(
  path: str, test_fraction: float, test_seed: int, image_size: int
) -> Dataset:
  """Loads images whose folders are their classes.

  The classes are numbered in the order of their names. The folder is divided into
  train/ and test/ (or val/, which is kept for validation if both exist), each with
  CLASS/*, or with CLASS/images/* and val/val_annotations.txt as in Tiny-ImageNet; or by
  the lists DOMAIN_train.txt and DOMAIN_test.txt, as in DomainNet; or it is one tree. In
  DOMAIN/CLASS/* the domains are the users. The decoded images are kept in the user's
  cache folder.

  Args:
    path: the folder.
    test_fraction: fraction of the images of each class (and domain) of an undivided
      tree that are drawn for the test; 0 for a divided one.
    test_seed: seed of the draw.
    image_size: pixels of each side, to which images are resized bilinearly; 0 if all
      images have one size.

  Raises:
    DataError: it is no such folder, or an image cannot be used.
  """
  flag = f'--config.data.path={path!r}'
  root = expand(path).absolute()
  draw = test_fraction, test_seed
  return decoded.kept(
    'imagefolder', root, lambda: _decode(flag, root, draw, image_size), draw, image_size
  )


def _decode(flag, root, draw, side):
  with one_line(f'{flag} must be a folder of images by class'):
    splits = train, test, *held = _divided(flag, root, *draw)
  names = list(dict.fromkeys(one.label for one in train))
  numbers = {name: number for number, name in enumerate(names)}
  for split in (test, *held):
    if strange := sorted({one.label for one in split}.difference(names)):
      told = f'{flag}: the test has a class {strange[0]!r}, training has none'
      raise DataError(f'{told} ({split[0].path.relative_to(root).parts[0]!r}).')
  with one_line(f'{flag}: an image cannot be read'):
    mode = mode_of(files.contents(one.path) for one in itertools.chain(*splits))
  first = _pixels(flag, root, train[0].path, mode, side)
  arrays = []
  for split in splits:
    arrays.append(np.empty((len(split), *first.shape), np.uint8))
    for row, one in enumerate(split):
      arrays[-1][row] = _pixels(flag, root, one.path, mode, side, first.shape)
    arrays.append(np.array([numbers[one.label] for one in split]))
  data = npz.dataset(flag, root.name, arrays, len(names), class_names=names)
  ids = ([p.domain for p in s] if s[0].domain else None for s in (train, test))
  return users.named(flag, data, *ids) if train[0].domain else data


def _pixels(flag, root, path, mode, side, shape=None):
  with one_line(f'{flag}: {str(path.relative_to(root))!r} cannot be used'):
    pixels = image_of(files.contents(path), mode, side=side)
    if shape and pixels.shape != shape:
      sizes = ' and others '.join(f'{w}x{h}' for h, w, _ in (pixels.shape, shape))
      raise DataError(
        f'{flag}: {str(path.relative_to(root))!r} is {sizes} pixels; '
        '--config.data.image_size=N resizes all to NxN.'
      )
    return pixels


# --- which images there are -----------------------------------------------------------


def _divided(flag, root, test_fraction, test_seed):
  """The training, the test and perhaps the validation pictures, class by class."""
  # Folders such as training or test_set are no domains: their images would be mixed.
  there = {}
  for folder in _folders(root):
    name = _plain(folder.name)
    other = there.setdefault(name, folder)
    if other != folder and name in (*_TRAIN, *_TESTS):
      raise DataError(f'{flag} has both {other.name!r} and {folder.name!r}; keep one.')
  train = next((there[name] for name in _TRAIN if name in there), None)
  lists = {one: sorted(root.glob(f'*_{one}.txt')) for one in ('train', 'test')}
  if all(lists.values()):
    found = _listed(root, lists)
  # A class may also have such a name.
  elif train and not _images(train):
    found = _tree(flag, train), *_tests(flag, root, there)
  else:
    found = (_tree(flag, root),)
  train, test, *held = *found, *([],) * (len(found) == 1)
  if not train:
    raise DataError(f'{flag} has no images in folders by class: {_holds(root)}.')
  classes = dict.fromkeys(one.label for one in train)
  if _NO_CLASSES.issuperset(_plain(name).rstrip('0123456789') for name in classes):
    raise DataError(
      f'{flag}: the folders {listed(classes)} would be the classes; images must lie in '
      'folders by class.'
    )
  if test and test_fraction:
    raise DataError(f'{flag} is divided already: drop --config.data.test_fraction.')
  if not test and not test_fraction:
    raise DataError(
      f'{flag} has no test images by class: {_holds(root)}. '
      '--config.data.test_fraction=0.2 draws a fifth of each class.'
    )
  return (train, test, *held[:1]) if test else _drawn(train, test_fraction, test_seed)


def _plain(name):
  """'train' of 'train_images' and 'Train Set'."""
  return re.sub('[ _-]?(set|data|images)$', '', name.lower()) or name.lower()


def _holds(root):
  return f'it holds {listed(sorted(one.name for one in root.iterdir()))}'


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders inside, without .git, __MACOSX and the like."""
  every = sorted(folder.iterdir())
  return [p for p in every if p.is_dir() and p.name[0] != '.' and p.name[:2] != '__']


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
  every = sorted(folder.iterdir())
  return [p for p in every if p.suffix.lower() in ENDINGS and p.name[0] != '.']


def _tree(flag, folder) -> list[Picture]:
  """CLASS/*, CLASS/images/* or DOMAIN/CLASS/*; pictures of a class stand together."""
  found, empty = [], []
  for one in _folders(folder):
    own, inside = _images(one), _folders(one)
    if not own and [each.name for each in inside] == ['images']:
      own, inside = _images(inside[0]), []
    found += [Picture(path, one.name) for path in own]
    of_class = [(each.name, _images(each)) for each in inside]
    if own and (nested := [label for label, paths in of_class if paths]):
      told = f'{one.name!r} holds images, and so does its folder {nested[0]!r}'
      raise DataError(f'{flag}: {told}; put all images of a class into one folder.')
    for label, paths in of_class:
      found += [Picture(path, label, one.name) for path in paths]
    if not own and not any(paths for _, paths in of_class):
      empty.append(one.name)
  if found and empty:
    wanted = f'no image ({", ".join(ENDINGS)})'
    raise DataError(f'{flag}: the folder {empty[0]!r} in {folder.name!r} has {wanted}.')
  if len({bool(one.domain) for one in found}) > 1:
    raise DataError(f'{flag}: folders in {folder.name!r} hold images, others folders.')
  return sorted(found, key=lambda one: (one.label, one.domain))  # stable


def _tests(flag, root, there) -> Iterator[list[Picture]]:
  """The labelled pictures of each folder beside train/; test/ comes first."""
  is_annotated = (root / _ANNOTATIONS).exists() and (root / 'val/images').is_dir()
  for folder in (there[name] for name in _TESTS if name in there):
    if is_annotated and folder == root / 'val':
      yield sorted(_annotated(root), key=lambda one: (one.label, one.path))
      continue
    # The folder test/images/ without labels is no class 'images'.
    inside = [one.name for one in _folders(folder)]
    if inside != ['images'] and inside and (found := _tree(flag, folder)):
      yield found


def _annotated(root) -> Iterator[Picture]:
  """Tiny-ImageNet's list: each line has a file, its class and its box, by tabs."""
  for line in files.contents(root / _ANNOTATIONS).decode().splitlines():
    name, label = line.split('\t')[:2]
    yield Picture(root / 'val/images' / name, label)


def _listed(root, lists) -> tuple[list[Picture], list[Picture]]:
  """DomainNet's lists: each line has DOMAIN/CLASS/file and the number of the class."""
  splits, numbers = [], {}
  for paths in lists.values():
    splits.append([])
    for path in paths:
      for line in files.contents(path).decode().splitlines():
        name, number = line.rsplit(maxsplit=1)
        domain, label = re.fullmatch('([^/]+)/([^/]+)/[^/]+', name).groups()
        if numbers.setdefault(label, int(number)) != int(number):
          raise ValueError(f'{path.name} has two numbers of the class {label!r}')
        splits[-1].append(Picture(root / name, label, domain))
  # A class keeps its number of the lists if these leave out no number.
  return tuple(sorted(one, key=lambda p: numbers[p.label]) for one in splits)


def _drawn(pictures, fraction, seed):
  """The training and the test pictures of one tree."""
  rng, is_test = host_rng(seed, Purpose.SUBSET, _DRAW), np.zeros(len(pictures), bool)
  kinds = {}
  for row, one in enumerate(pictures):
    kinds.setdefault((one.label, one.domain), []).append(row)
  for rows in kinds.values():
    number = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
    is_test[rng.permutation(rows)[:number]] = True
  return tuple(
    [one for one, tested in zip(pictures, is_test, strict=True) if tested == split]
    for split in (False, True)
  )
