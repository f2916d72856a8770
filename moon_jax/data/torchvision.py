"""Reads the folders of torchvision's data sets; torchvision itself is not needed.

They hold MNIST, FashionMNIST, KMNIST and EMNIST as idx files, gzipped or not; CIFAR-10
and CIFAR-100 as pickles; SVHN as MATLAB files.
"""

import functools
import gzip
import math
import pathlib

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import did_you_mean
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import npz, pickles
from moon_jax.data.arrays import PIXEL_STATISTICS, DataError, one_line

_FASHION = (
  *('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat'),
  *('Sandal', 'Shirt', 'Sneaker', 'Bag', 'Ankle boot'),
)
_SIDE = 32  # pixels of CIFAR's images
_UBYTE = 8  # code of uint8 in an idx file


def load_torchvision(path: str, name: str, trust_pickles: bool = False) -> Dataset:
  """Loads a data set from the folder in which torchvision keeps it.

  Args:
    path: torchvision's `root`, or the folder of the set in it.
    name: 'mnist', 'fashion_mnist', 'kmnist', 'emnist/balanced' (or another split),
      'cifar10', 'cifar100' (the fine labels) or 'svhn'; torchvision's own names
      ('FashionMNIST') do, too. EMNIST's images, which lie on their side, are turned.
    trust_pickles: whether files of CIFAR that differ from the published files are
      unpickled by Python, which runs whatever code is in them.

  Raises:
    DataError: the name is unknown, the files are missing or damaged, or a pickle is
      neither the published file nor trusted.
  """
  flag, (known, _, split) = f'--config.data.path={path!r}', name.partition('/')
  known = known.lower().replace('_', '').removesuffix('cropped')
  if known not in _SETS or split not in (_EMNIST if known == 'emnist' else ('',)):
    every = [*(one[0] for one in _SETS.values()), *(f'emnist/{s}' for s in _EMNIST)]
    told = f'--config.data.name={name!r} is not one of {", ".join(every)}'
    raise DataError(f'{told}.{did_you_mean(name, every)}')
  own_name, folder, read = _SETS[known]
  place = expand(path).absolute()
  roots = (one for one in (place, *place.parents[:2]) if (one / folder).is_dir())
  with one_line(f'{flag} must be the root of torchvision, with {name} in {folder}'):
    (*arrays, names) = read(next(roots, place) / folder, split, trust_pickles)
  statistics = PIXEL_STATISTICS.get(own_name)
  return npz.dataset(flag, own_name, arrays, len(names) or 10, statistics, names)


def _bytes(path: pathlib.Path) -> bytes:
  """The content of a file, or of the same file gzipped."""
  zipped = path.with_name(f'{path.name}.gz')
  if zipped.exists() and not path.exists():
    return gzip.decompress(_bytes(zipped))
  return files.contents(path)


# --- idx ------------------------------------------------------------------------------


def _idx(place: pathlib.Path, name: str, axes: int) -> np.ndarray:
  data = _bytes(place / name)
  start = 4 + 4 * axes
  sizes = np.frombuffer(data[4:start], '>u4').tolist()
  if data[:4] != bytes([0, 0, _UBYTE, axes]) or len(data) != start + math.prod(sizes):
    raise ValueError(f'{name} is no idx file of uint8, or torn')
  return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def _read_idx(place, split, trust_pickles, names=(), starts=('train', 't10k')):
  arrays = []
  for start in starts:
    arrays.append(_idx(place, f'{start}-images-idx3-ubyte', 3))
    arrays.append(_idx(place, f'{start}-labels-idx1-ubyte', 1))
  return *arrays, names


_LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'
_DIGITS = '0123456789'
# EMNIST's classes: of small letters, 'bymerge' and 'balanced' have only these.
_MERGED = f'{_DIGITS}{_LETTERS}abdefghnqrt'
_EMNIST = {
  'byclass': f'{_DIGITS}{_LETTERS}{_LETTERS.lower()}',
  'bymerge': _MERGED,
  'balanced': _MERGED,
  'letters': _LETTERS.lower(),
  'digits': _DIGITS,
  'mnist': _DIGITS,
}


def _read_emnist(place, split, trust_pickles):
  starts = [f'emnist-{split}-{part}' for part in ('train', 'test')]
  *arrays, names = _read_idx(
    place, split, trust_pickles, names=tuple(_EMNIST[split]), starts=starts
  )
  if split == 'letters':  # its labels count from 1
    arrays[1::2] = (labels.astype(int) - 1 for labels in arrays[1::2])
  arrays[::2] = (images.transpose(0, 2, 1) for images in arrays[::2])
  return *arrays, names


# --- CIFAR ----------------------------------------------------------------------------


def _read_cifar10(place, split, trust_pickles):
  return _read_cifar(
    place,
    train_files=[f'data_batch_{number}' for number in range(1, 6)],
    test_files=['test_batch'],
    labels_key='labels',
    names_file='batches.meta',
    names_key='label_names',
    trust_pickles=trust_pickles,
  )


def _read_cifar100(place, split, trust_pickles):
  return _read_cifar(
    place,
    train_files=['train'],
    test_files=['test'],
    labels_key='fine_labels',
    names_file='meta',
    names_key='fine_label_names',
    trust_pickles=trust_pickles,
  )


def _read_cifar(
  place, *, train_files, test_files, labels_key, names_file, names_key, trust_pickles
):
  arrays = []
  for file_names in (train_files, test_files):
    batches = [_unpickled(place / name, trust_pickles) for name in file_names]
    rows = np.concatenate([batch['data'] for batch in batches])  # [M, C * H * W]
    arrays.append(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))
    arrays.append(np.concatenate([batch[labels_key] for batch in batches]))
  class_names = _unpickled(place / names_file, trust_pickles)[names_key]
  return *arrays, tuple(map(_text, class_names))


def _unpickled(path, trust_pickles):
  """The dict in a file; Python 2 wrote its keys as bytes."""
  content = pickles.load(path, _bytes(path), trusted=trust_pickles)
  return {_text(key): entry for key, entry in content.items()}


def _text(word):
  return word.decode() if isinstance(word, bytes) else word


# --- SVHN -----------------------------------------------------------------------------


def _read_svhn(place, split, trust_pickles):
  from scipy import io as matlab

  arrays = []
  for part in ('train', 'test'):
    with files.opened(place / f'{part}_32x32.mat') as file:
      found = matlab.loadmat(file, variable_names=('X', 'y'))
    # Images [H, W, C, M]; the class of the digit 0 is 10.
    arrays += [np.moveaxis(found['X'], 3, 0), found['y'].ravel() % 10]
  return *arrays, ()


# Name -> TFDS's name, if it has the set; the folder below the root; and the function
# (folder, split, trust_pickles) -> train_x, train_y, test_x, test_y and the names of
# the classes.
_SETS = {
  'mnist': ('mnist', 'MNIST/raw', _read_idx),
  'fashionmnist': (
    'fashion_mnist',
    'FashionMNIST/raw',
    functools.partial(_read_idx, names=_FASHION),
  ),
  'kmnist': ('kmnist', 'KMNIST/raw', _read_idx),
  'emnist': ('emnist', 'EMNIST/raw', _read_emnist),
  'cifar10': ('cifar10', 'cifar-10-batches-py', _read_cifar10),
  'cifar100': ('cifar100', 'cifar-100-python', _read_cifar100),
  'svhn': ('svhn_cropped', '.', _read_svhn),
}
