"""Tables in CSV or Parquet files: a row is an example, and its columns are numbers."""

import contextlib
import os
import pathlib
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from moon_jax.core import files, machine_memory
from moon_jax.core.errors import KnobError, printable
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import drawn_test, texts
from moon_jax.data.data_errors import DataError, listed, one_line
from moon_jax.data.dataset import arrays_dataset
from moon_jax.data.drawn_test import TestDraw
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled, users
from moon_jax.data.layouts import TABLE_SUFFIXES
from moon_jax.data.texts import TextOptions

_SENTENCE_WORDS = 4  # as many words are rarely the name of a category
_MOST_NAMES = 100  # of features, in the line that names them
# A column with one of these names has no name; pandas gives the second one to an index
# that it writes into a Parquet file.
NO_NAMES = ('', '__index_level_0__')


class _Columns(NamedTuple):
  """The columns of a table.

  Attributes:
    label: the column of the labels.
    client: the column of the user ids; '' if there is none.
    categories: columns of words or codes -> their categories, in ascending order.
    numbers: the other columns.
  """

  label: str
  client: str
  categories: dict[str, list]
  numbers: list[str]

  @property
  def feature_names(self) -> list[str]:
    """Names of the features, in order: 'age', ..., 'job=clerk', ..."""
    one_hot = [
      f'{column}={category}'
      for column, categories in self.categories.items()
      for category in categories
    ]
    return self.numbers + one_hot


class Rows(NamedTuple):
  """The rows of a table that a trained model is to classify.

  Attributes:
    names: [M] the index of the table, as text: numbers from 0, unless a Parquet file
      has another index.
    features: [M, D] float64, in the order of the model's features.
    labels: [M] text; None if the table has no labels.
  """

  names: list[str]
  features: np.ndarray
  labels: np.ndarray | None


def load_table(
  path: str,
  client: str,
  label: str = '',
  categories: str = '',
  text: str = '',
  *,
  reading: Reading,
  test_draw: TestDraw,
  text_options: TextOptions,
) -> Dataset:
  """Loads a table; a line of the output names the features.

  Args:
    path: a .csv or .parquet file, of which `test_draw` draws rows for the test; or a
      folder with train.csv and test.csv (or .parquet).
    client: the column of user ids; '': no column.
    label: the column of the labels, integers or text; '': label, labels or y.
    categories: columns of words or codes, with commas between, each of which becomes
      one column of 0 and 1 for each category. All other columns are numbers.
    text: the column of texts, if these are read; '': text, sentence, ... Columns other
      than it, the label and the user are not used then, and a line names them.
    reading: as in `npz.load_npz`; its axes are '' or 'D'.
    test_draw: which rows of each user, or of each class if there is no column of users,
      are drawn for the test; none if there is a test file.
    text_options: how texts are read; without them the columns are numbers.

  Raises:
    DataError: a file or a column is missing or unusable.
  """
  data_flag = flag('data.path', path)
  has_texts = text_options.has_texts
  if has_texts:
    texts.require_no_other_reading(reading)
  elif reading.axes not in ('', 'D'):
    raise KnobError('data.axes', reading.axes, "must be D or '' for a table.")
  if has_texts and categories:
    raise KnobError('data.categories', categories, 'is for tables without texts.')
  train, test = _frames(
    data_flag, expand(path), test_draw.test_fraction, has_texts=has_texts
  )
  label = assembled.label_name(data_flag, label, train.columns)
  if label == client:
    raise DataError(
      f'{flag("data.client", client)} is the label, too: every client would have one '
      'class.'
    )
  if has_texts:
    columns = _text_columns(data_flag, train, text, label, client)
  else:
    columns = _columns(data_flag, train, label, client, categories)
  if test is None:
    kinds = _complete(data_flag, train, client or label).tolist()
    is_test = drawn_test.is_test(kinds, test_draw)
    train, test = train[~is_test], train[is_test]
  name, frames = pathlib.Path(path).stem, (train, test)
  if has_texts:
    dataset = _texts_dataset(
      data_flag, name, columns, frames, reading, text_options.tokenizer
    )
  else:
    dataset = _numbers_dataset(data_flag, name, columns, frames, reading)
  if not client:
    return dataset
  ids = [
    _user_ids(f'{data_flag}: the {purpose} rows', frame, client)
    for purpose, frame in zip(('training', 'test'), frames, strict=True)
  ]
  return users.named(data_flag, dataset, train_users=ids[0], test_users=ids[1])


def _numbers_dataset(data_flag, name, columns, frames, reading):
  """The data set of a table of numbers and categories."""
  print(f'{data_flag}: features: {_named(columns.feature_names)}', file=sys.stderr)
  arrays = []
  for purpose, frame in zip(('training', 'test'), frames, strict=True):
    owner = f'{data_flag}: the {purpose} rows'
    arrays += [_features(owner, frame, columns), _labels(owner, frame, columns.label)]
  dataset = arrays_dataset(
    data_flag,
    name,
    arrays,
    reading=reading._replace(axes='D'),
    array_names=_array_names('features', columns.label),
  )
  return dataset._replace(feature_names=tuple(columns.feature_names))


def _array_names(examples, label):
  """The names of the arrays of a table, for messages."""
  return (
    *(f'the training {examples}', f'the training {label}'),
    *(f'the test {examples}', f'the test {label}'),
  )


def _named(feature_names: Sequence[str]) -> str:
  """The names of the features, for a line of the output; the first of very many."""
  names = ', '.join(map(printable, feature_names[:_MOST_NAMES]))
  if len(feature_names) > _MOST_NAMES:
    names += f', ... ({len(feature_names):,} in all)'
  return names


class _TextColumns(NamedTuple):
  """The columns of a table of texts; client is '' if there are no users."""

  text: str
  label: str
  client: str


def _text_columns(data_flag, frame, text, label, client) -> _TextColumns:
  """The columns of a table of texts.

  Raises:
    DataError: one of them is missing.
  """
  text = assembled.text_name(data_flag, text, frame.columns)
  if client and client not in frame.columns:
    raise _missing(data_flag, 'client', client, frame)
  return _TextColumns(text=text, label=label, client=client)


def _texts_dataset(data_flag, name, columns, frames, reading, tokenizer):
  """The data set of a table with a column of texts."""
  used_names = set(columns)
  unused = [column for column in frames[0].columns if column not in used_names]
  if unused:
    print(f'{data_flag}: not used: the columns {listed(unused)}.', file=sys.stderr)
  arrays = []
  for purpose, frame in zip(('training', 'test'), frames, strict=True):
    owner = f'{data_flag}: the {purpose} rows'
    absent = used_names - {'', *frame.columns}
    if absent:
      raise DataError(f'{owner} lack the columns {listed(sorted(absent))}.')
    arrays += [
      _texts_in(owner, frame, columns.text),
      _labels(owner, frame, columns.label),
    ]
  return arrays_dataset(
    data_flag,
    name,
    arrays,
    reading=reading,
    tokenizer=tokenizer,
    array_names=_array_names('texts', columns.label),
  )


def _texts_in(owner: str, frame: Any, name: str) -> np.ndarray:
  """[M] the texts of a column, as objects."""
  column = _complete(owner, frame, name).astype(object)
  if not texts.is_text(column):
    raise DataError(f'{owner}: {name!r} holds no texts.')
  return column


def read_texts(
  owner: str,
  path: pathlib.Path,
  *,
  text: str,
  label: str,
  class_names: Sequence[str] = (),
) -> tuple[list[str], np.ndarray, np.ndarray | None]:
  """Reads all rows of a file with texts, in their order, as a trained model takes them.

  Args:
    owner: flag of the file, for messages.
    path: a .csv or .parquet file.
    text: as in `load_table`.
    label: as in `load_table`; the file may lack this column.
    class_names: names of the model's classes; () if they are numbers.

  Returns:
    The index of the table, as text; [M] the texts; and [M] the labels as text, None if
    the table has none.

  Raises:
    DataError: the file cannot be read, has no rows, or lacks the texts.
  """
  text_names = [text] if text else [*assembled.TEXT_NAMES]
  label_names = [label] if label else assembled.LABEL_NAMES
  if _type_of(class_names) is str:
    text_names += label_names
  frame = _read(owner, path, has_texts=True, text_names=text_names)
  text = assembled.text_name(owner, text, frame.columns)
  labels_there = [name for name in label_names if name in frame.columns]
  owner = f'{owner}: the rows'
  labels = None
  if labels_there:
    labels = _labels(owner, frame, labels_there[0]).astype(str)
  names = [str(name) for name in frame.index]
  return names, _texts_in(owner, frame, text), labels


def read_rows(
  owner: str,
  path: pathlib.Path,
  feature_names: Sequence[str],
  *,
  label: str,
  client: str,
  categories: str,
  class_names: Sequence[str] = (),
) -> Rows:
  """Reads all rows of a file, in their order, as a trained model takes them.

  A category that does not occur in the file is a column of 0.

  Args:
    owner: flag of the file, for messages.
    path: a .csv or .parquet file.
    feature_names: [D] names of the model's features, as `load_table` gives them.
    label: as in `load_table`; the file may lack this column.
    client: as in `load_table`; the file may lack this column, which is not used.
    categories: as in `load_table`.
    class_names: names of the model's classes; () if they are numbers.

  Raises:
    DataError: the file cannot be read, has no rows, lacks a column, has another one, or
      holds a category that the model does not know.
  """
  columns = _columns_of_features(feature_names, _names_in(categories))
  used_names = [*columns.numbers, *columns.categories]
  label_names = [
    name
    for name in ([label] if label else assembled.LABEL_NAMES)
    if name not in used_names
  ]
  text_names = [
    name for name, known in columns.categories.items() if _type_of(known) is str
  ]
  if _type_of(class_names) is str:
    text_names += label_names
  frame = _read(owner, path, text_names=text_names)
  labels_there = [name for name in label_names if name in frame.columns]
  unused = [
    name
    for name in frame.columns
    if name not in (*used_names, *labels_there[:1], client)
  ]
  features = _features(f'{owner}: the rows', frame, columns)
  if unused:
    raise DataError(
      f'{owner}: the model was not trained on the columns {listed(unused)}; leave them '
      'out of the file.'
    )
  labels = None
  if labels_there:
    labels = _labels(f'{owner}: the rows', frame, labels_there[0]).astype(str)
  return Rows(
    names=[str(name) for name in frame.index], features=features, labels=labels
  )


def _columns_of_features(
  feature_names: Sequence[str], category_names: Sequence[str]
) -> _Columns:
  """The columns, without label and client, whose `feature_names` these are."""
  categories = {name: [] for name in category_names}
  numbers = []
  for feature in feature_names:
    columns = [name for name in category_names if feature.startswith(f'{name}=')]
    if columns:
      column = max(columns, key=len)
      categories[column].append(feature.removeprefix(f'{column}='))
    else:
      numbers.append(feature)
  return _Columns(label='', client='', categories=categories, numbers=numbers)


def _frames(
  data_flag: str, path: pathlib.Path, test_fraction: float, *, has_texts: bool
) -> tuple[Any, Any | None]:
  """The training rows and the test rows; None for these if they are to be drawn."""
  if not os.path.isdir(path):
    if not test_fraction:
      raise DataError(
        f'{data_flag} is one table: {flag("data.test_fraction", 0.2)} draws a fifth of '
        'it for the test; or name a folder with train.csv and test.csv.'
      )
    return _read(data_flag, path, has_texts=has_texts), None
  if test_fraction:
    raise DataError(
      f'{data_flag} is divided already: drop {flag("data.test_fraction")}.'
    )
  frames, used_names, text_names = [], [], []
  for split in ('train', 'test'):
    paths = [path / f'{split}{suffix}' for suffix in TABLE_SUFFIXES]
    paths = [path for path in paths if os.path.isfile(path)]
    if len(paths) != 1:
      raise DataError(
        f'{data_flag} must have one of {split}.csv and {split}.parquet, or be a file.'
      )
    used_names.append(paths[0].name)
    frame = _read(data_flag, paths[0], has_texts=has_texts, text_names=text_names)
    text_names = [name for name in frame.columns if frame[name].dtype.kind == 'O']
    frames.append(frame)
  unused_names = [
    name
    for name in sorted(os.listdir(path))
    if name.endswith(TABLE_SUFFIXES) and name not in used_names
  ]
  if unused_names:
    print(f'{data_flag}: not used: {listed(unused_names)}.', file=sys.stderr)
  train, test = frames
  return train, test


def _read(
  data_flag: str,
  path: pathlib.Path,
  *,
  has_texts: bool = False,
  text_names: Collection[str] = (),
) -> Any:
  """The pandas DataFrame of a file: rows of numbers and texts, in columns with names.

  Missing is what is empty; in a CSV file without texts also NA, null and the like.

  Args:
    data_flag: flag of the file, for messages.
    path: a .csv or .parquet file.
    has_texts: whether one of the columns has the texts that are read.
    text_names: columns that were text in training. In a CSV file pandas would take
      their entries for numbers, 01 for 1, if all of them look like numbers here.

  Raises:
    DataError: the file is no such table, or the memory cannot hold it.
  """
  pandas = assembled.package('table', 'pandas')
  if path.suffix not in TABLE_SUFFIXES:
    raise DataError(f'{data_flag} must end in {" or ".join(TABLE_SUFFIXES)}.')
  owner = f'{data_flag}: {printable(path.name)}'
  # The libraries get an open file: they follow no name, and no path in a footer.
  cannot_be_read = one_line(f'{owner} cannot be read')
  with cannot_be_read, _told_if_not_utf8(owner), files.opened(path) as file:
    if path.suffix == '.csv':
      machine_memory.require_file_fits(path, os.fstat(file.fileno()).st_size)
      # pandas would give the second column of a name another name.
      first_line = pandas.read_csv(
        file, header=None, nrows=1, dtype=str, keep_default_na=False
      )
      names = first_line.iloc[0].tolist()
      if len(names) == 1 and {';', '\t'} & {*names[0]}:
        raise DataError(
          f'{owner} has one column, {listed(names)}: separate the columns by commas, '
          'not by semicolons or tabs.'
        )
      file.seek(0)
      # It warns if rows have more fields than the first line, whose rest it drops.
      with warnings.catch_warnings():
        warnings.simplefilter('error', pandas.errors.ParserWarning)
        try:
          frame = pandas.read_csv(
            file,
            index_col=False,
            dtype=dict.fromkeys(text_names, str),
            keep_default_na=not has_texts,  # 'None' and 'N/A' are texts like others
            na_values=[''],
            low_memory=False,  # otherwise each part of a large file has its own types
          )
        except pandas.errors.ParserWarning:
          raise DataError(
            f'{owner} has rows with more fields than its first line: name every '
            'column, or leave the numbers of the rows out.'
          ) from None
    else:
      frame = _parquet_frame(pandas, path, file)
      names = [name if isinstance(name, str) else str(name) for name in frame.columns]
      frame.columns = names
  # It would be a feature: where the rows are sorted by label, it tells the label.
  if not has_texts and not {*names}.isdisjoint(NO_NAMES):
    raise DataError(
      f'{owner} has a column without a name: name it, or leave the numbers of the rows '
      'out (index=False in pandas).'
    )
  names = [name for name in names if name not in NO_NAMES]
  if len({*names}) != len(names):
    repeated = sorted({name for name in names if names.count(name) > 1})
    raise DataError(f'{owner} has several columns of one name: {listed(repeated)}.')
  if not len(frame):
    raise DataError(f'{owner} has no rows.')
  return frame


@contextlib.contextmanager
def _told_if_not_utf8(owner: str) -> Iterator[None]:
  """Makes the error of a text that is not UTF-8 one that says what to do."""
  try:
    yield
  except UnicodeDecodeError:
    raise DataError(f'{owner} is not UTF-8: save the file as UTF-8.') from None


def _parquet_frame(pandas: Any, path: pathlib.Path, file: BinaryIO) -> Any:
  """The frame of a Parquet file, if the memory can hold its numbers.

  A column of equal numbers takes no space in the file, so the rows are counted first.
  """
  parquet = assembled.package('table', 'pyarrow.parquet')
  metadata = parquet.read_metadata(file)
  num_numbers = metadata.num_rows * metadata.num_columns
  machine_memory.require_file_fits(path, num_numbers * np.dtype(np.float64).itemsize)
  file.seek(0)
  # Whether texts are UTF-8, and offsets inside: pandas would notice it late or never.
  parquet.read_table(file).validate(full=True)
  file.seek(0)
  return pandas.read_parquet(file, engine='pyarrow')


def _columns(
  data_flag: str, frame: Any, label: str, client: str, categories: str
) -> _Columns:
  """The columns by their use; all but the named ones must be numbers."""
  names = list(frame.columns)
  category_names = _names_in(categories)
  if client and client not in names:
    raise _missing(data_flag, 'client', client, frame)
  for name in category_names:
    if name not in names:
      raise _missing(data_flag, 'categories', name, frame)
  for name, use in ((label, 'label'), (client, 'user')):
    if name in category_names:
      raise DataError(
        f'{flag("data.categories", categories)} has {name!r}, which is the {use}: '
        'leave it out.'
      )
  used_names = {label, client, *category_names}
  numbers = [name for name in names if name not in used_names]
  for name in names:
    _require_cells(data_flag, frame, name)
  if words := [name for name in numbers if not _holds_numbers(frame, name)]:
    raise _no_numbers(data_flag, frame, words, category_names)
  columns = _Columns(
    label=label,
    client=client,
    categories={
      name: np.unique(_complete(data_flag, frame, name).astype(str)).tolist()
      for name in category_names
    },
    numbers=numbers,
  )
  _require_room(data_flag, frame, columns)
  _require_told_apart(data_flag, columns)
  return columns


def _looks_like_text(column: Any) -> bool:
  """Whether most entries differ, or a tenth of them and most have several words."""
  distinct = column.dropna().astype(str).unique()
  num_words = [len(entry.split()) for entry in distinct]
  has_sentences = bool(num_words) and np.median(num_words) >= _SENTENCE_WORDS
  return len(distinct) > len(column) / (10 if has_sentences else 2)


def _no_numbers(
  data_flag: str, frame: Any, words: Sequence[str], category_names: Sequence[str]
) -> DataError:
  """The error about columns of words; the likelier remedy is named first.

  Args:
    data_flag: flag of the data.
    frame: the table.
    words: the columns that hold no numbers.
    category_names: the columns that are categories already.
  """
  num_distinct = {name: frame[name].nunique() for name in words}
  likely_text = max(words, key=num_distinct.__getitem__)
  proposed = ','.join([*category_names, *words])
  verb, possessive, pronoun = ('holds', 'its', 'it')
  if len(words) > 1:
    verb, possessive, pronoun = ('hold', 'their', 'them')
  as_categories = (
    f'{flag("data.categories", proposed)} makes a column of 0 and 1 of each of '
    f'{possessive} categories'
  )
  text_flags = [flag('data.tokenizer', 'wordpiece'), flag('data.text', likely_text)]
  as_texts = f'{" ".join([*text_flags, flag("model", "gru")])} reads texts'
  remedies = [as_categories, as_texts]
  if _looks_like_text(frame[likely_text]):
    remedies.reverse()
  return DataError(
    f'{data_flag}: {listed(words)} {verb} no numbers; {", ".join(remedies)}, or leave '
    f'{pronoun} out of the file.'
  )


def _holds_numbers(frame: Any, name: str) -> bool:
  return frame[name].dtype.kind in 'iufb'


def _require_cells(owner: str, frame: Any, name: str) -> None:
  """Raises DataError if a column holds lists, structures or the like."""
  column = frame[name]
  if column.dtype.kind != 'O':
    return
  is_scalar = assembled.package('table', 'pandas').api.types.is_scalar
  for cell in column.array:
    if not is_scalar(cell):
      raise DataError(
        f'{owner}: the column {printable(name)!r} holds a {type(cell).__name__} in '
        'a row, not a number or a text; leave the column out of the file.'
      )


def _require_room(data_flag: str, frame: Any, columns: _Columns) -> None:
  """Raises DataError if the memory cannot hold the numbers of all categories."""
  num_features = len(columns.feature_names)
  num_bytes = len(frame) * num_features * np.dtype(np.float64).itemsize
  if num_bytes > machine_memory.total_bytes():
    column = max(columns.categories, key=lambda name: len(columns.categories[name]))
    raise DataError(
      f'{data_flag}: {len(frame):,} rows of {num_features:,} features need '
      f'{machine_memory.compared(num_bytes)}; {printable(column)!r} of '
      f'{flag("data.categories")} has {len(columns.categories[column]):,} categories: '
      'leave it out.'
    )


def _require_told_apart(data_flag: str, columns: _Columns) -> None:
  """Raises DataError if the names of the features do not say which column each is of.

  'job=clerk' would be a category of 'job', and the column of that name. A model knows
  these names only.
  """
  read_back = _columns_of_features(columns.feature_names, list(columns.categories))
  if (read_back.numbers, read_back.categories) == (columns.numbers, columns.categories):
    return
  names = [
    name
    for name in (*columns.numbers, *columns.categories)
    if any(name.startswith(f'{column}=') for column in columns.categories)
  ]
  raise DataError(
    f'{data_flag}: the column {listed(names[:1])} is called as a category of a column '
    f'of {flag("data.categories")} would be; give it another name.'
  )


def _names_in(categories: str) -> list[str]:
  """The names of the columns in `data.categories`."""
  return [name.strip() for name in categories.split(',') if name.strip()]


def _type_of(names: Sequence[str]) -> type:
  """The type that a column had in training, by the names that its entries have now.

  >>> _type_of(['1234', '999']), _type_of(['1.5', '2.0']), _type_of(['01234', '999'])
  (<class 'int'>, <class 'float'>, <class 'str'>)
  """
  for number_type in (int, float):
    with contextlib.suppress(ValueError):
      if all(str(number_type(name)) == name for name in names):
        return number_type
  return bool if {*names} <= {'True', 'False'} else str


def _missing(data_flag, knob, name, frame):
  return DataError(
    f'{data_flag} has no column {name!r} of {flag(f"data.{knob}")}; it has '
    f'{listed(frame.columns)}.'
  )


def _features(owner: str, frame: Any, columns: _Columns) -> np.ndarray:
  """[M, D] float64, the numbers and then a 0 or 1 for each category."""
  required = {*columns.numbers, *columns.categories}
  required |= {name for name in (columns.label, columns.client) if name}
  absent = required - {*frame.columns}
  if absent:
    raise DataError(f'{owner} lack the columns {listed(sorted(absent))}.')
  for name in columns.numbers:
    if not _holds_numbers(frame, name):
      raise DataError(f'{owner}: {name!r} holds no numbers, as it does in training.')
  numbers = frame[columns.numbers]
  if numbers.isna().to_numpy().any():
    for name in columns.numbers:
      _complete(owner, frame, name)  # says where it is
  features = [numbers.to_numpy(np.float64)]
  for name, categories in columns.categories.items():
    column = _complete(owner, frame, name)
    if _type_of(categories) is float and column.dtype.kind in 'iu':
      column = column.astype(float)  # 2 is 2.0, as it is beside 1.5
    elif _type_of(categories) is int:
      column = _whole(column)
    texts = column.astype(str)
    is_unseen = ~np.isin(texts, categories)
    if is_unseen.any():
      raise _unseen(owner, frame, name, texts[is_unseen][0], texts, categories)
    one_hot = np.zeros((len(frame), len(categories)))
    order = np.argsort(categories)
    position = np.searchsorted(categories, texts, sorter=order)
    one_hot[np.arange(len(frame)), order[position]] = 1.0
    features.append(one_hot)
  if not columns.feature_names:
    raise DataError(f'{owner} have no columns of features.')
  return np.concatenate(features, axis=1)


def _unseen(
  owner: str,
  frame: Any,
  name: str,
  category: str,
  texts: np.ndarray,
  categories: Sequence[str],
) -> DataError:
  """The error about a category that is among [M] texts of a column, not in training."""
  has_it = texts == category
  num_rows = np.count_nonzero(has_it)
  count = '1 row' if num_rows == 1 else f'{num_rows:,} rows'
  return DataError(
    f'{owner}: {name!r} holds {str(category)!r} in {count}, first in '
    f'row {frame.index[has_it][0]} (counted from 0); training has '
    f'{listed(categories)}. Remove these rows.'
  )


def _complete(owner: str, frame: Any, name: str) -> np.ndarray:
  """A column of numbers or texts in which no entry is missing."""
  _require_cells(owner, frame, name)
  is_missing = frame[name].isna().to_numpy()
  if is_missing.any():
    row = f'row {frame.index[is_missing][0]} (counted from 0)'
    num_missing = np.count_nonzero(is_missing)
    if num_missing == 1:
      raise DataError(
        f'{owner}: {name!r} has 1 missing entry, in {row}; fill it, or leave out this '
        'row.'
      )
    raise DataError(
      f'{owner}: {name!r} has {num_missing:,} missing entries, first in {row}; fill '
      'them, or leave out these rows.'
    )
  return frame[name].to_numpy()


def _labels(owner: str, frame: Any, name: str) -> np.ndarray:
  """A column of integers or text; true and false are 1 and 0, and 1.0 is 1."""
  column = _whole(_complete(owner, frame, name))
  if column.dtype.kind == 'b':
    return column.astype(np.int64)
  return column.astype(str) if column.dtype.kind not in 'iuf' else column


def _user_ids(owner: str, frame: Any, name: str) -> np.ndarray:
  """As `_labels`, without other floats."""
  ids = _labels(owner, frame, name)
  if ids.dtype.kind == 'f':
    raise DataError(f'{owner}: {name!r} is {ids.dtype}, neither integers nor text.')
  return ids


def _whole(column: np.ndarray) -> np.ndarray:
  """The column as integers if it holds 1.0, as pandas writes 1 beside missing entries.

  A column that holds other numbers, or text, stays as it is.
  """
  if column.dtype.kind != 'f':
    return column
  with np.errstate(invalid='ignore'):  # an infinity is no integer
    integers = column.astype(np.int64)
  return integers if np.array_equal(integers, column) else column
