"""A folder that `save_to_disk` of Hugging Face's datasets wrote, with an id column."""

import json
import logging
import os
import pathlib

import numpy as np

from moon_jax.core import files
from moon_jax.data.arrays import DataError, images_of, one_line
from moon_jax.data.federated import assembled


def load_huggingface(
  path: str, client: str, image: str = '', label: str = ''
) -> assembled.Federation:
  """The users with training and test examples, in ascending order.

  Args:
    path: the folder, with the splits train and test.
    client: the column that names the user.
    image: the column of the images: of the feature Image, or arrays of uint8; '' is one
      of the usual names.
    label: the column of the labels; a ClassLabel tells how many classes there are.

  Raises:
    DataError: it is no such folder, or lacks a split or a column.
  """
  flag = f'--config.data.path={path!r}'
  train, test = _opened(flag, path)
  image, label = assembled.features(flag, image, label, train.features)
  num_classes = getattr(train.features[label], 'num_classes', None)
  parts = (
    assembled.once(flag, _read(flag, one, client, image, label))
    for one in (train, test)
  )
  return assembled.Federation(flag, pathlib.Path(path).stem, *parts, num_classes)


def _opened(flag, path):
  """Its splits 'train' and 'test', not yet read."""
  datasets = assembled.package('huggingface', 'datasets')
  folder = pathlib.Path(os.path.expanduser(path)).absolute()
  places = [folder / split for split in ('train', 'test')]
  with one_line(f'{flag} must be a folder by save_to_disk, with splits train and test'):
    files.require_inside(folder)
    for place in places:
      with files.opened(place / 'state.json') as file:
        named = json.load(file)['_data_files']
      files.require_inside(folder, [place / one['filename'] for one in named])
    logging.getLogger('datasets').setLevel(logging.ERROR)
    # One by one: what else dataset_dict.json names is not looked at.
    found = [datasets.Dataset.load_from_disk(str(place)) for place in places]
    for split in found:
      split.data.validate(full=True)  # pyarrow aborts the process on damage met later
    return found


def _read(flag, split, client, image, label):
  datasets = assembled.package('huggingface', 'datasets')
  if missing := {client, image, label} - set(split.features):
    has = ', '.join(split.features)
    raise DataError(f'{flag} has no column {min(missing)!r} in a split; it has {has}.')
  is_encoded = isinstance(split.features[image], datasets.Image)
  if is_encoded:
    split = split.cast_column(image, datasets.Image(decode=False))
  for name in (client, image, label):
    # Decoding would open what a path in the column names.
    if datasets.features.features.require_decoding(split.features[name]):
      raise DataError(f'{flag}: the column {name!r} is {split.features[name]}.')
  ids = np.asarray(split.select_columns([client]).with_format('numpy')[:][client])
  if ids.ndim != 1 or ids.dtype.kind not in 'iuU':
    raise DataError(f'{flag}: the column {client!r} must hold numbers or text.')
  names, numbers, sizes = np.unique(ids, return_inverse=True, return_counts=True)
  rows = np.argsort(numbers, kind='stable')
  split = split.select_columns([image, label])
  split = split if is_encoded else split.with_format('numpy')
  ends = np.cumsum(sizes)
  for name, first, end in zip(names.tolist(), ends - sizes, ends, strict=True):
    with one_line(f'{flag}: the examples of {name!r} cannot be read'):
      mine = split[rows[first:end].tolist()]
      images = mine[image]
      if is_encoded:
        images = np.stack([*images_of(one['bytes'] for one in images)])
    yield assembled.user(flag, name, images, mine[label])
