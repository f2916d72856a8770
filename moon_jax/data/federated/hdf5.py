"""TensorFlow Federated's HDF5: examples/<user>/pixels and .../label.

FEMNIST has this form (fed_emnist_train.h5, fed_emnist_test.h5; pixels float32 in [0,
1], where 1 is the paper), and CIFAR-100 (image, label, coarse_label).
"""

from moon_jax.core import files
from moon_jax.core.paths import expand
from moon_jax.data.errors import one_line
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


def _read(data_flag, path, image, label):
  h5py = assembled.package('hdf5', 'h5py')
  requirement = (
    f'{data_flag} must be an HDF5 file of {_GROUP}/<client>/<image and label>'
  )
  path = expand(path)
  with one_line(requirement):
    files.opened(path).close()  # h5py opens it by its name, from which links start
  with one_line(requirement), h5py.File(path, 'r') as file:
    for name, group in file[_GROUP].items():
      arrays = {key: array for key, array in group.items() if hasattr(array, 'shape')}
      image_key, label_key = assembled.feature_names(data_flag, image, label, arrays)
      images, labels = arrays[image_key][()], arrays[label_key][()]
      yield assembled.make_user(data_flag, name, images, labels)
