"""Hugging Face's data sets: a folder of `save_to_disk`, or one with parquet files."""

import logging
import re

import numpy as np

from moon_jax.core import files, paths
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import npz
from moon_jax.data.arrays import DataError, image_of, listed, mode_of, one_line
from moon_jax.data.federated import assembled

_TRAIN, _TESTS = 'train', ('test', 'validation', 'valid', 'val')
_DESCRIBED = 'dataset_dict.json'  # of save_to_disk
_WANTED = 'by save_to_disk, or one of parquet files, with splits train and test'
_UNDIVIDED = (
  'it has no split for tests; in Python, datasets.load_from_disk or load_dataset opens '
  "it, and ['train'].train_test_split(0.2).save_to_disk(DIR) divides it"
)


def load_huggingface(
  path: str, client: str, image: str = '', label: str = ''
) -> assembled.Federation | Dataset:
  """Loads splits of Hugging Face; users, if a column has their ids, in ascending order.

  Args:
    path: the folder, with the splits train and test. A split validation is the test if
      there is no test; otherwise it is kept for validation, without its user ids.
      Parquet files are called train-00000-of-00001.parquet or the like, or are in
      folders train and test, as on the Hub.
    client: the column of user ids; '': no column.
    image: the column of the images, of the feature Image, or arrays; '' stands for the
      usual names.
    label: the column of the labels; a ClassLabel has the names of the classes.

  Raises:
    DataError: it is no such folder, or lacks a split or a column.
  """
  flag = f'--config.data.path={path!r}'
  splits = _opened(flag, path)
  features = splits[0].features
  image, label = assembled.features(flag, image, label, features)
  num_classes = getattr(features[label], 'num_classes', None)
  names = [*map(str, getattr(features[label], 'names', None) or ())]
  for split in splits[1:]:
    other = getattr(split.features.get(label), 'names', None)
    if names and other is not None and [*map(str, other)] != names:
      raise DataError(
        f'{flag}: the classes of {label!r} are {listed(names)} in train, and '
        f'{listed(map(str, other))} in another split; number all splits together.'
      )
  with one_line(f'{flag}: the column {image!r} cannot be read'):
    mode = getattr(features[image], 'mode', None) or mode_of(_encoded(splits, image))
  more = image, label, num_classes, mode
  told = (('train', client), ('test', client), ('validation', ''))
  parts = [
    _read(flag, part, split, whose, *more)
    for (part, whose), split in zip(told, splits, strict=False)
  ]
  name = expand(path).absolute().name
  if client:
    train, test, *held = (
      assembled.once(flag, (assembled.user(flag, *one) for one in part))
      for part in parts
    )
    return assembled.Federation(flag, name, train, test, num_classes, names, *held)
  arrays = [np.asarray(each) for part in parts for _, *pair in part for each in pair]
  return npz.dataset(flag, name, arrays, num_classes, class_names=names)


def _opened(flag, path):
  """The splits 'train', 'test' and perhaps 'validation', not yet read."""
  datasets = assembled.package('huggingface', 'datasets')
  folder = expand(path).absolute()
  with one_line(f'{flag} must be a folder {_WANTED}'):
    logging.getLogger('datasets').setLevel(logging.ERROR)
    described = folder / _DESCRIBED, folder / _TRAIN / 'state.json'
    read = _saved if any(one.exists() for one in described) else _of_parquet
    found = [*read(datasets, folder)]
    for split in found:
      split.data.validate(full=True)  # pyarrow aborts the process on damage met later
    return found


def _saved(datasets, folder):
  there = [one.name for one in folder.iterdir()]
  if not set(there) & set(_TESTS):
    raise ValueError(_UNDIVIDED)
  for split in _names(there):
    # One by one, so that other names in dataset_dict.json are not looked at.
    yield datasets.Dataset.load_from_disk(str(folder / split))


def _names(there):
  """The splits for training, test and perhaps validation, of the splits that exist."""
  return _TRAIN, *([name for name in _TESTS if name in there][:2] or _TESTS[:1])


def _of_parquet(datasets, folder):
  import pyarrow
  from pyarrow import parquet

  found = {}
  below = paths.below(folder, follow=True)
  for path in sorted(one for one in below if one.suffix == '.parquet'):
    words = '|'.join((_TRAIN, *_TESTS))
    start, place = re.match(rf'({words})(?![a-z0-9])', path.name), path.parent
    inside = place != folder and place.name in (_TRAIN, *_TESTS)
    if start or inside:
      split = start[1] if start else place.name
      place = place.parent if inside and place.name == split else place
      found.setdefault(place, {}).setdefault(split, []).append(path)
  if not found:
    raise ValueError('it has neither')
  whole = [one for one, own in found.items() if own.keys() >= {*_names(own)}]
  if not whole and any(_TRAIN in own for own in found.values()):
    raise ValueError(_UNDIVIDED)
  if len(whole) != 1:
    every = listed(one.relative_to(folder) for one in found)
    raise ValueError(f'{len(whole)} folders have both splits, of {every}; name one')
  splits = found[whole[0]]
  for split in _names(splits):
    tables = []
    _require_whole(split, [path.name for path in splits[split]])
    for path in splits[split]:
      with files.opened(path) as file:
        tables.append(parquet.read_table(file))
    table = datasets.table.InMemoryTable(pyarrow.concat_tables(tables))
    yield datasets.Dataset(table)


def _require_whole(split, names):
  """Raises ValueError if a part of a split, such as 00001-of-00003, is missing."""
  parts = [one for name in names if (one := re.search(r'-(\d+)-of-(\d+)[-.]', name))]
  there = sorted(int(one[1]) for one in parts)
  if parts and {int(one[2]) for one in parts} != {len(parts)}:
    raise ValueError(f'of {split} there are the parts {there} of {parts[0][2]}')


def _is_encoded(feature):
  """Whether a column has pictures as files, however it is described."""
  has_bytes = isinstance(feature, dict) and 'bytes' in feature
  is_binary = getattr(feature, 'dtype', '') == 'binary'
  return hasattr(feature, 'mode') or has_bytes or is_binary


def _encoded(splits, image):
  """The pictures of all splits, as files; nothing if they are arrays."""
  for split in splits:
    if _is_encoded(split.features.get(image)):
      for batch in _undecoded(split.select_columns([image]), image).iter(1000):
        yield from (one and one['bytes'] for one in batch[image])


def _undecoded(split, image):
  datasets = assembled.package('huggingface', 'datasets')
  return split.cast_column(image, datasets.Image(decode=False))


def _read(flag, part, split, client, image, label, num_classes, mode):
  """The name of a user ('' stands for all examples), the images and the labels."""
  datasets = assembled.package('huggingface', 'datasets')
  columns = [name for name in (client, image, label) if name]
  if missing := set(columns) - set(split.features):
    has = ', '.join(split.features)
    raise DataError(f'{flag} has no column {min(missing)!r} in a split; it has {has}.')
  is_encoded = _is_encoded(split.features[image])
  if is_encoded:
    split = _undecoded(split, image)
  for name in columns:
    # Decoding would open what a path in the column names.
    if datasets.features.features.require_decoding(split.features[name]):
      raise DataError(f'{flag}: the column {name!r} is {split.features[name]}.')
  names, rows, ends = _whose(flag, split, client)
  split = split.select_columns([image, label])
  split = split if is_encoded else split.with_format('numpy')
  for name, first, end in zip(names, [0, *ends], ends, strict=False):
    with one_line(f'{flag}: the examples of {name!r} cannot be read'):
      mine = split[rows[first:end].tolist()]
      images, labels = mine[image], mine[label]
      for i, row in enumerate(rows[first:end]):
        with one_line(f'{flag}: row {row} of {part} cannot be used'):
          own = np.asarray(labels[i]).tolist()
          if num_classes and own not in range(num_classes):
            raise ValueError(f'its label is {own}, not one of 0 to {num_classes - 1}')
          if is_encoded:
            if not (encoded := images[i] and images[i]['bytes']):
              raise ValueError('it has no picture')
            shape = images[0].shape if i else None
            images[i] = image_of(encoded, mode, shape, upright=True)
    yield name, images, labels


def _whose(flag, split, client):
  """The users' names, the rows user by user, and the end of each user's rows."""
  if not client:
    return [''], np.arange(len(split)), [len(split)]
  ids = np.asarray(split.select_columns([client]).with_format('numpy')[:][client])
  if ids.ndim != 1 or ids.dtype.kind not in 'iuU':
    raise DataError(f'{flag}: the column {client!r} must hold numbers or text.')
  names, numbers, sizes = np.unique(ids, return_inverse=True, return_counts=True)
  return names.tolist(), np.argsort(numbers, kind='stable'), np.cumsum(sizes).tolist()
