"""Reads the folders of torchvision's data sets; torchvision itself is not needed.

They hold MNIST, FashionMNIST, KMNIST and EMNIST as idx files, gzipped or not; CIFAR-10
and CIFAR-100 as pickles; SVHN as MATLAB files.
"""

import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import nearest_name_hint
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import pickles
from moon_jax.data.data_errors import DataError, one_line
from moon_jax.data.dataset import checked_dataset
from moon_jax.data.pixels import PIXEL_STATISTICS

_FASHION = (
  *('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat'),
  *('Sandal', 'Shirt', 'Sneaker', 'Bag', 'Ankle boot'),
)
_SIDE = 32  # pixels of CIFAR's images
_GZIP_BITS = 31  # of zlib
_UBYTE = 8  # code of uint8 in an idx file


class _Request(NamedTuple):
  """What is to be read.

  Attributes:
    folder: the folder of the set.
    split: the split of EMNIST; '' for other sets.
    trust_pickles: whether pickles that are not published may run their code.
  """

  folder: pathlib.Path
  split: str
  trust_pickles: bool


class _Content(NamedTuple):
  """What a folder holds.

  Attributes:
    arrays: images and labels for training, and for the test.
    class_names: [Y]; () if the files have no names for the ten classes.
  """

  arrays: list[np.ndarray]
  class_names: tuple[str, ...] = ()


class _Set(NamedTuple):
  """A data set that torchvision has.

  Attributes:
    name: TFDS's name, if it has the set too.
    folder: its folder below torchvision's root.
    read: request -> content.
  """

  name: str
  folder: str
  read: Callable[[_Request], _Content]


def load_torchvision(path: str, name: str, trust_pickles: bool = False) -> Dataset:
  """Loads a data set from the folder in which torchvision keeps it.

  Args:
    path: torchvision's `root`, or the folder of the set in it.
    name: 'mnist', 'fashion_mnist', 'kmnist', 'emnist/balanced' (or another split),
      'cifar10', 'cifar100' (the fine labels) or 'svhn'; torchvision's own names
      ('FashionMNIST') are accepted too. EMNIST's images, which are stored transposed,
      are turned upright.
    trust_pickles: whether files of CIFAR that differ from the published files are
      unpickled by Python, which runs whatever code is in them.

  Raises:
    DataError: the name is unknown, the files are missing or damaged, or a pickle is
      neither the published file nor trusted.
  """
  set_name, _, split = name.partition('/')
  set_name = set_name.lower().replace('_', '').removesuffix('cropped')
  splits = _EMNIST_CLASSES if set_name == 'emnist' else ('',)
  if set_name not in _SETS or split not in splits:
    known_names = [known.name for known in _SETS.values()]
    known_names += [f'emnist/{split}' for split in _EMNIST_CLASSES]
    raise DataError(
      f'{flag("data.name", name)} is not one of {", ".join(known_names)}.'
      f'{nearest_name_hint(name, known_names)}'
    )
  known = _SETS[set_name]
  data_flag = flag('data.path', path)
  folder = _folder(expand(path).absolute(), known.folder)
  request = _Request(folder=folder, split=split, trust_pickles=trust_pickles)
  with one_line(
    f'{data_flag} must be the root of torchvision, with {name} in {known.folder}'
  ):
    content = known.read(request)
  return checked_dataset(
    data_flag,
    known.name,
    content.arrays,
    num_classes=len(content.class_names) or 10,
    statistics=PIXEL_STATISTICS.get(known.name),
    class_names=content.class_names,
  )


def _folder(path, below_root):
  """The folder of a set; the path is torchvision's root, or leads into the folder."""
  for root in (path, *path.parents[:2]):
    if (root / below_root).is_dir():
      return root / below_root
  return path / below_root


def _bytes(path: pathlib.Path) -> bytes:
  """The content of a file, or of the same file gzipped."""
  gzipped = path.with_name(f'{path.name}.gz')
  if gzipped.exists() and not path.exists():
    return files.unpacked(files.contents(gzipped), _GZIP_BITS)
  return files.contents(path)


# --- idx ------------------------------------------------------------------------------


def _idx(path: pathlib.Path, num_axes: int) -> np.ndarray:
  content = _bytes(path)
  start = 4 + 4 * num_axes
  sizes = np.frombuffer(content[4:start], '>u4').tolist()
  num_bytes = start + math.prod(sizes)
  if content[:4] != bytes([0, 0, _UBYTE, num_axes]) or len(content) != num_bytes:
    raise ValueError(f'{path.name} is no idx file of uint8, or torn')
  return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


def _idx_arrays(folder, prefixes):
  """Images and labels of each file prefix, one after the other."""
  arrays = []
  for prefix in prefixes:
    arrays.append(_idx(folder / f'{prefix}-images-idx3-ubyte', 3))
    arrays.append(_idx(folder / f'{prefix}-labels-idx1-ubyte', 1))
  return arrays


def _read_mnist(request):
  return _Content(_idx_arrays(request.folder, ('train', 't10k')))


def _read_fashion_mnist(request):
  return _Content(_idx_arrays(request.folder, ('train', 't10k')), _FASHION)


_LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'
_DIGITS = '0123456789'
# EMNIST's classes: of small letters, 'bymerge' and 'balanced' have only these.
_MERGED = f'{_DIGITS}{_LETTERS}abdefghnqrt'
_EMNIST_CLASSES = {
  'byclass': f'{_DIGITS}{_LETTERS}{_LETTERS.lower()}',
  'bymerge': _MERGED,
  'balanced': _MERGED,
  'letters': _LETTERS.lower(),
  'digits': _DIGITS,
  'mnist': _DIGITS,
}


def _read_emnist(request):
  prefixes = [f'emnist-{request.split}-{part}' for part in ('train', 'test')]
  arrays = _idx_arrays(request.folder, prefixes)
  arrays[::2] = [images.transpose(0, 2, 1) for images in arrays[::2]]
  if request.split == 'letters':  # its labels count from 1
    arrays[1::2] = [labels.astype(int) - 1 for labels in arrays[1::2]]
  return _Content(arrays, tuple(_EMNIST_CLASSES[request.split]))


# --- CIFAR ----------------------------------------------------------------------------


def _read_cifar10(request):
  return _read_cifar(
    request,
    train_files=[f'data_batch_{number}' for number in range(1, 6)],
    test_files=['test_batch'],
    labels_key='labels',
    names_file='batches.meta',
    names_key='label_names',
  )


def _read_cifar100(request):
  return _read_cifar(
    request,
    train_files=['train'],
    test_files=['test'],
    labels_key='fine_labels',
    names_file='meta',
    names_key='fine_label_names',
  )


def _read_cifar(request, *, train_files, test_files, labels_key, names_file, names_key):
  arrays = []
  for file_names in (train_files, test_files):
    batches = [_unpickled(request, name) for name in file_names]
    rows = np.concatenate([batch['data'] for batch in batches])  # [M, C * H * W]
    if rows.dtype != np.uint8:
      raise ValueError(f'{file_names[0]} holds {rows.dtype}, not uint8')
    arrays.append(rows.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))
    arrays.append(np.concatenate([batch[labels_key] for batch in batches]))
  class_names = _unpickled(request, names_file)[names_key]
  return _Content(arrays, tuple(map(_text, class_names)))


def _unpickled(request, file_name):
  """The dict in a file; Python 2 wrote its keys as bytes."""
  path = request.folder / file_name
  content = pickles.load(path, _bytes(path), trusted=request.trust_pickles)
  return {_text(key): entry for key, entry in content.items()}


def _text(word):
  return word.decode() if isinstance(word, bytes) else word


# --- SVHN -----------------------------------------------------------------------------


def _read_svhn(request):
  from scipy import io as matlab

  arrays = []
  for part in ('train', 'test'):
    with files.opened(request.folder / f'{part}_32x32.mat') as file:
      content = matlab.loadmat(file, variable_names=('X', 'y'))
    if content['X'].dtype != np.uint8:
      raise ValueError(f'{file.name} holds {content["X"].dtype}, not uint8')
    arrays.append(np.moveaxis(content['X'], 3, 0))  # from [H, W, C, M]
    arrays.append(content['y'].ravel() % 10)  # the class of the digit 0 is 10
  return _Content(arrays)


# The name that a user gives, in small letters without '_' -> the set.
_SETS = {
  'mnist': _Set('mnist', 'MNIST/raw', _read_mnist),
  'fashionmnist': _Set('fashion_mnist', 'FashionMNIST/raw', _read_fashion_mnist),
  'kmnist': _Set('kmnist', 'KMNIST/raw', _read_mnist),
  'emnist': _Set('emnist', 'EMNIST/raw', _read_emnist),
  'cifar10': _Set('cifar10', 'cifar-10-batches-py', _read_cifar10),
  'cifar100': _Set('cifar100', 'cifar-100-python', _read_cifar100),
  'svhn': _Set('svhn_cropped', '.', _read_svhn),
}
