"""FedJAX's SQLite: `federated_data (client_id, data, num_examples)`, a file a split.

`data` is compressed by zlib. Inside is a msgpack map of names to arrays, each of the
extension type 1: (shape, name of the dtype, bytes in C order), msgpack again.
"""

import contextlib
import sqlite3
import zlib

import numpy as np

from moon_jax.core import files
from moon_jax.core.errors import printable
from moon_jax.core.paths import expand
from moon_jax.data.arrays import one_line
from moon_jax.data.federated import assembled

_ARRAY = 1
# Ending of a file with changes -> how it begins.
_CHANGES = {'-wal': b'\x37\x7f\x06', '-journal': b'\xd9\xd5\x05\xf9\x20\xa1\x63\xd7'}
_QUERY = 'SELECT client_id, data FROM federated_data ORDER BY rowid'


def load_sqlite(
  path: str, test_path: str, image: str = '', label: str = ''
) -> assembled.Federation:
  """Loads a database of FedJAX; users are in the order of the rows.

  Args:
    path: the database of the training examples.
    test_path: the database of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels.

  Raises:
    DataError: when read: a database is missing, damaged or laid out in another way.
  """
  return assembled.two_files(_read, path, test_path, image, label)


def _read(flag, path, image, label):
  place = expand(path).resolve()
  wanted = f'{flag} must be an SQLite database with a table federated_data'
  with one_line(wanted):
    files.opened(place).close()
    for end, begins in _CHANGES.items():
      beside = place.with_name(f'{place.name}{end}')
      if beside.exists():
        with files.opened(beside) as file:
          if file.read(len(begins)) == begins:
            told = f'{beside.name} has changes of it; query it once with sqlite3'
            raise ValueError(told)
    # SQLite writes nothing beside the file, and waits for nobody.
    address = f'{place.as_uri()}?mode=ro&immutable=1'
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
      for name, data in database.execute(_QUERY):
        if isinstance(name, bytes):
          name = name.decode(errors='backslashreplace')
        told = f'{flag}: client {printable(str(name))!r}'
        with one_line(f'{told} is damaged'):
          arrays = _arrays(data)
        keys = assembled.features(told, image, label, arrays)
        yield assembled.user(flag, name, *(arrays[key] for key in keys))


def _arrays(data: bytes) -> dict[str, np.ndarray]:
  msgpack = assembled.package('sqlite', 'msgpack')

  def array(code, packed):
    if code != _ARRAY:
      return None  # text, which is neither image nor label
    shape, kind, values = msgpack.unpackb(packed, raw=True)
    return np.frombuffer(values, kind.decode()).reshape(shape)

  found = msgpack.unpackb(zlib.decompress(data), ext_hook=array)
  return {name: one for name, one in found.items() if isinstance(one, np.ndarray)}
