"""The users of a data set: their numbers, and which of them are kept."""

from typing import NamedTuple

import numpy as np

from moon_jax.core.client_names import name_of
from moon_jax.core.errors import KnobError
from moon_jax.core.keys import Purpose, host_rng
from moon_jax.core.types import Dataset, Stored
from moon_jax.data.data_errors import DataError
from moon_jax.data.pixels import images_of_rows

_VALIDATION_DRAW = 9  # of Purpose.SUBSET; 0 and 1 are the splits, 2 the users


class TestUsers(NamedTuple):
  """The test examples by their users, of which there are N'.

  Attributes:
    owner: [M] int32 in [0, N'), the user of each example; None if unknown.
    sizes: [N'] int64, examples of each user; [0] if the users are unknown.
    numbers: [N'] int64, ascending, of each user in the data set; if the users are the
      clients, the client's number, and those of users who do not train come after them.
    names: [N'] names of the users.
  """

  owner: np.ndarray | None
  sizes: np.ndarray
  numbers: np.ndarray
  names: list[str]


def named(
  data_flag: str,
  dataset: Dataset,
  train_users: np.ndarray | None,
  test_users: np.ndarray | None,
) -> Dataset:
  """The data set with the users of its examples.

  Args:
    data_flag: flag of the data, for messages.
    dataset: the data set, without users.
    train_users: [M] ids of the training examples' users, integers or text; None if
      unknown.
    test_users: [M] ids of the test examples' users; a user may have test examples only.

  Raises:
    DataError: the ids have another length or type.
  """
  if train_users is None and test_users is None:
    return dataset
  if train_users is not None:
    name = f'{data_flag}: train_client'
    train_users = _checked_ids(name, train_users, len(dataset.train_labels))
  if test_users is not None:
    name = f'{data_flag}: test_client'
    test_users = _checked_ids(name, test_users, len(dataset.test_labels))
  known_users = [users for users in (train_users, test_users) if users is not None]
  if len({users.dtype.kind for users in known_users}) > 1:
    raise DataError(f'{data_flag}: train_client and test_client must be of one type.')
  names = np.unique(np.concatenate(known_users))
  dataset = dataset._replace(
    train_clients=_numbers(names, train_users),
    test_clients=_numbers(names, test_users),
    clients=names,
  )
  with_training_data = np.zeros(0, np.int64)
  if train_users is not None:
    with_training_data = np.unique(dataset.train_clients)
  return _renumbered(dataset, with_training_data)


def _numbers(names, users):
  return None if users is None else np.searchsorted(names, users)


def as_text(names: np.ndarray) -> np.ndarray:
  """Names of users or classes that are bytes, as text; what is no UTF-8, escaped."""
  return np.char.decode(names, 'utf-8', 'backslashreplace')


def _checked_ids(name: str, ids: np.ndarray, num_examples: int) -> np.ndarray:
  """The ids as int64 or text."""
  ids = np.asarray(ids)
  if ids.shape != (num_examples,):
    raise DataError(
      f'{name} has shape {ids.shape}; it must name the user of each of '
      f'{num_examples} examples.'
    )
  if ids.dtype.kind == 'S':
    return as_text(ids)
  if ids.dtype.kind not in 'iuU':
    raise DataError(f'{name} is {ids.dtype}, neither integers nor text.')
  if ids.dtype.kind == 'U':
    return ids
  if ids.max(initial=0) > np.iinfo(np.int64).max:
    raise DataError(f'{name} has {ids.max()}, beyond int64: write them as text.')
  return ids.astype(np.int64)


def _renumbered(dataset: Dataset, with_training_data: np.ndarray) -> Dataset:
  """The data set with new numbers for its users; users without examples are dropped.

  Args:
    dataset: data set with the old numbers.
    with_training_data: users that own training examples, ascending: they come first.
  """
  order = with_training_data
  if dataset.test_clients is not None:
    only_tested = np.setdiff1d(dataset.test_clients, with_training_data)
    order = np.concatenate([with_training_data, only_tested])
  new_numbers = np.empty(len(dataset.clients), np.int32)
  new_numbers[order] = np.arange(len(order))
  train, test = dataset.train_clients, dataset.test_clients
  return dataset._replace(
    train_clients=None if train is None else new_numbers[train],
    test_clients=None if test is None else new_numbers[test],
    clients=dataset.clients[order],
  )


def test_users(dataset: Dataset) -> TestUsers:
  """The users of the test examples."""
  if dataset.test_clients is None:
    nobody = np.zeros(0, np.int64)
    return TestUsers(owner=None, sizes=nobody, numbers=nobody, names=[])
  users, owner, sizes = np.unique(
    dataset.test_clients, return_inverse=True, return_counts=True
  )
  return TestUsers(
    owner=owner.astype(np.int32),
    sizes=sizes,
    numbers=users,
    names=[name_of(user_id) for user_id in dataset.clients[users]],
  )


def sizes_of(dataset: Dataset) -> np.ndarray | None:
  """[N] training examples of each user; None if they have no user ids."""
  if dataset.stored:
    return dataset.stored.sizes
  if dataset.train_clients is None:
    return None
  return np.bincount(dataset.train_clients)


def without_small(dataset: Dataset, min_size: int) -> tuple[Dataset, int]:
  """Leaves out the training examples of users that own too few.

  Test examples of these users stay.

  Args:
    dataset: the data set, whose training examples have user ids.
    min_size: fewest examples that a user must own.

  Returns:
    The data set, whose users have new numbers, and how many users were left out.

  Raises:
    KnobError: no user is left.
  """
  sizes = sizes_of(dataset)
  is_kept = sizes >= min_size
  if is_kept.all():
    return dataset, 0
  if not is_kept.any():
    raise KnobError(
      'partition.min_size',
      min_size,
      f'leaves none of {len(sizes)} clients: the largest owns {sizes.max()} examples.',
    )
  return _with_users(dataset, is_kept), int(np.count_nonzero(~is_kept))


def _with_users(
  dataset: Dataset, is_kept: np.ndarray, test_rows: np.ndarray | None = None
) -> Dataset:
  """The training examples of some users, and some test examples.

  Args:
    dataset: the data set.
    is_kept: [N] bool, the users whose training examples are kept.
    test_rows: rows of the test split; None: all rows.
  """
  if dataset.stored:
    stored = Stored(
      sizes=dataset.stored.sizes[is_kept],
      class_counts=dataset.stored.class_counts[is_kept],
      records=dataset.stored.records[is_kept],
      read=dataset.stored.read,
      digest=dataset.stored.digest,
    )
    smaller = _with_rows(dataset._replace(stored=stored), None, test_rows)
  else:
    smaller = _with_rows(dataset, is_kept[dataset.train_clients], test_rows)
  return _renumbered(smaller, np.flatnonzero(is_kept))


def limited(dataset: Dataset, limit: int) -> Dataset:
  """A fixed pseudo-random part of each split, with at most `limit` examples.

  From a split with user ids it takes whole users, at least one: the first in an order
  that both splits share, so mostly the same users train and are tested. A smaller limit
  keeps a part of what a larger one keeps.
  """
  if dataset.validation_labels is not None:
    rows = _drawn_rows(_VALIDATION_DRAW, len(dataset.validation_labels), limit)
    dataset = dataset._replace(
      validation_images=dataset.validation_images[rows],
      validation_labels=dataset.validation_labels[rows],
    )
  # Splits may be stored class by class: the first examples would not do.
  train_rows = _drawn_rows(0, len(dataset.train_labels), limit)
  test_rows = _drawn_rows(1, len(dataset.test_labels), limit)
  if dataset.clients is None:
    return _with_rows(dataset, train_rows, test_rows)
  rank = host_rng(0, Purpose.SUBSET, 2).permutation(len(dataset.clients))
  if dataset.test_clients is not None:
    sizes = np.bincount(dataset.test_clients, minlength=len(rank))
    is_kept = _first_users(rank, sizes, limit)
    test_rows = np.flatnonzero(is_kept[dataset.test_clients])
  train_sizes = sizes_of(dataset)
  if train_sizes is not None:
    is_kept = _first_users(rank[: len(train_sizes)], train_sizes, limit)
    return _with_users(dataset, is_kept, test_rows)
  smaller = _with_rows(dataset, train_rows, test_rows)
  return _renumbered(smaller, np.zeros(0, np.int64))


def _drawn_rows(draw, num_examples, limit):
  return host_rng(0, Purpose.SUBSET, draw).permutation(num_examples)[:limit]


def _first_users(rank: np.ndarray, sizes: np.ndarray, limit: int) -> np.ndarray:
  """[N] bool, the first users with at most `limit` examples together; at least one."""
  order = np.argsort(rank)
  order = order[sizes[order] > 0]
  number = np.searchsorted(np.cumsum(sizes[order]), limit, 'right')
  return np.isin(np.arange(len(sizes)), order[: max(number, 1)])


def _with_rows(
  dataset: Dataset, train_rows: np.ndarray | None, test_rows: np.ndarray | None
) -> Dataset:
  """The examples of these rows of each split, numbers or [M] bool; None: all rows."""
  if train_rows is not None:
    owner = dataset.train_clients
    dataset = dataset._replace(
      train_images=images_of_rows(dataset.train_images, train_rows),
      train_labels=dataset.train_labels[train_rows],
      train_clients=None if owner is None else owner[train_rows],
    )
  if test_rows is not None:
    owner = dataset.test_clients
    dataset = dataset._replace(
      test_images=images_of_rows(dataset.test_images, test_rows),
      test_labels=dataset.test_labels[test_rows],
      test_clients=None if owner is None else owner[test_rows],
    )
  return dataset
