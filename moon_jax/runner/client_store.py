"""Where clients' memories are between rounds, if not all on the device.

A client that never took part has the first memory, which is a function of the seed: the
store has a record of those only that did, at most K a round. In host memory or in the
file of the checkpoints; the device gets those of the next cohort while this one trains.
"""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator

import jax
import numpy as np

from moon_jax import tree
from moon_jax.engine import hosts
from moon_jax.engine.experiment import Experiment
from moon_jax.engine.rendezvous import PACKED
from moon_jax.errors import UsageError
from moon_jax.runner import files
from moon_jax.runner.client_file import ClientFile, Index
from moon_jax.types import Arrivals, PyTree

CLIENTS = 'clients.bin'  # beside the checkpoints
_AT_A_TIME = 64  # records


class HostRows:
  """Records in host memory."""

  def __init__(self, num_clients: int, size: int):
    """Makes room for none.

    Args:
      num_clients: N.
      size: R, bytes of a record.
    """
    self._size, self._blocks = size, []
    self._rows, self._used = np.full(num_clients, -1), 0

  def has(self, clients: np.ndarray) -> np.ndarray:
    """[K] int -> [K] bool, whether they have a record."""
    return self._rows[clients] >= 0

  def clients(self) -> np.ndarray:
    """[T] int64, who has a record, ascending."""
    return np.flatnonzero(self._rows >= 0)

  def write(self, clients: np.ndarray, records: np.ndarray) -> None:
    """Keeps records [K, R] uint8 of clients [K]."""
    for client, record in zip(clients, records, strict=True):
      if self._rows[client] < 0:
        self._rows[client] = self._used
        self._used += 1
        if self._used > _AT_A_TIME * len(self._blocks):
          self._blocks.append(np.empty((_AT_A_TIME, self._size), np.uint8))
      self._at(client)[:] = record

  def read(self, clients: np.ndarray) -> np.ndarray:
    """[K] int -> their records [K, R] uint8."""
    return np.stack([self._at(client) for client in clients])

  def _at(self, client):
    block, row = divmod(self._rows[client], _AT_A_TIME)
    return self._blocks[block][row]


class ClientStore:
  """The memories of all clients, of which those that differ are stored."""

  def __init__(
    self,
    first: PyTree,
    num_clients: int,
    tier: str,
    path: pathlib.Path | None = None,
    *,
    only_read: bool = False,
  ):
    """Opens the file of the checkpoints, if there is to be one.

    Args:
      first: the memory of a client before its first round.
      num_clients: N.
      tier: 'host', or 'disk', where the file is all there is.
      path: of the file; None makes none, and nothing can be saved.
      only_read: whether nothing will be written to the file.
    """
    leaves, self._structure = jax.tree.flatten(jax.device_get(first))
    self._first = [np.asarray(leaf) for leaf in leaves]
    self._size = tree.num_bytes(self._first)
    told = num_clients, layout(first), self._size
    self._file = path and ClientFile(path, *told, only_read=only_read)
    self._rows = self._file if tier == 'disk' else HostRows(num_clients, self._size)
    self._unsaved = np.zeros(num_clients, bool)  # kept elsewhere than in the file

  def close(self) -> None:
    """Closes the file."""
    if self._file:
      self._file.close()

  def clients(self) -> np.ndarray:
    """[T] int64, who took part, ascending."""
    return self._rows.clients()

  def read(self, clients: np.ndarray) -> PyTree:
    """[K] int -> their memories, leaves [K, ...], as numpy."""
    return self._read(clients, self._rows.has(clients))

  def _read(self, clients, known):
    """Memories of who is known, and the first memory of the others."""
    records = np.empty((len(clients), self._size), np.uint8)
    records[~known] = _records([leaf[None] for leaf in self._first])
    if known.any():
      records[known] = self._rows.read(clients[known])
    leaves, begin = [], 0
    for leaf in self._first:
      mine = np.ascontiguousarray(records[:, begin : begin + leaf.nbytes])
      leaves.append(mine.view(leaf.dtype).reshape(-1, *leaf.shape))
      begin += leaf.nbytes
    return jax.tree.unflatten(self._structure, leaves)

  def write(self, clients: np.ndarray, memories: PyTree) -> None:
    """Keeps the memories of clients [K], leaves [K, ...] of numpy.

    Raises:
      RunError: the disk cannot be written.
    """
    self._rows.write(clients, _records(jax.tree.leaves(memories)))
    self._unsaved[clients] = self._rows is not self._file

  def arrivals(self, clients: np.ndarray, last: np.ndarray) -> Arrivals:
    """What the device has to be given for a cohort.

    Args:
      clients: [K] ids of the cohort, ascending.
      last: [K] ids of the cohort before, ascending; [0] if the device has none.
    """
    _, staying, slots = np.intersect1d(clients, last, return_indices=True)
    found = np.full(len(clients), -1, np.int32)
    found[staying] = slots
    arriving = self._rows.has(clients) & (found < 0)
    return Arrivals(self._read(clients, arriving), found)

  def shapes(self) -> PyTree:
    """Leaves [N, ...], what the memories of all clients would be."""
    of_all = [
      jax.ShapeDtypeStruct((len(self._unsaved), *leaf.shape), leaf.dtype)
      for leaf in self._first
    ]
    return jax.tree.unflatten(self._structure, of_all)

  def fill(self, everyone: PyTree) -> None:
    """Keeps the memories of all clients, leaves [N, ...] of numpy."""
    for clients in _parts(np.arange(len(self._unsaved))):
      self.write(clients, tree.gather(everyone, clients))

  def index(self) -> Index:
    """Writes to the file what is not there, and waits until it is on the disk."""
    for clients in _parts(np.flatnonzero(self._unsaved)):
      self._file.write(clients, self._rows.read(clients))
      self._unsaved[clients] = False
    return self._file.index()

  def keep(self, indices: Iterable[Index]) -> None:
    """Tells the file which checkpoints there are."""
    self._file.keep(indices)

  def fault(self, index: Index) -> str:
    """What is wrong with what a checkpoint needs of the file; '' if nothing."""
    return self._file.fault(index)

  def restore(self, index: Index) -> None:
    """Goes on from the memories of a checkpoint."""
    self._file.go_on_from(index)
    if self._rows is not self._file:
      for clients in _parts(index.clients):
        self._rows.write(clients, self._file.read(clients))


class _Shared(ClientStore):
  """The store of a run of several processes: what process 0 reads, all have."""

  def read(self, clients):
    return hosts.from_first(super().read(clients))

  def arrivals(self, clients, last):
    memories, staying = super().arrivals(clients, last)
    # By the thread that packs, while the main one may read.
    return Arrivals(hosts.from_first(memories, PACKED), staying)


class _Elsewhere(_Shared):
  """That of another process than the first, which keeps nothing."""

  def write(self, clients, memories):
    pass


@contextlib.contextmanager
def opened(
  built: Experiment, folder: pathlib.Path | None = None
) -> Iterator[ClientStore | None]:
  """The store that an experiment needs; None if all memories are on the device.

  Args:
    built: the experiment.
    folder: of the checkpoints; None saves nothing.
  """
  tier = built.memory.name
  if tier == 'device':
    yield None
    return
  if folder:
    files.make_folder(folder)
  elif tier == 'disk':
    raise UsageError(
      '--config.execution.client_store=disk needs a run directory: use moon_jax.run, '
      'or client_store=host.'
    )
  kind = _Shared if hosts.count() > 1 else ClientStore
  path = folder and folder / CLIENTS
  with contextlib.closing(kind(*_needed(built), tier, path)) as store:
    yield store


def of_other_process(built: Experiment) -> ClientStore | None:
  """The store in another process than the first; None as of `opened`."""
  return None if built.memory.name == 'device' else _Elsewhere(*_needed(built), 'host')


def _needed(built):
  first = built.algorithm.init_client(built.network.init(built.config.seed))
  return first, built.config.num_clients


def brought(
  folder: pathlib.Path,
  index: Index,
  clients: np.ndarray,
  first: PyTree,
  num_clients: int,
) -> tuple[PyTree, str]:
  """What some clients remember, read from the file of the folder's checkpoints.

  Args:
    folder: of the checkpoints.
    index: of one of them, or the part of it that is of these clients.
    clients: [M] ids.
    first: the memory of a client before its first round.
    num_clients: N.

  Returns:
    Leaves [M, ...], as numpy, and ''; or (), and what is wrong with the file.
  """
  path = folder / CLIENTS
  try:
    store = ClientStore(first, num_clients, 'disk', path, only_read=True)
  except OSError as error:
    return (), f'{CLIENTS} cannot be read: {error.strerror}'
  with contextlib.closing(store):
    if reason := store.fault(index):
      return (), reason
    store.restore(index)
    return store.read(clients), ''


def layout(memory: PyTree) -> list[str]:
  """A line for each leaf of a client's memory: its path, dtype and shape."""
  return [
    f'clients.{jax.tree_util.keystr(path, simple=True, separator=".")} '
    f'{leaf.dtype} {leaf.shape}'
    for path, leaf in jax.tree_util.tree_leaves_with_path(memory)
  ]


def _records(leaves: list[np.ndarray]) -> np.ndarray:
  """Leaves [K, ...] -> [K, R] uint8."""
  flat = [np.ascontiguousarray(leaf).reshape(len(leaf), -1) for leaf in leaves]
  return np.concatenate([leaf.view(np.uint8) for leaf in flat], axis=1)


def _parts(clients: np.ndarray) -> Iterator[np.ndarray]:
  for first in range(0, len(clients), _AT_A_TIME):
    yield clients[first : first + _AT_A_TIME]
