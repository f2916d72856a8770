"""A folder with one .npz file for each user."""

from moon_jax.data import npz
from moon_jax.data.arrays import DataError
from moon_jax.data.federated import assembled


def load_folder(path: str) -> assembled.Federation:
  """Loads a folder with a file for each user; users are in the order of the files.

  Args:
    path: the folder. Each *.npz holds train_x and train_y, or test_x and test_y, or
      all four, as in `npz.load_npz`. The name of the user is in the array `client`, or
      else it is the file's name without .npz.

  Raises:
    DataError: when read: it is no such folder, a file is unusable, or two files have
      the same user.
  """
  return assembled.two_splits(path, _read)


def _read(flag, folder, split):
  wanted = f'{flag} must be a folder of .npz files, one for each client'
  for file in assembled.files_in(wanted, folder, '*.npz'):
    told = f'{flag}: {file.name!r}'
    found = npz.read(told, str(file), (f'{split}_x', f'{split}_y'), ('client',))
    name = found.pop('client', None)
    if name is not None and (name.size != 1 or name.dtype.kind not in 'iuU'):
      raise DataError(f'{told}: client must be one number or text.')
    if len(found) == 1:
      raise DataError(f'{told} must have {split}_x and {split}_y, or neither.')
    if found:
      name = file.stem if name is None else name.item()
      yield assembled.user(told, name, *found.values())
    elif split == 'train' and not npz.read(told, str(file), ('test_x',)):
      raise DataError(f'{told} has no examples: neither train_x nor test_x.')
