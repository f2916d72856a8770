"""Hugging Face's data sets: a folder of `save_to_disk`, or one with parquet files."""

import contextlib
import json
import logging
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import files, paths
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import drawn_test, split_names
from moon_jax.data.dataset import arrays_dataset
from moon_jax.data.errors import DataError, listed, one_line
from moon_jax.data.federated import assembled
from moon_jax.data.forms import Reading
from moon_jax.data.pictures import common_mode, decode_picture
from moon_jax.data.split_names import TEST, TRAIN, VALIDATION

_SPLIT_STATE = 'state.json'  # in the folder of each split, by save_to_disk
_REQUIREMENT = 'by save_to_disk, or one of parquet files, with splits train and test'


class _Splits(NamedTuple):
  """The splits that are read, not yet read.

  Attributes:
    train: the training rows.
    test: the test rows; None if no split has them.
    validation: the rows for validation; None if there are none.
    notice: a sentence about what is not evident; '' if all is.
  """

  train: Any
  test: Any
  validation: Any
  notice: str


class _Columns(NamedTuple):
  """The columns of all splits.

  Attributes:
    image: name of the column of the images.
    label: name of the column of the labels.
    num_classes: Y; None if the labels do not say it.
    class_names: [Y]; [] if the labels have no names.
    mode: the mode to which pictures are converted.
    side: pixels of each side after resizing; 0: not resized.
    shape: (H, W, C) of the first training picture; None: unknown.
  """

  image: str
  label: str
  num_classes: int | None
  class_names: list[str]
  mode: str
  side: int
  shape: tuple[int, int, int] | None


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
  path: str,
  client: str,
  image: str = '',
  label: str = '',
  test_fraction: float = 0.0,
  test_seed: int = 0,
  image_size: int = 0,
  range: str = '',
  axes: str = '',
  normalize: str = 'auto',
) -> assembled.Federation | Dataset:
  """Loads splits of Hugging Face; users, if a column has their ids, in ascending order.

  A line says which splits are not used, and which split is the test or the training
  split if its name does not tell it.

  Args:
    path: the folder, with the splits train and test, or names with these words. A split
      validation is the test if there is no test with labels; otherwise it is kept for
      validation, without its user ids. Parquet files are called
      train-00000-of-00001.parquet or the like, or are in folders train and test, as on
      the Hub.
    client: the column of user ids; '': no column.
    image: the column of the images, of the feature Image, or arrays; '' stands for the
      usual names.
    label: the column of the labels; a ClassLabel has the names of the classes.
    test_fraction: fraction of the training rows of each user, or of each class if there
      is no column of users, that are drawn for the test; 0 if there is a test split.
    test_seed: seed of the draw.
    image_size: pixels of each side, to which pictures are resized bilinearly; 0 if all
      have one size.
    range: numbers of black and white in arrays, 'LOW,HIGH'; '': as in `npz.load_npz`.
    axes: as in `npz.load_npz`.
    normalize: as in `npz.load_npz`.

  Raises:
    DataError: it is no such folder, or lacks a split or a column.
  """
  data_flag = flag('data.path', path)
  reading = Reading(range=range, axes=axes, normalize=normalize)
  splits = _opened(data_flag, path, label)
  splits = _divided(data_flag, splits, client, label, test_fraction, test_seed)
  columns = _columns(data_flag, splits[:3], image, label, image_size)
  name = expand(path).absolute().name
  read_train = _read(data_flag, TRAIN, splits.train, client, columns)
  read_test = _read(data_flag, TEST, splits.test, client, columns)
  read_validation = None
  if splits.validation is not None:
    read_validation = _read(data_flag, VALIDATION, splits.validation, '', columns)
  if client:
    federation = assembled.Federation(
      data_flag=data_flag,
      name=name,
      train=_users(data_flag, read_train),
      test=_users(data_flag, read_test),
      num_classes=columns.num_classes,
      class_names=columns.class_names,
      validation=_users(data_flag, read_validation) if read_validation else (),
    )
    _say(data_flag, splits.notice)
    return assembled.on_one_scale(federation, reading)
  arrays, array_names = [], []
  reads = {TRAIN: read_train, TEST: read_test, VALIDATION: read_validation}
  for split_name, read in reads.items():
    for _, images, labels in read or ():
      arrays += [np.asarray(images), np.asarray(labels)]
      array_names += [f'{columns.image} of {split_name}']
      array_names += [f'{columns.label} of {split_name}']
  dataset = arrays_dataset(
    data_flag,
    name,
    arrays,
    reading=reading,
    num_classes=columns.num_classes,
    class_names=columns.class_names,
    array_names=array_names,
  )
  _say(data_flag, splits.notice)
  return dataset


def _say(data_flag, notice):
  if notice:
    print(f'{data_flag}: {notice}', file=sys.stderr)


def _users(data_flag, examples_by_user):
  return assembled.each_once(
    data_flag,
    (
      assembled.make_user(data_flag, name, images, labels)
      for name, images, labels in examples_by_user
    ),
  )


# --- the splits -----------------------------------------------------------------------


def _opened(data_flag, path, label) -> _Splits:
  """The splits of the folder."""
  datasets = assembled.package('huggingface', 'datasets')
  folder = expand(path).absolute()
  with one_line(f'{data_flag} must be a folder {_REQUIREMENT}'):
    logging.getLogger('datasets').setLevel(logging.ERROR)
    names = [path.parent.name for path in folder.glob(f'*/{_SPLIT_STATE}')]
    if names:
      chosen = _chosen(names)
      opened = {name: _saved(datasets, folder / name) for name in chosen.names}
    elif (folder / _SPLIT_STATE).exists():  # a Dataset, not a DatasetDict
      chosen = _Chosen(folder.name, None, None, [])
      opened = {folder.name: _saved(datasets, folder)}
    else:
      files_by_split = _parquet_splits(folder)
      chosen = _chosen(files_by_split)
      opened = {
        name: _of_parquet(datasets, name, files_by_split[name]) for name in chosen.names
      }
    for split in opened.values():
      split.data.validate(full=True)  # pyarrow aborts the process on damage met later
  notices, not_used = [], chosen.others
  if split_names.parse(chosen.train).role in (TEST, VALIDATION):
    notices.append(f'{chosen.train!r}, the only split, for training')
  if chosen.test and not split_names.is_called_test(chosen.test):
    notices.append(f'{chosen.test!r} for test')
  test, validation = opened.get(chosen.test), opened.get(chosen.validation)
  if test is not None and _is_unlabelled(test, label):
    not_used = [*not_used, f'{chosen.test}, which has no labels']
    test = None
  if test is None:
    test, validation = validation, None
    if test is not None:
      notices.append(f'{chosen.validation!r} for test')
  if not_used:
    splits = 'split' if len(not_used) == 1 else 'splits'
    notices.append(f'not used: the {splits} {listed(not_used)}')
  notice = '; '.join(notices) + '.' if notices else ''
  return _Splits(opened[chosen.train], test, validation, notice)


class _Chosen(NamedTuple):
  """The names of the splits.

  Attributes:
    train: the training split.
    test: the test split; None if there is none.
    validation: the validation split; None if there is none.
    others: the splits that are not used.
  """

  train: str
  test: str | None
  validation: str | None
  others: list[str]

  @property
  def names(self):
    return [name for name in self[:3] if name is not None]


def _chosen(names: Iterable[str]) -> _Chosen:
  """The split of each role; one that is called like the role comes first.

  Raises:
    ValueError: no split is for training, or several are for one role.
  """
  names = sorted(names)
  roles = split_names.roles(names)
  chosen_names = {}
  for role in (TRAIN, TEST, VALIDATION):
    same_role = [name for name in names if roles[name] == role]
    if role in names:
      same_role = [role]
    if len(same_role) > 1:
      raise ValueError(
        f'of its splits {listed(names)}, {" and ".join(same_role)} would each be the '
        f'{role} split; call one of them {role!r}'
      )
    chosen_names[role] = same_role[0] if same_role else None
  if len(names) == 1:  # what there is, is trained on and divided
    chosen_names = {TRAIN: names[0], TEST: None, VALIDATION: None}
  if chosen_names[TRAIN] is None:
    raise ValueError(
      f'none of its splits, {listed(names)}, is called {TRAIN!r}; rename the one for '
      'training'
    )
  return _Chosen(
    **chosen_names,
    others=[name for name in names if name not in chosen_names.values()],
  )


def _is_unlabelled(split, label):
  """Whether all labels are -1 or missing, as in the test of a contest."""
  import pyarrow.compute

  with contextlib.suppress(DataError):
    label = assembled.label_name('', label, split.features)
  if label not in split.features or not len(split):
    return False
  labels = _undecoded_column(split, label)
  if labels.null_count == len(labels):
    return True
  if not pyarrow.types.is_integer(labels.type):
    return False
  return pyarrow.compute.max(labels).as_py() == -1


def _divided(data_flag, splits, client, label, fraction, seed) -> _Splits:
  """The splits, of which the test is drawn if there is none.

  Raises:
    DataError: it is not said to draw, or there is a test.
  """
  if splits.test is not None and fraction:
    raise DataError(
      f'{data_flag} is divided already: drop {flag("data.test_fraction")}.'
    )
  if splits.test is not None:
    return splits
  if not fraction:
    whose = 'user' if client else 'class'
    notice = f' ({splits.notice.removesuffix(".")})' if splits.notice else ''
    raise DataError(
      f'{data_flag} has no test split with labels{notice}. '
      f'{flag("data.test_fraction", 0.2)} draws a fifth of each {whose} of the '
      'training split.'
    )
  column = client
  if not client:
    column = assembled.label_name(data_flag, label, splits.train.features)
  if column not in splits.train.features:
    raise _missing_column(data_flag, column, splits.train)
  values = _undecoded_column(splits.train, column).to_pylist()
  kinds = [str(value) for value in values]
  is_test = drawn_test.is_test(kinds, fraction, seed)
  return splits._replace(
    train=splits.train.select(np.flatnonzero(~is_test)),
    test=splits.train.select(np.flatnonzero(is_test)),
  )


def _undecoded_column(split, column):
  """The values in Arrow's form: decoding could open what a path in the column names."""
  return split.select_columns([column]).with_format('arrow')[:][column]


def _missing_column(data_flag, column, split):
  return DataError(
    f'{data_flag} has no column {column!r} in a split; it has '
    f'{", ".join(split.features)}.'
  )


def _saved(datasets, folder):
  # One by one, so that other names in dataset_dict.json are not looked at.
  _require_files_inside(folder)
  return datasets.Dataset.load_from_disk(str(folder))


def _require_files_inside(folder):
  """Raises an error unless all files that `load_from_disk` opens are in the folder."""
  files.contents(folder / 'dataset_info.json', files.MOST_TEXT_BYTES)
  for described in json.loads(files.text(folder / _SPLIT_STATE))['_data_files']:
    files.require_regular(files.named(folder, described['filename']))


def _of_parquet(datasets, split, parquet_paths):
  import pyarrow
  from pyarrow import parquet

  _require_all_parts(split, [path.name for path in parquet_paths])
  tables = []
  for path in parquet_paths:
    with files.opened(path) as file:
      tables.append(parquet.read_table(file))
  table = datasets.table.InMemoryTable(pyarrow.concat_tables(tables))
  return datasets.Dataset(table)


def _parquet_splits(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
  """Split -> its parquet files, of the one folder that has splits.

  Raises:
    ValueError: there is no such folder, or more than one.
  """
  folders = _parquet_files(folder)
  if not folders:
    raise ValueError('it has neither')
  roles = {
    parent: set(split_names.roles(splits).values())
    for parent, splits in folders.items()
  }
  complete = [
    parent for parent in folders if {TRAIN} < roles[parent] & {TRAIN, TEST, VALIDATION}
  ]
  complete = complete or [parent for parent in folders if TRAIN in roles[parent]]
  complete = complete or list(folders)
  if len(complete) > 1:
    paths = ' or '.join(flag('data.path', str(parent)) for parent in complete)
    raise ValueError(f'several folders have splits; choose {paths}')
  return folders[complete[0]]


def _parquet_files(
  folder: pathlib.Path,
) -> dict[pathlib.Path, dict[str, list[pathlib.Path]]]:
  """Folder -> split -> its parquet files.

  The split is in a file's name, or else the name of the file's folder. Files in folders
  named after their split belong to the folder above.
  """
  folders = {}
  for path in sorted(paths.below(folder, follow=True)):
    if path.suffix != '.parquet':
      continue
    split, parent = _split_of_file(path.stem), path.parent
    folder_role = split_names.parse(parent.name).role if parent != folder else ''
    role = split_names.parse(split).role
    if folder_role and role in ('', folder_role):
      split, parent = (split if role else parent.name), parent.parent
    folders.setdefault(parent, {}).setdefault(split, []).append(path)
  return folders


def _split_of_file(stem):
  """'train' of 'train-00000-of-00002', 'train-part-a' and 'train_1'."""
  start = stem.partition('-')[0]
  if not split_names.parse(start).role:
    start = re.sub(r'[-_.]*\d+-of-\d+(-[0-9a-f]{8,})?$', '', stem)
  return re.sub(r'[-_.]*\d+$', '', start) or stem


def _require_all_parts(split, names):
  """Raises ValueError if a part of a split, such as 00001-of-00003, is missing."""
  parts = [re.search(r'-(\d+)-of-(\d+)[-.]', name) for name in names]
  parts = [part for part in parts if part]
  numbers = sorted(int(part[1]) for part in parts)
  if parts and {int(part[2]) for part in parts} != {len(parts)}:
    raise ValueError(f'of {split} there are the parts {numbers} of {parts[0][2]}')


# --- the columns ----------------------------------------------------------------------


def _columns(data_flag, splits, image, label, side) -> _Columns:
  splits = [split for split in splits if split is not None]
  features = splits[0].features
  image, label = assembled.feature_names(data_flag, image, label, features)
  label_feature = _of_one_label(features[label])
  class_names = _class_names(label_feature)
  for split in splits[1:]:
    other_names = _class_names(_of_one_label(split.features.get(label)))
    if class_names and other_names is not None and other_names != class_names:
      raise DataError(
        f'{data_flag}: the classes of {label!r} are {listed(class_names)} in train, '
        f'and {listed(other_names)} in another split; number all splits together.'
      )
  if getattr(label_feature, 'dtype', '').startswith('float'):
    raise DataError(
      f'{data_flag}: the column {label!r} is {label_feature.dtype}; in Python, '
      f"cast_column({label!r}, datasets.Value('int64')) makes it integers."
    )
  if side and not _is_encoded(features[image]):
    raise DataError(
      f'{data_flag}: the column {image!r} has arrays, and only pictures are resized: '
      f'drop {flag("data.image_size")}.'
    )
  with one_line(f'{data_flag}: the column {image!r} cannot be read'):
    mode = getattr(features[image], 'mode', None)
    mode = mode or common_mode(_pictures(splits, image))
    shape = None
    with contextlib.suppress(Exception):  # reading its row says what is wrong
      first_picture = next(_pictures(splits[:1], image))
      shape = decode_picture(first_picture, mode, upright=True, side=side).shape
  return _Columns(
    image=image,
    label=label,
    num_classes=_num_classes(label_feature),
    class_names=class_names or [],
    mode=mode,
    side=side,
    shape=shape,
  )


def _of_one_label(feature):
  """The feature of a label, also if a row has a list of labels."""
  if isinstance(feature, list):
    return feature[0]
  return getattr(feature, 'feature', feature)


def _class_names(feature):
  """The names of the classes that a feature has; None if it has none."""
  if getattr(feature, 'dtype', '') == 'bool':
    return ['False', 'True']
  names = getattr(feature, 'names', None)
  return None if names is None else [str(name) for name in names]


def _num_classes(feature):
  if getattr(feature, 'dtype', '') == 'bool':
    return 2
  return getattr(feature, 'num_classes', None)


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
    raise _missing_column(data_flag, min(missing), split)
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
      images, labels = examples[image], list(examples[label])
      for i, row in enumerate(rows):
        with one_line(f'{data_flag}: row {row} of {split_name} cannot be used'):
          labels[i] = _one_label(labels[i], columns.num_classes)
          if is_encoded:
            images[i] = _decoded(images[i], columns)
    yield name, images, labels


def _one_label(label, num_classes):
  """The label of a row, of which a list may have one."""
  label = np.asarray(label).tolist()
  if isinstance(label, list):
    if len(label) != 1:
      raise ValueError(f'it has {len(label)} labels, {label}, and must have one')
    label = label[0]
  if num_classes and label not in range(num_classes):
    raise ValueError(f'its label is {label}, not one of 0 to {num_classes - 1}')
  return int(label) if isinstance(label, bool) else label


def _decoded(picture, columns):
  if not picture or not picture['bytes']:
    raise ValueError('it has no picture')
  pixels = decode_picture(
    picture['bytes'], columns.mode, upright=True, side=columns.side
  )
  if columns.shape and pixels.shape != columns.shape:
    raise ValueError(
      f'the image has shape {pixels.shape}, not {columns.shape}; '
      f'{flag("data.image_size")}=N resizes all to NxN'
    )
  return pixels


def _user_rows(data_flag, split, client):
  if not client:
    return _UserRows(names=[''], rows=np.arange(len(split)), ends=[len(split)])
  ids = np.asarray(split.select_columns([client]).with_format('numpy')[:][client])
  if ids.ndim != 1 or ids.dtype.kind not in 'iuU':
    raise DataError(f'{data_flag}: the column {client!r} must hold numbers or text.')
  names, numbers, sizes = np.unique(ids, return_inverse=True, return_counts=True)
  return _UserRows(
    names=names.tolist(),
    rows=np.argsort(numbers, kind='stable'),
    ends=np.cumsum(sizes).tolist(),
  )
