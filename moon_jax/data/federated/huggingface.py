"""A folder that `save_to_disk` of Hugging Face's datasets wrote, with an id column."""

import json
import logging
import os
import pathlib

import numpy as np

from moon_jax.core import files
from moon_jax.data.arrays import DataError, image_of, mode_of, one_line
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
  splits = _opened(flag, path)
  features = splits[0].features
  image, label = assembled.features(flag, image, label, features)
  num_classes = getattr(features[label], 'num_classes', None)
  with one_line(f'{flag}: the column {image!r} cannot be read'):
    mode = getattr(features[image], 'mode', None) or mode_of(_encoded(splits, image))
  more = client, image, label, num_classes, mode
  parts = (
    assembled.once(flag, _read(flag, *one, *more))
    for one in zip(('train', 'test'), splits, strict=True)
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


def _encoded(splits, image):
  """The pictures of all splits, as files; nothing if they are arrays."""
  for split in splits:
    if hasattr(split.features.get(image), 'mode'):
      for batch in _undecoded(split.select_columns([image]), image).iter(1000):
        yield from (one and one['bytes'] for one in batch[image])


def _undecoded(split, image):
  datasets = assembled.package('huggingface', 'datasets')
  return split.cast_column(image, datasets.Image(decode=False))


def _read(flag, part, split, client, image, label, num_classes, mode):
  datasets = assembled.package('huggingface', 'datasets')
  if missing := {client, image, label} - set(split.features):
    has = ', '.join(split.features)
    raise DataError(f'{flag} has no column {min(missing)!r} in a split; it has {has}.')
  is_encoded = isinstance(split.features[image], datasets.Image)
  if is_encoded:
    split = _undecoded(split, image)
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
      images, labels = mine[image], mine[label]
      for i, row in enumerate(rows[first:end]):
        with one_line(f'{flag}: row {row} of {part} cannot be used'):
          own = np.asarray(labels[i]).tolist()
          if num_classes and own not in range(num_classes):
            raise ValueError(f'its label is {own}, not one of 0 to {num_classes - 1}')
          if is_encoded:
            shape = images[0].shape if i else None
            images[i] = image_of(images[i]['bytes'], mode, shape, upright=True)
    yield assembled.user(flag, name, images, labels)
