"""Keeps clients' memories in a file between rounds, if the device does not hold all.

A client that never took part has the first memory, which is a function of the seed; the
file has one record of each other client. The device gets the memories of the next
cohort while this one trains.

A client's new record goes to a free place, never over one that a checkpoint names: a
process that dies leaves every checkpoint as it was. A checkpoint keeps an `Index`.

  place        0     1     2     3     4
  round 10     A     B     C                 checkpoint 10 names 0, 1, 2
  round 11     A     B     C     B'          B trained; place 1 is still named
  round 12     A     B     C     B'    A'    checkpoint 12 names 4, 3, 2
               free once checkpoint 10 is removed: 0, 1
"""

import contextlib
import os
import pathlib
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.building.experiment import Experiment
from moon_jax.core import files, tree
from moon_jax.core.errors import NoCheckpointError
from moon_jax.core.types import Arrivals, PyTree

CLIENTS = 'clients.bin'  # a file beside the checkpoints


class Index(NamedTuple):
  """The places of the records that a checkpoint needs.

  Attributes:
    clients: [T] int64, ids of the clients with a record, ascending.
    places: [T] int64, place of each client's record in the file, counted in records.
    checksums: [T] uint32, CRC-32 of each record.
    layout: [leaves] str, the leaves of a record.
  """

  clients: np.ndarray
  places: np.ndarray
  checksums: np.ndarray
  layout: np.ndarray

  def for_clients(self, clients: np.ndarray) -> 'Index':
    """The part of the index for some clients, [M] ids."""
    is_chosen = np.isin(self.clients, clients)
    return Index(
      clients=self.clients[is_chosen],
      places=self.places[is_chosen],
      checksums=self.checksums[is_chosen],
      layout=self.layout,
    )


# The arrays of an index in a file; see `files.arrays`.
_INDEX_KINDS = {
  'clients': 'iu T',
  'places': 'iu T',
  'checksums': 'iu T',
  'layout': 'U L',
}


def read_index(path: pathlib.Path) -> Index:
  """The index in a file; raises many kinds of errors if it is damaged."""
  return Index(**files.arrays(path, kinds=_INDEX_KINDS))


class ClientStore:
  """The newest memory of each client, and the memories that kept checkpoints name.

  Attributes:
    shapes: shapes of the memories of all clients, leaves [N, ...].
    bytes_reserved: () -> space on the disk that a save still needs, and that is left to
      it; None while there is no save.
  """

  def __init__(
    self,
    path: pathlib.Path,
    first_memory: PyTree,
    num_clients: int,
    only_read: bool = False,
  ):
    """Opens the file; makes it unless it is only read.

    Args:
      path: path of the file.
      first_memory: memory of a client before its first round.
      num_clients: N.
      only_read: whether nothing will be written; OSError if the file cannot be opened.
    """
    self.shapes = jax.eval_shape(lambda: tree.repeat(first_memory, num_clients))
    leaves, self._structure = jax.tree.flatten(jax.device_get(first_memory))
    leaves = [np.asarray(leaf)[None] for leaf in leaves]
    fields = [(f'{n}', leaf.dtype, leaf.shape[1:]) for n, leaf in enumerate(leaves)]
    self._first_record = _records(leaves, np.dtype(fields))  # [1]
    self._record_bytes = self._first_record.itemsize
    self._path = path
    self._layout = np.array(layout({'clients': first_memory}))
    self._places = np.full(num_clients, -1)  # -1: the client has no record
    self._checksums = np.zeros(num_clients, np.uint32)
    self.bytes_reserved: Callable[[], int] | None = None
    self._free_places = []
    self._end = 0  # the first place after all places in use
    self._is_protected = np.zeros(0, bool)  # [places] whether a kept checkpoint uses it
    if only_read:
      with files.opened(path) as file:
        self._descriptor = os.dup(file.fileno())
    else:
      with files.writing(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o666)

  def close(self) -> None:
    """Closes the file. What a checkpoint names has been flushed."""
    with contextlib.suppress(OSError):
      os.close(self._descriptor)

  def read(self, clients: np.ndarray) -> PyTree:
    """[K] int -> their memories, leaves [K, ...], as numpy.

    Raises:
      NoCheckpointError: a record is not what was written.
    """
    return self._read(clients, self._places[clients] >= 0)

  def _read(self, clients, has_record):
    """Memories of the clients with a record, and the first memory of the others."""
    records = np.repeat(self._first_record, len(clients))
    for slot in np.flatnonzero(has_record):
      client = clients[slot]
      record, reason = self._record(self._places[client], self._checksums[client])
      if reason:
        raise NoCheckpointError(f'{self._path}: client {client} {reason}.')
      records[slot] = np.frombuffer(record, records.dtype)[0]
    leaves = [records[name] for name in records.dtype.names]
    return jax.tree.unflatten(self._structure, leaves)

  def _record(self, place, checksum):
    """The record at a place; and why it is not what was written, '' if it is."""
    offset = int(place) * self._record_bytes
    try:
      record = os.pread(self._descriptor, self._record_bytes, offset)
    except OSError as error:
      return b'', f'cannot be read ({error.strerror})'
    is_whole = len(record) == self._record_bytes and zlib.crc32(record) == checksum
    return record, '' if is_whole else 'has changed'

  def write(self, clients: np.ndarray, memories: PyTree) -> None:
    """Keeps the memories of clients [K], leaves [K, ...] of numpy.

    Raises:
      RunError: the file cannot be written; the memories of checkpoints are unchanged.
    """
    records = _records(jax.tree.leaves(memories), self._first_record.dtype)
    for client, record in zip(clients, map(bytes, records), strict=True):
      previous_place = self._places[client]
      place = self._free_places.pop() if self._free_places else self._end
      offset = place * self._record_bytes
      with files.writing(self._path):
        bytes_reserved = self.bytes_reserved  # the save may end now
        if bytes_reserved:
          space = bytes_reserved() + self._record_bytes
          files.require_space(self._path.parent, space)
        _write_all(self._descriptor, memoryview(record), offset)
      self._end = max(self._end, place + 1)
      self._places[client] = place
      self._checksums[client] = zlib.crc32(record)
      if previous_place >= 0 and not self._protects(previous_place):
        self._free_places.append(previous_place)

  def _protects(self, place):
    """Whether a kept checkpoint names the place."""
    return place < len(self._is_protected) and self._is_protected[place]

  def arrivals(self, clients: np.ndarray, previous_clients: np.ndarray) -> Arrivals:
    """The memories that the device needs for a cohort.

    Args:
      clients: [K] ids of the cohort, ascending.
      previous_clients: [K] ids of the cohort before, ascending; [0] if the device has
        no memories.
    """
    _, slots, previous_slots = np.intersect1d(
      clients, previous_clients, return_indices=True
    )
    slot_on_device = np.full(len(clients), -1, np.int32)
    slot_on_device[slots] = previous_slots
    is_read = (self._places[clients] >= 0) & (slot_on_device < 0)
    return Arrivals(self._read(clients, is_read), slot_on_device)

  def flush(self) -> None:
    """Waits until all records are on the disk."""
    with files.writing(self._path):
      files.flush_descriptor(self._descriptor)

  def index(self) -> Index:
    """The places of the records; it is valid once they are on the disk."""
    clients = np.flatnonzero(self._places >= 0)
    return Index(
      clients=clients,
      places=self._places[clients],
      checksums=self._checksums[clients],
      layout=self._layout,
    )

  def restore(self, index: Index) -> None:
    """Continues from the memories of a checkpoint."""
    self._places[:] = -1
    self._places[index.clients] = index.places
    self._checksums[index.clients] = index.checksums

  def protect(self, indices: Iterable[Index]) -> None:
    """From now on, only places in these indices and of newest records are in use."""
    capacity = self._capacity()
    protected = [index.places[index.places < capacity] for index in indices]
    newest = self._places[self._places >= 0]
    in_use = np.concatenate([newest, *protected])
    self._end = int(in_use.max(initial=-1)) + 1
    self._is_protected = np.zeros(self._end, bool)
    for places in protected:
      self._is_protected[places] = True
    is_free = ~self._is_protected
    is_free[newest] = False
    self._free_places = np.flatnonzero(is_free)[::-1].tolist()

  def find_damage(self, index: Index) -> str:
    """What is wrong with the records that a checkpoint needs; '' if nothing is.

    Raises:
      NoCheckpointError: its records have other leaves.
    """
    if differing := set(index.layout.tolist()) ^ set(self._layout.tolist()):
      names = {line.partition(' ')[0] for line in differing}
      raise NoCheckpointError(
        f'{self._path} holds other memories; differing: {", ".join(sorted(names))}.'
      )
    if index.clients.max(initial=0) >= len(self._places):
      return f'there is no client {index.clients.max()}'
    if index.places.max(initial=0) >= self._capacity():
      return f'{self._path.name} is too short'
    for client, place, checksum in zip(
      index.clients, index.places, index.checksums, strict=True
    ):
      _, reason = self._record(place, checksum)
      if reason:
        return f'client {client} in {self._path.name} {reason}'
    return ''

  def _capacity(self):
    """Number of records for which the file has room."""
    return os.fstat(self._descriptor).st_size // self._record_bytes


def _records(leaves, dtype):
  """Leaves [K, ...] -> [K] records, each leaf a field."""
  records = np.empty(len(leaves[0]), dtype)
  for name, leaf in zip(dtype.names, leaves, strict=True):
    records[name] = leaf
  return records


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
  """Writes all bytes: a disk that fills up takes a part, and fails at the next try."""
  while data:
    num_written = os.pwrite(descriptor, data, offset)
    data = data[num_written:]
    offset += num_written


@contextlib.contextmanager
def opened(
  experiment: Experiment, folder: pathlib.Path | None = None
) -> Iterator[ClientStore | None]:
  """The store that an experiment needs; None if all memories are on the device.

  Args:
    experiment: the experiment.
    folder: folder of the checkpoints; None: a temporary folder.
  """
  if experiment.placement.client_memory.on_device:
    yield None
    return
  variables = experiment.network.init(experiment.config.seed)
  first_memory = experiment.algorithm.init_client(variables)
  with contextlib.ExitStack() as stack:
    if folder is None:
      folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    files.make_folder(folder)
    store = ClientStore(folder / CLIENTS, first_memory, experiment.config.num_clients)
    stack.callback(store.close)
    yield store


def layout(leaves: PyTree) -> list[str]:
  """A line for each leaf: its path, dtype and shape, whatever its containers are."""
  return [
    f'{jax.tree_util.keystr(path, simple=True, separator=".")} {leaf.dtype} '
    f'{tuple(leaf.shape)}'
    for path, leaf in jax.tree_util.tree_leaves_with_path(leaves)
  ]
