"""Reads pickles of numbers, words, lists, dicts and NumPy's arrays, and nothing else.

A pickle is a program that calls what it names. Here it can name only the classes below,
which check their arguments: nothing is imported, and NumPy's own functions that rebuild
arrays are not called with a stranger's arguments, which could make bytes addresses.
"""

import io
import math
import pickle
import re
from typing import Any, ClassVar

import numpy as np

_KINDS = re.compile('b1|[iu][1248]|f[248]|O8?')


def load(data: bytes) -> Any:
  """The content of a pickle; the words of Python 2 are bytes.

  Raises:
    Exception: of any class, if it is damaged, or names anything but arrays.
  """
  try:
    return _Unpickler(io.BytesIO(data), encoding='bytes').load()
  except EOFError:
    raise ValueError('the pickle is torn') from None


# Python's own unpickler: the one in C allocates as many places as a damaged index asks.
class _Unpickler(pickle._Unpickler):
  dispatch: ClassVar = dict(pickle._Unpickler.dispatch)

  def load_bytearray8(self):
    # As bytes, so that memory is allocated for the data, not for the length they claim.
    self.append(self.read(int.from_bytes(self.read(8), 'little')))

  dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

  def find_class(self, module, name):
    place = module.replace('numpy.core', 'numpy._core')  # numpy 1's
    if (found := _NAMED.get((place, name))) is None:
      raise ValueError(f'it names {module}.{name}, and may name arrays only')
    return found


def _text(word):
  return word.decode('ascii') if isinstance(word, bytes) else word


class _Named:
  """Stands for a class of NumPy that is only named."""

  def __setstate__(self, state):
    raise ValueError('it is no array')


class _Dtype(_Named):
  """numpy.dtype(kind, align, copy) of plain numbers or objects."""

  def __init__(self, kind, *_):
    if not _KINDS.fullmatch(_text(kind)):
      raise ValueError(f'it has an array of {_text(kind)!r}')
    self.dtype = np.dtype(_text(kind))

  def __setstate__(self, state):
    if (order := _text(state[1])) not in ('<', '>', '|', '='):
      raise ValueError('it has a damaged dtype')
    self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray):
  def __setstate__(self, state):
    *_, shape, kind, in_columns, values = state
    dtype, size = kind.dtype, math.prod(shape)
    if any(type(length) is not int or length < 0 for length in shape):
      raise ValueError('it has an array of a damaged shape')
    wanted, size = (list, size) if dtype.kind == 'O' else (bytes, size * dtype.itemsize)
    if type(values) is not wanted or len(values) != size:
      raise ValueError('it has an array whose values are not as many as it says')
    super().__setstate__((1, shape, dtype, bool(in_columns), values))


class _Reconstruct(_Named):
  """numpy._core.multiarray._reconstruct: an array that gets its state later."""

  def __new__(cls, *_):
    return np.ndarray.__new__(_Array, 0)


class _FromBuffer(_Named):
  """numpy._core.numeric._frombuffer(values, dtype, shape, order), of protocol 5."""

  def __new__(cls, values, kind, shape, order):
    return np.frombuffer(values, kind.dtype).reshape(shape, order=order)


class _Bytes(_Named):
  """_codecs.encode(text, 'latin1'): bytes by Python 3, in protocols before 3."""

  def __new__(cls, text, encoding):
    return text.encode({'latin1': 'latin1'}[encoding])


_NAMED = {
  ('numpy', 'ndarray'): _Named,
  ('numpy', 'dtype'): _Dtype,
  ('numpy._core.multiarray', '_reconstruct'): _Reconstruct,
  ('numpy._core.numeric', '_frombuffer'): _FromBuffer,
  ('_codecs', 'encode'): _Bytes,
}
