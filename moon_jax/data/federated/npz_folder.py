"""A folder with one .npz file of arrays for each client.

`imagefolder` reads folders of pictures, such as one for each hospital or site.
"""

import numpy as np

from moon_jax.data import npz
from moon_jax.data.data_errors import DataError, listed
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled

_CLASS_NAMES = 'class_names'


def load_npz_folder(path: str, reading: Reading) -> assembled.Federation:
  """Loads a folder of .npz files, one for each client; each client is a user.

  The users are in the order of the files' names.

  Args:
    path: the folder. Each *.npz holds train_x and train_y, or test_x and test_y, or
      all four, as in `npz.load_npz`. If there is an array `class_names`, it is the same
      in all files. The name of the user is in the array `client`, or
      else it is the file's name without .npz.
    reading: as in `npz.load_npz`.

  Raises:
    DataError: also when read: it is no such folder, a file is unusable, or two files
      have the same user.
  """
  return assembled.two_splits(path, _read, reading)


def _read(data_flag, folder, split):
  requirement = f'{data_flag} must be a folder of .npz files, one for each client'
  names_of_first = None
  for file in assembled.files_in(requirement, folder, '*.npz'):
    file_flag = f'{data_flag}: {file.name!r}'
    names = f'{split}_x', f'{split}_y'
    arrays = npz.read(file_flag, str(file), names, ('client', _CLASS_NAMES))
    class_names = arrays.pop(_CLASS_NAMES, np.empty(0)).tolist()
    names_of_first = class_names if names_of_first is None else names_of_first
    if class_names != names_of_first:
      raise DataError(
        f'{file_flag}: its class_names are {listed(class_names)}, and those of the '
        f'first file {listed(names_of_first)}; number the classes of all together.'
      )
    name = _user_name(file_flag, file, arrays.pop('client', None))
    if len(arrays) == 1:
      raise DataError(f'{file_flag} must have {split}_x and {split}_y, or neither.')
    if arrays:
      images, labels = (arrays[name] for name in names)
      yield assembled.make_user(file_flag, name, images, labels)
    elif split == 'train' and not npz.read(file_flag, str(file), ('test_x',)):
      raise DataError(f'{file_flag} has no examples: neither train_x nor test_x.')


def _user_name(file_flag, file, client):
  """The name in the array `client`, or else the file's."""
  if client is None:
    return file.stem
  if client.size != 1 or client.dtype.kind not in 'iuU':
    raise DataError(f'{file_flag}: client must be one number or text.')
  return client.item()
