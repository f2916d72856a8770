"""Clients that differ in their classes: Dirichlet shares, or a few classes each."""

import numpy as np

from moon_jax.core.errors import UsageError
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
  classes = _members(labels)

  def draw(rng):
    owners = np.empty(len(labels), np.int64)
    held = np.zeros(num_clients, np.int64)
    for members in classes:
      # Never empty: before the last class is dealt, the mean client holds less than M /
      # N.
      takers = np.flatnonzero((held * num_clients < len(owners)) | (not balance))
      # Part of a Dirichlet vector, scaled to sum to one, is again Dirichlet: drawing
      # just the takers' shares is the same in law, and they cannot all round to zero.
      counts = base.dirichlet_counts(rng, len(takers), beta, len(members))
      owners[rng.permutation(members)] = np.repeat(takers, counts)
      held[takers] += counts
    return held, lambda: owners

  rule = f'--config.partition.beta={beta}'
  return base.first_large_enough(
    rule, draw, len(labels), num_clients=num_clients, min_size=min_size, seed=seed
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
  classes = _members(labels)
  _require_owners(labels, num_clients, classes_per_client)

  def draw(rng):
    owners = np.empty(len(labels), np.int64)
    held = np.zeros(num_clients, np.int64)
    owns = _owned_classes(rng, num_clients, len(classes), classes_per_client)
    for label, members in enumerate(classes):
      takers = np.flatnonzero(owns[:, label])
      takers = takers[np.lexsort((rng.random(len(takers)), held[takers]))]
      dealt = takers[np.arange(len(members)) % len(takers)]
      owners[rng.permutation(members)] = dealt
      held += np.bincount(dealt, minlength=num_clients)
    return held, lambda: owners

  rule = f'--config.partition.classes_per_client={classes_per_client}'
  return base.first_large_enough(
    rule, draw, len(labels), num_clients=num_clients, min_size=min_size, seed=seed
  )


def _owned_classes(rng, num_clients, num_classes, per_client):
  """[N, Y] bool, whether a client owns a class: in turn those with fewest owners."""
  owns = np.zeros((num_clients, num_classes), bool)
  num_owners = np.zeros(num_classes, int)
  for mine in owns:
    # The last key of lexsort is the first to sort by.
    order = np.lexsort((rng.random(num_classes), num_owners))
    mine[order[:per_client]] = True
    num_owners += mine
  return owns


def _require_owners(labels, num_clients, per_client):
  names, sizes = np.unique(labels, return_counts=True)
  flag = f'--config.partition.classes_per_client={per_client}'
  fewest = -(-len(names) // num_clients)  # or some classes would have no owner
  if not fewest <= per_client <= len(names):
    raise UsageError(
      f'{flag} must be in [{fewest}, {len(names)}]: {num_clients} clients own the '
      f'{len(names)} classes of the training examples.'
    )
  most_owners = -(-num_clients * per_client // len(names))
  if sizes.min() < most_owners:
    raise UsageError(
      f'{flag}: class {names[sizes.argmin()]} has {sizes.min()} examples for up to '
      f'{most_owners} clients: lower it or --config.num_clients.'
    )


def _members(labels):
  """The indices of each class that occurs, in the order of the labels."""
  return [np.flatnonzero(labels == label) for label in np.unique(labels)]
