"""Finds the source that reads a path, from the names of its files alone."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator

from moon_jax.core import paths
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.data.data_errors import DataError
from moon_jax.data.pickles import UntrustedPickleError
from moon_jax.data.picture_folders import ENDINGS

TABLE_SUFFIXES = ('.csv', '.parquet')
_MOST_NAMES = 10_000  # that are looked at
# Ending of a file -> its source; or, for a folder, a name in it (a regular expression
# of the path below it) -> the source. The first that fits counts.
_FILES = dict.fromkeys(TABLE_SUFFIXES, 'table') | {
  '.npz': 'npz',
  '.h5': 'hdf5',
  '.hdf5': 'hdf5',
  '.sqlite': 'sqlite',
}
_PICTURE = rf'[^/]+({"|".join(map(re.escape, ENDINGS))})'
_RAW = r'(MNIST|FashionMNIST|KMNIST|EMNIST)'
_FOLDERS = {
  r'train\.array_record': 'records',
  r'train\.csv': 'table',
  r'dataset_dict\.json|(.*/)?[^/]+\.parquet': 'huggingface',
  r'.+/\d+\.\d+\.\d+/features\.json': 'tfds',
  rf'{_RAW}/raw/.+-ubyte(\.gz)?|cifar-100?-[^/]+/.+|train_32x32\.mat': 'torchvision',
  r'train/\d+\.npz': 'pfllib',
  r'train/.+\.json': 'leaf',
  r'[^/]+\.npz': 'folder',
  r'([^/]+/){1,3}[^/]+\.wav': 'audiofolder',
  rf'([^/]+/){{1,6}}{_PICTURE}': 'imagefolder',
}


@contextlib.contextmanager
def hint_at_other_source(source: str, path: str) -> Iterator[None]:
  """Adds to a DataError the other source that reads the path, if there is one."""
  try:
    yield
  except UntrustedPickleError:
    raise  # it is the right source
  except DataError as error:
    other_source, example = source_of(path) if path else ('', '')
    if other_source in ('', source):
      raise
    raise DataError(
      f'{str(error).removesuffix(".")}. What is there, such as {example}, is read by '
      f'{flag("data.source", other_source)}.'
    ) from error


def source_of(path: str) -> tuple[str, str]:
  """The source that reads a path, and the name that shows it; '' if there is none."""
  root = expand(path)
  if os.path.isfile(root):
    return _FILES.get(root.suffix, ''), root.name
  below = paths.below(root) if os.path.isdir(root) else ()
  names = sorted(
    path.relative_to(root).as_posix()
    for path in itertools.islice(below, _MOST_NAMES)
    if os.path.isfile(path)
  )
  for pattern, source in _FOLDERS.items():
    for name in names:
      if re.fullmatch(pattern, name, re.IGNORECASE):
        return source, name
  return '', ''
