"""FedJAX's SQLite: `federated_data (client_id, data, num_examples)`, a file a split.

`data` is compressed by zlib. Inside is a msgpack map of names to arrays, each of the
extension type 1: (shape, name of the dtype, bytes in C order), msgpack again.
"""

import contextlib
import os
import pathlib
import sqlite3
import zlib

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.core.paths import expand
from moon_jax.data.errors import one_line
from moon_jax.data.federated import assembled

_ARRAY_CODE = 1  # of msgpack's extension types
# Ending of a file with changes -> how it begins.
_CHANGE_FILES = {
  '-wal': b'\x37\x7f\x06',
  '-journal': b'\xd9\xd5\x05\xf9\x20\xa1\x63\xd7',
}
_QUERY = 'SELECT client_id, data FROM federated_data ORDER BY rowid'


def load_sqlite(
  path: str, test_path: str, image: str = '', label: str = '', range: str = ''
) -> assembled.Federation:
  """Loads a database of FedJAX; users are in the order of the rows.

  Args:
    path: the database of the training examples.
    test_path: the database of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels.
    range: numbers of black and white, 'LOW,HIGH'; '': as in `npz.load_npz`.

  Raises:
    DataError: also when read: a database is missing, damaged or laid out in another
      way.
  """
  return assembled.two_files(_read, path, test_path, image, label, range)


def _read(data_flag, path, image, label):
  path = pathlib.Path(os.path.realpath(expand(path)))
  with one_line(f'{data_flag} must be an SQLite database with a table federated_data'):
    files.opened(path).close()
    _require_no_changes(path)
    # SQLite writes nothing beside the file, and waits for nobody.
    address = f'{path.as_uri()}?mode=ro&immutable=1'
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
      for name, packed_arrays in database.execute(_QUERY):
        if isinstance(name, bytes):
          name = name.decode(errors='backslashreplace')
        owner = f'{data_flag}: client {printable(str(name))!r}'
        with one_line(f'{owner} is damaged'):
          arrays = _arrays(packed_arrays)
        image_key, label_key = assembled.feature_names(owner, image, label, arrays)
        images, labels = arrays[image_key], arrays[label_key]
        yield assembled.make_user(data_flag, name, images, labels)


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

  columns = msgpack.unpackb(zlib.decompress(compressed), ext_hook=array_of)
  return {
    name: column for name, column in columns.items() if isinstance(column, np.ndarray)
  }
