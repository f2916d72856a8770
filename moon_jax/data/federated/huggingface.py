"""Hugging Face's data sets: a folder of `save_to_disk`, or one with parquet files."""

import contextlib
import json
import logging
import math
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from moon_jax.core import files, machine_memory, paths
from moon_jax.core.errors import nearest_name_hint, printable
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import drawn_test, example_forms, split_names, texts
from moon_jax.data.data_errors import DataError, listed, one_line
from moon_jax.data.dataset import arrays_dataset
from moon_jax.data.drawn_test import TestDraw
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled
from moon_jax.data.pictures import DEEP, common_mode, decode_picture, reading_of
from moon_jax.data.split_names import TEST, TRAIN, VALIDATION
from moon_jax.data.table import NO_NAMES
from moon_jax.data.texts import TextOptions

_SPLIT_STATE = 'state.json'  # in the folder of each split, by save_to_disk
# Type of a value in a Parquet file -> the fewest bytes that the value takes in memory
# (an INT32 may be int8). A value of any other type takes at least 4.
_LEAST_BYTES = {'BOOLEAN': 1 / 8, 'INT32': 1, 'FIXED_LEN_BYTE_ARRAY': 1}
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
    image: name of the column of the images, or of other arrays or texts.
    features: names of the columns of numbers, in their order, if the examples are rows
      of these; () otherwise.
    label: name of the column of the labels.
    num_classes: Y; None if the labels do not say it.
    class_names: [Y]; [] if the labels have no names.
    mode: the mode to which pictures are converted.
    side: pixels of each side after resizing; 0: not resized.
    shape: (H, W, C) of the first training picture; None: unknown.
  """

  image: str
  features: tuple[str, ...]
  label: str
  num_classes: int | None
  class_names: list[str]
  mode: str
  side: int
  shape: tuple[int, int, int] | None

  @property
  def of_examples(self) -> tuple[str, ...]:
    """The names of the columns that an example is read from."""
    return self.features or (self.image,)


class _ColumnOptions(NamedTuple):
  """The knobs that name columns; see `load_huggingface`."""

  image: str
  label: str
  features: str
  text: str
  has_texts: bool
  side: int


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


class _Source(NamedTuple):
  """What is read, and how.

  Attributes:
    data_flag: flag of the folder, for messages.
    name: name of the data.
    columns: the columns.
    reading: how arrays are read.
    tokenizer: value of `data.tokenizer`.
  """

  data_flag: str
  name: str
  columns: _Columns
  reading: Reading
  tokenizer: str


# Role of a split -> its users: each one's name, examples and labels.
_UsersByRole = Mapping[str, Iterable[tuple[Any, Any, list]]]


def load_huggingface(
  path: str,
  client: str,
  image: str = '',
  label: str = '',
  image_size: int = 0,
  features: str = '',
  text: str = '',
  train_split: str = '',
  test_split: str = '',
  *,
  reading: Reading,
  test_draw: TestDraw,
  text_options: TextOptions,
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
    image_size: pixels of each side, to which pictures are resized bilinearly; 0 if all
      have one size.
    features: columns of numbers, with commas between, that are an example together; '*'
      stands for all columns of numbers but the label and the user; '': the examples are
      in one column.
    text: the column of texts, if these are read; '' stands for the usual names.
    train_split: name of the training split; '' finds it.
    test_split: name of the test split; '' finds it.
    reading: as in `npz.load_npz`, of arrays.
    test_draw: which training rows of each user, or of each class if there is no column
      of users, are drawn for the test; none if there is a test split.
    text_options: how texts are read, if the examples are these.

  Raises:
    DataError: it is no such folder, or lacks a split or a column.
  """
  data_flag = flag('data.path', path)
  if text_options.has_texts:
    texts.require_no_other_reading(reading)
  if features:
    texts.require_no_features(features, text_options.tokenizer)
    reading = reading._replace(axes=example_forms.axes_of_columns(reading.axes))
  splits = _opened(data_flag, path, label, {TRAIN: train_split, TEST: test_split})
  splits = _divided(data_flag, splits, client, label, test_draw)
  options = _ColumnOptions(
    image=image,
    label=label,
    features=features,
    text=text,
    has_texts=text_options.has_texts,
    side=image_size,
  )
  columns = _columns(data_flag, splits[:3], client, options)
  if columns.mode == DEEP:
    reading = reading_of(np.zeros(0, np.uint16), reading)
  source = _Source(
    data_flag=data_flag,
    name=expand(path).absolute().name,
    columns=columns,
    reading=reading,
    tokenizer=text_options.tokenizer,
  )
  users_by_role = {
    TRAIN: _read(data_flag, TRAIN, splits.train, client, columns),
    TEST: _read(data_flag, TEST, splits.test, client, columns),
  }
  if splits.validation is not None:
    # Nobody owns what is kept for validation.
    users_by_role[VALIDATION] = _read(
      data_flag, VALIDATION, splits.validation, '', columns
    )
  load = _federation if client else _dataset
  loaded = load(source, users_by_role)
  if splits.notice:
    print(f'{data_flag}: {splits.notice}', file=sys.stderr)
  return loaded


def _federation(source: _Source, users_by_role: _UsersByRole) -> assembled.Federation:
  """The users, whose examples are read when asked for, but for texts."""
  has_texts = source.tokenizer != texts.NONE

  def users_of(role):
    users_read = _users(source, users_by_role.get(role, ()), has_texts=has_texts)
    return assembled.each_once(source.data_flag, users_read)

  federation = assembled.Federation(
    data_flag=source.data_flag,
    name=source.name,
    train=users_of(TRAIN),
    test=users_of(TEST),
    num_classes=source.columns.num_classes,
    class_names=source.columns.class_names,
    validation=users_of(VALIDATION) if VALIDATION in users_by_role else (),
    feature_names=source.columns.features,
  )
  if has_texts:
    return assembled.with_text_labels(federation, source.tokenizer)
  return assembled.on_one_scale(federation, source.reading)


def _users(source, examples_by_user, *, has_texts):
  data_flag, columns = source.data_flag, source.columns
  for name, examples, labels in examples_by_user:
    if has_texts:
      yield assembled.make_text_user(data_flag, name, examples, labels)
      continue
    owner = f'{data_flag}: client {printable(str(name))!r}'
    described = f'{owner}: {", ".join(columns.of_examples)}'
    images = _as_array(described, examples, source.reading)
    yield assembled.make_user(data_flag, name, images, labels)


def _dataset(source: _Source, users_by_role: _UsersByRole) -> Dataset:
  """The data set, whose examples have no users."""
  data_flag, columns = source.data_flag, source.columns
  arrays, array_names = [], []
  for role, users_read in users_by_role.items():
    for _, images, labels in users_read:
      described = f'{", ".join(columns.of_examples)} of {role}'
      arrays += [
        _as_array(f'{data_flag}: {described}', images, source.reading),
        np.asarray(labels),
      ]
      array_names += [described, f'{columns.label} of {role}']
  dataset = arrays_dataset(
    data_flag,
    source.name,
    arrays,
    reading=source.reading,
    num_classes=columns.num_classes,
    class_names=columns.class_names,
    array_names=array_names,
    tokenizer=source.tokenizer,
  )
  return dataset._replace(feature_names=columns.features)


def _as_array(described: str, examples: Any, reading: Reading) -> np.ndarray:
  """The examples of a column as one array; lists of words are filled up with -1.

  Args:
    described: flag of the data and name of the column, for messages.
    examples: an array, or a list of arrays of perhaps several lengths, or of texts.
    reading: how the arrays are read.

  Raises:
    DataError: lists are of several lengths, and no words.
  """
  if texts.is_text(examples):
    return np.array(examples, object)
  arrays = [np.asarray(example) for example in examples]
  shapes = {array.shape for array in arrays}
  if len(shapes) == 1:
    return np.stack(arrays)
  are_words = reading.axes == 'T' and all(
    array.ndim == 1 and (array.dtype.kind in 'iu' or not array.size) for array in arrays
  )
  if not are_words:
    shortest, longest = min(shapes), max(shapes)
    raise DataError(
      f'{described} has rows of several lengths, {list(shortest)} and {list(longest)}; '
      f'cut or fill them up to one. Lists of words, which are integers, are filled up '
      f'with -1 by {flag("data.axes", "T")}.'
    )
  rows = np.full((len(arrays), max(map(len, arrays))), -1, np.int64)
  for row, array in zip(rows, arrays, strict=True):
    row[: len(array)] = array
  return rows


# --- the splits -----------------------------------------------------------------------


def _opened(data_flag, path, label, names_by_role) -> _Splits:
  """The splits of the folder; `names_by_role` has those that are named by knobs."""
  datasets = assembled.package('huggingface', 'datasets')
  folder = expand(path).absolute()
  with one_line(f'{data_flag} must be a folder {_REQUIREMENT}'):
    logging.getLogger('datasets').setLevel(logging.ERROR)
    names = [path.parent.name for path in folder.glob(f'*/{_SPLIT_STATE}')]
    if names:
      chosen = _chosen(names, names_by_role)
      opened = {
        name: _saved(data_flag, datasets, folder / name) for name in chosen.names
      }
    elif (folder / _SPLIT_STATE).exists():  # a Dataset, not a DatasetDict
      chosen = _Chosen(folder.name, None, None, [])
      opened = {folder.name: _saved(data_flag, datasets, folder)}
    else:
      files_by_split = _parquet_splits(folder)
      chosen = _chosen(files_by_split, names_by_role)
      opened = {
        name: _of_parquet(datasets, name, files_by_split[name]) for name in chosen.names
      }
    for split in opened.values():
      split.data.validate(full=True)  # pyarrow aborts the process on damage met later
  for name, split in opened.items():
    if not len(split):
      raise _without_rows(data_flag, name)
  notices, not_used = [], chosen.others
  train_role = split_names.parse(chosen.train).role
  if train_role in (TEST, VALIDATION) and not names_by_role[TRAIN]:
    notices.append(f'{chosen.train!r}, the only split, for training')
  is_evident = names_by_role[TEST] or split_names.is_called_test(chosen.test or TEST)
  if chosen.test and not is_evident:
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


def _chosen(
  names: Iterable[str], names_by_role: Mapping[str, str] = MappingProxyType({})
) -> _Chosen:
  """The split of each role; one that is called like the role comes first.

  Args:
    names: names of all splits.
    names_by_role: TRAIN and TEST -> the split that a knob names; '' if it names none.

  Raises:
    ValueError: no split is for training, several are for one role, or a named one is
      missing.
  """
  names = sorted(names)
  for role, name in names_by_role.items():
    if name and name not in names:
      raise ValueError(
        f'it has no split {name!r} of {flag(f"data.{role}_split")}; it has '
        f'{listed(names)}{nearest_name_hint(name, names)}'
      )
  is_named = any(names_by_role.values())
  roles = split_names.roles(names)
  for role, name in names_by_role.items():
    if name:
      roles = {other: '' if roles[other] == role else roles[other] for other in names}
  roles |= {name: role for role, name in names_by_role.items() if name}
  chosen_names = {}
  for role in (TRAIN, TEST, VALIDATION):
    same_role = [name for name in names if roles[name] == role]
    if role in same_role:
      same_role = [role]
    if len(same_role) > 1:
      raise ValueError(
        f'of its splits {listed(names)}, {" and ".join(same_role)} would each be the '
        f'{role} split; {_remedy_for_several(role)}'
      )
    chosen_names[role] = same_role[0] if same_role else None
  if len(names) == 1 and not is_named:  # what there is, is trained on and divided
    chosen_names = {TRAIN: names[0], TEST: None, VALIDATION: None}
  if chosen_names[TRAIN] is None:
    raise ValueError(
      f'none of its splits, {listed(names)}, is called {TRAIN!r}; '
      f'{flag("data.train_split", "NAME")} names the one for training'
    )
  return _Chosen(
    **chosen_names,
    others=[name for name in names if name not in chosen_names.values()],
  )


def _remedy_for_several(role):
  if role == VALIDATION:
    return f'call one of them {role!r}'
  return f'{flag(f"data.{role}_split", "NAME")} names one'


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


def _divided(data_flag, splits, client, label, test_draw) -> _Splits:
  """The splits, of which the test is drawn if there is none.

  Raises:
    DataError: it is not said to draw, or there is a test.
  """
  if splits.test is not None and test_draw.test_fraction:
    raise DataError(
      f'{data_flag} is divided already: drop {flag("data.test_fraction")}.'
    )
  if splits.test is not None:
    return splits
  if not test_draw.test_fraction:
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
  is_test = drawn_test.is_test(kinds, test_draw)
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


def _saved(data_flag, datasets, folder):
  # One by one, so that other names in dataset_dict.json are not looked at.
  files.contents(folder / 'dataset_info.json', files.MOST_TEXT_BYTES)
  data_files = json.loads(files.text(folder / _SPLIT_STATE))['_data_files']
  if not data_files:
    raise _without_rows(data_flag, folder.name)
  for described in data_files:
    files.require_regular(files.named(folder, described['filename']))
  return datasets.Dataset.load_from_disk(str(folder))


def _without_rows(data_flag, split_name):
  return DataError(
    f'{data_flag}: its split {printable(split_name)!r} has no rows; remove or fill it.'
  )


def _of_parquet(datasets, split, parquet_paths):
  import pyarrow
  from pyarrow import parquet

  _require_all_parts(split, [path.name for path in parquet_paths])
  tables = []
  features_of_first = None
  for path in parquet_paths:
    with files.opened(path) as file:
      machine_memory.require_file_fits(path, _least_bytes(parquet.read_metadata(file)))
      file.seek(0)
      tables.append(parquet.read_table(file))
    # Joining keeps the names of classes of the first file alone.
    features = datasets.Features.from_arrow_schema(tables[-1].schema)
    features_of_first = features_of_first or features
    if features != features_of_first:
      raise DataError(
        f'the files {parquet_paths[0].name!r} and {path.name!r} of {split!r} have '
        'other columns or classes; number the classes of all files together.'
      )
  table = datasets.table.InMemoryTable(pyarrow.concat_tables(tables))
  return datasets.Dataset(table)


def _least_bytes(metadata):
  """A lower bound of what a Parquet file takes in memory, by its footer.

  A column of equal numbers takes no space in the file.
  """
  num_bytes = 0
  for group in range(metadata.num_row_groups):
    for column in range(metadata.num_columns):
      chunk = metadata.row_group(group).column(column)
      num_bytes += chunk.num_values * _LEAST_BYTES.get(chunk.physical_type, 4)
  return int(num_bytes)


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


def _columns(data_flag, splits, client, options) -> _Columns:
  splits = [split for split in splits if split is not None]
  features, side = splits[0].features, options.side
  label = assembled.label_name(data_flag, options.label, features)
  numbers, image = (), ''
  if options.features:
    numbers = _columns_of_numbers(data_flag, features, options.features, label, client)
  elif options.has_texts:
    image = assembled.text_name(data_flag, options.text, features)
  else:
    image, _ = assembled.feature_names(data_flag, options.image, label, features)
    if _is_text(features[image]):
      raise DataError(
        f'{data_flag}: the column {image!r} has texts; '
        f'{flag("data.tokenizer", "wordpiece")} reads them as words, '
        f'{flag("data.tokenizer", texts.CHARACTERS)} as characters.'
      )
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
  column = features.get(image)
  if side and not _is_encoded(column):
    raise DataError(
      f'{data_flag}: only pictures are resized, and these data have none: drop '
      f'{flag("data.image_size")}.'
    )
  with one_line(f'{data_flag}: the column {image!r} cannot be read'):
    mode = getattr(column, 'mode', None)
    mode = mode or common_mode(_pictures(splits, image))
    shape = None
    with contextlib.suppress(Exception):  # reading its row says what is wrong
      first_picture = next(_pictures(splits[:1], image))
      shape = decode_picture(first_picture, mode, upright=True, side=side).shape
  return _Columns(
    image=image,
    features=numbers,
    label=label,
    num_classes=_num_classes(label_feature),
    class_names=class_names or [],
    mode=mode,
    side=side,
    shape=shape,
  )


def _columns_of_numbers(data_flag, features, chosen, label, client) -> tuple[str, ...]:
  """The names of the columns of numbers; a line tells them if '*' stands for all.

  Raises:
    DataError: a column is missing, or has no numbers.
  """
  if chosen == '*':
    names = [
      name
      for name, feature in features.items()
      if name not in (label, client, *NO_NAMES) and _is_number(feature)
    ]
    others = sorted({*features} - {*names, label, client})
    unused = f'; not used: {listed(others)}' if others else ''
    print(f'{data_flag}: features: {listed(names)}{unused}', file=sys.stderr)
  else:
    names = [name.strip() for name in chosen.split(',') if name.strip()]
  for name in names:
    if name not in features:
      hint = nearest_name_hint(name, features)
      raise DataError(
        f'{data_flag} has no column {name!r} of {flag("data.features", chosen)}; it '
        f'has {listed(features)}.{hint}'
      )
    if name in (label, client):
      raise DataError(
        f'{flag("data.features", chosen)} has {name!r}, which is the '
        f'{"label" if name == label else "user"}: leave it out.'
      )
    if not _is_number(features[name]):
      raise DataError(
        f'{data_flag}: the column {name!r} of {flag("data.features", chosen)} holds no '
        f'numbers, but {features[name]}; leave it out.'
      )
  if not names:
    raise DataError(
      f'{data_flag} has no columns of numbers for {flag("data.features")}.'
    )
  return tuple(names)


def _is_number(feature):
  """Whether a column has one number, or true or false, in each row."""
  dtype = str(getattr(feature, 'dtype', ''))
  is_plain = type(feature).__name__ == 'Value'
  return is_plain and re.fullmatch(r'bool|u?int\d+|float\d+', dtype) is not None


def _is_text(feature):
  return str(getattr(feature, 'dtype', '')) in ('string', 'large_string')


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
  label = columns.label
  names = [name for name in (client, *columns.of_examples, label) if name]
  if missing := set(names) - set(split.features):
    raise _missing_column(data_flag, min(missing), split)
  is_encoded = _is_encoded(split.features.get(columns.image))
  are_texts = not columns.features and _is_text(split.features[columns.image])
  if is_encoded:
    split = _undecoded(split, columns.image)
  for name in names:
    # Decoding would open what a path in the column names.
    if datasets.features.features.require_decoding(split.features[name]):
      raise DataError(f'{data_flag}: the column {name!r} is {split.features[name]}.')
  users = _user_rows(data_flag, split, client)
  split = split.select_columns([*columns.of_examples, label])
  if not is_encoded:
    # NumPy would give each text the space of the longest one.
    split = split.with_format(None if are_texts else 'numpy')
  starts = [0, *users.ends]
  for name, start, end in zip(users.names, starts, users.ends, strict=False):
    with one_line(f'{data_flag}: the examples of {name!r} cannot be read'):
      rows = users.rows[start:end]
      examples = split[rows.tolist()]
      images, labels = _examples_of(examples, columns), list(examples[label])
      for i, row in enumerate(rows):
        with one_line(f'{data_flag}: row {row} of {split_name} cannot be used'):
          labels[i] = _one_label(labels[i], columns.num_classes)
          if is_encoded:
            images[i] = _decoded(images[i], columns)
          if are_texts and images[i] is None:
            raise ValueError('it has no text')
    yield name, images, labels


def _examples_of(examples, columns):
  """The arrays, texts or encoded pictures of some rows; columns become [n, D]."""
  if columns.features:
    return np.stack(
      [np.asarray(examples[name], np.float64) for name in columns.features], axis=1
    )
  return list(examples[columns.image])


def _one_label(label, num_classes):
  """The label of a row, of which a list may have one."""
  label = np.asarray(label).tolist()
  if isinstance(label, list):
    if len(label) != 1:
      raise ValueError(f'it has {len(label)} labels, {label}, and must have one')
    label = label[0]
  if num_classes and label not in range(num_classes):
    raise ValueError(f'its label is {label}, not one of 0 to {num_classes - 1}')
  if label is None or (isinstance(label, float) and math.isnan(label)):
    raise ValueError('it has no label')
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
  column = split.select_columns([client])
  if None in column[:][client]:
    raise DataError(f'{data_flag}: the column {client!r} names no user in some rows.')
  ids = np.asarray(column.with_format('numpy')[:][client])
  if names_of_ids := getattr(split.features[client], 'names', None):
    ids = np.asarray(names_of_ids)[ids]  # another split may number them otherwise
  if ids.ndim != 1 or ids.dtype.kind not in 'iuU':
    raise DataError(f'{data_flag}: the column {client!r} must hold numbers or text.')
  names, numbers, sizes = np.unique(ids, return_inverse=True, return_counts=True)
  return _UserRows(
    names=names.tolist(),
    rows=np.argsort(numbers, kind='stable'),
    ends=np.cumsum(sizes).tolist(),
  )
