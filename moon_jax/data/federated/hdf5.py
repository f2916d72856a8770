"""TensorFlow Federated's HDF5: examples/<user>/pixels and .../label.

FEMNIST has this form (fed_emnist_train.h5, fed_emnist_test.h5; pixels float32 in [0,
1], where 1 is the paper), and CIFAR-100 (image, label, coarse_label).
"""

from moon_jax.core import files
from moon_jax.core.paths import expand
from moon_jax.data.arrays import one_line
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
  place = expand(path)
  with one_line(wanted):
    files.opened(place).close()  # h5py opens it by its name, from which links start
  with one_line(wanted), h5py.File(place, 'r') as file:
    for name, one in file[_GROUP].items():
      has = {key: array for key, array in one.items() if hasattr(array, 'shape')}
      keys = assembled.features(flag, image, label, has)
      yield assembled.user(flag, name, *(has[key][()] for key in keys))
