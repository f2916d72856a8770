"""Clients that differ in their classes: Dirichlet shares, or a few classes each."""

import numpy as np

from moon_jax.core.errors import KnobError
from moon_jax.core.flags import flag
from moon_jax.data.partition import base
from moon_jax.data.partition.base import Partition


def dirichlet(
  labels: np.ndarray,
  *,
  num_clients: int,
  beta: float,
  balance: bool,
  min_size: int,
  seed: int,
) -> Partition:
  """Deals each class by shares from a symmetric Dirichlet distribution.

  Li et al. 2021 (MOON), section 4.1. It is balanced as in MOON's public code: a client
  that holds M / N examples or more gets none of the next class, and the shares of the
  others are scaled to sum to one. All is redrawn until each client has min_size.

  Args:
    labels: [M] int.
    num_clients: N.
    beta: concentration, above 0; small is skewed.
    balance: whether a client with M / N examples gets no more; if not, every class is
      dealt to all clients, as the papers say.
    min_size: fewest examples a client may own.
    seed: the run's seed.

  Raises:
    UsageError: there are fewer than num_clients * min_size examples, or each draw
      left some client below min_size; see `base.first_large_enough`.
  """
  rows_by_class = _rows_by_class(labels)

  def draw(rng):
    owners = np.empty(len(labels), np.int64)
    sizes = np.zeros(num_clients, np.int64)
    for rows in rows_by_class:
      takers = np.arange(num_clients)
      if balance:
        # Never empty: before the last class is dealt, the mean client has less than its
        # fair share.
        takers = np.flatnonzero(sizes * num_clients < len(owners))
      # Part of a Dirichlet vector, scaled to sum to one, is again Dirichlet: drawing
      # just the takers' shares is the same in law, and they cannot all round to zero.
      counts = base.dirichlet_counts(rng, len(takers), beta, len(rows))
      owners[rng.permutation(rows)] = np.repeat(takers, counts)
      sizes[takers] += counts
    return sizes, lambda: owners

  return base.first_large_enough(
    flag('partition.beta', beta),
    draw,
    len(labels),
    num_clients=num_clients,
    min_size=min_size,
    seed=seed,
  )


def shards(
  labels: np.ndarray,
  *,
  num_clients: int,
  classes_per_client: int,
  min_size: int,
  seed: int,
) -> Partition:
  """Gives every client examples of exactly k classes.

  The pathological split of McMahan et al. 2017, section 3, as "#C = k" of NIID-Bench
  (Li et al. 2022, arXiv:2102.02079). One client after the other takes the k classes
  that have the fewest owners so far, ties at random: so the classes differ by at most
  one owner, and every class has one. Then each class is shuffled and dealt out evenly
  among its owners. A remainder goes, one example each, to the owners that hold the
  fewest examples so far, ties at random. All is redrawn until each client has min_size.

  Args:
    labels: [M] int; the classes are those that occur.
    num_clients: N.
    classes_per_client: k, at least 1.
    min_size: fewest examples a client may own.
    seed: the run's seed.

  Raises:
    UsageError: k is not in [1, Y], N * k < Y, some class has fewer examples than
      it may have owners, or no partition with min_size exists or was found.
  """
  rows_by_class = _rows_by_class(labels)
  _require_owners(labels, num_clients, classes_per_client)

  def draw(rng):
    owners = np.empty(len(labels), np.int64)
    sizes = np.zeros(num_clients, np.int64)
    is_owner = _class_owners(rng, num_clients, len(rows_by_class), classes_per_client)
    for number, rows in enumerate(rows_by_class):
      takers = np.flatnonzero(is_owner[:, number])
      # The last key of lexsort is the first to sort by.
      takers = takers[np.lexsort((rng.random(len(takers)), sizes[takers]))]
      dealt = takers[np.arange(len(rows)) % len(takers)]
      owners[rng.permutation(rows)] = dealt
      sizes += np.bincount(dealt, minlength=num_clients)
    return sizes, lambda: owners

  return base.first_large_enough(
    flag('partition.classes_per_client', classes_per_client),
    draw,
    len(labels),
    num_clients=num_clients,
    min_size=min_size,
    seed=seed,
  )


def _class_owners(rng, num_clients, num_classes, classes_per_client):
  """[N, Y] bool, whether a client owns a class: in turn those with fewest owners."""
  is_owner = np.zeros((num_clients, num_classes), bool)
  num_owners = np.zeros(num_classes, int)
  for owned_classes in is_owner:
    order = np.lexsort((rng.random(num_classes), num_owners))
    owned_classes[order[:classes_per_client]] = True
    num_owners += owned_classes
  return is_owner


def _require_owners(labels, num_clients, classes_per_client):
  classes, sizes = np.unique(labels, return_counts=True)
  num_classes = len(classes)
  fewest = -(-num_classes // num_clients)  # or some classes would have no owner
  if not fewest <= classes_per_client <= num_classes:
    raise KnobError(
      'partition.classes_per_client',
      classes_per_client,
      f'must be in [{fewest}, {num_classes}]: {num_clients} clients own the '
      f'{num_classes} classes of the training examples.',
    )
  most_owners = -(-num_clients * classes_per_client // num_classes)
  if sizes.min() < most_owners:
    raise KnobError(
      'partition.classes_per_client',
      classes_per_client,
      f'must be lower, or {flag("num_clients")}: class {classes[sizes.argmin()]} has '
      f'{sizes.min()} examples for up to {most_owners} clients.',
    )


def _rows_by_class(labels):
  """The indices of each class that occurs, in the order of the labels."""
  return [np.flatnonzero(labels == label) for label in np.unique(labels)]
