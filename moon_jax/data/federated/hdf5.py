"""TensorFlow Federated's HDF5: examples/<user>/pixels and .../label.

FEMNIST has this form (fed_emnist_train.h5, fed_emnist_test.h5; pixels float32 in [0,
1], where 1 is the paper), and CIFAR-100 (image, label, coarse_label).
"""

import os

from moon_jax.core import files
from moon_jax.data.arrays import DataError, one_line
from moon_jax.data.federated import assembled

_GROUP = 'examples'


def load_hdf5(
  path: str, test_path: str, image: str = '', label: str = ''
) -> assembled.Federation:
  """Loads a file of TensorFlow Federated; users are in the order of their names.

  Args:
    path: the file of the training examples.
    test_path: the file of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels, likewise.

  Raises:
    DataError: when read: a file is missing, damaged or laid out in another way.
  """
  return assembled.two_files(_read, path, test_path, image, label)


def _read(flag, path, image, label):
  h5py = assembled.package('hdf5', 'h5py')
  wanted = f'{flag} must be an HDF5 file of {_GROUP}/<client>/<image and label>'
  with (
    one_line(wanted),
    files.opened(os.path.expanduser(path)) as raw,
    h5py.File(raw, 'r') as file,
  ):
    found = _own(file, _GROUP) if _GROUP in file else None
    if not isinstance(found, h5py.Group):
      raise DataError(f'{wanted}: it has no group {_GROUP!r}.')
    for name in found:
      one = _own(found, name)
      if not isinstance(one, h5py.Group):
        raise DataError(f'{wanted}: {_GROUP}/{name!r} is no group.')
      has = {key: array for key in one if hasattr(array := _own(one, key), 'shape')}
      keys = assembled.features(flag, image, label, has)
      yield assembled.user(flag, name, *(has[key][()] for key in keys))


def _own(group, name):
  """The content of a group, none of it in another file; nothing is read."""
  h5py = assembled.package('hdf5', 'h5py')
  link = group.get(name, getlink=True)
  if not isinstance(link, h5py.HardLink):
    raise ValueError(f'{name!r} in {group.name!r} is a link')
  one = group[name]
  if isinstance(one, h5py.Dataset) and (one.external or one.is_virtual):
    raise ValueError(f'{one.name!r} is stored in another file')
  return one
