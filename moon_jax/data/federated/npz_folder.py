"""A folder with one .npz file of arrays for each client.

`imagefolder` reads folders of pictures, such as one for each hospital or site.
"""

from moon_jax.data import npz
from moon_jax.data.data_errors import DataError
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled


def load_npz_folder(path: str, reading: Reading) -> assembled.Federation:
  """Loads a folder of .npz files, one for each client; each client is a user.

  The users are in the order of the files' names.

  Args:
    path: the folder. Each *.npz holds train_x and train_y, or test_x and test_y, or
      all four, as in `npz.load_npz`. The name of the user is in the array `client`, or
      else it is the file's name without .npz.
    reading: as in `npz.load_npz`.

  Raises:
    DataError: also when read: it is no such folder, a file is unusable, or two files
      have the same user.
  """
  return assembled.two_splits(path, _read, reading)


def _read(data_flag, folder, split):
  requirement = f'{data_flag} must be a folder of .npz files, one for each client'
  for file in assembled.files_in(requirement, folder, '*.npz'):
    file_flag = f'{data_flag}: {file.name!r}'
    names = f'{split}_x', f'{split}_y'
    arrays = npz.read(file_flag, str(file), names, ('client',))
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
