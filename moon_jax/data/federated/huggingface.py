"""Hugging Face's data sets: a folder of `save_to_disk`, or one with parquet files."""

import json
import logging
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import files, paths
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data.dataset import checked_dataset
from moon_jax.data.errors import DataError, listed, one_line
from moon_jax.data.federated import assembled
from moon_jax.data.pictures import common_mode, decode_picture

_TRAIN = 'train'
_TESTS = ('test', 'validation', 'valid', 'val')
_DESCRIPTION = 'dataset_dict.json'  # of save_to_disk
_REQUIREMENT = 'by save_to_disk, or one of parquet files, with splits train and test'
_UNDIVIDED = (
  'it has no split for tests; in Python, datasets.load_from_disk or load_dataset opens '
  "it, and ['train'].train_test_split(0.2).save_to_disk(DIR) divides it"
)


class _Columns(NamedTuple):
  """The columns of all splits.

  Attributes:
    image: name of the column of the images.
    label: name of the column of the labels.
    num_classes: Y; None if the labels do not say it.
    class_names: [Y]; [] if the labels have no names.
    mode: the mode to which pictures are converted.
  """

  image: str
  label: str
  num_classes: int | None
  class_names: list[str]
  mode: str


class _UserRows(NamedTuple):
  """The rows of a split, user by user.

  Attributes:
    names: [N] names of the users; [''] stands for one owner of all rows.
    rows: [M] rows of the split.
    ends: [N] the end of each user's rows in `rows`.
  """

  names: list
  rows: np.ndarray
  ends: list[int]


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
  data_flag = flag('data.path', path)
  train, test, *validation = _opened(data_flag, path)
  columns = _columns(data_flag, [train, test, *validation], image, label)
  name = expand(path).absolute().name
  read_train = _read(data_flag, 'train', train, client, columns)
  read_test = _read(data_flag, 'test', test, client, columns)
  read_validation = [
    _read(data_flag, 'validation', split, '', columns) for split in validation
  ]
  if client:
    return assembled.Federation(
      data_flag=data_flag,
      name=name,
      train=_users(data_flag, read_train),
      test=_users(data_flag, read_test),
      num_classes=columns.num_classes,
      class_names=columns.class_names,
      validation=_users(data_flag, read_validation[0]) if read_validation else (),
    )
  arrays = []
  for split in (read_train, read_test, *read_validation):
    for _, images, labels in split:
      arrays += [np.asarray(images), np.asarray(labels)]
  return checked_dataset(
    data_flag,
    name,
    arrays,
    num_classes=columns.num_classes,
    class_names=columns.class_names,
  )


def _users(data_flag, examples_by_user):
  return assembled.each_once(
    data_flag,
    (
      assembled.make_user(data_flag, name, images, labels)
      for name, images, labels in examples_by_user
    ),
  )


# --- the splits -----------------------------------------------------------------------


def _opened(data_flag, path):
  """The splits 'train', 'test' and perhaps 'validation', not yet read."""
  datasets = assembled.package('huggingface', 'datasets')
  folder = expand(path).absolute()
  with one_line(f'{data_flag} must be a folder {_REQUIREMENT}'):
    logging.getLogger('datasets').setLevel(logging.ERROR)
    descriptions = folder / _DESCRIPTION, folder / _TRAIN / 'state.json'
    if any(description.exists() for description in descriptions):
      splits = list(_saved(datasets, folder))
    else:
      splits = list(_of_parquet(datasets, folder))
    for split in splits:
      split.data.validate(full=True)  # pyarrow aborts the process on damage met later
    return splits


def _saved(datasets, folder):
  names = [path.name for path in folder.iterdir()]
  if not set(names) & set(_TESTS):
    raise ValueError(_UNDIVIDED)
  for name in _split_names(names):
    # One by one, so that other names in dataset_dict.json are not looked at.
    _require_files_inside(folder / name)
    yield datasets.Dataset.load_from_disk(str(folder / name))


def _require_files_inside(folder):
  """Raises an error unless all files that `load_from_disk` opens are in the folder."""
  files.contents(folder / 'dataset_info.json', files.MOST_TEXT_BYTES)
  for described in json.loads(files.text(folder / 'state.json'))['_data_files']:
    files.require_regular(files.named(folder, described['filename']))


def _split_names(names):
  """The splits for training, test and perhaps validation, of the splits that exist."""
  tests = [name for name in _TESTS if name in names]
  if not tests:
    return _TRAIN, _TESTS[0]
  return _TRAIN, *tests[:2]


def _of_parquet(datasets, folder):
  import pyarrow
  from pyarrow import parquet

  folders = _parquet_files(folder)
  if not folders:
    raise ValueError('it has neither')
  complete = [
    parent
    for parent, splits in folders.items()
    if splits.keys() >= {*_split_names(splits)}
  ]
  if not complete and any(_TRAIN in splits for splits in folders.values()):
    raise ValueError(_UNDIVIDED)
  if len(complete) != 1:
    names = listed(parent.relative_to(folder) for parent in folders)
    raise ValueError(f'{len(complete)} folders have both splits, of {names}; name one')
  splits = folders[complete[0]]
  for split in _split_names(splits):
    _require_all_parts(split, [path.name for path in splits[split]])
    tables = []
    for path in splits[split]:
      with files.opened(path) as file:
        tables.append(parquet.read_table(file))
    table = datasets.table.InMemoryTable(pyarrow.concat_tables(tables))
    yield datasets.Dataset(table)


def _parquet_files(
  folder: pathlib.Path,
) -> dict[pathlib.Path, dict[str, list[pathlib.Path]]]:
  """Folder -> split -> its parquet files.

  The split is at the start of a file's name, or else the name of the file's folder.
  Files in folders named after their split belong to the folder above.
  """
  words = '|'.join((_TRAIN, *_TESTS))
  folders = {}
  for path in sorted(paths.below(folder, follow=True)):
    if path.suffix != '.parquet':
      continue
    start = re.match(rf'({words})(?![a-z0-9])', path.name)
    parent = path.parent
    is_named_after_split = parent != folder and parent.name in (_TRAIN, *_TESTS)
    if start:
      split = start[1]
    elif is_named_after_split:
      split = parent.name
    else:
      continue
    if is_named_after_split and parent.name == split:
      parent = parent.parent
    folders.setdefault(parent, {}).setdefault(split, []).append(path)
  return folders


def _require_all_parts(split, names):
  """Raises ValueError if a part of a split, such as 00001-of-00003, is missing."""
  parts = [re.search(r'-(\d+)-of-(\d+)[-.]', name) for name in names]
  parts = [part for part in parts if part]
  numbers = sorted(int(part[1]) for part in parts)
  if parts and {int(part[2]) for part in parts} != {len(parts)}:
    raise ValueError(f'of {split} there are the parts {numbers} of {parts[0][2]}')


# --- the columns ----------------------------------------------------------------------


def _columns(data_flag, splits, image, label):
  features = splits[0].features
  image, label = assembled.feature_names(data_flag, image, label, features)
  class_names = _class_names(features[label])
  for split in splits[1:]:
    other_names = _class_names(split.features.get(label))
    if class_names and other_names is not None and other_names != class_names:
      raise DataError(
        f'{data_flag}: the classes of {label!r} are {listed(class_names)} in train, '
        f'and {listed(other_names)} in another split; number all splits together.'
      )
  with one_line(f'{data_flag}: the column {image!r} cannot be read'):
    mode = getattr(features[image], 'mode', None)
    mode = mode or common_mode(_pictures(splits, image))
  return _Columns(
    image=image,
    label=label,
    num_classes=getattr(features[label], 'num_classes', None),
    class_names=class_names or [],
    mode=mode,
  )


def _class_names(feature):
  """The names that a ClassLabel has; None if the feature has no names."""
  names = getattr(feature, 'names', None)
  return None if names is None else [str(name) for name in names]


def _is_encoded(feature):
  """Whether a column has pictures as files, however it is described."""
  has_bytes = isinstance(feature, dict) and 'bytes' in feature
  is_binary = getattr(feature, 'dtype', '') == 'binary'
  return hasattr(feature, 'mode') or has_bytes or is_binary


def _pictures(splits, image) -> Iterator[Any]:
  """The pictures of all splits, as files; nothing if they are arrays."""
  for split in splits:
    if _is_encoded(split.features.get(image)):
      for batch in _undecoded(split.select_columns([image]), image).iter(1000):
        for picture in batch[image]:
          yield picture and picture['bytes']


def _undecoded(split, image):
  datasets = assembled.package('huggingface', 'datasets')
  return split.cast_column(image, datasets.Image(decode=False))


# --- the examples ---------------------------------------------------------------------


def _read(data_flag, split_name, split, client, columns):
  """The name of each user ('' stands for all examples), the images and the labels."""
  datasets = assembled.package('huggingface', 'datasets')
  image, label = columns.image, columns.label
  names = [name for name in (client, image, label) if name]
  if missing := set(names) - set(split.features):
    raise DataError(
      f'{data_flag} has no column {min(missing)!r} in a split; it has '
      f'{", ".join(split.features)}.'
    )
  is_encoded = _is_encoded(split.features[image])
  if is_encoded:
    split = _undecoded(split, image)
  for name in names:
    # Decoding would open what a path in the column names.
    if datasets.features.features.require_decoding(split.features[name]):
      raise DataError(f'{data_flag}: the column {name!r} is {split.features[name]}.')
  users = _user_rows(data_flag, split, client)
  split = split.select_columns([image, label])
  if not is_encoded:
    split = split.with_format('numpy')
  starts = [0, *users.ends]
  for name, start, end in zip(users.names, starts, users.ends, strict=False):
    with one_line(f'{data_flag}: the examples of {name!r} cannot be read'):
      rows = users.rows[start:end]
      examples = split[rows.tolist()]
      images, labels = examples[image], examples[label]
      for i, row in enumerate(rows):
        with one_line(f'{data_flag}: row {row} of {split_name} cannot be used'):
          _require_label(labels[i], columns.num_classes)
          if is_encoded:
            shape = images[0].shape if i else None
            images[i] = _decoded(images[i], columns.mode, shape)
    yield name, images, labels


def _require_label(label, num_classes):
  label = np.asarray(label).tolist()
  if num_classes and label not in range(num_classes):
    raise ValueError(f'its label is {label}, not one of 0 to {num_classes - 1}')


def _decoded(picture, mode, shape):
  if not picture or not picture['bytes']:
    raise ValueError('it has no picture')
  return decode_picture(picture['bytes'], mode, shape, upright=True)


def _user_rows(data_flag, split, client):
  if not client:
    return _UserRows([''], np.arange(len(split)), [len(split)])
  ids = np.asarray(split.select_columns([client]).with_format('numpy')[:][client])
  if ids.ndim != 1 or ids.dtype.kind not in 'iuU':
    raise DataError(f'{data_flag}: the column {client!r} must hold numbers or text.')
  names, numbers, sizes = np.unique(ids, return_inverse=True, return_counts=True)
  return _UserRows(
    names=names.tolist(),
    rows=np.argsort(numbers, kind='stable'),
    ends=np.cumsum(sizes).tolist(),
  )
