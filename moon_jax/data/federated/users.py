"""The users of a data set: their numbers, and which of them are kept."""

import numpy as np

from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset, Stored
from moon_jax.data.arrays import DataError

Ids = np.ndarray | None


def named(flag: str, data: Dataset, train: Ids, test: Ids) -> Dataset:
  """The data set with the users of its examples.

  Args:
    flag: flag of the data, for the message.
    data: the data set, without users.
    train: [M] ids of the training examples' users, integers or text; None if unknown.
    test: [M] ids of the test examples' users; a user may have test examples only.

  Raises:
    DataError: the ids have another length or type.
  """
  given = {'train': (train, data.train_labels), 'test': (test, data.test_labels)}
  known = {
    split: _ids(f'{flag}: {split}_client', np.asarray(ids), len(labels))
    for split, (ids, labels) in given.items()
    if ids is not None
  }
  if not known:
    return data
  if len({ids.dtype.kind for ids in known.values()}) > 1:
    raise DataError(f'{flag}: train_client and test_client must be of one type.')
  clients = np.unique(np.concatenate([*known.values()]))
  numbers = {split: np.searchsorted(clients, ids) for split, ids in known.items()}
  train, test = map(numbers.get, ('train', 'test'))
  data = data._replace(train_clients=train, test_clients=test, clients=clients)
  return _renumbered(data, np.unique([] if train is None else train).astype(np.int64))


def _ids(what: str, ids: np.ndarray, num_examples: int) -> np.ndarray:
  """The ids as int64 or text."""
  if ids.shape != (num_examples,):
    raise DataError(
      f'{what} has shape {ids.shape}; it must name the user of each of '
      f'{num_examples} examples.'
    )
  if ids.dtype.kind == 'S':
    return np.char.decode(ids, 'utf-8', 'backslashreplace')
  if ids.dtype.kind not in 'iuU':
    raise DataError(f'{what} is {ids.dtype}, neither integers nor text.')
  return ids if ids.dtype.kind == 'U' else ids.astype(np.int64)


def _renumbered(data: Dataset, trained: np.ndarray) -> Dataset:
  """The data set with new numbers for its users; users without examples are dropped.

  Args:
    data: data set with the old numbers.
    trained: users that own training examples, ascending: they come first.
  """
  splits, order = (data.train_clients, data.test_clients), trained
  if data.test_clients is not None:
    order = np.concatenate([trained, np.setdiff1d(data.test_clients, trained)])
  new = np.empty(len(data.clients), np.int32)
  new[order] = np.arange(len(order))
  train, test = (None if numbers is None else new[numbers] for numbers in splits)
  names = data.clients[order]
  return data._replace(train_clients=train, test_clients=test, clients=names)


def tested(
  data: Dataset, num_clients: int
) -> tuple[np.ndarray | None, np.ndarray, int]:
  """The user of each test example, and the number of examples of each user.

  Returns:
    [M] int32 in [0, N'), [N'] sizes, and how many of the N' users are no clients. None,
    [0] and 0 if the test examples have no user ids.
  """
  if data.test_clients is None:
    return None, np.zeros(0, np.int64), 0
  users, whose, sizes = np.unique(
    data.test_clients, return_inverse=True, return_counts=True
  )
  return whose.astype(np.int32), sizes, int(np.count_nonzero(users >= num_clients))


def sizes_of(data: Dataset) -> np.ndarray | None:
  """[N] training examples of each user; None if they have no user ids."""
  if data.stored:
    return data.stored.sizes
  return None if data.train_clients is None else np.bincount(data.train_clients)


def without_small(data: Dataset, min_size: int) -> tuple[Dataset, int]:
  """Leaves out the training examples of users that own too few.

  Test examples of these users stay.

  Args:
    data: the data set, whose training examples have user ids.
    min_size: fewest examples that a user must own.

  Returns:
    The data set, whose users have new numbers, and how many users were left out.

  Raises:
    DataError: no user is left.
  """
  sizes = sizes_of(data)
  stays = sizes >= min_size
  if stays.all():
    return data, 0
  if not stays.any():
    raise DataError(
      f'--config.partition.min_size={min_size} leaves none of {len(sizes)} clients: '
      f'the largest owns {sizes.max()} examples.'
    )
  return _with(data, stays), int(np.count_nonzero(~stays))


def _with(data: Dataset, stays: np.ndarray, test: np.ndarray | None = None) -> Dataset:
  """The training examples of some users, [N] bool, and these rows of the test."""
  if data.stored:
    own = (one[stays] for one in data.stored[:3])
    kept = _chosen(data._replace(stored=Stored(*own, *data.stored[3:])), None, test)
  else:
    kept = _chosen(data, stays[data.train_clients], test)
  return _renumbered(kept, np.flatnonzero(stays))


def limited(data: Dataset, limit: int) -> Dataset:
  """A fixed pseudo-random part of each split, with at most `limit` examples.

  From a split with user ids it takes whole users, at least one: the first in an order
  that both splits share, so mostly the same users train and are tested. A smaller limit
  keeps a part of what a larger one keeps.
  """
  if data.validation_labels is not None:
    images, labels = data.validation_images, data.validation_labels
    rows = host_rng(0, Purpose.SUBSET, 9).permutation(len(labels))[:limit]
    data = data._replace(validation_images=images[rows], validation_labels=labels[rows])
  num_users = 0 if data.clients is None else len(data.clients)
  rank = host_rng(0, Purpose.SUBSET, 2).permutation(num_users)
  train, test = (
    # Splits may be stored class by class: the first examples would not do.
    host_rng(0, Purpose.SUBSET, split).permutation(len(labels))[:limit]
    for split, labels in enumerate((data.train_labels, data.test_labels))
  )
  if data.test_clients is not None:
    sizes = np.bincount(data.test_clients, minlength=len(rank))
    test = np.flatnonzero(_first(rank, sizes, limit)[data.test_clients])
  if (sizes := sizes_of(data)) is not None:
    return _with(data, _first(rank[: len(sizes)], sizes, limit), test)
  part = _chosen(data, train, test)
  return part if data.clients is None else _renumbered(part, np.empty(0, np.int64))


def _first(rank: np.ndarray, sizes: np.ndarray, limit: int) -> np.ndarray:
  """[N] bool, the first users with at most `limit` examples together; at least one."""
  order = np.argsort(rank)
  order = order[sizes[order] > 0]
  number = np.searchsorted(np.cumsum(sizes[order]), limit, 'right')
  return np.isin(np.arange(len(sizes)), order[: max(number, 1)])


def _chosen(data, train, test):
  """The examples of these rows of each split; None: all rows."""
  return data._replace(
    **{
      name: values[rows]
      for split, rows in (('train', train), ('test', test))
      for name in (f'{split}_images', f'{split}_labels', f'{split}_clients')
      if rows is not None and (values := getattr(data, name)) is not None
    }
  )
