"""FedJAX's SQLite: `federated_data (client_id, data, num_examples)`, a file a split.

`data` is compressed by zlib. Inside is a msgpack map of names to arrays, each of the
extension type 1: (shape, name of the dtype, bytes in C order), msgpack again.

A database is a program: a view or a trigger computes, perhaps for ever. So a database
that has anything but plain tables is refused, and reading a row has a limit.
"""

import contextlib
import os
import pathlib
import sqlite3
import zlib
from collections.abc import Iterator

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.core.paths import expand
from moon_jax.data.data_errors import one_line
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled

_ARRAY_CODE = 1  # of msgpack's extension types
# Ending of a file with changes -> how it begins.
_CHANGE_FILES = {
  '-wal': b'\x37\x7f\x06',
  '-journal': b'\xd9\xd5\x05\xf9\x20\xa1\x63\xd7',
}
_TABLE = 'federated_data'
# NOT INDEXED: an index may have expressions.
_QUERY = f'SELECT client_id, data FROM {_TABLE} NOT INDEXED ORDER BY rowid'
_SCHEMA = 'SELECT type, name, sql FROM sqlite_master'
# Instructions of SQLite's virtual machine, between two rows. Reading a row takes about
# ten; a second has some tens of millions.
_STEPS_PER_CALL, _MAX_STEPS = 100_000, 20_000_000


def load_sqlite(
  path: str,
  test_path: str,
  image: str = '',
  label: str = '',
  *,
  reading: Reading,
) -> assembled.Federation:
  """Loads a database of FedJAX; users are in the order of the rows.

  Args:
    path: the database of the training examples.
    test_path: the database of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels.
    reading: as in `npz.load_npz`.

  Raises:
    DataError: also when read: a database is missing, damaged or laid out in another
      way, or has a view, a trigger or a virtual table.
  """
  return assembled.two_files(
    _read,
    path,
    test_path,
    image,
    label,
    reading,
  )


def _read(data_flag, path, image, label):
  path = pathlib.Path(os.path.realpath(expand(path)))
  with one_line(f'{data_flag} must be an SQLite database with a table {_TABLE}'):
    files.require_regular(path)
    _require_no_changes(path)
    for name, packed_arrays in _rows(path):
      if isinstance(name, bytes):
        name = name.decode(errors='backslashreplace')
      owner = f'{data_flag}: client {printable(str(name))!r}'
      with one_line(f'{owner} is damaged'):
        arrays = _arrays(packed_arrays)
      image_key, label_key = assembled.feature_names(owner, image, label, arrays)
      images, labels = arrays[image_key], arrays[label_key]
      yield assembled.make_user(data_flag, name, images, labels)


def _rows(path: pathlib.Path) -> Iterator[tuple[bytes | str, bytes]]:
  """(client_id, data) of each row, of a database that may be anybody's.

  Raises:
    ValueError: it has something else than plain tables.
    sqlite3.Error: it is damaged, has no such table, or a row takes too many steps.
  """
  # SQLite writes nothing beside the file, and waits for nobody.
  address = f'{path.as_uri()}?mode=ro&immutable=1'
  with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
    # No text and no blob of a good file is longer than the file.
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, path.stat().st_size)
    for setting in ('trusted_schema=OFF', 'query_only=ON', 'cell_size_check=ON'):
      database.execute(f'PRAGMA {setting}')
    num_calls = 0  # since the last row

    def takes_too_long():
      nonlocal num_calls
      num_calls += 1
      return num_calls * _STEPS_PER_CALL > _MAX_STEPS

    database.set_progress_handler(takes_too_long, _STEPS_PER_CALL)
    _require_plain_tables(database)
    database.set_authorizer(_permission)
    for row in database.execute(_QUERY):
      num_calls = 0
      yield row


def _require_plain_tables(database):
  """Raises ValueError if a database has anything that computes.

  That is a view, a trigger, a virtual table, or a generated column in our table.
  """
  computing = [
    ('virtual table' if kind == 'table' else kind, name)
    for kind, name, text in database.execute(_SCHEMA)
    if kind != 'index' and not str(text).upper().startswith('CREATE TABLE')
  ]
  for _, name, *_, hidden in database.execute(f'PRAGMA table_xinfo({_TABLE})'):
    if hidden:
      computing.append(('generated column', name))
  for kind, name in computing:
    raise ValueError(
      f'it has the {printable(str(kind))} {printable(str(name))!r}, which may compute '
      'for ever; copy the plain columns alone into a new database'
    )


def _permission(action, table, column, database, view):
  """SQLite asks for each thing that the query does: it reads the table, nothing else.

  So a forged schema, in which a view has the type of a table, computes nothing.
  """
  is_of_table = str(table).lower() == _TABLE and view is None
  if action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and is_of_table):
    return sqlite3.SQLITE_OK
  return sqlite3.SQLITE_DENY


def _require_no_changes(path):
  """Raises ValueError if another file holds changes that the database lacks."""
  for ending, start in _CHANGE_FILES.items():
    change_file = path.with_name(f'{path.name}{ending}')
    if change_file.exists():
      with files.opened(change_file) as file:
        if file.read(len(start)) == start:
          raise ValueError(
            f'{change_file.name} has changes of it; query it once with sqlite3'
          )


def _arrays(compressed: bytes) -> dict[str, np.ndarray]:
  msgpack = assembled.package('sqlite', 'msgpack')

  def array_of(code, packed):
    if code != _ARRAY_CODE:
      return None  # text, which is neither image nor label
    shape, dtype, content = msgpack.unpackb(packed, raw=True)
    return np.frombuffer(content, dtype.decode()).reshape(shape)

  content = files.unpacked(compressed, zlib.MAX_WBITS)
  columns = msgpack.unpackb(content, ext_hook=array_of)
  return {
    name: column for name, column in columns.items() if isinstance(column, np.ndarray)
  }
