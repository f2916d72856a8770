"""A file of equal records, one a client, of which a checkpoint can keep a version.

A client's new record goes to a free place, never over one that a checkpoint names: a
process that dies leaves every checkpoint as it was. A checkpoint keeps an `Index`.

  place        0     1     2     3     4
  round 10     A     B     C                 checkpoint 10 names 0, 1, 2
  round 11     A     B     C     B'          B trained; place 1 is still named
  round 12     A     B     C     B'    A'    checkpoint 12 names 4, 3, 2
               free once checkpoint 10 is removed: 0, 1
"""

import os
import pathlib
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax import untrusted
from moon_jax.errors import NoCheckpointError
from moon_jax.runner import files


class Index(NamedTuple):
  """Where the records of a checkpoint are.

  Attributes:
    clients: [T] int64, who has one, ascending.
    places: [T] int64, of each in the file, counted in records.
    checksums: [T] uint32, CRC-32 of each record.
    layout: [leaves] str, what a record holds.
  """

  clients: np.ndarray
  places: np.ndarray
  checksums: np.ndarray
  layout: np.ndarray

  def of(self, clients: np.ndarray) -> 'Index':
    """The part that is of some clients, [M] ids."""
    mine = np.isin(self.clients, clients)
    return Index(*(values[mine] for values in self[:3]), self.layout)


_KINDS = {'clients': 'iu T', 'places': 'iu T', 'checksums': 'iu T', 'layout': 'U L'}


def read_index(path: pathlib.Path) -> Index:
  """The index in a file; raises many kinds of errors if it is damaged."""
  return Index(**untrusted.arrays(path, kinds=_KINDS))


def write_index(path: pathlib.Path, index: Index) -> None:
  """Writes the index to a new file."""
  with files.replacing(path) as file:
    np.savez(file, **index._asdict())


class ClientFile:
  """The newest record of each client, and those that kept checkpoints name."""

  def __init__(
    self,
    path: pathlib.Path,
    num_clients: int,
    layout: Sequence[str],
    size: int,
    *,
    only_read: bool = False,
  ):
    """Opens the file; makes it unless it is only read.

    Args:
      path: of the file.
      num_clients: N.
      layout: what a record holds, a line a leaf.
      size: R, bytes of a record.
      only_read: whether nothing will be written; OSError if it cannot be opened.
    """
    self._path, self._size = path, size
    self._layout = np.array(layout)
    self._places = np.full(num_clients, -1)
    self._checksums = np.zeros(num_clients, np.uint32)
    self._free, self._end = [], 0
    self._named = np.zeros(0, bool)  # by place, whether a kept checkpoint names it
    if only_read:
      with untrusted.opened(path) as file:
        self._descriptor = os.dup(file.fileno())
      return
    with files.writing(path):
      how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
      self._descriptor = os.open(path, how, 0o666)

  def close(self) -> None:
    """Closes the file."""
    os.close(self._descriptor)

  def has(self, clients: np.ndarray) -> np.ndarray:
    """[K] int -> [K] bool, whether they have a record."""
    return self._places[clients] >= 0

  def clients(self) -> np.ndarray:
    """[T] int64, who has a record, ascending."""
    return np.flatnonzero(self._places >= 0)

  def write(self, clients: np.ndarray, records: np.ndarray) -> None:
    """Writes new records [K, R] uint8 of clients [K].

    Raises:
      RunError: the file cannot be written; what checkpoints name is as it was.
    """
    for client, record in zip(clients, records, strict=True):
      old = self._places[client]
      place = self._free.pop() if self._free else self._end
      with files.writing(self._path):
        _write_all(self._descriptor, memoryview(record), place * self._size)
      self._end = max(self._end, place + 1)
      self._places[client], self._checksums[client] = place, zlib.crc32(record)
      if old >= 0 and not self._is_named(old):
        self._free.append(old)

  def read(self, clients: np.ndarray) -> np.ndarray:
    """[K] int -> their records [K, R] uint8.

    Raises:
      NoCheckpointError: one is not what was written.
    """
    records = np.empty((len(clients), self._size), np.uint8)
    for client, record in zip(clients, records, strict=True):
      place, checksum = self._places[client], self._checksums[client]
      if reason := _read_one(self._descriptor, record, place, checksum):
        raise NoCheckpointError(f'{self._path}: client {client} {reason}.')
    return records

  def index(self) -> Index:
    """Waits until all records are on the disk, and tells where they are."""
    with files.writing(self._path):
      os.fsync(self._descriptor)
    clients = self.clients()
    return Index(clients, self._places[clients], self._checksums[clients], self._layout)

  def go_on_from(self, index: Index) -> None:
    """Makes the records of an index the newest."""
    self._places[:] = -1
    self._places[index.clients] = index.places
    self._checksums[index.clients] = index.checksums

  def keep(self, indices: Iterable[Index]) -> None:
    """Only what these name, and the newest records, is not written over."""
    places = [index.places[index.places < self._room()] for index in indices]
    newest = self._places[self._places >= 0]
    self._end = max(int(p.max()) + 1 if p.size else 0 for p in (newest, *places))
    self._named = np.zeros(self._end, bool)
    for named in places:
      self._named[named] = True
    taken = self._named.copy()
    taken[newest] = True
    self._free = np.flatnonzero(~taken)[::-1].tolist()

  def _misfit(self, index):
    """Why an index cannot be of this file; '' if it can.

    Raises:
      NoCheckpointError: its records hold other things.
    """
    if differing := set(index.layout.tolist()) ^ set(self._layout.tolist()):
      names = {line.partition(' ')[0] for line in differing}
      raise NoCheckpointError(
        f'{self._path} holds other memories; differing: {", ".join(sorted(names))}.'
      )
    if index.clients.max(initial=0) >= len(self._places):
      return f'there is no client {index.clients.max()}'
    if index.places.max(initial=0) >= self._room():
      return f'{self._path.name} is too short'
    return ''

  def fault(self, index: Index) -> str:
    """What is wrong with what an index names; '' if nothing."""
    if reason := self._misfit(index):
      return reason
    record = np.empty(self._size, np.uint8)
    for client, place, checksum in zip(*index[:3], strict=True):
      if reason := _read_one(self._descriptor, record, place, checksum):
        return f'client {client} in {self._path.name} {reason}'
    return ''

  def _room(self):
    """How many records the file has."""
    return os.fstat(self._descriptor).st_size // self._size

  def _is_named(self, place):
    return place < len(self._named) and self._named[place]


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
  """A disk that fills up takes a part first, and tells of it at the next try."""
  while data:
    written = os.pwrite(descriptor, data, offset)
    data, offset = data[written:], offset + written


def _read_one(descriptor: int, record: np.ndarray, place: int, checksum: int) -> str:
  """Reads a record [R] from its place; '' or why it is not what was written."""
  try:
    count = os.preadv(descriptor, [record], int(place) * len(record))
  except OSError as error:
    return f'cannot be read ({error.strerror})'
  is_whole = count == len(record) and zlib.crc32(record) == checksum
  return '' if is_whole else 'has changed'
